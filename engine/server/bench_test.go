package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// sink is an engine that stores nothing, at once, and whose consumers find the same
// frames again and again: what is left is what the server costs.
type sink struct {
	*fakeEngine
	page FramePage
}

type sinkProducer struct {
	fakeProducer
	free chan *sinkFrame
}

type sinkFrame struct {
	p   *sinkProducer
	all []byte
	b   []byte
}

func (e *sink) OpenProducer(ctx context.Context, topic string, id uint64, unnumbered bool) (Producer, error) {
	return &sinkProducer{free: make(chan *sinkFrame, 4)}, nil
}

func (e *sink) OpenConsumer(topic, group string, from api.From) (Consumer, error) {
	return &sinkConsumer{page: e.page}, nil
}

func (p *sinkProducer) MaxFrame() int               { return 8 << 20 }
func (p *sinkProducer) Close(context.Context) error { return nil }

func (p *sinkProducer) NewFrame(ctx context.Context, size int) (Frame, error) {
	var f *sinkFrame
	select {
	case f = <-p.free:
	default:
		f = &sinkFrame{p: p}
	}
	if cap(f.all) < size {
		f.all = make([]byte, size)
	}
	f.b = f.all[:size]
	return f, nil
}

func (f *sinkFrame) Bytes() []byte  { return f.b }
func (f *sinkFrame) Header() []byte { return f.b[:record.HeaderSize] }
func (f *sinkFrame) Discard()       {}
func (f *sinkFrame) Send(ctx context.Context, _ bool, done func(api.Placement, error)) error {
	done(api.Placement{}, nil)
	select {
	case f.p.free <- f:
	default:
	}
	return nil
}

type sinkConsumer struct {
	fakeConsumer
	page FramePage
}

func (c *sinkConsumer) FetchFrames(maxBytes int, stored bool) (FramePage, error) { return c.page, nil }
func (c *sinkConsumer) Changed() <-chan struct{}                                 { return nil }
func (c *sinkConsumer) Close() error                                             { return nil }

// benchServer serves a sink over TCP and answers a connection that said hello.
func benchServer(b *testing.B, page FramePage) *client {
	e := &sink{fakeEngine: newFakeEngine(), page: page}
	s, err := New(e, Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		nc.Close()
		if err := s.Shutdown(context.Background()); err != nil {
			b.Error(err)
		}
		<-served
	})
	c := &client{nc: nc}
	if _, err := nc.Write(c.frame(wire.KeyHello, 1, &wire.Hello{Magic: wire.Magic, MinVersion: 1, MaxVersion: 1})); err != nil {
		b.Fatal(err)
	}
	if _, err := c.read(); err != nil {
		b.Fatal(err)
	}
	return c
}

// BenchmarkProduce is a frame from a client's socket into memory of the engine and its
// answer, with 64 on their way.
func BenchmarkProduce(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			c := benchServer(b, FramePage{})
			if _, err := c.nc.Write(c.frame(wire.KeyOpenProducer, 1, &wire.OpenProducer{Topic: "a"})); err != nil {
				b.Fatal(err)
			}
			if _, err := c.read(); err != nil {
				b.Fatal(err)
			}
			frame := c.frame(wire.KeyProduce, 1, &wire.Produce{Producer: 1}, frameOf(1, size)...)
			head, err := wire.ParseHead(frame, wire.MaxFrame)
			if err != nil {
				b.Fatal(err)
			}
			window := make(chan struct{}, 64)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				for i := range b.N {
					window <- struct{}{}
					head.ID = uint32(i + 1)
					head.Put(frame)
					if _, err := c.nc.Write(frame); err != nil {
						return
					}
				}
			}()
			answer := make([]byte, 0, 256)
			for range b.N {
				answer = answer[:wire.HeadSize]
				if _, err := io.ReadFull(c.nc, answer); err != nil {
					b.Fatal(err)
				}
				h, err := wire.ParseHead(answer, wire.MaxFrame)
				if err != nil || h.Flags != wire.FlagReply {
					b.Fatal(h, err)
				}
				if _, err := io.ReadFull(c.nc, answer[:h.Length]); err != nil {
					b.Fatal(err)
				}
				<-window
			}
		})
	}
}

// BenchmarkFetch is a page of 1 MiB from memory of the engine to a client, frame by frame.
func BenchmarkFetch(b *testing.B) {
	for _, size := range []int{512, 64 << 10} {
		b.Run(fmt.Sprintf("frames%d", size), func(b *testing.B) {
			page := FramePage{Cursor: "c"}
			for range (1 << 20) / size {
				page.Frames = append(page.Frames, make([]byte, size))
			}
			c := benchServer(b, page)
			if _, err := c.nc.Write(c.frame(wire.KeyOpenConsumer, 1, &wire.OpenConsumer{Topic: "a"})); err != nil {
				b.Fatal(err)
			}
			if _, err := c.read(); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.nc.Write(c.frame(wire.KeyFetch, 1, &wire.Fetch{Consumer: 1})); err != nil {
					b.Fatal(err)
				}
				if a, err := c.read(); err != nil || len(a.raw) != 1<<20 {
					b.Fatal(len(a.raw), err)
				}
			}
		})
	}
}
