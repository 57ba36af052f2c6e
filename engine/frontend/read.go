package frontend

import (
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// Extent is the part of one segment that serves an offset.
type Extent struct {
	Segment cp.Segment
	From    uint64 // the offset asked for, or the first one behind a hole
	Limit   uint64 // stop before it: the sealed end, or the commit mark of an active segment
}

// ReadRequest asks one copy of a segment for records. At most Max of them, in offset order,
// with offsets of [From, Limit).
type ReadRequest struct {
	Extent
	Replica cp.NodeID // who holds the copy: the head of the replica set
	Max     int       // at least 1
}

// ReadFunc reads records of one segment; it sets Offset and Position in each. Records outside
// [From, Limit) may be among them, as whole frames bring them, and are dropped. [io.EOF], or
// none at all, means that the copy holds nothing there. Any other error fails the whole read:
// what could not be read is never taken for the end.
type ReadFunc func(ReadRequest) ([]Record, error)

// Locate finds the segment that serves an offset of a range: the one that holds it, or the
// first behind a hole. It is [io.EOF] when nothing committed lies at the offset or behind it,
// and cp.ErrNoSuchRange for a range that the view does not have. It is a look-up in the cached
// view: a caught-up poll costs no call to anybody.
func (f *Frontend) Locate(id fence.RangeID, offset uint64) (Extent, error) {
	p, err := f.look(id, offset)
	if err != nil {
		return Extent{}, err
	}
	if !p.found {
		return Extent{}, io.EOF
	}
	return p.Extent, nil
}

// A place is what the view says about an offset of a range.
type place struct {
	Extent
	found    bool
	earliest uint64 // first offset still stored, or the next one to be
	floor    uint64 // where the last sealed segment ended
	final    bool   // the range takes no more: floor is its end
}

func (f *Frontend) look(id fence.RangeID, offset uint64) (place, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	state := f.view.ofID(id.Topic)
	if state == nil || state.Range(id) == nil {
		return place{}, rangeErr(id, cp.ErrNoSuchRange)
	}
	r, sealed, head := state.Range(id), state.Sealed(id), state.Head(id)
	p := place{earliest: r.NextOffset, floor: r.NextOffset, final: isFinal(state, r)}
	if len(sealed) > 0 {
		p.earliest = sealed[0].Start
	}
	p.Extent, p.found = locate(sealed, head, offset, f.horizon(state, id))
	return p, nil
}

// isFinal says whether a range takes no more records, so that its floor is its end.
func isFinal(state *cp.State, r *cp.Range) bool {
	return r.Phase == cp.Sealed && state.Head(r.ID) == nil
}

// isRead says whether nothing of a range will ever lie at the offset or behind it.
func isRead(state *cp.State, r *cp.Range, offset uint64) bool {
	return isFinal(state, r) && offset >= r.NextOffset
}

// CommitMark is the first offset of a range that readers may not see yet: no quorum is known
// to hold it.
func (f *Frontend) CommitMark(id fence.RangeID) (uint64, error) {
	f.meta.RLock()
	defer f.meta.RUnlock()
	state := f.view.ofID(id.Topic)
	if state == nil || state.Range(id) == nil {
		return 0, rangeErr(id, cp.ErrNoSuchRange)
	}
	return f.horizon(state, id), nil
}

// horizon is a range's commit mark. What the control plane has sealed is committed; beyond it
// only what was acknowledged, and never what this frontend has not even reserved: a counter
// that a seal rewound takes the mark with it. Meta is held.
func (f *Frontend) horizon(state *cp.State, id fence.RangeID) uint64 {
	floor := state.Range(id).NextOffset
	s := f.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ranges[id]
	if r == nil {
		return floor
	}
	return min(max(r.durable, floor), max(r.next, floor))
}

// locate chooses among a range's segments, sealed ones by start and the head behind them.
//
// The segment that serves an offset is the last one that starts there or before, if it reaches
// so far; not simply that one, because an empty sealed segment shares its start with its
// successor and serves nothing. Where none does, it is the next one that holds anything.
func locate(sealed []*cp.Segment, head *cp.Segment, offset, horizon uint64) (Extent, bool) {
	if offset >= horizon {
		return Extent{}, false
	}
	i := sort.Search(len(sealed), func(i int) bool { return sealed[i].Start > offset })
	if i > 0 && offset < sealed[i-1].Start+sealed[i-1].Length {
		i--
	}
	for i < len(sealed) && sealed[i].Length == 0 {
		i++
	}
	e := Extent{Limit: horizon}
	switch {
	case i < len(sealed):
		// A copy may hold more than its sealed length. Serving that would hand out offsets
		// that the successor owns.
		e.Segment, e.Limit = *sealed[i], sealed[i].Start+sealed[i].Length
	case head != nil:
		e.Segment = *head
	default:
		return Extent{}, false
	}
	e.From = max(offset, e.Segment.Start)
	return e, e.From < e.Limit
}

// Read returns up to max records of a range from the one segment that serves the offset, or
// the first behind it. Their offsets say where they really begin. [io.EOF]: nothing committed
// is there yet. [ErrUnreadable]: the control plane promises records that the copy does not
// have. Other errors: cp.ErrNoSuchRange, or the ReadFunc's own.
func (f *Frontend) Read(id fence.RangeID, offset uint64, max int, read ReadFunc) ([]Record, error) {
	if max < 1 {
		return nil, fmt.Errorf("%w: max is %d, want 1 or more", ErrOptions, max)
	}
	e, err := f.Locate(id, offset)
	if err != nil {
		return nil, err
	}
	return readExtent(e, max, read)
}

// readExtent reads one extent and holds the ReadFunc to its contract.
func readExtent(e Extent, max int, read ReadFunc) ([]Record, error) {
	budget := min(uint64(max), e.Limit-e.From)
	if len(e.Segment.Replicas) == 0 {
		return nil, rangeErr(e.Segment.ID.Range, fmt.Errorf("%w: segment %s has no replica", ErrUnreadable, e.Segment.ID))
	}
	records, err := read(ReadRequest{Extent: e, Replica: e.Segment.Replicas[0], Max: int(budget)})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, rangeErr(e.Segment.ID.Range, err)
	}
	kept := records[:0:0]
	last := uint64(0)
	for i := range records {
		o := records[i].Offset
		if i > 0 && o <= last {
			return nil, rangeErr(e.Segment.ID.Range, fmt.Errorf("%w: offset %d after %d", ErrReadFunc, o, last))
		}
		last = o
		if o >= e.From && o < e.Limit && uint64(len(kept)) < budget {
			kept = append(kept, records[i])
		}
	}
	if len(kept) > 0 {
		return kept, nil
	}
	if e.Segment.Phase == cp.Sealed {
		return nil, rangeErr(e.Segment.ID.Range, fmt.Errorf("%w: segment %s at %d of %d", ErrUnreadable, e.Segment.ID, e.From, e.Limit))
	}
	return nil, io.EOF
}
