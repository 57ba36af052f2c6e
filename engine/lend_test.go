package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Frames that are lent are stored as they are, plain or compressed, in one range or
// several, and their memory is released once, whatever becomes of them.
func TestLend(t *testing.T) {
	for _, io := range []string{"auto", "pool"} {
		t.Run(io, func(t *testing.T) {
			t.Setenv(disk.EngineEnv, io)
			dir := t.TempDir()
			e := open(t, dir, Options{})
			newTopic(t, e, "t")
			m := newSharedMemory(t, 8, 64<<10)
			unregister, err := e.Register(m.mem)
			must(t, err)
			p, err := e.Backend().OpenProducer(within(t), "t", 7, false)
			must(t, err)
			l := &lender{TB: t, m: m, p: p}
			keys, seq := many(100), uint64(1)
			var all []string
			next := func() []byte {
				frame := frameOf(t, 7, seq, keys...)
				for i, key := range keys {
					all = append(all, fmt.Sprintf("%s %d", key, seq+uint64(i)))
				}
				seq += uint64(len(keys))
				return frame
			}
			pl, err := l.wait(next())
			if must(t, err); pl.First != 0 || pl.Last != 99 {
				t.Errorf("stored at %+v", pl)
			}
			small, err := record.Compress(nil, next(), record.Zstd)
			must(t, err)
			_, err = l.wait(small)
			must(t, err)
			p, err = e.Backend().OpenProducer(within(t), "t", 7, false)
			must(t, err)
			l.p = p
			if pl, err = l.wait(small); err != nil || !pl.Duplicate {
				t.Errorf("a repeat: %+v, %v", pl, err)
			}
			_, _, err = e.SplitRange(within(t), "t", 0)
			must(t, err)
			_, err = l.wait(next())
			must(t, err)
			is(t, l.lend(frameOf(t, 8, seq, "k"), nil), record.ErrCorrupt, "producer 8")
			if got := e.Stats().Store; got.Changed != 0 || got.Voided != 0 {
				t.Errorf("counts %+v", got)
			}

			f, err := p.Lend(m.mem[:1000:m.slot], func() { l.released.Add(1) })
			must(t, err)
			l.lent++
			waits := make(chan error)
			go func() { waits <- unregister() }()
			eventually(t, "no more loans", func() bool {
				f, err := p.Lend(m.mem[m.slot:m.slot+1000:2*m.slot], func() {})
				if err == nil {
					f.Discard()
				}
				return err != nil
			})
			select {
			case err := <-waits:
				t.Fatalf("unregistered while a frame is lent: %v", err)
			default:
			}
			f.Discard()
			f.Discard()
			must(t, <-waits)
			if n := l.released.Load(); n != l.lent {
				t.Errorf("%d of %d loans released", n, l.lent)
			}
			must(t, p.Close(within(t)))
			got := readAll(t, e, "t", FromStart())
			slices.Sort(got)
			slices.Sort(all)
			if !slices.Equal(got, all) {
				t.Errorf("%d records, want %d", len(got), len(all))
			}
		})
	}
}

// The header of a frame is read once, when it is lent: whoever counts its records and who
// stores them see the same, whatever its producer puts there meanwhile.
func TestLendTakesTheHeaderOnce(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	m := newSharedMemory(t, 2, 64<<10)
	unregister, err := e.Register(m.mem)
	must(t, err)
	p, err := e.Backend().OpenProducer(within(t), "t", 7, false)
	must(t, err)
	keys := many(100)
	plain := frameOf(t, 7, 1, keys...)
	small, err := record.Compress(nil, frameOf(t, 7, 101, keys...), record.Zstd)
	must(t, err)
	for _, frame := range [][]byte{plain, small} {
		lent, slot := m.put(frame, 0)
		f, err := p.Lend(lent, func() { m.back(slot) })
		must(t, err)
		clear(m.client[slot*m.slot:][:record.HeaderSize])
		if !slices.Equal(f.Header(), frame[:record.HeaderSize]) {
			t.Error("the header is what stands in the memory now")
		}
		done := make(chan error, 1)
		must(t, f.Send(within(t), false, func(_ Placement, err error) { done <- err }))
		must(t, <-done)
	}
	must(t, p.Close(within(t)))
	must(t, unregister())
	if got := readAll(t, e, "t", FromStart()); len(got) != 2*len(keys) {
		t.Errorf("%d records, want %d", len(got), 2*len(keys))
	}
}

// What cannot be lent is refused before anything is done with it.
func TestLendRefuses(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	m := newSharedMemory(t, 4, 64<<10)
	never := func() { t.Error("released, and was never lent") }
	if _, err := p.Lend(m.mem[:1000:4096], never); err == nil {
		t.Error("lent before it is registered")
	}
	unregister, err := e.Register(m.mem[:128<<10])
	must(t, err)
	if _, err := e.Register(m.mem); err == nil {
		t.Error("registered twice")
	}
	for name, frame := range map[string][]byte{
		"too short":               m.mem[:record.HeaderSize:4096],
		"too long":                make([]byte, p.MaxFrame()+1, p.MaxFrame()+8192),
		"not on a block":          m.mem[512:2000:8192],
		"without its last block":  m.mem[:5000:6000],
		"not registered":          m.mem[128<<10 : 129<<10 : 132<<10],
		"reaches past":            m.mem[124<<10 : 129<<10 : 132<<10],
		"somebody else's":         make([]byte, 1000, 4096),
		"the engine's own memory": e.arena.Bytes()[:1000:4096],
	} {
		if _, err := p.Lend(frame, never); err == nil {
			t.Errorf("%s: lent", name)
		}
	}
	must(t, unregister())
	must(t, unregister())
	must(t, p.Close(within(t)))
	if _, err := p.Lend(m.mem[:1000:4096], never); err == nil {
		t.Error("lent to a producer that is closed")
	}
	shut(t, e)
	if _, err := e.Register(m.mem); !errors.Is(err, ErrClosed) {
		t.Errorf("registered with a closed engine: %v", err)
	}
}

// resender is a client that sends numbered records, lends the frames, and sends all again
// that was not acknowledged when one is refused.
type resender struct {
	l      *lender
	id     uint64
	rng    *rand.Rand
	frames [][]byte // not acknowledged, in order
	next   uint64
	acked  []string
	errs   map[string]int
}

func (s *resender) more() {
	var keys []string
	for range 1 + s.rng.IntN(300) {
		keys = append(keys, fmt.Sprintf("%d-%d", s.id, s.rng.IntN(50)))
	}
	frame := frameOf(s.l, s.id, s.next, keys...)
	s.frames = append(s.frames, frame)
	s.next += uint64(len(keys))
}

// run sends so many frames, some at a time.
func (s *resender) run(b server.Engine, n int) {
	t := s.l.TB
	made := 0
	for made < n || len(s.frames) > 0 {
		var err error
		s.l.p, err = b.OpenProducer(within(t), "t", s.id, false)
		must(t, err)
		failed := false
		for !failed && (made < n || len(s.frames) > 0) {
			for len(s.frames) < 4 && made < n {
				s.more()
				made++
			}
			out := make(chan error, len(s.frames))
			sent := 0
			for _, f := range s.frames {
				if err := s.l.lend(f, func(_ Placement, err error) { out <- err }); err != nil {
					s.note(err)
					failed = true
					break
				}
				sent++
			}
			stored := 0
			for range sent {
				err := <-out
				switch {
				case err != nil:
					s.note(err)
					failed = true
				case !failed:
					stored++
				}
			}
			if failed {
				break // sent again from the first that may be missing: repeats are known
			}
			for _, f := range s.frames[:stored] {
				view, err := record.Verify(f, 0, nil)
				must(t, err)
				for i := range view.Len() {
					s.acked = append(s.acked, string(view.Value(i)))
				}
			}
			s.frames = s.frames[stored:]
		}
		must(t, s.l.p.Close(within(t)))
	}
}

func (s *resender) note(err error) {
	switch {
	case errors.Is(err, ErrChanged):
		s.errs["changed"]++
	case errors.Is(err, record.ErrCorrupt):
		s.errs["corrupt"]++ // before it was verified
	case errors.Is(err, ErrHalted):
		s.errs["halted"]++
	default:
		s.l.Errorf("refused: %v", err)
	}
}

// Clients lend frames from shared memory and somebody scribbles over it all the time,
// while others produce, and the topic is split and merged. Every record that was
// acknowledged is there once and in order, the others' too, and all files verify. (C10)
func TestC10_LentMemoryIsScribbledOver(t *testing.T) {
	for _, io := range []string{"auto", "pool"} {
		t.Run(io, func(t *testing.T) {
			t.Setenv(disk.EngineEnv, io)
			dir := t.TempDir()
			e := open(t, dir, Options{SegmentBytes: 2 << 20})
			newTopic(t, e, "t")
			m := newSharedMemory(t, 16, 64<<10)
			unregister, err := e.Register(m.mem)
			must(t, err)
			b := e.Backend()
			var stop atomic.Bool
			var noise, work sync.WaitGroup
			noise.Go(func() {
				for !stop.Load() {
					m.scribble()
					runtime.Gosched()
				}
			})
			noise.Go(func() {
				for seq := uint32(0); !stop.Load(); time.Sleep(100 * time.Millisecond) {
					left, right, err := e.SplitRange(t.Context(), "t", seq)
					if err == nil {
						seq, err = e.MergeRanges(t.Context(), "t", left, right)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
			sessions := []*resender{{id: 11}, {id: 12}}
			for i, s := range sessions {
				s.l, s.next, s.errs = &lender{TB: t, m: m, oneIn: 6}, 1, map[string]int{}
				s.rng = rand.New(rand.NewPCG(uint64(i), 11))
				work.Go(func() { s.run(b, rounds(60)) })
			}
			honest := []string{}
			work.Go(func() {
				p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 13})
				for i := range rounds(300) {
					value := fmt.Sprintf("13-%d %d", i%50, i+1)
					if _, err := p.Produce(within(t), Record{Key: text("13-%d", i%50), Value: []byte(value)}); err != nil {
						t.Errorf("another producer's record: %v", err)
					}
					honest = append(honest, value)
				}
				must(t, p.Close(within(t)))
			})
			work.Wait()
			stop.Store(true)
			noise.Wait()
			must(t, unregister())
			errs := map[string]int{}
			wanted := slices.Clone(honest)
			for _, s := range sessions {
				wanted = append(wanted, s.acked...)
				for what, n := range s.errs {
					errs[what] += n
				}
				if s.l.released.Load() != s.l.lent {
					t.Errorf("%d of %d loans released", s.l.released.Load(), s.l.lent)
				}
			}
			if errs["changed"] == 0 {
				t.Errorf("no frame was found changed (%v): the test does not test it", errs)
			}
			t.Log(errs, e.Stats().Store.Voided, "void frames")

			c := newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()})
			got, skips := drain(t, c)
			must(t, c.Close())
			have, last := map[string]int{}, map[string]uint64{}
			for _, r := range got {
				key, seq := string(r.Key), uint64(0)
				fmt.Sscanf(strings.TrimPrefix(string(r.Value), key+" "), "%d", &seq)
				if seq <= last[key] {
					t.Errorf("key %s: sequence %d behind %d", key, seq, last[key])
				}
				last[key] = seq
				have[string(r.Value)]++
			}
			for _, v := range wanted {
				if have[v] != 1 {
					t.Errorf("%q was acknowledged and is there %d times", v, have[v])
				}
			}
			if len(have) != len(wanted) {
				t.Errorf("%d records, %d acknowledged", len(have), len(wanted))
			}
			for _, s := range skips {
				if s.Damaged {
					t.Errorf("skips %+v", s)
				}
			}
			shut(t, e)
			verifyFiles(t, dir)
		})
	}
}

// verifyFiles verifies every segment file of a directory.
func verifyFiles(t *testing.T, dir string) {
	t.Helper()
	if n := lentDamage(t, dir); n > 0 {
		t.Errorf("%d records of lent frames are damaged", n)
	}
}
