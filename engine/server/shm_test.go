package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

func TestFramesThroughSharedMemory(t *testing.T) {
	w := newSharedWorld(t, Options{})
	g := w.attach(1 << 20)
	defer g.leave()
	p, q := g.producer("a"), g.producer("b")
	for i := range uint64(2000) {
		b := g.submit([]uint32{p, q}[i%2], i+1, 5000)
		if c := g.stored(i + 1); c.First != i/2 || c.Last != i/2 {
			t.Fatalf("%+v", c)
		}
		g.Arena().Free(b)
	}
	for i, topic := range []string{"a", "b"} {
		got, err := w.engine.numbers(topic)
		if err != nil || len(got) != 1000 || got[0] != uint64(i+1) || got[999] != uint64(1999+i) {
			t.Errorf("topic %s: %d frames, %v", topic, len(got), err)
		}
	}
	s := w.server.Stats().Shared
	if s.Clients != 1 || s.Submissions != 2000 || s.FrameBytes != 2000*5000 || s.Copies != 2000 || s.CopiedBytes != 2000*5000 || s.Bytes < 1<<20 {
		t.Errorf("%+v", s)
	}
	want[*wire.Done](g.client, wire.KeyCloseProducer, &wire.CloseProducer{Producer: p})
	g.submit(p, 5, 1000)
	if a := g.next(); a.ID != 5 || a.Key != wire.KeyProduce || a.code() != wire.CodeNoSuchHandle {
		t.Errorf("to a closed producer: %+v, %v", a.Head, a.err)
	}
	g.Answered()
	g.refused(wire.CodeUnsupported, wire.KeyProduce, &wire.Produce{Producer: q}, frameOf(1, 100)...)
	g.refused(wire.CodeInvalidArgument, wire.KeyAttach, &wire.Attach{})
}

// What is refused is refused in words, and those behind it as well, until the producer is
// opened again.
func TestSharedFrameIsRefused(t *testing.T) {
	w := newSharedWorld(t, Options{})
	g := w.attach(16 << 20)
	defer g.leave()
	w.engine.set(func() { w.engine.maxFrame = 1 << 20 })
	p := g.producer("a")
	g.submit(p, 1, 2<<20)
	if a := g.next(); a.ID != 1 || a.code() != wire.CodeRecordTooLarge || !strings.Contains(a.err.Detail, `"a"`) {
		t.Errorf("%+v, %v", a.Head, a.err)
	}
	g.submit(p, 2, 1000)
	if a := g.next(); a.ID != 2 || a.code() != wire.CodeProducerHalted {
		t.Errorf("%+v, %v", a.Head, a.err)
	}
	p = want[*wire.OpenProducerReply](g.client, wire.KeyOpenProducer, &wire.OpenProducer{Topic: "a"}).Producer
	w.engine.set(func() { w.engine.diskErr = errors.New("broken") })
	g.submit(p, 3, 1000)
	if a := g.next(); a.ID != 3 || a.code() != wire.CodeInternal || a.err.Detail != "broken" {
		t.Errorf("%+v, %v", a.Head, a.err)
	}
	w.engine.set(func() { w.engine.diskErr = nil })
	p = want[*wire.OpenProducerReply](g.client, wire.KeyOpenProducer, &wire.OpenProducer{Topic: "a"}).Producer
	g.submit(p, 4, 1000)
	g.stored(4)
}

func TestMemoryIsSharedOnItsOwnSocketAlone(t *testing.T) {
	w := newSharedWorld(t, Options{})
	c := w.connect()
	defer c.nc.Close()
	c.refused(wire.CodeUnsupported, wire.KeyAttach, &wire.Attach{})
}

// A client that breaks the rules is told and cut off. The others hear nothing of it.
func TestI03HostileClientIsCutOff(t *testing.T) {
	w := newSharedWorld(t, Options{})
	good := w.attach(1 << 20)
	defer good.leave()
	p := good.producer("a")
	good.submit(p, 1, 1000)
	good.stored(1)

	c := w.dialShared()
	c.hello()
	r := want[*wire.AttachReply](c, wire.KeyAttach, &wire.Attach{ArenaBytes: 1 << 20})
	raw, bad := c.mapped(r)
	defer unix.Munmap(raw)
	defer bad.leave()
	p2 := bad.producer("a")
	// What comes behind its next submission lies outside of the arena.
	third := raw[int(r.ArenaBytes)+4096+2*64:]
	binary.LittleEndian.PutUint64(third[16:], r.ArenaBytes)
	binary.LittleEndian.PutUint64(third[24:], 1)
	binary.LittleEndian.PutUint64(third, 3)
	bad.submit(p2, 98, 1000)
	bad.submit(p2, 99, 1000)
	bad.closed(wire.CodeMalformed)

	good.submit(p, 2, 1000)
	good.stored(2)
	if s := w.server.Stats().Shared; s.Hostile != 1 {
		t.Errorf("%+v", s)
	}
	bad.nc.Close()
	for w.server.Stats().CutOff == 0 {
		time.Sleep(time.Millisecond)
	}
}

// Memory that cannot be read is the end of its client alone.
func TestFaultIsCaught(t *testing.T) {
	w := newSharedWorld(t, Options{})
	good, bad := w.attach(1<<20), w.attach(1<<20)
	defer good.leave()
	defer bad.leave()
	p, q := good.producer("a"), bad.producer("a")
	w.server.mu.Lock()
	for c := range w.server.conns {
		if s := c.shared.Load(); s != nil && c.id == 2 {
			s.busy.Lock() // what comes is looked at behind this
			if err := unix.Mprotect(s.host.Arena(), unix.PROT_NONE); err != nil {
				t.Error(err)
			}
			s.busy.Unlock()
		}
	}
	w.server.mu.Unlock()
	bad.submit(q, 1, 5000)
	bad.closed(wire.CodeInternal)
	good.submit(p, 1, 5000)
	good.stored(1)
	if s := w.server.Stats().Shared; s.Faults != 1 {
		t.Errorf("%+v", s)
	}
	w.engine.mu.Lock()
	defer w.engine.mu.Unlock()
	if w.engine.taken != 0 {
		t.Errorf("%d bytes of engine memory are still taken", w.engine.taken)
	}
}

// Those of no user that may, and of none that has a number here, are told why.
func TestI08WhoMayShareMemory(t *testing.T) {
	me, group := uint32(os.Geteuid()), uint32(os.Getegid())
	for _, tt := range []struct {
		name string
		Sharing
		ok bool
	}{
		{"own user", Sharing{}, true},
		{"listed", Sharing{UIDs: []uint32{1, me}}, true},
		{"group", Sharing{GIDs: []uint32{group}}, true},
		{"another user", Sharing{UIDs: []uint32{me + 1}}, false},
		{"another group", Sharing{GIDs: []uint32{group + 1}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newSharedWorld(t, Options{Sharing: tt.Sharing})
			if tt.ok {
				w.attach(0).leave()
				return
			}
			c := w.dialShared()
			defer c.nc.Close()
			a := c.next()
			if a.ID != 0 || a.code() != wire.CodePermissionDenied || !strings.Contains(a.err.Detail, fmt.Sprintf("user %d", me)) {
				t.Errorf("%+v: %v", a.Head, a.err)
			}
			if s := w.server.Stats(); s.Shared.Refused != 1 || s.Refused != 1 || s.Accepted != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Who may not share memory and comes again and again does not fill the log.
func TestI08RefusalsAreToldNowAndThen(t *testing.T) {
	var log locked
	w := newSharedWorld(t, Options{Sharing: Sharing{UIDs: []uint32{uint32(os.Geteuid()) + 1}}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	start := time.Now()
	const times = 200
	for range times {
		c := w.dialShared()
		c.next()
		c.nc.Close()
	}
	told, most := strings.Count(log.String(), "connection for shared memory refused"), 1+int(time.Since(start)/auditEvery)
	if n := w.server.Stats().Shared.Refused; n != times || told < 1 || told > most {
		t.Errorf("%d refusals were told %d times, at most %d", n, told, most)
	}
}

// locked is a buffer that many write to.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// One client has taken all of its memory and sends nothing, others come until there is no
// more: those that got in are served, and the others are told.
//
// How fast the others are beside it is not measured but counted: everything that they send
// is stored while it is still there with all that it took, and nothing of it was refused,
// or found its ring full.
func TestI12ManyClients(t *testing.T) {
	const n = 200
	one := int64(shm.Geometry{ArenaBytes: shm.MinArena, Slots: sharedSlots}.Size())
	w := newSharedWorld(t, Options{Sharing: Sharing{Clients: n + 1, TotalBytes: one * n}})
	idle := w.attach(shm.MinArena)
	defer idle.leave()
	for {
		if _, ok := idle.Arena().Alloc(shm.Block); !ok {
			break
		}
	}
	var all sync.WaitGroup
	clients := make([]*guest, n-1)
	for i := range clients {
		clients[i] = w.attach(shm.MinArena)
		defer clients[i].leave()
	}
	c := w.dialShared()
	defer c.nc.Close()
	c.hello()
	if a := c.do(wire.KeyAttach, &wire.Attach{}); a.code() != wire.CodeOverloaded || !strings.Contains(a.err.Detail, "shm-memory") {
		t.Errorf("one too many: %v", a.err)
	}
	for i, g := range clients {
		p := g.producer(fmt.Sprint("t", i))
		all.Go(func() {
			for k := range uint64(20) {
				b := g.submit(p, k+1, 1000)
				g.stored(k + 1)
				g.Arena().Free(b)
			}
		})
	}
	all.Wait()
	for i, c := range w.server.SharedClients() {
		want := int64(20)
		if i == 0 {
			want = 0 // the idle one
		}
		if c.Frames != want || c.Stored != want || len(c.Refused) != 0 || c.RingFull != 0 || c.Bytes != one {
			t.Errorf("client %d: %+v", i, c)
		}
	}
	if u := w.server.Stats().Shared.Users[0]; u.Clients != n || u.Bytes != n*one || u.Stored != 20*(n-1) || u.TurnedAway["memory"] != 1 {
		t.Errorf("%+v", u)
	}
	clients[0].leave()
	for w.server.Stats().Shared.Clients == n {
		time.Sleep(time.Millisecond)
	}
	c.attach(shm.MinArena).Close()
}

func TestSharedClientsAreLimited(t *testing.T) {
	w := newSharedWorld(t, Options{Sharing: Sharing{Clients: 1, ArenaBytes: 5 << 20}})
	g := w.attach(0)
	defer g.leave()
	if n := g.Arena().Size(); n != 4<<20 {
		t.Errorf("an arena of %d bytes, want whole large pages of 5 MiB", n)
	}
	c := w.dialShared()
	defer c.nc.Close()
	c.hello()
	if a := c.do(wire.KeyAttach, &wire.Attach{}); a.code() != wire.CodeOverloaded || !strings.Contains(a.err.Detail, "shm-clients") {
		t.Errorf("one too many: %v", a.err)
	}
}

// A server that shuts down answers what it has taken, and then ends the connection.
func TestSharedClientIsDrained(t *testing.T) {
	w := newSharedWorld(t, Options{})
	g := w.attach(1 << 20)
	defer g.leave()
	p := g.producer("a")
	disk := make(chan struct{})
	w.engine.set(func() { w.engine.disk = disk })
	for i := range uint64(10) {
		g.submit(p, i+1, 1000)
	}
	for w.server.Stats().Shared.Copies < 10 {
		time.Sleep(time.Millisecond)
	}
	down := make(chan error, 1)
	go func() { down <- w.server.Shutdown(context.Background()) }()
	for !w.server.closing.Load() {
		time.Sleep(time.Millisecond)
	}
	close(disk)
	got := map[uint32]bool{}
	for range 10 {
		c, err := g.Next()
		if err != nil {
			t.Fatal(err)
		}
		got[c.ID] = true
	}
	if len(got) != 10 {
		t.Errorf("answers to %v", got)
	}
	g.closed(wire.CodeShuttingDown)
	g.nc.Close()
	if err := <-down; err != nil {
		t.Error(err)
	}
}

// A large frame of a client that is trusted is lent, and what it has lent it cannot lend
// again.
func TestTrustedClientLends(t *testing.T) {
	w := newSharedWorld(t, Options{Sharing: Sharing{Trusted: []uint32{uint32(os.Geteuid())}}})
	g := w.attach(1 << 20)
	defer g.leave()
	p := g.producer("a")
	g.submit(p, 1, lendBytes-8)
	g.stored(1)
	b := g.submit(p, 2, 2*lendBytes)
	g.stored(2)
	if s := w.server.Stats().Shared; s.Copies != 1 || s.Lent != 1 {
		t.Errorf("%+v", s)
	}
	disk := make(chan struct{})
	w.engine.set(func() { w.engine.disk = disk })
	copy(b, frameOf(3, len(b)))
	g.Submit(3, p, b)
	g.Submit(4, p, b[shm.Block:]) // inside of it
	g.Ring()
	for w.server.Stats().Shared.Hostile == 0 {
		time.Sleep(time.Millisecond)
	}
	close(disk)
	g.closed(wire.CodeMalformed)
}

// What a client changed is answered, and ends its connection.
func TestChangedFrameEndsTheConnection(t *testing.T) {
	w := newSharedWorld(t, Options{Sharing: Sharing{Trusted: []uint32{uint32(os.Geteuid())}}})
	g := w.attach(1 << 20)
	defer g.leave()
	p := g.producer("a")
	w.engine.set(func() { w.engine.diskErr = api.ErrChanged })
	disk := make(chan struct{})
	w.engine.set(func() { w.engine.disk = disk })
	for i := range uint64(3) {
		g.submit(p, i+1, lendBytes)
	}
	for w.server.Stats().Shared.Lent < 3 {
		time.Sleep(time.Millisecond)
	}
	close(disk)
	for range 3 {
		if a := g.next(); a.ID == 0 || a.code() != wire.CodeCorruptFrame {
			t.Errorf("%+v, %v", a.Head, a.err)
		}
	}
	g.closed(wire.CodeMalformed)
	if s := w.server.Stats().Shared; s.Changed != 1 || s.Hostile != 1 {
		t.Errorf("%+v", s)
	}
}
