package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// odd are numbers that places, lengths and positions should not be.
var odd = []uint64{0, 1, 63, 4095, 4096, 1 << 20, 1<<20 - 4096, 1 << 31, 1 << 32, 1 << 63, ^uint64(0), ^uint64(4095)}

// playHostile does to the server what a client must not, for ever: frames that change
// while they are looked at, places outside of the memory, counters that are none, holes in
// the memory. Its lives take turns: one breaks a rule now and then, in the next others
// scribble over its frames all the while, and in the third over all that it can map.
func playHostile(path string) error {
	rng := rand.New(rand.NewPCG(uint64(number(idEnv)), 3))
	for life := 0; ; life++ {
		b, err := dialBare(path)
		if err != nil {
			continue // the server is busy with the one before
		}
		id := uint64(1_000_000 + life)
		m, err := b.call(wire.KeyOpenProducer, &wire.OpenProducer{Topic: "t", Id: id, Unnumbered: true})
		if err != nil {
			b.leave()
			continue
		}
		if life%5 == 4 { // it may: nothing was submitted yet
			_ = unix.Fallocate(b.file, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(rng.IntN(len(b.all)))&^4095, 64<<10)
		}
		b.misbehave(m.(*wire.OpenProducerReply).Producer, id, life%3, rng)
		b.leave()
	}
}

func (b *bare) leave() {
	b.nc.Close()
	syscall.Close(b.file)
	_ = b.g.Close()
	_ = syscall.Munmap(b.all)
}

// misbehave goes on until the server ends the connection, or nothing can be sent on it any
// more: the places of answers are scribbled over, too. It writes some frames over again as
// they were, so that what was scribbled over becomes what it was: that cannot be seen where
// nothing is copied, and readers find the frame damaged.
func (b *bare) misbehave(p uint32, id uint64, style int, rng *rand.Rand) {
	var all sync.WaitGroup
	gone := make(chan struct{})
	all.Go(func() {
		defer close(gone)
		for { // failures come over the socket
			h, _, err := b.read()
			if h.ID == 0 && err != nil {
				b.g.Stop()
				return
			}
			b.g.Answered()
		}
	})
	all.Go(func() {
		for {
			if _, err := b.g.Next(); errors.Is(err, shm.ErrStopped) {
				return
			} else if err != nil { // its own memory is no better than what it writes there
				<-gone
				return
			}
		}
	})
	over := func() bool {
		select {
		case <-gone:
			return true
		default:
			return false
		}
	}
	for i := range style { // scribblers: none, one, two
		own := rand.New(rand.NewPCG(id, uint64(i)))
		reach := b.geo.ArenaBytes
		if i == 1 {
			reach = len(b.all)
		}
		all.Go(func() {
			for !over() {
				for range 1 + own.IntN(16) {
					atomic.StoreUint64(b.word(own.IntN(reach/8)*8), own.Uint64())
				}
				_ = syscall.Ftruncate(b.file, int64(own.IntN(len(b.all)))) // refused
				time.Sleep(time.Duration(own.IntN(200)) * time.Microsecond)
			}
		})
	}
	frame := frameWith(id, 0, make([]byte, 40_000)) // as long as those that are sent
	mem, _ := b.g.Arena().Alloc(len(frame))
	for full := 0; !over(); {
		if full > 100 {
			b.nc.Close()
			break
		}
		copy(mem, frameWith(id, 0, fmt.Appendf(make([]byte, 0, 40_000), "hostile %09d%039983d", b.pos/8, 0)))
		switch slot := b.slot(); rng.IntN(30 + 300*style) {
		case 0: // a place that is none
			atomic.StoreUint64(b.word(slot+16), odd[rng.IntN(len(odd))])
			atomic.StoreUint64(b.word(slot+24), odd[rng.IntN(len(odd))])
			atomic.StoreUint64(b.word(slot), uint64(b.pos+1))
			b.g.Ring()
		case 1: // anything, anywhere but in the arena
			at := b.geo.ArenaBytes + rng.IntN((len(b.all)-b.geo.ArenaBytes)/8)*8
			atomic.StoreUint64(b.word(at), odd[rng.IntN(len(odd))]+uint64(rng.IntN(3)))
		default:
			if b.g.Submit(1<<31, p, mem) {
				b.pos++
				full = 0
			} else {
				full++
				time.Sleep(time.Millisecond)
			}
			b.g.Ring()
			for range rng.IntN(2) * rng.IntN(200) { // while the server copies it
				binary.LittleEndian.PutUint64(mem[rng.IntN(len(frame)-8):], rng.Uint64())
			}
		}
	}
	all.Wait()
}

// I03, C10: two processes change everything that they can reach, at random, while the
// server looks at it, and honest producers, one through shared memory and one over TCP,
// write the same topic under that. The server lives on, the hostile are cut off, and the
// log of the honest is what they sent, byte for byte: all that was acknowledged, once and
// in order, also after a start. Whatever is stored of the hostile verifies, or is skipped by
// readers: what was written from memory of theirs, and they changed and changed back. It takes a
// moment, with RINGFENCE_LONG five minutes.
func TestI03C10HostileProcesses(t *testing.T) {
	t.Run("copied", func(t *testing.T) { hostileProcesses(t, server.Options{}) })
	t.Run("written from where it lies", func(t *testing.T) { hostileProcesses(t, trusting()) })
}

func hostileProcesses(t *testing.T, o server.Options) {
	trusted := o.Sharing.Trusted != nil
	dir := t.TempDir()
	e := open(t, dir, Options{})
	must(t, e.CreateTopic(within(t), "t", TopicOptions{}))
	s := shareMemory(t, e, o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s.serving.Go(func() {
		if err := s.Serve(l); err != nil && !errors.Is(err, server.ErrShutdown) {
			t.Error(err)
		}
	})
	w := newWriters(t)
	honest := []*writer{w.start("shm:"+s.path, 901), w.start(l.Addr().String(), 902)}
	seed := time.Now().UnixNano() % 1e9
	for i := range int64(2) {
		cmd := childIn(w.ctx, t, "shm hostile", s.path, fmt.Sprint(idEnv, "=", seed+i))
		must(t, cmd.Start())
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
	}
	spell := time.Second
	if long() {
		spell = 150 * time.Second // twice
	}
	enough := func(n server.SharedStats) bool {
		return n.Hostile >= 10 && (!trusted || n.Changed > 0)
	}
	for start := time.Now(); time.Since(start) < spell || !enough(s.Stats().Shared); {
		for _, one := range honest {
			one.until(500) // none of the honest waits for the hostile
		}
		if time.Since(start) > spell+patience {
			t.Fatalf("the hostile do too little: %+v", s.Stats().Shared)
		}
	}
	for _, one := range honest {
		one.finish()
	}
	n := s.Stats()
	s.stop(within(t))

	stored := 0
	others := func(_, value []byte) {
		if stored++; !strings.HasPrefix(string(value), "hostile ") {
			t.Errorf("a record that nobody sent: %.40q", value)
		}
	}
	found, skips := w.check(e, others)
	if want := w.of(901) + w.of(902); found != want {
		t.Errorf("%d records of the honest, %d acknowledged", found, want)
	}
	theirs := stored
	shut(t, e)
	damaged := lentDamage(t, dir)
	e = open(t, dir, Options{})
	if again, _ := w.check(e, others); again != found || stored != 2*theirs {
		t.Errorf("after a start there are %d records of the honest and %d others, before it %d and %d", again, stored-theirs, found, theirs)
	}
	skipped := uint64(0) // some of it void, perhaps
	for _, skip := range skips {
		if !trusted {
			t.Errorf("skips %+v", skip)
		}
		if skip.Damaged {
			skipped += skip.Offsets
		}
	}
	if skipped < damaged || skipped > 0 && damaged == 0 {
		t.Errorf("skips %d records as damaged, %d are", skipped, damaged)
	}
	if theirs == 0 && !trusted || n.Shared.Hostile > n.Shared.Attached || (n.Shared.Changed > 0) != trusted || (n.Shared.Lent > 0) != trusted || n.Shared.Faults != 0 || n.Failed == 0 {
		t.Errorf("%d records of theirs, %+v", theirs, n)
	}
	t.Logf("%d records of the honest; of the hostile %d clients came, %d were cut off, %d of them for what they changed; of %d frames through shared memory %d were copied, %d lent, %d refused; %d records of theirs are stored, %d skips, %d records damaged",
		found, n.Shared.Attached, n.Shared.Hostile, n.Shared.Changed, n.Shared.Submissions, n.Shared.Copies, n.Shared.Lent, n.Failed, theirs, len(skips), damaged)
}

// I11, C10: a trusted client takes pages out of its memory before it submits anything, so
// that others take their place. What the device gets lies on these, as what is verified
// does: what is acknowledged is there.
func TestI11HolesBeforeTheFirstFrame(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	s := shareMemory(t, e, trusting())
	b, err := dialBare(s.path)
	must(t, err)
	defer b.leave()
	p, err := b.producer("t", 7)
	must(t, err)
	must(t, unix.Fallocate(b.file, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(b.geo.ArenaBytes)))
	frame := frameWith(7, 1, make([]byte, 100_000))
	mem, _ := b.g.Arena().Alloc(len(frame))
	copy(mem, frame)
	b.g.Submit(1<<31, p, mem)
	b.g.Ring()
	soon(t, "the answer", func() { _, err = b.g.Next() })
	must(t, err)
	if got := readEntries(t, e); len(got) != 1 || len(got[0].Value) != 100_000 {
		t.Errorf("%d records are there", len(got))
	}
	if n := s.Stats().Shared; n.Lent != 1 || n.Hostile != 0 {
		t.Errorf("%+v", n)
	}
	shut(t, e)
	verifyFiles(t, dir)
}
