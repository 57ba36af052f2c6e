package fence_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ringfence/ringfence/fence"
)

const base = 10

// Every end of a small space: below, at and above the base, with every position
// and byte count that could go with it, and some that could not.
func ends() []fence.End {
	var all []fence.End
	for _, o := range []uint64{base - 1, base, base + 1, base + 2} {
		for _, p := range []int64{-1, 0, 4096, 8192} {
			for _, b := range []uint64{0, 100, 200} {
				all = append(all, fence.End{Offset: o, Position: p, Bytes: b})
			}
		}
	}
	return all
}

// model is what a latch is, said as data: the ends it took, in order.
type model struct {
	fence, cut *fence.End
}

func possible(e fence.End) error {
	if e.Offset < base {
		return fence.ErrBelowBase
	}
	if e.Position < 0 || (e.Offset > base && e.Bytes == 0) {
		return fence.ErrEnd
	}
	return nil
}

func (m model) doFence(e fence.End) (model, error) {
	switch {
	case m.cut != nil && e != *m.cut, m.cut == nil && m.fence != nil && e != *m.fence:
		return m, fence.ErrOtherEnd
	case m.fence != nil:
		return m, nil
	}
	if err := possible(e); err != nil {
		return m, err
	}
	return model{fence: &e}, nil
}

func (m model) doSettle(e fence.End) (model, error) {
	switch {
	case m.fence == nil:
		return m, fence.ErrNotFenced
	case m.cut != nil && e == *m.cut:
		return m, nil
	case m.cut != nil:
		return m, fence.ErrSettled
	}
	if err := possible(e); err != nil {
		return m, err
	}
	f := *m.fence
	switch {
	case e == f:
		return m, nil
	case e.Offset <= f.Offset && e.Position <= f.Position && e.Bytes <= f.Bytes:
		return model{fence: m.fence, cut: &e}, nil
	}
	return m, fence.ErrExtend
}

func (m model) verify(l fence.Latch) error {
	state, end, latched := fence.Open, fence.End{}, fence.End{}
	if m.fence != nil {
		state, end, latched = fence.Fenced, *m.fence, *m.fence
	}
	if m.cut != nil {
		state, end = fence.Settled, *m.cut
	}
	e, closed := l.End()
	f, fenced := l.Latched()
	if l.State() != state || closed != (state != fence.Open) || fenced != closed || e != end || f != latched {
		return fmt.Errorf("latch is %v at %v (fenced at %v), want %v at %v (%v)", l.State(), e, f, state, end, latched)
	}
	err := l.Admit()
	if (err == nil) != (state == fence.Open) {
		return fmt.Errorf("a latch that is %v admits an append: %v", state, err)
	}
	if s := (fence.Sealed{}); state != fence.Open && (!errors.Is(err, fence.ErrFenced) || !errors.As(err, &s) || s.End != end) {
		return fmt.Errorf("refusal %v does not say that the copy ends at %v", err, end)
	}
	return nil
}

// Every sequence of moves of every length that can still change something (an
// open latch moves twice at most), and one more, answers what the model answers.
func TestLatchExhaustive(t *testing.T) {
	all := ends()
	seen := map[fence.Move]int{}
	refused := map[error]int{}
	var walk func(l fence.Latch, m model, depth int)
	walk = func(l fence.Latch, m model, depth int) {
		if err := m.verify(l); err != nil {
			t.Fatal(err)
		}
		seen[l.State()]++
		if depth == 0 {
			return
		}
		try := func(name string, e fence.End, next fence.Latch, err error, want model, wantErr error) {
			if !errors.Is(err, wantErr) || (err == nil) != (wantErr == nil) {
				t.Fatalf("%v of %+v at %+v: %v, want %v", name, m, e, err, wantErr)
			}
			if wantErr != nil {
				refused[wantErr]++
			}
			if next == l { // nothing moved: what follows is walked already
				if err := want.verify(next); err != nil {
					t.Fatal(err)
				}
				return
			}
			walk(next, want, depth-1)
		}
		for _, e := range all {
			next, err := l.Fence(e, 7, 1000)
			want, wantErr := m.doFence(e)
			try("fence", e, next, err, want, wantErr)
			next, err = l.Settle(e, 2000)
			want, wantErr = m.doSettle(e)
			try("settle", e, next, err, want, wantErr)
		}
	}
	walk(fence.NewLatch(base), model{}, 3)
	for _, s := range []fence.Move{fence.Open, fence.Fenced, fence.Settled} {
		if seen[s] == 0 {
			t.Errorf("no latch was ever %v", s)
		}
	}
	for _, err := range []error{fence.ErrOtherEnd, fence.ErrNotFenced, fence.ErrBelowBase, fence.ErrEnd, fence.ErrExtend, fence.ErrSettled} {
		if refused[err] == 0 {
			t.Errorf("nothing was refused with %v", err)
		}
	}
}

// The answer to a fence is the first one's for ever, whoever asks again.
func TestLatchKeepsFirstFence(t *testing.T) {
	end := fence.End{Offset: 15, Position: 4096, Bytes: 300}
	l, err := fence.NewLatch(base).Fence(end, 7, 1000)
	if err != nil {
		t.Fatal(err)
	}
	again, err := l.Fence(end, 8, 2000)
	if err != nil || again != l {
		t.Fatalf("second fence: %+v, %v; want %+v", again, err, l)
	}
	if id, at := again.FenceID(); id != 7 || at != 1000 {
		t.Fatalf("fence %d at %d, want 7 at 1000", id, at)
	}
}

// A latch that was written down and read back is the same latch, and slots that
// no moves could write are refused.
func TestLatchRestore(t *testing.T) {
	end := fence.End{Offset: 15, Position: 8192, Bytes: 300}
	cut := fence.End{Offset: 12, Position: 4096, Bytes: 100}
	fenced, err := fence.NewLatch(base).Fence(end, 7, 1000)
	if err != nil {
		t.Fatal(err)
	}
	settled, err := fenced.Settle(cut, 2000)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := fence.Restore(base, end, 7, 1000, nil, 0); err != nil || l != fenced {
		t.Errorf("fenced: %+v, %v; want %+v", l, err, fenced)
	}
	if l, err := fence.Restore(base, end, 7, 1000, &cut, 2000); err != nil || l != settled || l.SettledAt() != 2000 {
		t.Errorf("settled: %+v, %v; want %+v", l, err, settled)
	}
	if _, err := fence.Restore(base, fence.End{Offset: base - 1}, 7, 1000, nil, 0); !errors.Is(err, fence.ErrBelowBase) {
		t.Errorf("latch below its base: %v", err)
	}
	if _, err := fence.Restore(base, cut, 7, 1000, &end, 2000); !errors.Is(err, fence.ErrExtend) {
		t.Errorf("settlement above the fence: %v", err)
	}
	if _, err := fence.Restore(base, end, 7, 1000, &end, 2000); !errors.Is(err, fence.ErrEnd) {
		t.Errorf("settlement at the fence: %v", err)
	}
}

func TestIDs(t *testing.T) {
	id := fence.TopicID{0: 0xab, 15: 1}
	if got, err := fence.ParseTopicID(id.String()); err != nil || got != id {
		t.Fatalf("%v read back is %v, %v", id, got, err)
	}
	for _, bad := range []string{"", "ab", id.String() + "0", "g" + id.String()[1:]} {
		if _, err := fence.ParseTopicID(bad); err == nil {
			t.Errorf("%q is an identity", bad)
		}
	}
	a, b := fence.RangeID{Topic: id, Seq: 1}, fence.RangeID{Topic: id, Seq: 2}
	if a.Compare(b) >= 0 || b.Compare(a) <= 0 || a.Compare(a) != 0 {
		t.Error("ranges do not come by number")
	}
	s := fence.SegmentID{Range: a, Seq: 9}
	if s.Compare(fence.SegmentID{Range: b}) >= 0 || s.Compare(s) != 0 {
		t.Error("segments do not come by range first")
	}
	if want := id.String() + "/r1/s9"; s.String() != want {
		t.Errorf("segment is called %s, want %s", s, want)
	}
}
