package host

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	sm "github.com/lni/dragonboat/v4/statemachine"
	"github.com/ringfence/ringfence/cp"
)

// machine lets dragonboat run a vnode's state.
type machine struct {
	host *Host

	mu     sync.Mutex // guards what follows; held while commands are applied, never across I/O
	state  *cp.State
	broken error // an apply panicked: the state may be half changed
	size   int64 // of the last snapshot
}

var _ sm.IConcurrentStateMachine = (*machine)(nil)

// query is what Lookup is asked.
type query func(*cp.State)

// Update applies committed commands in order. Bytes that are no command are
// answered, identically on every replica; a panic stops this host before it can
// answer anything from a state that differs.
func (m *machine) Update(entries []sm.Entry) (_ []sm.Entry, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() {
		if r := recover(); r != nil {
			m.broken = m.host.fail(fmt.Errorf("applying a command panicked: %v\n%s", r, debug.Stack()))
			err = &hostError{m.host, m.broken}
		}
	}()
	for i := range entries {
		cmd, err := cp.Decode(entries[i].Cmd)
		reply := cp.Reply{Err: err}
		if err == nil {
			reply = m.state.Apply(cmd)
			if cp.ChangesAccess(cmd) {
				m.host.opts.Access()
			}
		}
		entries[i].Result = sm.Result{Value: 1, Data: reply.Encode()}
	}
	return entries, nil
}

// Lookup runs a query on the state.
func (m *machine) Lookup(q any) (any, error) {
	return nil, m.read(q.(query))
}

func (m *machine) read(q query) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return m.broken
	}
	q(m.state)
	return nil
}

// PrepareSnapshot is called between two updates.
func (m *machine) PrepareSnapshot() (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Clone(), nil
}

// SaveSnapshot writes a state from PrepareSnapshot beside further updates.
func (m *machine) SaveSnapshot(state any, w io.Writer, _ sm.ISnapshotFileCollection, stop <-chan struct{}) error {
	c := &countWriter{w: w, stop: stop}
	b := bufio.NewWriterSize(c, 64<<10)
	err := errors.Join(state.(*cp.State).Snapshot(b), b.Flush())
	if c.err != nil {
		return c.err // as it was: dragonboat tells harmless errors from others
	}
	if err != nil {
		return &hostError{m.host, fmt.Errorf("writing a snapshot: %w", err)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.size = c.n
	return nil
}

func (m *machine) RecoverFromSnapshot(r io.Reader, _ []sm.SnapshotFile, _ <-chan struct{}) error {
	c := &countReader{r: r}
	state := cp.NewState()
	if err := state.Restore(bufio.NewReaderSize(c, 64<<10)); err != nil {
		return &hostError{m.host, fmt.Errorf("restoring a snapshot: %w", err)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state, m.size = state, c.n
	m.host.opts.Access()
	return nil
}

func (m *machine) snapshotSize() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.size
}

func (m *machine) Close() error { return nil }

// countWriter counts, remembers the first error and gives up when told to stop.
type countWriter struct {
	w    io.Writer
	stop <-chan struct{}
	n    int64
	err  error
}

func (c *countWriter) Write(p []byte) (int, error) {
	select {
	case <-c.stop:
		c.err = sm.ErrSnapshotStopped
		return 0, c.err
	default:
	}
	n, err := c.w.Write(p)
	c.n += int64(n)
	if c.err == nil {
		c.err = err
	}
	return n, err
}

type countReader struct {
	r io.Reader
	n int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
