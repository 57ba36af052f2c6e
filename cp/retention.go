package cp

import "slices"

// Retention is what decides when stored data goes.
type Retention struct {
	// Defaults hold for topics bound to no policy, and for the fields that a
	// policy inherits. A default that inherits is no rule.
	Defaults Policy

	// Lookup finds the policy of a name, nil finds none. A caller that cannot
	// read the definitions must skip the sweep and not answer false.
	Lookup func(name string) (Policy, bool)

	// Backstop is the one rule for topics bound to a name that is not defined.
	// Such a name most likely exists to keep data longer, so without a backstop
	// nothing of them goes.
	Backstop Bound
}

// Effective is the policy that holds for a topic, without a field that
// inherits. It is unresolved when the topic is bound to an undefined name.
func (r Retention) Effective(t *Topic) (p Policy, resolved bool) {
	if t.Policy == "" {
		return r.Defaults.Over(off), true
	}
	if r.Lookup != nil {
		if p, ok := r.Lookup(t.Policy); ok {
			return p.Over(r.Defaults).Over(off), true
		}
	}
	p = Policy{MaxAge: r.Backstop}.Over(off)
	// Where a segment goes and how large it grows destroys nothing: the defaults
	// hold for those.
	p.SegmentMaxBytes = r.Defaults.SegmentMaxBytes.over(Unlimited())
	if p.SpreadBy = r.Defaults.SpreadBy; p.SpreadBy.Setting == Inherit {
		p.SpreadBy = off.SpreadBy
	}
	return p, false
}

var off = Policy{
	MaxAge: Unlimited(), MaxBytes: Unlimited(), SegmentMaxAge: Unlimited(), SegmentMaxBytes: Unlimited(),
	SpreadBy: Spread{Setting: Off},
}

// Unresolved lists, by name, the topics bound to a policy that is not defined.
func (r Retention) Unresolved(s *State) []string {
	var names []string
	for name, t := range s.topics.all {
		if _, ok := r.Effective(t.rec); !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Expired lists the sealed segments that retention lets go at now, in
// milliseconds since the epoch: of each range, oldest first, those sealed more
// than MaxAge ago, and as many from the oldest on as bring the range's sealed
// bytes down to MaxBytes. Ranges come by topic name and sequence. A seal whose
// time is unknown (0 or before) has no age, and an active segment never goes.
func Expired(s *State, now int64, r Retention) []*Segment {
	var gone []*Segment
	for _, t := range s.sorted() {
		p, _ := r.Effective(t.rec)
		for _, rng := range t.ranges {
			gone = expired(gone, rng.sealed, now, p)
		}
	}
	return gone
}

// expired appends what goes of one range.
func expired(gone, sealed []*Segment, now int64, p Policy) []*Segment {
	maxAge, byAge := p.MaxAge.Get()
	maxBytes, bySize := p.MaxBytes.Get()
	if !byAge && !bySize {
		return gone
	}
	first := 0 // the oldest that the budget keeps
	if bySize {
		first = withinBudget(sealed, uint64(maxBytes))
	}
	for i, seg := range sealed {
		large := i < first
		old := byAge && seg.SealedAt > 0 && now > seg.SealedAt && now-seg.SealedAt > maxAge
		if large || old {
			gone = append(gone, seg)
		}
	}
	return gone
}

// withinBudget is the place of the oldest segment from which on they all fit.
func withinBudget(sealed []*Segment, budget uint64) int {
	const ceiling = 1 << 63 // above every budget; a sum stops there instead of wrapping
	kept := uint64(0)
	for i := len(sealed) - 1; i >= 0; i-- {
		kept += min(sealed[i].Bytes, ceiling-kept)
		if kept > budget {
			return i + 1
		}
	}
	return 0
}

// DueForRoll lists the active segments that have been open for SegmentMaxAge at
// now, in milliseconds since the epoch; at most one per range, by topic name and
// sequence. One whose opening time is unknown (0 or before) is due at once, which
// costs one seal. One that lies in the future is not due.
func DueForRoll(s *State, now int64, r Retention) []*Segment {
	var due []*Segment
	for _, t := range s.sorted() {
		p, _ := r.Effective(t.rec)
		limit, ok := p.SegmentMaxAge.Get()
		if !ok {
			continue
		}
		for _, rng := range t.ranges {
			if h := rng.head; h != nil && (h.OpenedAt <= 0 || now >= h.OpenedAt && now-h.OpenedAt >= limit) {
				due = append(due, h)
			}
		}
	}
	return due
}
