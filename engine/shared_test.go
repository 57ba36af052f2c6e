package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/shm"
)

// sharer serves an engine to clients that share memory with it, at a path that stays the
// same over restarts.
type sharer struct {
	t    testing.TB
	path string
	opts server.Options

	*server.Server
	serving sync.WaitGroup
}

func shareMemory(t testing.TB, e *Engine, o server.Options) *sharer {
	t.Helper()
	s := &sharer{t: t, path: filepath.Join(t.TempDir(), "s"), opts: o}
	s.opts.Logger = slog.New(slog.DiscardHandler)
	s.start(e)
	t.Cleanup(func() { s.stop(within(t)) })
	return s
}

func (s *sharer) start(e *Engine) {
	var err error
	var l *net.UnixListener
	if s.Server, err = server.New(e.Backend(), s.opts); err == nil {
		l, err = shm.Listen(s.path, 0o600)
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	sv := s.Server
	s.serving.Go(func() {
		if err := sv.ServeShared(l); err != nil && !errors.Is(err, server.ErrShutdown) {
			s.t.Errorf("serve: %v", err)
		}
	})
}

// stop ends the server, and its connections at once if ctx has ended.
func (s *sharer) stop(ctx context.Context) {
	if err := s.Shutdown(ctx); err != nil && ctx.Err() == nil {
		s.t.Error(err)
	}
	s.serving.Wait()
}

// cut ends all connections in the middle of what they do.
func (s *sharer) cut(e *Engine) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.stop(ctx)
	s.start(e)
}

func (s *sharer) dial(memory int) *client.Client {
	s.t.Helper()
	c, err := client.DialShm(within(s.t), s.path, client.Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: patience, MemoryBytes: memory})
	must(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// trusting is a server's word that it does not copy the large frames of this user.
func trusting() server.Options {
	return server.Options{Sharing: server.Sharing{Trusted: []uint32{uint32(os.Geteuid())}}}
}

func TestSharedClientAndLinkedProgramSeeTheSame(t *testing.T) {
	for _, o := range []server.Options{{}, trusting()} {
		e := open(t, t.TempDir(), Options{})
		s := shareMemory(t, e, o)
		clientSeesTheSame(t, e, s.dial(0))
		if n := s.Stats().Shared; n.Submissions == 0 || n.Copies > n.Submissions || n.Hostile+n.Faults != 0 {
			t.Errorf("%+v", n)
		}
	}
}

// Connections end at random under load, and ranges split and merge: every acknowledged
// record is there once, those of a key in order. There is little memory, so that batches
// of a memory that is gone wait for room in the next one.
func TestSharedClientThroughCuts(t *testing.T) {
	for _, c := range []struct {
		memory, records, pad int
		server.Options
	}{
		{1 << 20, 4000, 0, server.Options{}},
		{16 << 20, 4000, 0, server.Options{}},
		{2 << 20, 1500, 3000, trusting()},
		{16 << 20, 1500, 3000, trusting()},
	} {
		t.Run(fmt.Sprintf("%d MiB, %d bytes more, trusted %v", c.memory>>20, c.pad, c.Sharing.Trusted), func(t *testing.T) {
			throughCuts(t, c.Options, c.memory, &load{writers: 4, records: rounds(c.records), pad: c.pad})
		})
	}
}

func throughCuts(t *testing.T, o server.Options, memory int, l *load) {
	e := open(t, t.TempDir(), Options{})
	s := shareMemory(t, e, o)
	c := s.dial(memory)
	must(t, c.CreateTopic(within(t), "t", TopicOptions{}))
	seq := uint32(0)
	admin := dial(t, serve(t, e))
	changes := 0
	stop := again(func() {
		if changes == 100 { // a topic remembers all of them, and each costs more than the one before
			time.Sleep(time.Millisecond)
			return
		}
		left, right, err := admin.SplitRange(within(t), "t", seq)
		if err == nil {
			seq, err = admin.MergeRanges(within(t), "t", left, right)
		}
		if err != nil {
			t.Errorf("split and merge: %v", err)
		}
		changes++
	})
	var mu sync.Mutex
	cuts, lent := 0, int64(0)
	tell := func() {
		n := s.Stats().Shared
		lent += n.Lent
		if n.Hostile+n.Faults != 0 {
			t.Errorf("%+v", n)
		}
	}
	l.meanwhile = func() {
		mu.Lock()
		defer mu.Unlock()
		if cuts < rounds(10) {
			cuts++
			tell()
			s.cut(e)
		}
	}
	l.run(t, c, ProducerOptions{Topic: "t", BatchBytes: memory / 8})
	stop()
	tell()
	if cuts < 5 || changes == 0 || (lent > 0) != (o.Sharing.Trusted != nil) {
		t.Errorf("%d cuts, %d changes of ranges, %d frames were lent", cuts, changes, lent)
	}
	l.check(t, readEntries(t, e))
	must(t, c.Close())
}

// The server and its engine stop in good order and start again, while a client sends.
func TestSharedClientOverRestarts(t *testing.T) {
	dir := t.TempDir()
	e, err := Open(dir, small(Options{}))
	must(t, err)
	s := shareMemory(t, e, server.Options{})
	c := s.dial(4 << 20)
	must(t, c.CreateTopic(within(t), "t", TopicOptions{}))
	var mu sync.Mutex
	restarts := 0
	l := &load{writers: 3, records: rounds(2000), meanwhile: func() {
		mu.Lock()
		defer mu.Unlock()
		if restarts == rounds(3) {
			return
		}
		restarts++
		s.stop(within(t))
		shut(t, e)
		if e, err = Open(dir, small(Options{})); err != nil {
			t.Error(err)
			return
		}
		s.start(e)
	}}
	l.run(t, c, ProducerOptions{Topic: "t", BatchBytes: 4096})
	if restarts == 0 {
		t.Error("nothing started again")
	}
	must(t, c.Close())
	s.stop(within(t))
	l.check(t, readEntries(t, e))
	shut(t, e)
}

// Whoever may not share memory is told so by Dial, and does not try for long.
func TestSharedClientIsRefused(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	s := shareMemory(t, e, server.Options{Sharing: server.Sharing{UIDs: []uint32{54321}}})
	_, err := client.DialShm(within(t), s.path, client.Options{})
	is(t, err, client.ErrRefused, s.path, "shm-uids")
}
