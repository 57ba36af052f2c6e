package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
)

// outlet is a producer as the load knows it, linked or over the network.
type outlet interface {
	NewBatch(ctx context.Context, size int) (parcel, error)
	Produce(ctx context.Context, r api.Record) (api.Placement, error)
}

// parcel is a batch that is filled in place.
type parcel interface {
	Reserve(keyLen, valueLen int) (key, value []byte, err error)
	Commit(key []byte) error
	Len() int
	Send(ctx context.Context, done func(api.Placement, error)) error
	Discard()
}

type linkedOutlet struct{ *engine.Producer }

func (o linkedOutlet) NewBatch(ctx context.Context, size int) (parcel, error) {
	b, err := o.Producer.NewBatch(ctx, size)
	if err != nil {
		return nil, err
	}
	return b, nil
}

type remoteOutlet struct{ *client.Producer }

func (o remoteOutlet) NewBatch(ctx context.Context, size int) (parcel, error) {
	b, err := o.Producer.NewBatch(ctx, size)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// remote is a server of the run's engine in this process, with a client of its own for
// each worker.
type remote struct {
	server  *server.Server
	serving chan error
	address string // for client.Dial
	clients []*client.Client
	outlets []outlet
}

// Ways to reach the engine.
const (
	OverTCP  = "tcp"  // over loopback
	OverUnix = "unix" // over a Unix socket
	// Through memory that is shared with a server in another process.
	OverShm     = "shm"
	OverTrusted = "shm, trusted" // which writes large batches from there
)

// serve starts a server of the engine and connects the workload's workers to it.
func (r *Run) serve(ctx context.Context, dir string) (m *remote, err error) {
	network, addr := "tcp", "127.0.0.1:0"
	if r.w.Over == OverUnix {
		network, addr = "unix", filepath.Join(dir, "socket")
	}
	quiet := slog.New(slog.DiscardHandler)
	m = &remote{serving: make(chan error, 1)}
	if m.server, err = server.New(r.e.Backend(), server.Options{Logger: quiet, MaxConns: 2*r.w.Workers + 100, MaxConnsPerIP: 2*r.w.Workers + 100}); err != nil {
		return nil, err
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if m.address = l.Addr().String(); network == "unix" {
		m.address = "unix:" + m.address
	}
	go func() { m.serving <- m.server.Serve(l) }()
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	for range r.w.Workers {
		// The windows of all workers together are what the batches take, and each has one
		// more that it fills.
		c, err := client.Dial(ctx, m.address, client.Options{Logger: quiet, MemoryBytes: max(64<<20/r.w.Workers, 2*(r.w.InFlight+1)*max(r.w.BatchBytes, 512<<10))})
		if err != nil {
			return m, err
		}
		m.clients = append(m.clients, c)
		p, err := c.NewProducer(r.producerOptions())
		if err != nil {
			return m, err
		}
		m.outlets = append(m.outlets, remoteOutlet{p})
	}
	return m, nil
}

// dial is one more client of the server.
func (m *remote) dial(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, m.address, client.Options{Logger: slog.New(slog.DiscardHandler)})
}

func (m *remote) close() error {
	if m == nil {
		return nil
	}
	var err error
	for _, o := range m.outlets {
		err = errors.Join(err, o.(remoteOutlet).Close(context.Background()))
	}
	for _, c := range m.clients {
		err = errors.Join(err, c.Close())
	}
	err = errors.Join(err, m.server.Shutdown(context.Background()))
	if e := <-m.serving; !errors.Is(e, server.ErrShutdown) {
		err = errors.Join(err, e)
	}
	return err
}
