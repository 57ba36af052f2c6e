package frontend

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// guarded is a store and a control plane that any number of goroutines may use.
type guarded struct {
	mu    sync.Mutex
	truth *truth
	s     *copies
}

func (g *guarded) command(_ string, cmd cp.Command) cp.Reply {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.truth.apply(cmd)
}

func (g *guarded) fetch(topic string) (*cp.State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.truth.fetch(topic)
}

func (g *guarded) append(d Dispatch) (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.s.append(d)
}

func (g *guarded) read(q ReadRequest) ([]Record, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.s.read(q)
}

func (g *guarded) fence(r Roll) (end, bytes uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.s.fence(r)
}

func (g *guarded) snapshot() View {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.truth.snapshot()
}

// Producers, a roller, a splitter, a refresher and consumers share one frontend. What was acknowledged is
// there once, in the order each producer sent it. The race detector watches.
func TestManyGoroutines(t *testing.T) {
	const producers, each = 4, 120
	g := &guarded{truth: newTruth(t, 1), s: newCopies()}
	f := newFrontend(t, func(o *Options) {
		o.Command, o.Fetch, o.SegmentMaxBytes = g.command, g.fetch, 300
	})
	f.StartJournal()
	if _, err := f.CreateTopic(testTopic, 8, topicID(1), 1); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var busy, rest sync.WaitGroup
	for p := range producers {
		busy.Go(func() {
			for i := range each {
				if err := g.produce(f, at(fmt.Sprintf("%d/%d", p, i), uint32(p)<<30|uint32(p))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	background := func(work func(i int)) {
		rest.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					work(i)
				}
			}
		})
	}
	background(func(i int) { g.roll(t, f, Instant(i)*ms) })
	background(func(i int) {
		if i < 3 {
			g.split(f)
		}
		f.DueRolls()
		f.DomainViolations()
	})
	background(func(int) {
		f.Refresh(g.snapshot(), nil)
		if err := f.Check(); err != nil {
			t.Error(err)
		}
	})
	var had [producers]int
	background(func(int) { g.consume(t, f, &had, nil) })
	busy.Wait()
	close(stop)
	rest.Wait()
	had = [producers]int{}
	var reader Offsets
	for g.consume(t, f, &had, &reader) {
	}
	for p, n := range had {
		if n != each {
			t.Errorf("producer %d: %d records of %d", p, n, each)
		}
	}
}

// produce sends one record until it is stored; only what is worth a retry may come between.
func (g *guarded) produce(f *Frontend, r Record) (err error) {
	for range 1000 {
		var d Dispatch
		d, err = f.PlanBatch(testTopic, BatchInfo{MinPos: r.Position, MaxPos: r.Position, Count: 1, Bytes: 40, Now: 1})
		if err == nil {
			d.Records = []Record{r}
			var last uint64
			if last, err = g.append(d); err == nil {
				f.AdoptOffsets(d.Range, d.Segment, last)
				return nil
			}
			sealed := fence.Sealed{}
			if errors.As(err, &sealed) {
				f.ForgetSealed(d.Range, d.Segment, sealed.End.Offset)
			}
		}
		if !Retryable(err) {
			return err
		}
	}
	return err
}

func (g *guarded) roll(t *testing.T, f *Frontend, now Instant) {
	for _, r := range f.FencesToSend(now, window) {
		end, bytes := g.fence(r)
		if err := f.RecordFence(r, end, bytes, 1); err != nil {
			t.Error(err)
		}
	}
}

// split fences and splits the first range; a producer may open a head in between, which refuses it.
func (g *guarded) split(f *Frontend) {
	id := f.ActiveRangeIDs(testTopic)[0]
	if r, ok := f.ActiveRoll(id); ok {
		end, bytes := g.fence(r)
		_ = f.RecordSeal(r, end, bytes, 1)
	}
	_, _, _ = f.SplitRange(id)
}

// consume reads a topic from the start, or on from where the reader stands, and counts what it sees of each
// producer, which must come in order.
func (g *guarded) consume(t *testing.T, f *Frontend, had *[4]int, reader *Offsets) bool {
	if reader == nil {
		*had, reader = [4]int{}, &Offsets{}
	}
	at, sources, err := f.Plan(testTopic, *reader, nil)
	if err != nil {
		t.Error(err)
		return false
	}
	for _, s := range sources {
		records, err := f.Read(s.Range, s.From, 50, g.read)
		if err != nil {
			continue
		}
		for _, r := range records {
			var p, n int
			if _, err := fmt.Sscanf(string(r.Key), "%d/%d", &p, &n); err != nil || n != had[p] {
				t.Errorf("producer %d: record %d after %d (%v)", p, n, had[p]-1, err)
			}
			had[p] = n + 1
		}
		at.Advance(s, records[len(records)-1].Offset+1)
		*reader = at
		return true
	}
	return false
}
