package bench

import (
	"context"
	"errors"
	"sync"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/segfile/record"
)

// nullStore is an engine that verifies what it is sent and stores nothing: what is left is
// what submitting costs.
type nullStore struct{ server.Engine } // of which nothing else is asked

func (nullStore) Log() string         { return "nothing" }
func (nullStore) Incarnation() uint64 { return 1 }

// Routes is one range with all keys.
func (nullStore) Routes(string) (api.Routes, error) {
	return api.Routes{Topic: "nothing", Ranges: []api.Route{{Last: 1<<32 - 1}}}, nil
}

func (nullStore) Register([]byte) (func() error, error) { return func() error { return nil }, nil }

func (nullStore) OpenProducer(_ context.Context, _ string, id uint64, _ bool) (server.Producer, error) {
	return &nullProducer{id: id}, nil
}

type nullProducer struct {
	id      uint64
	scratch record.Scratch // of the one goroutine that sends
	frames  sync.Pool
}

func (p *nullProducer) ID() uint64                  { return p.id }
func (p *nullProducer) MaxFrame() int               { return api.MaxBatchBytes }
func (p *nullProducer) Close(context.Context) error { return nil }

func (p *nullProducer) NewFrame(_ context.Context, size int) (server.Frame, error) {
	f, ok := p.frames.Get().(*nullFrame)
	if !ok {
		f = &nullFrame{p: p}
	}
	if cap(f.own) < size {
		f.own = make([]byte, size)
	}
	f.b = f.own[:size]
	return f, nil
}

func (p *nullProducer) Lend([]byte, func()) (server.Frame, error) {
	return nil, errors.New("bench: nothing is lent to what stores nothing")
}

type nullFrame struct {
	p   *nullProducer
	own []byte
	b   []byte
}

func (f *nullFrame) Bytes() []byte  { return f.b }
func (f *nullFrame) Header() []byte { return f.b[:record.HeaderSize] }
func (f *nullFrame) Discard()       { f.p.frames.Put(f) }

func (f *nullFrame) Send(_ context.Context, _ bool, done func(api.Placement, error)) error {
	if _, err := record.Verify(f.b, 0, &f.p.scratch); err != nil {
		return err
	}
	f.p.frames.Put(f)
	done(api.Placement{}, nil)
	return nil
}
