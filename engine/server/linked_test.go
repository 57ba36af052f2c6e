package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// house is a directory that is served, by one server after another.
type house struct {
	t      *testing.T
	e      *engine.Engine
	addr   string
	s      *server.Server
	served chan error
}

func newHouse(t *testing.T) *house {
	t.Helper()
	opt := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, opt) })
	e, err := engine.Open(t.TempDir(), engine.Options{ArenaBytes: 16 << 20, ReserveBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	h := &house{t: t, e: e, addr: "127.0.0.1:0"}
	h.serve()
	t.Cleanup(h.stop)
	return h
}

func (h *house) serve() {
	h.t.Helper()
	l, err := net.Listen("tcp", h.addr)
	if err != nil {
		h.t.Fatal(err)
	}
	h.addr = l.Addr().String()
	h.s, err = server.New(h.e.Backend(), server.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		h.t.Fatal(err)
	}
	h.served = make(chan error, 1)
	go func() { h.served <- h.s.Serve(l) }()
}

func (h *house) stop() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := errors.Join(h.s.Shutdown(ctx), <-h.served); err != nil {
		h.t.Error(err)
	}
	if s := h.s.Stats(); s.Connections != 0 || s.HeapBytes != 0 || s.PageBytes != 0 {
		h.t.Errorf("after the shutdown: %+v", s)
	}
}

func (h *house) dial() *client.Client {
	h.t.Helper()
	c, err := client.Dial(h.t.Context(), h.addr, client.Options{})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// Producers of several connections store while the server is shut down and another one
// takes its place: what was acknowledged is there, every record once, and those of one
// key in order.
func TestServersInTurn(t *testing.T) {
	h := newHouse(t)
	c := h.dial()
	ctx := t.Context()
	if err := c.CreateTopic(ctx, "t", engine.TopicOptions{}); err != nil {
		t.Fatal(err)
	}
	const producers, each = 4, 500
	var all sync.WaitGroup
	half := make(chan struct{}, producers)
	for n := range producers {
		p, err := h.dial().NewProducer(engine.ProducerOptions{Topic: "t", BatchBytes: 16 << 10})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for i := range each {
				err := p.Append(ctx, engine.Record{Key: fmt.Append(nil, n), Value: fmt.Append(nil, i)}, func(_ engine.Placement, err error) {
					if err != nil {
						t.Errorf("producer %d, record %d: %v", n, i, err)
					}
				})
				if err != nil {
					t.Errorf("producer %d, record %d: %v", n, i, err)
				}
				if i == each/2 {
					half <- struct{}{}
				}
			}
			if err := errors.Join(p.Flush(ctx), p.Close(ctx)); err != nil {
				t.Error(err)
			}
		})
	}
	<-half
	h.stop()
	h.serve()
	if _, _, err := c.SplitRange(ctx, "t", 0); err != nil {
		t.Error(err)
	}
	all.Wait()

	r, err := c.NewConsumer(engine.ConsumerOptions{Topic: "t", From: engine.FromStart()})
	if err != nil {
		t.Fatal(err)
	}
	next := map[string]int{}
	for {
		page, err := r.Fetch(100)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range page.Records {
			if want := fmt.Sprint(next[string(rec.Key)]); string(rec.Value) != want {
				t.Fatalf("key %s: %s, want %s", rec.Key, rec.Value, want)
			}
			next[string(rec.Key)]++
		}
		if page.CaughtUp {
			break
		}
	}
	for n := range producers {
		if got := next[fmt.Sprint(n)]; got != each {
			t.Errorf("%d records of producer %d, want %d", got, n, each)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// A subscriber over TCP that stops reading holds up nobody, whatever the kernel's buffers
// took, and the server goes away all the same.
func TestK04StoppedReaderTCP(t *testing.T) {
	h := newHouse(t)
	c := h.dial()
	ctx := t.Context()
	if err := c.CreateTopic(ctx, "t", engine.TopicOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := c.NewProducer(engine.ProducerOptions{Topic: "t"})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var enc wire.Encoder
	ask := func(key wire.Key, m wire.Message) {
		if _, err := nc.Write(enc.Frame(key, 0, 1, m, 0)); err != nil {
			t.Fatal(err)
		}
	}
	hear := func() {
		head := make([]byte, wire.HeadSize)
		_, err := io.ReadFull(nc, head)
		h, bad := wire.ParseHead(head, wire.MaxFrame)
		if err := errors.Join(err, bad); err != nil || h.Flags != wire.FlagReply {
			t.Fatalf("%+v, %v", h, err)
		}
		if _, err := io.CopyN(io.Discard, nc, int64(h.Length)); err != nil {
			t.Fatal(err)
		}
	}
	ask(wire.KeyHello, &wire.Hello{Magic: wire.Magic, MinVersion: 1, MaxVersion: 1})
	hear()
	ask(wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: "t", From: 1})
	hear()
	ask(wire.KeySubscribe, &wire.Subscribe{Consumer: 1, Window: 1 << 31, MaxBytes: 1 << 20})
	value := make([]byte, 100<<10)
	for stuck := 0; stuck < 10; stuck++ { // until the kernel takes no more of what is pushed
		if _, err := p.Produce(ctx, engine.Record{Value: value}); err != nil {
			t.Fatal(err)
		}
		if h.s.Stats().PageBytes == 0 {
			stuck = 0
		}
	}
	if _, err := p.Produce(ctx, engine.Record{Value: value}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Describe(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	r, err := c.NewConsumer(engine.ConsumerOptions{Topic: "t", From: engine.FromStart()})
	if err != nil {
		t.Fatal(err)
	}
	if page, err := r.Poll(ctx, 1); err != nil || len(page.Records) != 1 {
		t.Errorf("another consumer: %d records, %v", len(page.Records), err)
	}
	if err := errors.Join(r.Close(), p.Close(ctx)); err != nil {
		t.Error(err)
	}
	nc.Close() // or the shutdown would wait for the write deadline
}
