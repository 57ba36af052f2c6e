package host

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"
	"github.com/ringfence/ringfence/cp"
)

// Options say how to open a host. Only Dir is needed.
type Options struct {
	Dir     string        // the node's metadata; made if it does not exist
	Vnodes  int           // fixed when the directory is formed; 0 means 4 then, and whatever it has later
	Node    cp.NodeID     // this node's name, fixed likewise; "" means "node" then, and whatever it has later
	Timeout time.Duration // of calls whose context has no deadline; 0 means 5 s
	Logger  *slog.Logger  // nil means slog.Default()

	// Form is asked before replicas are formed in a new directory; an error refuses.
	// Whoever keeps data elsewhere can so notice that its metadata is gone.
	Form func() error

	// Access, if set, is called whenever what a vnode knows of users may have changed,
	// before that is answered to anybody. It may not block, nor call the host.
	Access func()

	// Seen is the highest incarnation of this directory that the caller knows from
	// what it keeps elsewhere. A directory that was opened fewer times was put back
	// from a copy, which it cannot notice by itself, and is refused.
	Seen uint64
}

func (o Options) withDefaults() (Options, error) {
	if o.Dir == "" {
		return o, errors.New("cp/host: Options.Dir is empty")
	}
	if o.Vnodes < 0 || o.Vnodes > maxVnodes {
		return o, fmt.Errorf("cp/host: Options.Vnodes %d must be 1 to %d", o.Vnodes, maxVnodes)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("cp/host: %w", err)
	}
	o.Dir = dir
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Form == nil {
		o.Form = func() error { return nil }
	}
	if o.Access == nil {
		o.Access = func() {}
	}
	return o, nil
}

const (
	maxVnodes     = 256
	defaultVnodes = 4
	defaultNode   = "node"

	// deployment separates clusters that meet on a network by mistake; the node's
	// identity does that job here, so it is dragonboat's default.
	deployment = 1
	// replica is the id of this node's replica in every group it formed.
	replica = 1

	// tick is dragonboat's clock. It only bounds how soon a forgotten request is
	// dropped and a lost campaign repeated, so it is slow and costs nothing when idle.
	tick = 50 * time.Millisecond
)

// Host is the metadata of one node.
type Host struct {
	log     *slog.Logger
	opts    Options
	id      *identity
	formed  bool // by this Open
	ring    cp.Ring
	lock    *os.File
	db      *logDB
	journal *journal // of db
	nh      *dragonboat.NodeHost
	net     *alone
	vnodes  []*vnode // by id, from 1
	stop    chan struct{}
	running sync.WaitGroup

	closeOnce sync.Once
	closeErr  error

	failOnce sync.Once
	failed   chan struct{} // closed after cause is set
	cause    error
}

// vnode is one group's replica here.
type vnode struct {
	id      cp.VnodeID
	shard   uint64 // dragonboat's name for the group, the same number
	machine *machine
	session *client.Session // does not track: a command is proposed once

	inflight atomic.Int64 // bytes of commands waiting for their answer
}

// Open opens a directory and returns when every vnode accepts commands.
func Open(o Options) (_ *Host, err error) {
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	h := &Host{log: o.Logger, opts: o, net: &alone{}, stop: make(chan struct{}), failed: make(chan struct{})}
	register(h)
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if err := h.takeDir(); err != nil {
		return nil, err
	}
	if err := h.identify(); err != nil {
		return nil, err
	}
	h.ring = cp.NewRing(h.id.Vnodes)
	if err := h.openJournal(); err != nil {
		return nil, err
	}
	if err := h.startNode(); err != nil {
		return nil, err
	}
	if err := h.startVnodes(); err != nil {
		return nil, err
	}
	if !h.id.Formed {
		h.id.Formed = true
		if err := h.id.save(o.Dir); err != nil {
			return nil, err
		}
	}
	h.running.Go(h.maintain)
	return h, nil
}

func (h *Host) raftDir() string { return filepath.Join(h.opts.Dir, "raft") }

// Ring says which vnode a topic lives on.
func (h *Host) Ring() cp.Ring { return h.ring }

// Vnodes is how many vnodes there are.
func (h *Host) Vnodes() int { return h.id.Vnodes }

// Node is this node's name.
func (h *Host) Node() cp.NodeID { return h.id.Node }

// Disk identifies this directory: random, made when it was formed.
func (h *Host) Disk() string { return h.id.Disk }

// Incarnation counts the times the directory was opened, this one included. It
// never repeats, so it can tell one life of this node from another.
func (h *Host) Incarnation() uint64 { return h.id.Starts }

// Formed says whether this Open made the metadata anew.
func (h *Host) Formed() bool { return h.formed }

// Failed is closed when the host has stopped for good; Err says why.
func (h *Host) Failed() <-chan struct{} { return h.failed }

// Err is nil, or the reason why the host stopped, an ErrFailed.
func (h *Host) Err() error {
	select {
	case <-h.failed:
		return h.cause
	default:
		return nil
	}
}

// fail stops the host for good, if it is not stopped yet, and returns the reason
// that counts. It is called from any goroutine.
func (h *Host) fail(err error) error {
	h.failOnce.Do(func() {
		if !errors.Is(err, ErrFailed) {
			err = fmt.Errorf("%w: %w", ErrFailed, err)
		}
		h.cause = err
		close(h.failed)
		h.log.Error("metadata stopped: restart when the cause is gone", "dir", h.opts.Dir, "err", err)
	})
	return h.cause
}

// Close stops the replicas and releases the directory. Calls under way end with an
// error. After a failure, and when the log waits for disk space, dragonboat cannot
// be stopped in order: some of its goroutines stay, idle and unable to change
// anything, until the process ends.
func (h *Host) Close() error {
	h.closeOnce.Do(func() { h.closeErr = h.close() })
	return h.closeErr
}

func (h *Host) close() error {
	close(h.stop)
	h.running.Wait()
	var errs []error
	if h.nh != nil {
		errs = append(errs, h.closeNode())
	}
	if h.journal != nil {
		h.db.fs.shut.Store(true)
		errs = append(errs, h.journal.Close())
	}
	unregister(h)
	if h.lock != nil {
		errs = append(errs, h.lock.Close())
	}
	return errors.Join(errs...)
}

// closeNode closes dragonboat, or gives up on it when it has lost a worker.
func (h *Host) closeNode() error {
	done := make(chan error, 1)
	go func() {
		done <- h.guard(func() error { h.nh.Close(); return nil })
	}()
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-h.failed:
			return nil
		case <-t.C:
			if h.journal.waiting() {
				return nil
			}
		}
	}
}
