package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/ringfence/ringfence/engine/wire"
)

// handles are the producers and consumers of a connection by the numbers it knows them
// by. A number is not used again.
type handles struct {
	most int

	mu        sync.Mutex // guards the rest; innermost
	taken     int        // open, or being opened
	last      uint32
	producers map[uint32]*producer
	consumers map[uint32]*consumer
}

// reserve makes room for one before it is opened.
func (s *handles) reserve() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == s.most {
		return refusal(wire.CodeOverloaded, "the connection has %d producers and consumers, which is the most: close some", s.most)
	}
	s.taken++
	return nil
}

// release gives the room of one back that was closed or could not be opened.
func (s *handles) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
}

func (s *handles) addProducer(p *producer) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.producers[s.last] = p
	return s.last
}

func (s *handles) addConsumer(r *consumer) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	r.handle = s.last
	s.consumers[s.last] = r
	return s.last
}

// producer finds one; with closing nobody finds it again.
func (s *handles) producer(handle uint32, closing bool) (*producer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.producers[handle]
	if p == nil || p.closing {
		return nil, refusal(wire.CodeNoSuchHandle, "the connection has no producer %d", handle)
	}
	p.closing = closing
	return p, nil
}

// closed forgets a producer that was closed.
func (s *handles) closed(handle uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.producers, handle)
	s.taken--
}

// consumer finds one; with remove nobody finds it again.
func (s *handles) consumer(handle uint32, remove bool) (*consumer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.consumers[handle]
	if r == nil {
		return nil, refusal(wire.CodeNoSuchHandle, "the connection has no consumer %d", handle)
	}
	if remove {
		delete(s.consumers, handle)
	}
	return r, nil
}

// closeHandles closes what the connection has left open. Nothing else of it runs any
// more. What its producers sent goes on to the disk, whoever hears of it.
func (c *conn) closeHandles(log *slog.Logger) {
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	if errors.Is(context.Cause(c.ctx), ErrShutdown) {
		stop() // there is no more time
	}
	for _, r := range c.handles.consumers {
		if err := r.in.Close(); err != nil {
			log.Debug("closing a consumer failed", "topic", r.topic, "error", err)
		}
	}
	for _, p := range c.handles.producers {
		if err := p.to.Close(ctx); err != nil {
			log.Debug("closing a producer failed", "topic", p.topic, "error", err)
		}
	}
}
