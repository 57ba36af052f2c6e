package frontend

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

var errEOF = io.EOF

func TestReadOfNothing(t *testing.T) {
	w := newWorld(t)
	_, err := w.f.Read(root(), 0, 10, w.s.read)
	wantErr(t, err, io.EOF)
	_, err = w.f.Read(fence.RangeID{Topic: topicID(7)}, 0, 10, w.s.read)
	wantErr(t, err, cp.ErrNoSuchRange)
	_, err = w.f.Read(root(), 0, 0, w.s.read)
	wantErr(t, err, ErrOptions)
	want(t, "calls", w.s.reads, 0)
}

// Nothing past the commit mark: what was planned, or appended and not acknowledged, is not shown.
func TestReadStopsAtTheCommitMark(t *testing.T) {
	w := newWorld(t)
	d, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 4})
	if err != nil {
		t.Fatal(err)
	}
	d.Records = many(4)
	if _, err := w.s.append(d); err != nil {
		t.Fatal(err)
	}
	_, err = w.f.Read(root(), 0, 10, w.s.read)
	wantErr(t, err, io.EOF)
	w.f.AdoptOffsets(root(), d.Segment, 1)
	got, err := w.f.Read(root(), 0, 10, w.s.read)
	want(t, "acknowledged", fmt.Sprint(keys(got), err), "[k000 k001] <nil>")
	_, err = w.f.Read(root(), 2, 10, w.s.read)
	wantErr(t, err, io.EOF)
	want(t, "a caught-up poll calls nobody", w.s.reads, 1)
}

// A copy that holds more than its sealed length gives none of it away (incident C1): every offset
// comes from the segment that owns it.
func TestReadStopsAtTheSealedEdge(t *testing.T) {
	w := newWorld(t)
	w.n(10)
	r, _ := w.f.ActiveRoll(root())
	if err := w.f.RecordSeal(r, 7, 7, 1); err != nil {
		t.Fatal(err)
	}
	w.produce(at("s7", 0), at("s8", 0))
	got, err := w.f.Read(root(), 5, 10, w.s.read)
	want(t, "up to the edge", fmt.Sprint(keys(got), err), "[r5 r6] <nil>")
	got, err = w.f.Read(root(), 6, 1, w.s.read)
	want(t, "the last one", fmt.Sprint(keys(got), err), "[r6] <nil>")
	got, err = w.f.Read(root(), 7, 10, w.s.read)
	want(t, "at the edge", fmt.Sprint(keys(got), err), "[s7 s8] <nil>")
}

// Of segments with one start the one that serves is read (incident C2).
func TestReadPastAnEmptySegment(t *testing.T) {
	w := newWorld(t)
	w.n(5)
	w.roll(root())
	for range 2 {
		if _, err := w.f.OpenHead(root(), 1); err != nil {
			t.Fatal(err)
		}
		w.roll(root())
	}
	w.produce(at("x", 0))
	for offset, wanted := range map[uint64]string{4: "[r4]", 5: "[x]"} {
		got, err := w.f.Read(root(), offset, 10, w.s.read)
		want(t, fmt.Sprint(offset), fmt.Sprint(keys(got), err), wanted+" <nil>")
	}
	w.roll(root())
	got, err := w.f.Read(root(), 5, 10, w.s.read)
	want(t, "once sealed", fmt.Sprint(keys(got), err), "[x] <nil>")
}

// A read steps over a hole, and the records say where it really began (incident C3).
func TestReadStepsOverAHole(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		w.n(3)
		w.roll(root())
	}
	if err := w.f.DeleteSegment(seg(root(), 1)); err != nil {
		t.Fatal(err)
	}
	e, err := w.f.Locate(root(), 4)
	want(t, "extent", fmt.Sprint(e.Segment.ID, e.From, e.Limit, err), fmt.Sprint(seg(root(), 2), 6, 9, nil))
	got, err := w.f.Read(root(), 3, 10, w.s.read)
	want(t, "read", fmt.Sprint(got[0].Offset, len(got), err), "6 3 <nil>")
	w.expire(2)
	_, err = w.f.Locate(root(), 4)
	wantErr(t, err, io.EOF)
	// Empty segments behind the hole serve nothing.
	for range 2 {
		if _, err := w.f.OpenHead(root(), 1); err != nil {
			t.Fatal(err)
		}
		w.roll(root())
	}
	_, err = w.f.Locate(root(), 4)
	wantErr(t, err, io.EOF)
	w.n(2)
	for range 2 {
		e, err = w.f.Locate(root(), 4)
		want(t, "behind empty ones", fmt.Sprint(e.Segment.ID, e.From, e.Limit, err), fmt.Sprint(seg(root(), 5), 9, 11, nil))
		if _, ok := w.f.ActiveRoll(root()); ok {
			w.roll(root())
		}
	}
}

// A sealed segment that does not hold what was promised is an error and never the end (incident C7);
// and so is any failure of the read (incident C5).
func TestUnreadableIsNotTheEnd(t *testing.T) {
	w := newWorld(t)
	w.n(4)
	w.roll(root())
	w.s.short[seg(root(), 0)] = 2
	got, err := w.f.Read(root(), 0, 10, w.s.read)
	want(t, "what it still has", fmt.Sprint(len(got), err), "2 <nil>")
	_, err = w.f.Read(root(), 2, 10, w.s.read)
	wantErr(t, err, ErrUnreadable)
	_, err = w.f.ReadConsume(root(), cp.Position{root(): 2}, 10, w.s.read)
	wantErr(t, err, ErrUnreadable)
	_, err = w.f.ReadHistory(root(), w.s.read)
	wantErr(t, err, ErrUnreadable)
	boom := errors.New("disk")
	w.s.fail[seg(root(), 0)] = boom
	_, err = w.f.Read(root(), 0, 10, w.s.read)
	wantErr(t, err, boom)
	_, err = w.f.StreamHistory(root(), nil, 10, w.s.read)
	wantErr(t, err, boom)
	// An active segment whose copy has nothing is merely at its end.
	w.n(1)
	w.s.short[seg(root(), 1)] = 1
	_, err = w.f.Read(root(), 4, 10, w.s.read)
	wantErr(t, err, io.EOF)
}

func TestReadFuncIsHeldToItsContract(t *testing.T) {
	w := newWorld(t)
	w.n(4)
	var asked ReadRequest
	got, err := w.f.Read(root(), 1, 2, func(q ReadRequest) ([]Record, error) {
		asked = q
		all := append([]Record{}, w.s.m[q.Segment.ID].records...)
		return all, nil
	})
	want(t, "cut to what was asked", fmt.Sprint(keys(got), err), "[r1 r2] <nil>")
	want(t, "request", fmt.Sprint(asked.Segment.ID, asked.From, asked.Limit, asked.Replica, asked.Max), fmt.Sprint(seg(root(), 0), 1, 4, "n1", 2))
	_, err = w.f.Read(root(), 0, 4, func(ReadRequest) ([]Record, error) {
		return []Record{{Offset: 1}, {Offset: 0}}, nil
	})
	wantErr(t, err, ErrReadFunc)
}

// After a seal took the counter back, the commit mark goes with it, whatever was acknowledged before
// or planned since.
func TestCommitMark(t *testing.T) {
	w := newWorld(t)
	mark := func(wanted uint64) {
		t.Helper()
		m, err := w.f.CommitMark(root())
		want(t, "mark", fmt.Sprint(m, err), fmt.Sprint(wanted, nil))
	}
	mark(0)
	w.n(3)
	mark(3)
	plan1(t, w.f)
	mark(3)
	w.f.ForgetSealed(root(), seg(root(), 0), 3)
	mark(3)
	_, err := w.f.CommitMark(fence.RangeID{Topic: topicID(3)})
	wantErr(t, err, cp.ErrNoSuchRange)
	// A frontend that has just started knows what the control plane has sealed, and no more.
	w.roll(root())
	w.n(2)
	f2 := newFrontend(t, func(o *Options) { o.View = w.f.Metadata() })
	m, err := f2.CommitMark(root())
	want(t, "after a restart", fmt.Sprint(m, err), "3 <nil>")
}
