package cp

import (
	"fmt"
	"slices"
)

// Check verifies every invariant of the state and names the first that does not
// hold. It costs a walk over everything: tests run it after every step, and a
// node may after reading a snapshot.
func (s *State) Check() error {
	names, ids := 0, 0
	for name, t := range s.topics.all {
		names++
		if name != t.rec.Name || s.topic(name) != t {
			return fmt.Errorf("cp: topic %q is stored under %q", t.rec.Name, name)
		}
		if s.topicByID(t.rec.ID) != t {
			return fmt.Errorf("cp: topic %q is not stored under its identity", name)
		}
		if err := t.check(); err != nil {
			return err
		}
	}
	for id, t := range s.ids.all {
		ids++
		if id != t.rec.ID || s.topic(t.rec.Name) != t {
			return fmt.Errorf("cp: identity %v leads to topic %q", id, t.rec.Name)
		}
	}
	if names != s.topics.len || ids != names || s.ids.len != names {
		return fmt.Errorf("cp: %d topics and %d identities, counted as %d and %d", names, ids, s.topics.len, s.ids.len)
	}
	for name, p := range s.policies {
		if name == "" || len(name) > MaxName {
			return fmt.Errorf("cp: policy name %q", name)
		}
		if err := p.check(true); err != nil {
			return fmt.Errorf("cp: policy %q: %w", name, err)
		}
	}
	return s.access.check()
}

func (t *topic) check() error {
	switch {
	case !ValidTopicName(t.rec.Name):
		return fmt.Errorf("cp: topic name %q", t.rec.Name)
	case t.rec.ID.IsZero():
		return t.broken("has no identity")
	case t.rec.Bits < 1 || t.rec.Bits > 32:
		return t.broken("has %d bits", t.rec.Bits)
	case len(t.rec.Policy) > MaxName:
		return t.broken("has a policy name of %d bytes", len(t.rec.Policy))
	case len(t.ranges) == 0 || uint64(t.rec.NextRangeSeq) != uint64(len(t.ranges)):
		return t.broken("has %d ranges and goes on at %d", len(t.ranges), t.rec.NextRangeSeq)
	case t.revision == 0:
		return t.broken("has no revision")
	}
	ancestors := 0
	for seq, r := range t.ranges {
		if err := t.checkRange(uint32(seq), r); err != nil {
			return err
		}
		if from := r.rec.From; len(from) != 1 || t.rng(from[0].Seq).rec.Children[0] == r.rec.ID {
			ancestors += r.ancestors
		}
	}
	if ancestors != t.ancestors {
		return t.broken("has %d ancestors, counted as %d", ancestors, t.ancestors)
	}
	if err := t.checkTiling(); err != nil {
		return err
	}
	return t.checkGroups()
}

func (t *topic) broken(format string, args ...any) error {
	return fmt.Errorf("cp: topic %q %s", t.rec.Name, fmt.Sprintf(format, args...))
}

func (t *topic) checkRange(seq uint32, r *rng) error {
	rec := r.rec
	broken := func(format string, args ...any) error {
		return t.broken("range %d: %s", seq, fmt.Sprintf(format, args...))
	}
	switch {
	case rec.ID != t.rangeID(seq):
		return broken("is %v", rec.ID)
	case rec.Start >= rec.End || rec.End > keyspace || (rec.Start|rec.End)%t.unit() != 0:
		return broken("covers [%d,%d)", rec.Start, rec.End)
	case t.rec.Phase == Sealed && rec.Phase == Active:
		return broken("is active in a sealed topic")
	case t.rec.Phase == Active && (rec.Phase == Sealed) != (len(rec.Children) > 0):
		return broken("is sealed %v with %d children", rec.Phase == Sealed, len(rec.Children))
	}
	if err := t.checkBirth(r); err != nil {
		return broken("%v", err)
	}
	if err := t.checkChildren(rec); err != nil {
		return broken("%v", err)
	}
	if err := r.checkSegments(); err != nil {
		return broken("%v", err)
	}
	return nil
}

// checkBirth: a range is the root, half of the one range it comes from, or the
// sum of the two buddies it comes from; and its line says so.
func (t *topic) checkBirth(r *rng) error {
	rec := r.rec
	var parents []*rng
	for _, id := range rec.From {
		p := t.rng(id.Seq)
		if id.Topic != t.rec.ID || p == nil || id.Seq >= rec.ID.Seq {
			return fmt.Errorf("comes from %v", id)
		}
		if !slices.Contains(p.rec.Children, rec.ID) {
			return fmt.Errorf("is no child of %v, which it comes from", id)
		}
		parents = append(parents, p)
	}
	fits, want := false, line{}
	switch len(parents) {
	case 0:
		fits = rec.ID.Seq == 0 && rec.Start == 0 && rec.End == keyspace
	case 1:
		p := parents[0].rec
		want = t.half(parents[0])
		mid := p.Start + (p.End-p.Start)/2
		fits = rec.Start == p.Start && rec.End == mid || rec.Start == mid && rec.End == p.End
	case 2:
		a, b := parents[0].rec, parents[1].rec
		want = t.sum(parents[0], parents[1])
		fits = buddies(a, b) && parents[0].over == parents[1].over && rec.Start == min(a.Start, b.Start) && rec.End == max(a.End, b.End)
	}
	if !fits {
		return fmt.Errorf("covers [%d,%d), which does not follow from %v", rec.Start, rec.End, rec.From)
	}
	if have := (line{r.over, r.ancestors}); have != want {
		return fmt.Errorf("has the line %v, want %v", have, want)
	}
	return nil
}

// checkChildren: a range has none, two halves, or one sum.
func (t *topic) checkChildren(rec *Range) error {
	var children []*Range
	for _, id := range rec.Children {
		c := t.rng(id.Seq)
		if id.Topic != t.rec.ID || c == nil || !slices.Contains(c.rec.From, rec.ID) {
			return fmt.Errorf("has child %v, which does not come from it", id)
		}
		children = append(children, c.rec)
	}
	ok := false
	switch len(children) {
	case 0:
		ok = true
	case 1:
		ok = rec.Phase == Sealed && len(children[0].From) == 2
	case 2:
		l, r := children[0], children[1]
		ok = rec.Phase == Sealed && l.Start == rec.Start && l.End == r.Start && r.End == rec.End &&
			r.ID.Seq == l.ID.Seq+1
	}
	if !ok {
		return fmt.Errorf("has children %v", rec.Children)
	}
	return nil
}

// checkSegments: sequences rise, offsets never overlap, and the floors are
// above everything there is.
func (r *rng) checkSegments() error {
	seq, end := uint64(0), uint64(0) // the least that may come next
	for _, s := range r.sealed {
		switch {
		case s.Phase != Sealed:
			return fmt.Errorf("%v is listed as sealed", s.ID)
		case s.Start+s.Length < s.Start:
			return fmt.Errorf("%v ends past the last offset", s.ID)
		}
		if err := r.checkSegment(s, seq, end); err != nil {
			return err
		}
		seq, end = uint64(s.ID.Seq)+1, s.Start+s.Length
	}
	if end > r.rec.NextOffset {
		return fmt.Errorf("goes on at %d, below its last segment's end %d", r.rec.NextOffset, end)
	}
	h := r.head
	if h == nil {
		return nil
	}
	switch {
	case h.Phase != Active || h.Length|h.Bytes|uint64(h.SealedAt) != 0:
		return fmt.Errorf("%v is the head and sealed", h.ID)
	case h.Start != r.rec.NextOffset:
		return fmt.Errorf("%v starts at %d, not at %d", h.ID, h.Start, r.rec.NextOffset)
	case h.ID.Seq+1 != r.rec.NextSequence:
		return fmt.Errorf("%v is the head, but %d comes next", h.ID, r.rec.NextSequence)
	case len(r.rec.Children) > 0:
		return fmt.Errorf("has an active segment and children")
	}
	return r.checkSegment(h, seq, end)
}

func (r *rng) checkSegment(s *Segment, seq, start uint64) error {
	switch {
	case s.ID.Range != r.rec.ID:
		return fmt.Errorf("%v is stored here", s.ID)
	case uint64(s.ID.Seq) < seq || s.ID.Seq >= r.rec.NextSequence:
		return fmt.Errorf("%v is not between %d and %d", s.ID, seq, r.rec.NextSequence)
	case s.Start < start:
		return fmt.Errorf("%v starts at %d, inside the one before, which ends at %d", s.ID, s.Start, start)
	case !validReplicas(s.Replicas):
		return fmt.Errorf("%v has replicas %q", s.ID, s.Replicas)
	}
	return nil
}

// checkTiling: the active ranges of an active topic cover every position once,
// a sealed topic has none, and the list is what the ranges say.
func (t *topic) checkTiling() error {
	if t.rec.Phase == Sealed {
		if len(t.active) != 0 {
			return t.broken("is sealed and lists %d active ranges", len(t.active))
		}
		return nil
	}
	n := 0
	for _, r := range t.ranges {
		if r.rec.Phase == Active {
			n++
		}
	}
	if n != len(t.active) {
		return t.broken("lists %d of %d active ranges", len(t.active), n)
	}
	at := uint64(0)
	for _, r := range t.active {
		if own := t.rng(r.ID.Seq); own == nil || own.rec != r || r.Phase != Active {
			return t.broken("lists an outdated range %v", r.ID)
		}
		if r.Start != at {
			return t.broken("has no or two ranges at %d", at)
		}
		at = r.End
	}
	if at != keyspace {
		return t.broken("covers its keyspace up to %d", at)
	}
	return nil
}

// checkGroups: positions name ancestors, and none is there that the positions
// of all children replace.
func (t *topic) checkGroups() error {
	if len(t.groups) > MaxGroups {
		return t.broken("has %d groups", len(t.groups))
	}
	for name, g := range t.groups {
		if !ValidName(name) {
			return t.broken("has a group %q", name)
		}
		for seq, p := range g.positions {
			r := t.rng(seq)
			if r == nil {
				return t.broken("group %q: has a position in range %d", name, seq)
			}
			if _, ok := p[r.rec.ID]; !ok && r.rec.Phase == Active {
				return t.broken("group %q: has finished range %d, which is active", name, seq)
			}
			for source := range p {
				if !t.reads(r, source) {
					return t.broken("group %q: reads %v for range %d", name, source, seq)
				}
			}
		}
		kept := len(g.positions)
		rest := make(map[uint32]Position, kept)
		for seq, p := range g.positions {
			rest[seq] = p
		}
		if t.prune(rest); len(rest) != kept {
			return t.broken("group %q: keeps %d positions that others replace", name, kept-len(rest))
		}
	}
	return nil
}
