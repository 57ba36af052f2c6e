package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/fence"
)

// readView copies the metadata for the frontend to start from.
func (e *Engine) readView() (frontend.View, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	states, missing, err := e.host.Views(ctx)
	if err != nil || len(missing) > 0 {
		return frontend.View{}, fmt.Errorf("metadata shards %v cannot be read: %w", missing, err)
	}
	view := frontend.View{Ring: e.host.Ring(), Vnodes: map[cp.VnodeID]*cp.State{}}
	for _, v := range states {
		view.Vnodes[v.Vnode] = v.State
	}
	return view, nil
}

// lookAt calls look with a topic's metadata. look keeps nothing but records, which
// never change. ErrNoSuchTopic only when the metadata was read and has none.
func (e *Engine) lookAt(name string, look func(*cp.State, *cp.Topic)) error {
	v, ok := e.host.Ring().Route(name)
	if !ok {
		return cp.ErrNoVnode
	}
	found := false
	err := e.host.ReadLocal(v, func(s *cp.State) {
		if t := s.Topic(name); t != nil {
			found = true
			look(s, t)
		}
	})
	if err == nil && !found {
		err = cp.ErrNoSuchTopic
	}
	return err
}

// withTopic is lookAt by identity.
func (e *Engine) withTopic(id fence.TopicID, look func(*cp.State, *cp.Topic)) error {
	found := false
	for v := range e.vnodes() {
		err := e.host.ReadLocal(v, func(s *cp.State) {
			if t := s.TopicByID(id); t != nil {
				found = true
				look(s, t)
			}
		})
		if err != nil || found {
			return err
		}
	}
	return cp.ErrNoSuchTopic
}

// vnodes visits the metadata shards.
func (e *Engine) vnodes() iter.Seq[cp.VnodeID] {
	return func(yield func(cp.VnodeID) bool) {
		for _, v := range e.host.Ring().Vnodes() {
			if !yield(v.ID) {
				return
			}
		}
	}
}

// home is the metadata shard that keeps what belongs to no topic.
func (e *Engine) home() cp.VnodeID {
	id, _ := e.host.Ring().Home() // a host has a vnode at least
	return id
}

// topics lists all topics by name.
func (e *Engine) topics() ([]*cp.Topic, error) {
	var list []*cp.Topic
	for v := range e.vnodes() {
		err := e.host.ReadLocal(v, func(s *cp.State) {
			list = slices.AppendSeq(list, s.Topics())
		})
		if err != nil {
			return nil, err // some are not all
		}
	}
	slices.SortFunc(list, func(a, b *cp.Topic) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// segmentsOf lists the segments of a topic.
func (e *Engine) segmentsOf(name string) (list []*cp.Segment, err error) {
	err = e.lookAt(name, func(s *cp.State, t *cp.Topic) {
		for r := range s.Ranges(name) {
			list = slices.AppendSeq(list, s.Segments(r.ID))
		}
	})
	return list, err
}

// topic finds a topic by name. One that the control plane has and the frontend does
// not was made by a command whose answer never came.
func (e *Engine) topic(name string) (*frontend.Topic, error) {
	t, err := e.front.Topic(name)
	if errors.Is(err, cp.ErrNoSuchTopic) && e.lookAt(name, func(*cp.State, *cp.Topic) {}) == nil && e.front.Follow(name) {
		return e.front.Topic(name)
	}
	return t, err
}

// rangeOf names a topic's range.
func (e *Engine) rangeOf(topic string, seq uint32) (fence.RangeID, error) {
	if err := api.CheckTopic(topic); err != nil {
		return fence.RangeID{}, err
	}
	t, err := e.topic(topic)
	if err != nil {
		return fence.RangeID{}, about(topic, -1, err)
	}
	return fence.RangeID{Topic: t.ID(), Seq: seq}, nil
}

// hold keeps everybody else from opening a write head in the ranges until release is
// called. Ranges are locked in order, so that two holders never wait for each other.
func (e *Engine) hold(ids ...fence.RangeID) (release func()) {
	slices.SortFunc(ids, fence.RangeID.Compare)
	locks := make([]*sync.Mutex, len(ids))
	for i, id := range ids {
		locks[i] = e.lockOf(id)
		locks[i].Lock()
	}
	return func() {
		for _, l := range locks {
			l.Unlock()
		}
	}
}

func (e *Engine) lockOf(id fence.RangeID) *sync.Mutex {
	m, _ := e.held.LoadOrStore(id, &sync.Mutex{})
	return m.(*sync.Mutex)
}
