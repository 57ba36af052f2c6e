package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// Backend is the engine as a server sees it.
//
// It is for the other packages of this module alone.
func (e *Engine) Backend() server.Engine { return &backend{Engine: e, sessions: map[session]*lease{}} }

type backend struct {
	*Engine

	mu       sync.Mutex
	sessions map[session]*lease // the producers that are open, by who they are
}

// session is who sends: two connections that say the same are one program, which
// reconnected.
type session struct {
	topic string
	id    uint64
}

// lease is a producer on behalf of a connection.
type lease struct {
	*Producer
	b     *backend
	key   session
	once  sync.Once
	ended chan struct{} // closed when everything that was sent is durable or failed
	err   error         // set before
}

// OpenProducer opens a producer that stops at the first frame that fails, so that
// nothing overtakes it. Another one of the same id is given up first: what it still has
// in memory would land behind what is sent now, after its program was told otherwise.
func (b *backend) OpenProducer(ctx context.Context, topic string, id uint64, unnumbered bool) (server.Producer, error) {
	for id == 0 {
		id = b.dice()
	}
	key := session{topic, id}
	for {
		b.mu.Lock()
		older := b.sessions[key]
		if older == nil {
			break
		}
		b.mu.Unlock()
		if err := older.giveUp(ctx); err != nil {
			return nil, err
		}
	}
	defer b.mu.Unlock()
	p, err := b.NewProducer(ProducerOptions{Topic: topic, ID: id, NotIdempotent: unnumbered, MaxInFlight: sessionWindow, BatchBytes: sessionBatch})
	if err != nil {
		return nil, err
	}
	l := &lease{Producer: p, b: b, key: key, ended: make(chan struct{})}
	b.sessions[key] = l
	return l, nil
}

const (
	sessionWindow = 16      // frames of one range that the store has at a time; more wait, up to as many again
	sessionBatch  = 1 << 20 // what records are rebuilt into whose frame belongs to several ranges
)

// giveUp fails what is not handed to the disk yet and waits for the rest until ctx ends.
func (l *lease) giveUp(ctx context.Context) error {
	l.stop(errors.New("the producer was opened again by another connection"))
	_ = l.Close(ctx) // its own connection is told
	select {
	case <-l.ended:
		return nil
	default:
		return &wire.Error{Code: wire.CodeUnavailable, Detail: fmt.Sprintf(
			"topic %q: producer %d is still open elsewhere, with frames that are on their way to the disk: try again", l.key.topic, l.key.id)}
	}
}

// Close flushes. When ctx ends first, what is not handed to the disk yet fails; the rest
// is the disk's to answer, and until it has nobody opens the producer again.
func (l *lease) Close(ctx context.Context) error {
	l.once.Do(func() {
		go func() {
			defer close(l.ended)
			l.err = l.Producer.Close(context.Background())
			l.b.mu.Lock()
			defer l.b.mu.Unlock()
			delete(l.b.sessions, l.key)
		}()
	})
	select {
	case <-l.ended:
		return l.err
	case <-ctx.Done():
		l.stop(ctx.Err())
		return ctx.Err()
	}
}

func (l *lease) NewFrame(ctx context.Context, size int) (server.Frame, error) {
	f, err := l.Producer.NewFrame(ctx, size)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (l *lease) Lend(frame []byte, release func()) (server.Frame, error) {
	f, err := l.Producer.Lend(frame, release)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Routes are the topic's active ranges.
func (b *backend) Routes(topic string) (api.Routes, error) {
	if err := api.CheckTopic(topic); err != nil {
		return api.Routes{}, err
	}
	t, err := b.topic(topic)
	if err != nil {
		return api.Routes{}, about(topic, -1, err)
	}
	slices, _ := t.Slices()
	r := api.Routes{Topic: t.ID().String()}
	for _, s := range slices {
		r.Ranges = append(r.Ranges, api.Route{Range: s.Range.Seq, Last: s.Last})
	}
	return r, nil
}

// Log is the identity of the directory's metadata, to which the log belongs.
func (b *backend) Log() string { return b.host.Disk() }

func (b *backend) OpenConsumer(topic, group string, from api.From) (server.Consumer, error) {
	c, err := b.NewConsumer(ConsumerOptions{Topic: topic, Group: group, From: from})
	if err != nil {
		return nil, err
	}
	return framer{c}, nil
}

// CommitCursor makes a cursor a group's position.
func (b *backend) CommitCursor(ctx context.Context, topic, group, cursor string, reset bool) error {
	if group == "" {
		return about(topic, -1, fmt.Errorf("%w: a group without a name has no position", cp.ErrInvalidGroup))
	}
	c, err := b.NewConsumer(ConsumerOptions{Topic: topic, Group: group, From: FromCursor(cursor)})
	if err != nil {
		return err
	}
	return errors.Join(c.commit(ctx, reset), c.Close())
}

// CursorLag is how many records are stored behind a cursor.
func (b *backend) CursorLag(topic, cursor string) (uint64, error) {
	c, err := b.NewConsumer(ConsumerOptions{Topic: topic, From: FromCursor(cursor)})
	if err != nil {
		return 0, err
	}
	n, err := c.Lag()
	return n, errors.Join(err, c.Close())
}

// framer is a consumer on behalf of a connection.
type framer struct{ *Consumer }

func (r framer) FetchFrames(maxBytes int, stored bool) (server.FramePage, error) {
	p, err := r.Consumer.FetchFrames(maxBytes, stored)
	r.rest()
	if err != nil {
		return server.FramePage{}, err
	}
	page := server.FramePage{
		Range: p.Range, First: p.First, Next: p.Next, Mark: p.Mark, Skips: p.Skips, CaughtUp: p.CaughtUp, Finished: p.Finished, Cursor: r.Cursor(),
		File: p.File, Position: p.Position, Length: p.Length, Salt: p.Salt, Give: p.Give,
	}
	if len(p.Frames) > 0 {
		page.Frames = [][]byte{p.Frames}
	}
	return page, nil
}

func (r framer) Changed() <-chan struct{} { return r.watch.Changed() }
