package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// Splits, merges, rolls and retention beside producers whose segments fill all the
// time: none of them is refused because of another.
func TestChangesTogether(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: 1 << 20, RetainEvery: 10 * time.Millisecond})
	newTopic(t, e, "t")
	must(t, e.SetPolicy(within(t), "budget", Policy{MaxBytes: Limit(4 << 20)}))
	must(t, e.BindPolicy(within(t), "t", "budget"))
	ctx := within(t)
	stop := make(chan struct{})
	var load sync.WaitGroup
	for w := range 3 {
		p := newProducer(t, e, ProducerOptions{Topic: "t"})
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				err := p.Append(ctx, Record{Key: text("%d-%d", w, i%50), Value: make([]byte, 3000)}, func(_ Placement, err error) {
					if err != nil {
						t.Error(err)
					}
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var changes sync.WaitGroup
	for n := range 2 {
		rng := rand.New(rand.NewPCG(uint64(n), uint64(time.Now().UnixNano())))
		changes.Go(func() {
			for range rounds(60) {
				// Two that change the same range at once: one comes too late.
				err := shake(ctx, e, rng, "t")
				if err != nil && !errors.Is(err, cp.ErrRangeSealed) && !errors.Is(err, cp.ErrCannotSplit) {
					t.Errorf("%v\n%s", err, e.portrait(t, err))
					return
				}
			}
		})
	}
	changes.Wait()
	close(stop)
	load.Wait()
}

// portrait says what metadata, frontend and store have of the range of an error.
func (e *Engine) portrait(t *testing.T, err error) string {
	var te *TopicError
	if !errors.As(err, &te) || te.Range < 0 {
		return ""
	}
	id, rerr := e.rangeOf(te.Topic, uint32(te.Range))
	if rerr != nil {
		return rerr.Error()
	}
	s := ""
	e.lookAt(te.Topic, func(st *cp.State, _ *cp.Topic) { s += "metadata: " + portraitOf(st, id) })
	view := e.front.Metadata()
	for _, st := range view.Vnodes {
		if st.Range(id) != nil {
			s += "frontend: " + portraitOf(st, id)
		}
	}
	roll, ok := e.front.ActiveRoll(id)
	s += fmt.Sprintf("roll: %v %v\n", roll, ok)
	for _, sid := range e.store.IDs() {
		if sid.Range == id {
			seg, _ := e.store.Segment(sid)
			end, fenced := seg.Fenced()
			s += fmt.Sprintf("store: %v %v %v\n", sid, end, fenced)
		}
	}
	return s
}

func portraitOf(s *cp.State, id fence.RangeID) string {
	r := s.Range(id)
	if r == nil {
		return "no such range\n"
	}
	text := fmt.Sprintf("phase %d next %d/%d children %v;", r.Phase, r.NextSequence, r.NextOffset, r.Children)
	for seg := range s.Segments(id) {
		text += fmt.Sprintf(" s%d phase %d [%d +%d]", seg.ID.Seq, seg.Phase, seg.Start, seg.Length)
	}
	return text + "\n"
}

// Producers whose batches fill the arena follow splits and merges all the same:
// nobody waits for memory that somebody holds who waits for memory.
func TestRangesChangeWithoutMemory(t *testing.T) {
	e := open(t, t.TempDir(), Options{ArenaBytes: 4 << 20})
	newTopic(t, e, "t")
	ctx := within(t)
	var load sync.WaitGroup
	var sent, stored atomic.Int64
	stop := make(chan struct{})
	for w := range 5 {
		p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 1 << 20, MaxInFlight: 2, Codec: Codec(w % 2)})
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				done := func(_ Placement, err error) {
					if err != nil {
						t.Error(err)
					}
					stored.Add(1)
				}
				var err error
				if w < 3 {
					err = p.Append(ctx, Record{Key: text("%d", i), Value: make([]byte, 30_000)}, done)
				} else {
					var b *Batch
					if b, err = p.NewBatch(ctx, 1<<20); err == nil {
						for k := range 4 {
							must(t, b.Add(Record{Key: text("%d %d", i, k), Value: make([]byte, 200_000)}))
						}
						if err = b.Send(ctx, done); err != nil {
							b.Discard()
						}
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
				sent.Add(1)
			}
		})
	}
	rng := rand.New(rand.NewPCG(3, 4))
	soon(t, "ranges change while memory is short", func() {
		for range rounds(20) {
			must(t, shake(ctx, e, rng, "t"))
		}
		close(stop)
		load.Wait()
		shut(t, e)
	})
	if sent.Load() != stored.Load() || sent.Load() == 0 {
		t.Errorf("%d sent, %d stored", sent.Load(), stored.Load())
	}
}

// A topic that is split and merged over and over and seldom written to has a long
// history, in which most ranges are reached on many ways. None of them is walked
// twice.
func TestLongHistory(t *testing.T) {
	now := newClock()
	dir := t.TempDir()
	e := open(t, dir, Options{now: now.Now})
	must(t, e.SetPolicy(within(t), "p", Policy{MaxAge: Limit(1000)}))
	must(t, e.CreateTopic(within(t), "t", TopicOptions{Policy: "p"}))
	send := func(duplicate bool) {
		t.Helper()
		p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 3})
		pl, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte("v")})
		must(t, err)
		if pl.Duplicate != duplicate {
			t.Fatalf("%+v", pl)
		}
		must(t, p.Close(within(t)))
	}
	send(false)
	soon(t, "a long history", func() {
		last := uint32(0)
		for range 40 {
			a, b, err := e.SplitRange(within(t), "t", last)
			must(t, err)
			last, err = e.MergeRanges(within(t), "t", a, b)
			must(t, err)
		}
		c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
		if got, _ := drain(t, c); len(got) != 1 {
			t.Errorf("%d records", len(got))
		}
		must(t, c.Commit(within(t)))
		if _, err := c.Lag(); err != nil {
			t.Error(err)
		}
		must(t, c.Close())
		now.Add(time.Hour)
		retain(t, e)
		send(true)
		retain(t, e)
		shut(t, e)
		e = open(t, dir, Options{now: now.Now})
		send(true)
	})
}
