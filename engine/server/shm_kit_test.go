package server

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// sharedWorld is a server whose clients share memory with it.
type sharedWorld struct {
	*world
	path   string
	shared chan error
}

func newSharedWorld(t *testing.T, o Options) *sharedWorld {
	t.Helper()
	leakFree(t)
	w := &sharedWorld{world: newWorld(t, o), path: filepath.Join(t.TempDir(), "s"), shared: make(chan error, 1)}
	l, err := shm.Listen(w.path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	go func() { w.shared <- w.server.ServeShared(l) }()
	t.Cleanup(w.end)
	return w
}

func (w *sharedWorld) end() {
	w.stop()
	if err := <-w.shared; err != nil {
		w.t.Error(err)
	}
	if s := w.server.Stats().Shared; s.Clients != 0 || s.Bytes != 0 {
		w.t.Errorf("after all connections ended: %+v", s)
	}
}

// guest is a client that shares memory.
type guest struct {
	*client
	*shm.Guest
}

func (w *sharedWorld) dialShared() *client {
	w.t.Helper()
	nc, err := net.Dial("unix", w.path)
	if err != nil {
		w.t.Fatal(err)
	}
	return &client{t: w.t, nc: &shm.Receiver{UnixConn: nc.(*net.UnixConn)}}
}

func (w *sharedWorld) attach(bytes uint64) *guest {
	w.t.Helper()
	c := w.dialShared()
	c.hello()
	return &guest{c, c.attach(bytes)}
}

func (c *client) attach(bytes uint64) *shm.Guest {
	c.t.Helper()
	return c.attached(want[*wire.AttachReply](c, wire.KeyAttach, &wire.Attach{ArenaBytes: bytes}))
}

// mapped is the memory of a client that breaks rules, twice.
func (c *client) mapped(r *wire.AttachReply) ([]byte, *guest) {
	c.t.Helper()
	f := c.nc.(*shm.Receiver).File()
	raw, err := unix.Mmap(int(f.Fd()), 0, shm.Geometry{ArenaBytes: int(r.ArenaBytes), Slots: int(r.Slots)}.Size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		c.t.Fatal(err)
	}
	return raw, &guest{c, c.attachTo(f, r)}
}

func (c *client) attached(r *wire.AttachReply) *shm.Guest {
	c.t.Helper()
	f := c.nc.(*shm.Receiver).File()
	if f == nil || r.Layout != shm.Version {
		c.t.Fatalf("%+v came with %v", r, f)
	}
	return c.attachTo(f, r)
}

func (c *client) attachTo(f *os.File, r *wire.AttachReply) *shm.Guest {
	c.t.Helper()
	g, err := shm.Attach(f, shm.Geometry{ArenaBytes: int(r.ArenaBytes), Slots: int(r.Slots)}, r.Incarnation)
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

// leave ends the client.
func (g *guest) leave() {
	g.nc.Close()
	g.Guest.Close()
}

// submit sends a frame of n bytes.
func (g *guest) submit(producer uint32, number uint64, n int) []byte {
	g.t.Helper()
	b, ok := g.Arena().Alloc(n)
	if !ok {
		g.t.Fatal("the arena is full")
	}
	copy(b, frameOf(number, n))
	if !g.Submit(uint32(number), producer, b) {
		g.t.Fatal("there is no slot")
	}
	g.Ring()
	return b
}

// stored waits for the answer to a frame.
func (g *guest) stored(number uint64) shm.Completion {
	g.t.Helper()
	c, err := g.Next()
	if err != nil || c.ID != uint32(number) {
		g.t.Fatalf("answer %+v, %v, want %d", c, err, number)
	}
	return c
}
