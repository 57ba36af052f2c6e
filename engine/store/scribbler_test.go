package store

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk"
)

// told is a log that many write to.
type told struct {
	mu sync.Mutex
	strings.Builder
}

func (l *told) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(b)
}

func (l *told) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.String(), what)
}

// Somebody changes frames all the time while a real disk writes them. Nothing but those
// is refused, everything that was acknowledged is as it was sent, and files verify. (C10)
func TestC10_Scribbler(t *testing.T) {
	for _, engine := range []string{"auto", "pool"} {
		t.Run(engine, func(t *testing.T) {
			d, err := disk.Open(t.TempDir(), disk.Options{Engine: engine, ArenaBytes: 32 << 20})
			must(t, err)
			o := testOptions()
			o.SegmentBytes = 64 << 20
			var log told
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			s, _ := openStore(t, d, o)
			l := newLender(t, 9, 16)
			unregister, err := d.Register(l.mem)
			must(t, err)
			seg := newSegment(t, s, segID(1, 0), 0, nil)
			stop, gone := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(gone)
				for {
					select {
					case <-stop:
						return
					default:
						l.scribble()
					}
				}
			}()
			rng := rand.New(rand.NewPCG(9, 9))
			sources := []*source{{id: 1}, {id: 2}, {id: 3}}
			queues := make([][]*flying, len(sources))
			var acked []*batch
			changed := 0
			collect := func(i int, all bool) {
				for len(queues[i]) > 0 && (all || len(queues[i]) >= 4) {
					f := queues[i][0]
					f.wait(t)
					queues[i] = queues[i][1:]
					switch {
					case f.Err == nil:
						acked = append(acked, f.b)
						continue
					case errors.Is(f.Err, ErrChanged):
						changed++
					case !errors.Is(f.Err, ErrGap):
						t.Fatal(f.Err)
					}
					if sources[i].id == 3 {
						t.Fatalf("a frame that nobody changes: %v", f.Err)
					}
					for _, g := range queues[i] {
						g.wait(t) // they miss this one
					}
					queues[i] = nil
					sources[i].seq, sources[i].prev = f.b.first-1, f.b.prev
				}
			}
			for range 400 {
				i := rng.IntN(len(sources))
				b := sources[i].next(rng, 1+rng.IntN(8), rng.IntN(60_000))
				to := l.lend
				if sources[i].id == 3 {
					to = send
				}
				f, err := to(t, seg, b)
				must(t, err)
				queues[i] = append(queues[i], f)
				collect(i, false)
			}
			close(stop)
			<-gone
			for i := range sources {
				collect(i, true)
			}
			if changed == 0 || len(acked) == 0 {
				t.Fatalf("%d frames changed, %d acknowledged: the test does not test it", changed, len(acked))
			}
			_, err = seg.Fence()
			must(t, err)
			items, _ := readSkipping(t, seg)
			have := map[[2]uint64]string{}
			for _, it := range items {
				key := [2]uint64{it.producer, it.seq}
				if _, twice := have[key]; twice {
					t.Fatalf("producer %d: sequence %d is there twice", it.producer, it.seq)
				}
				have[key] = string(it.value)
			}
			n := 0
			for _, b := range acked {
				for j, v := range b.values {
					if n++; have[[2]uint64{b.producer, b.first + uint64(j)}] != string(v) {
						t.Fatalf("producer %d: sequence %d is not what was acknowledged", b.producer, b.first+uint64(j))
					}
				}
			}
			if n != len(items) {
				t.Errorf("%d records are there, %d acknowledged", len(items), n)
			}
			if n := log.count("a frame was changed"); n != 1 {
				t.Errorf("%d frames were changed in the same second, and %d lines say so", changed, n)
			}
			sound(t, d, seg.File())
			must(t, unregister())
			t.Logf("%d changed, %d voided, %d acknowledged", s.Stats().Changed, s.Stats().Voided, len(acked))
		})
	}
}
