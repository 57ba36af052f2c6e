package engine

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
)

// serve serves an engine on loopback until the test ends, before the engine closes.
func serve(t testing.TB, e *Engine) (addr string) {
	t.Helper()
	addr, stop := serveFor(t, e)
	t.Cleanup(stop)
	return addr
}

// serveFor serves an engine on loopback until stop is called.
func serveFor(t testing.TB, e *Engine) (addr string, stop func()) {
	t.Helper()
	return serveWith(t, e, server.Options{})
}

// serveWith is serveFor with options.
func serveWith(t testing.TB, e *Engine, o server.Options) (addr string, stop func()) {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	s, err := server.New(e.Backend(), o)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(l); err != nil && !errors.Is(err, server.ErrShutdown) {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String(), func() {
		if err := s.Shutdown(within(t)); err != nil {
			t.Error(err)
		}
		serving.Wait()
	}
}

func dial(t testing.TB, addr string) *client.Client {
	t.Helper()
	c, err := client.Dial(within(t), addr, client.Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: patience})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// cutter is a proxy that ends connections.
type cutter struct {
	mu    sync.Mutex
	to    string // "": nowhere
	open  map[net.Conn]struct{}
	cuts  int
	tasks sync.WaitGroup
}

func newCutter(t testing.TB, to string) (p *cutter, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p = &cutter{to: to, open: map[net.Conn]struct{}{}}
	p.tasks.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			p.tasks.Go(func() { p.pass(from) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.cut(1)
		p.tasks.Wait()
	})
	return p, l.Addr().String()
}

func (p *cutter) pass(from net.Conn) {
	defer from.Close()
	p.mu.Lock()
	addr := p.to
	p.mu.Unlock()
	to, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer to.Close()
	p.mu.Lock()
	p.open[from] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.open, from)
		p.mu.Unlock()
	}()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // ends with either
			from.Close()
			to.Close()
		})
	}
	both.Wait()
}

// cut ends each connection with a probability.
func (p *cutter) cut(chance float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		if rand.Float64() < chance {
			c.Close()
			p.cuts++
		}
	}
}

// again calls do again and again until stop is.
func again(do func()) (stop func()) {
	quit := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
				do()
			}
		}
	})
	return func() {
		close(quit)
		running.Wait()
	}
}

// load has writers send records of keys of their own and checks, when all is read, that
// each acknowledged record is there once, and those of a key in order.
type load struct {
	writers, records int
	pad              int    // bytes behind what a record says
	meanwhile        func() // called now and then
}

func (l *load) run(t *testing.T, c *client.Client, o ProducerOptions) {
	t.Helper()
	var all sync.WaitGroup
	for w := range l.writers {
		all.Go(func() {
			p, err := c.NewProducer(o)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range l.records {
				if i%200 == 100 {
					l.meanwhile()
				}
				r := Record{Key: text("writer-%d-key-%d", w, i%5), Value: append(text("%d ", i), make([]byte, l.pad)...)}
				err := p.Append(within(t), r, func(_ Placement, err error) {
					if err != nil {
						t.Errorf("writer %d, record %d: %v", w, i, err)
					}
				})
				if err != nil {
					t.Errorf("writer %d, record %d: %v", w, i, err)
					return
				}
			}
			if err := p.Close(within(t)); err != nil {
				t.Errorf("writer %d: %v", w, err)
			}
		})
	}
	all.Wait()
}

func (l *load) check(t *testing.T, got []entry) {
	t.Helper()
	if fault := l.fault(got); fault != "" {
		t.Fatal(fault)
	}
}

// fault is what is wrong with what was read, "" for nothing.
func (l *load) fault(got []entry) string {
	next := map[string]int{}
	for _, e := range got {
		var w, k, i int
		if _, err := fmt.Sscanf(string(e.Key), "writer-%d-key-%d", &w, &k); err != nil {
			return fmt.Sprintf("key %q", e.Key)
		}
		if _, err := fmt.Sscanf(string(e.Value), "%d", &i); err != nil {
			return fmt.Sprintf("key %s: value %q", e.Key, e.Value)
		}
		if want := next[string(e.Key)]*5 + k; i != want {
			return fmt.Sprintf("key %s: record %d where %d is due", e.Key, i, want)
		}
		next[string(e.Key)]++
	}
	if len(got) != l.writers*l.records {
		return fmt.Sprintf("%d records, want %d", len(got), l.writers*l.records)
	}
	return ""
}

// N04: what holds the tests of broken connections against what was sent fails where a
// record is lost, doubled, out of order, somebody else's or none of them.
func TestN04_LoadCheckFails(t *testing.T) {
	l := &load{writers: 2, records: 20}
	whole := func() (all []entry) {
		for w := range l.writers {
			for i := range l.records {
				all = append(all, entry{Key: text("writer-%d-key-%d", w, i%5), Value: text("%d", i)})
			}
		}
		return all
	}
	if fault := l.fault(whole()); fault != "" {
		t.Fatalf("nothing is wrong, and it says %s", fault)
	}
	for name, harm := range map[string]func([]entry) []entry{
		"lost":         func(all []entry) []entry { return append(all[:7], all[8:]...) },
		"the last":     func(all []entry) []entry { return all[:len(all)-1] },
		"doubled":      func(all []entry) []entry { return append(all, all[len(all)-1]) },
		"out of order": func(all []entry) []entry { all[3], all[8] = all[8], all[3]; return all },
		"another's":    func(all []entry) []entry { all[3].Key = []byte("writer-0-key-4"); return all },
		"changed":      func(all []entry) []entry { all[3].Value = []byte("4"); return all },
		"foreign":      func(all []entry) []entry { all[3].Key = []byte("key"); return all },
	} {
		if l.fault(harm(whole())) == "" {
			t.Errorf("a record is %s, and nobody hears of it", name)
		}
	}
}
