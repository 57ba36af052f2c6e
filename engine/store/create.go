package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Create opens a new segment for appends. table is what the range knows of its producers
// (Segment.Producers), nil for nothing; from then on it is the store's. Create returns once
// the file and its name are durable.
func (s *Store) Create(ctx context.Context, meta segfile.Meta, table *segfile.ProducerTable) (*Segment, error) {
	if s.OutOfSpace() {
		return nil, fmt.Errorf("%w: segment %s of topic %q was not created", s.noSpace(), meta.ID, meta.Topic)
	}
	return s.create(ctx, meta, table, false)
}

// CreateFromReserve is Create that also works below the reserve of free space, and even when
// nothing of it is left: for a segment that is not meant for appends, but has to exist so
// that others can be closed or deleted.
func (s *Store) CreateFromReserve(ctx context.Context, meta segfile.Meta, table *segfile.ProducerTable) (*Segment, error) {
	return s.create(ctx, meta, table, true)
}

func (s *Store) create(ctx context.Context, meta segfile.Meta, table *segfile.ProducerTable, reserve bool) (*Segment, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	if err := s.bear(meta.ID); err != nil {
		return nil, err
	}
	defer s.born(meta.ID)
	w, err := s.pool.Create(ctx, meta, table)
	if errors.Is(err, disk.ErrNoSpace) {
		s.shrinkPool()
		w, err = s.pool.Create(ctx, meta, table)
	}
	if reserve && errors.Is(err, disk.ErrNoSpace) {
		if dropped, derr := s.dropBallast(); dropped {
			w, err = s.pool.Create(ctx, meta, table)
		} else {
			err = errors.Join(err, derr)
		}
	}
	if err != nil {
		s.noteSpace(err)
		return nil, fmt.Errorf("create segment %s of topic %q: %w", meta.ID, meta.Topic, storageError(err))
	}
	seg := &Segment{
		store: s, meta: meta, name: segfile.Name(meta.ID), writer: w,
		shard: s.shards[shardOf(meta.ID.Range, len(s.shards))],
		watch: s.Watch(meta.ID.Range.Topic),
		end:   w.End(), claimed: w.Position(), blocks: w.Blocks(),
	}
	seg.commit.Store(meta.Base)
	seg.durable.Store(w.Position())
	s.mu.Lock()
	s.segments[meta.ID] = seg
	s.mu.Unlock()
	seg.watch.Notify()
	return seg, nil
}

// bear makes the caller the only one who creates a segment of this id, until it calls born.
func (s *Store) bear(id fence.SegmentID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.segments[id] != nil || s.births[id] {
		return fmt.Errorf("store: create segment %s: %w", id, fs.ErrExist)
	}
	s.births[id] = true
	return nil
}

func (s *Store) born(id fence.SegmentID) {
	s.mu.Lock()
	delete(s.births, id)
	s.mu.Unlock()
}

// shardOf is the shard of a range's segments.
func shardOf(r fence.RangeID, n int) int {
	h := uint32(r.Seq)
	for _, b := range r.Topic[:8] {
		h = h*31 + uint32(b)
	}
	return int(h) % n
}
