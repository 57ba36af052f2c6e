package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/ringfence/ringfence/cp"
)

const (
	maintainEvery = 500 * time.Millisecond
	snapshotRetry = 5 * time.Second // after one that failed, for want of space most likely

	// A snapshot is taken when the log it replaces has grown to a share of the last
	// snapshot, within bounds: a small state is snapshotted cheaply and keeps the
	// journal's checkpoints short; a large one is not written over and over.
	snapshotMin   = 256 << 10
	snapshotMax   = 16 << 20
	snapshotShare = 2

	// keepEntries stay in the log behind a snapshot, for a peer that lags a little.
	keepEntries = 16
)

// maintain takes snapshots and looks after the journal until the host closes.
func (h *Host) maintain() {
	t := time.NewTicker(maintainEvery)
	defer t.Stop()
	next := make([]time.Time, len(h.vnodes))
	for {
		select {
		case <-h.stop:
			return
		case <-h.failed:
			return
		case <-t.C:
		}
		if err := h.journal.maintain(); err != nil {
			_ = h.fail(err) // the host keeps it
			return
		}
		for i, v := range h.vnodes {
			if !h.snapshotDue(v) || time.Now().Before(next[i]) {
				continue
			}
			if err := h.snapshot(v); err != nil {
				h.log.Warn("metadata snapshot failed; the log is kept, trying again", "vnode", v.id, "err", err)
				next[i] = time.Now().Add(snapshotRetry)
			}
		}
	}
}

func (h *Host) snapshotDue(v *vnode) bool {
	size := v.machine.snapshotSize()
	due := min(max(size/snapshotShare, snapshotMin), snapshotMax)
	return h.journal.bytesOf(replicaKey{v.shard, replica}) >= due
}

// snapshot writes a vnode's state to a file, after which the log before it goes.
func (h *Host) snapshot(v *vnode) error {
	opt := dragonboat.SnapshotOption{OverrideCompactionOverhead: true, CompactionOverhead: keepEntries}
	var rs *dragonboat.RequestState
	err := h.guard(func() (err error) {
		rs, err = h.nh.RequestSnapshot(v.shard, opt, 10*time.Minute)
		return err
	})
	if err != nil {
		return err
	}
	select {
	case res := <-rs.ResultC():
		if res.Aborted() {
			return errors.New("aborted, the disk may be full")
		}
		if !res.Completed() && !res.Rejected() { // rejected: nothing new since the last one
			return errors.New("not completed")
		}
		return nil
	case <-h.stop:
		return nil
	case <-h.failed:
		return h.cause
	}
}

// Snapshot takes a snapshot of a vnode now, so that the next start replays little.
func (h *Host) Snapshot(ctx context.Context, id cp.VnodeID) error {
	v, err := h.vnode(id)
	if err != nil {
		return err
	}
	if err := h.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- h.snapshot(v) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("cp/host: snapshot of vnode %d: %w", id, err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stats describes the host for an operator.
type Stats struct {
	Incarnation uint64
	Generation  uint64 // of the journal: how often it was rewritten
	Saves       uint64 // durable writes of the journal since it was opened
	LiveBytes   int    // of the log that no snapshot replaces yet
	SlotBytes   int64  // usable in one slot of the journal
	NoSpace     bool   // the journal could not grow: the disk is full
}

// Stats may be called at any time, also after a failure.
func (h *Host) Stats() Stats {
	j := h.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	return Stats{
		Incarnation: h.id.Starts,
		Generation:  j.rotations,
		Saves:       j.written,
		LiveBytes:   j.image.bytes(),
		SlotBytes:   j.usable,
		NoSpace:     j.cramped != nil,
	}
}
