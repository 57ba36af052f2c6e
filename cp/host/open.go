package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/config"
	sm "github.com/lni/dragonboat/v4/statemachine"
	"github.com/ringfence/ringfence/cp"
)

// takeDir makes the directory and locks it.
func (h *Host) takeDir() error {
	if err := os.MkdirAll(h.opts.Dir, 0o700); err != nil {
		return fmt.Errorf("cp/host: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(h.opts.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cp/host: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.Join(fmt.Errorf("%w: %s", ErrLocked, h.opts.Dir), f.Close())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cp/host: locking %s: %w", f.Name(), err), f.Close())
	}
	h.lock = f
	return nil
}

// identify reads the identity, or decides that this is a new directory and writes
// one. It refuses whatever does not fit.
func (h *Host) identify() (err error) {
	dir, o := h.opts.Dir, h.opts
	if h.id, err = readIdentity(dir); err != nil {
		return err
	}
	if h.id != nil && h.id.Formed {
		if o.Vnodes != 0 && o.Vnodes != h.id.Vnodes {
			return fmt.Errorf("%w: %s has %d vnodes, asked for %d; the number is fixed when a directory is formed",
				ErrMismatch, dir, h.id.Vnodes, o.Vnodes)
		}
		if o.Node != "" && o.Node != h.id.Node {
			return fmt.Errorf("%w: %s belongs to node %q, not %q", ErrMismatch, dir, h.id.Node, o.Node)
		}
		if _, err := os.Stat(h.raftDir()); errors.Is(err, os.ErrNotExist) {
			return h.wiped("raft/ is gone")
		} else if err != nil {
			return fmt.Errorf("cp/host: %w", err)
		}
		return nil
	}
	if h.id == nil {
		if _, err := os.Stat(h.raftDir()); err == nil {
			return fmt.Errorf("%w: %s holds raft/ but no %s; put it back from the same copy, or move raft/ away to begin anew",
				ErrWiped, dir, identityFile)
		}
	}
	if err := o.Form(); err != nil {
		return fmt.Errorf("cp/host: not forming metadata in %s: %w", dir, err)
	}
	// An earlier attempt to form never came to an end, so it answered nobody and
	// what it left is worth nothing.
	if err := os.RemoveAll(h.raftDir()); err != nil {
		return fmt.Errorf("cp/host: %w", err)
	}
	h.formed = true
	h.id = newIdentity(cmp.Or(o.Node, defaultNode), cmp.Or(o.Vnodes, defaultVnodes))
	if err := h.id.save(dir); err != nil {
		return err
	}
	if err := os.Mkdir(h.raftDir(), 0o700); err != nil {
		return fmt.Errorf("cp/host: %w", err)
	}
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("cp/host: %w", err)
	}
	return nil
}

func (h *Host) wiped(what string) error {
	return fmt.Errorf("%w: %s in %s, but %s says that replicas were formed (opened %d times); put the directory back from a copy, "+
		"or move it away to begin anew without its topics", ErrWiped, what, h.opts.Dir, identityFile, h.id.Starts)
}

func (h *Host) openJournal() error {
	fs, err := newRaftFS(h.raftDir(), h.log)
	if err != nil {
		return fmt.Errorf("cp/host: %w", err)
	}
	slots, names, err := openSlots(h.raftDir())
	if err != nil {
		return err
	}
	next := func(last slotHeader) (uint64, error) {
		if last.start < h.opts.Seen && h.id.Formed {
			return 0, fmt.Errorf("%w: %s was opened %d times, but data elsewhere was written by the %dth; put the metadata back from the same copy as the data",
				ErrRolledBack, h.opts.Dir, last.start, h.opts.Seen)
		}
		return h.id.next(h.opts.Dir, last)
	}
	disk, err := h.id.disk()
	if err != nil {
		return err
	}
	j, err := openJournal(slots, names, disk, !h.id.Formed, next, h.log)
	if err != nil {
		_ = errors.Join(slots[0].Close(), slots[1].Close())
		if errors.Is(err, ErrWiped) {
			err = h.wiped("the Raft log is gone")
		}
		return err
	}
	h.journal = j
	h.db = &logDB{journal: j, host: h, dir: h.raftDir(), fs: fs}
	h.id.Starts = j.start
	if err := h.id.save(h.opts.Dir); outOfSpace(err) && h.id.Formed {
		h.log.Warn("disk full: the identity lags behind the journal until the next start", "err", err)
	} else if err != nil {
		return err
	}
	return h.db.checkSnapshots()
}

// startNode starts dragonboat.
func (h *Host) startNode() error {
	n := uint64(h.id.Vnodes)
	workers := min(n, 4)
	cfg := config.NodeHostConfig{
		DeploymentID:   deployment,
		NodeHostDir:    h.raftDir(),
		RaftAddress:    string(h.id.Node),
		RTTMillisecond: uint64(tick.Milliseconds()),
		Expert: config.ExpertConfig{
			LogDBFactory:     h.db,
			TransportFactory: h.net,
			FS:               h.db.fs,
			LogDB:            config.GetTinyMemLogDBConfig(), // of the built-in store, which is not used
			Engine: config.EngineConfig{
				ExecShards: workers, CommitShards: 1, ApplyShards: workers, SnapshotShards: 2, CloseShards: 1,
			},
		},
	}
	return h.guard(func() (err error) {
		if h.nh, err = dragonboat.NewNodeHost(cfg); err != nil {
			return fmt.Errorf("cp/host: starting Raft: %w", err)
		}
		return nil
	})
}

// startVnodes resumes or forms every vnode's replica and waits until all lead.
func (h *Host) startVnodes() error {
	errs := make([]error, h.id.Vnodes)
	var wg sync.WaitGroup
	for i, rv := range h.ring.Vnodes() {
		shard := uint64(rv.ID)
		v := &vnode{
			id:      rv.ID,
			shard:   shard,
			machine: &machine{state: cp.NewState(), host: h},
			session: h.nh.GetNoOPSession(shard),
		}
		h.vnodes = append(h.vnodes, v)
		wg.Go(func() {
			errs[i] = h.guard(func() error { return h.startVnode(v) })
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (h *Host) startVnode(v *vnode) error {
	cfg := config.Config{
		ShardID: v.shard, ReplicaID: replica,
		ElectionRTT: 10, HeartbeatRTT: 1,
		OrderedConfigChange: true,
	}
	members := map[uint64]dragonboat.Target{replica: string(h.id.Node)}
	if h.id.Formed {
		members = nil // resume: a group that was here once is never formed again
	}
	create := func(uint64, uint64) sm.IConcurrentStateMachine { return v.machine }
	err := h.nh.StartConcurrentReplica(members, false, create, cfg)
	if errors.Is(err, dragonboat.ErrShardNotBootstrapped) {
		return h.wiped(fmt.Sprintf("vnode %d has no log", v.id))
	}
	if err != nil {
		return fmt.Errorf("cp/host: starting vnode %d: %w", v.id, err)
	}
	return h.lead(v)
}

// lead makes the replica campaign and returns when a read through the log works:
// that needs an entry of the new term to be durable and applied. dragonboat would
// wait for ever for a replica that cannot be restored, so it is not asked to.
func (h *Host) lead(v *vnode) error {
	deadline := time.Now().Add(30 * time.Second)
	for wait := time.Millisecond; ; wait = min(2*wait, tick) {
		if _, _, ok, err := h.nh.GetLeaderID(v.shard); err == nil && !ok {
			// Ignored until what was committed before has been applied, so repeat.
			h.net.campaign(v.shard, replica)
		}
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		_, err := h.nh.SyncRead(ctx, v.shard, query(func(*cp.State) {}))
		cancel()
		if err == nil {
			return nil
		}
		if e := h.Err(); e != nil {
			return e
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cp/host: vnode %d has no leader after 30 s: %w", v.id, err)
		}
		time.Sleep(wait)
	}
}
