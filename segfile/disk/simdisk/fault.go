package simdisk

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ringfence/ringfence/segfile/disk"
)

// Action is what an event does.
type Action string

const (
	Create   Action = "create"
	Open     Action = "open"
	Rename   Action = "rename"
	Remove   Action = "remove"
	Mkdir    Action = "mkdir"
	SyncDir  Action = "sync directory"
	List     Action = "list"
	Space    Action = "space"
	Lock     Action = "lock"
	Size     Action = "size"
	Read     Action = "read"
	Write    Action = "write"
	Sync     Action = "sync"
	Allocate Action = "allocate"
	Truncate Action = "truncate"
	Submit   Action = "submit" // of a queue operation; its end is the Write, Read or Sync
	Note     Action = "note"   // by the test, Name is its text
)

// changes says whether an action changes what is stored, or what of it is durable.
func (a Action) changes() bool {
	switch a {
	case Create, Rename, Remove, Mkdir, SyncDir, Write, Sync, Allocate, Truncate:
		return true
	}
	return false
}

// Event is one operation. Matchers see it before the outcome is known, Trace with
// the outcome, in the order in which operations ended.
type Event struct {
	Seq     uint64 // number in the trace, from 1
	Action  Action
	Name    string
	To      string // Rename
	Off     int64
	Len     int64
	Durable bool // Write
	Queued  bool // through a Queue
	N       int
	Err     error
}

func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s %s", e.Seq, e.Action, e.Name)
	if e.To != "" {
		fmt.Fprintf(&b, " to %s", e.To)
	}
	if e.Len != 0 || e.Off != 0 {
		fmt.Fprintf(&b, " [%d,+%d)", e.Off, e.Len)
	}
	if e.Durable {
		b.WriteString(" durable")
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Counts are totals since the disk was made.
type Counts struct {
	Events         int
	Writes         int // that succeeded, durable ones included
	DurableWrites  int
	Reads          int
	Syncs          int
	DirSyncs       int
	BytesWritten   int64
	BytesRead      int64
	Errors         int // operations that ended with an error of any cause
	Injected       int // of them by a Fault
	Reordered      int // queue operations that ended before an earlier one of their queue
	ChangedBuffers int // queued writes whose bytes changed between Submit and the end
	Lies           int // durable writes and syncs that succeeded and made nothing durable
}

// ErrPowerCut is the error of everything that comes after a cut (see CutAfter).
var ErrPowerCut = errors.New("simdisk: the power is cut")

// errCutNow is the error of the operation in the middle of which it was cut.
var errCutNow = fmt.Errorf("%w in the middle", ErrPowerCut)

type shortError struct{ n int }

func (e shortError) Error() string { return disk.ErrShort.Error() }
func (e shortError) Unwrap() error { return disk.ErrShort }

// Short is the error of a transfer that moves only n bytes: a disk.ErrShort.
func Short(n int) error { return shortError{n} }

// Fault makes operations fail.
type Fault struct {
	t     *tree
	match func(Event) error
	count int
}

// Fail makes every operation fail for which match returns an error, until Stop.
// match must not use the disk. A failed write may have written any of its sectors,
// a failed sync made anything durable or lost it for good; names do not change.
func (d *Disk) Fail(match func(Event) error) *Fault {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	f := &Fault{t: d.t, match: match}
	d.t.faults = append(d.t.faults, f)
	return f
}

// ErrorCount is how many operations this fault made fail.
func (f *Fault) ErrorCount() int {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	return f.count
}

// Stop ends the fault. Its count stays.
func (f *Fault) Stop() {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	f.t.faults = slices.DeleteFunc(f.t.faults, func(o *Fault) bool { return o == f })
}

// Always is a matcher: every event that meets cond fails with err.
func Always(err error, cond func(Event) bool) func(Event) error {
	return func(e Event) error {
		if cond(e) {
			return err
		}
		return nil
	}
}

// Nth is a matcher: the nth event (from 1) that meets cond fails with err.
func Nth(n int, err error, cond func(Event) bool) func(Event) error {
	return func(e Event) error {
		if cond(e) {
			if n--; n == 0 {
				return err
			}
		}
		return nil
	}
}

// On is a condition: one of these actions.
func On(actions ...Action) func(Event) bool {
	return func(e Event) bool { return slices.Contains(actions, e.Action) }
}

// OnFile is a condition: one of these actions on names that start with prefix.
func OnFile(prefix string, actions ...Action) func(Event) bool {
	return func(e Event) bool {
		return strings.HasPrefix(e.Name, prefix) && slices.Contains(actions, e.Action)
	}
}

// Hold keeps queue operations in flight.
type Hold struct {
	t     *tree
	match func(Event) bool
	held  int
}

// Hold keeps the queue operations that match in flight until Release; what was
// submitted before is not touched. A Wait that needs one of them blocks. match must
// not use the disk.
func (d *Disk) Hold(match func(Event) bool) *Hold {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	h := &Hold{t: d.t, match: match}
	d.t.holds = append(d.t.holds, h)
	return h
}

// Count is how many operations were held.
func (h *Hold) Count() int {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	return h.held
}

// Release lets them go and holds no more.
func (h *Hold) Release() {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	h.t.holds = slices.DeleteFunc(h.t.holds, func(o *Hold) bool { return o == h })
	h.t.wake.Broadcast()
}

// CutAfter lets n more changing operations succeed and cuts the power in the middle
// of the next one: it may have happened, in part or whole, and it and everything
// after it fails with ErrPowerCut. Crash then gives the disk after the cut. A
// negative n calls the cut off.
func (d *Disk) CutAfter(n int) {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	d.t.cutAfter, d.t.cut = n, false
}

// Cut says whether the power is cut.
func (d *Disk) Cut() bool {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	return d.t.cut
}

// Lie makes durable writes, syncs and directory syncs succeed without making anything
// durable, as a device that only claims to flush does, until it is told not to.
func (d *Disk) Lie(on bool) {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	d.t.lying = on
}

// truthful says whether something is to become durable now, and counts if not.
func (s *faultState) truthful() bool {
	if s.lying {
		s.counts.Lies++
	}
	return !s.lying
}

// Note puts a line of the test's own into the trace.
func (d *Disk) Note(text string) {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	d.t.record(Event{Action: Note, Name: text}, 0, nil)
}

// Trace returns the latest events, oldest first.
func (d *Disk) Trace() []Event {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	return slices.Clone(d.t.trace[max(0, len(d.t.trace)-d.t.opts.TraceMax):])
}

// Counts returns the totals.
func (d *Disk) Counts() Counts {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	return d.t.counts
}

// ErrorCount is how many operations were made to fail by faults.
func (d *Disk) ErrorCount() int { return d.Counts().Injected }

// faultState is the part of a tree that this file works on, guarded by its mu.
type faultState struct {
	faults   []*Fault
	holds    []*Hold
	cutAfter int // negative: never
	cut      bool
	lying    bool
	trace    []Event
	counts   Counts
}

// admit decides whether an operation may take its course.
func (s *faultState) admit(ev Event) error {
	if s.cut {
		return ErrPowerCut
	}
	for _, f := range s.faults {
		if err := f.match(ev); err != nil {
			f.count++
			s.counts.Injected++
			return err
		}
	}
	if s.cutAfter >= 0 && ev.Action.changes() {
		if s.cutAfter == 0 {
			s.cut = true
			return errCutNow
		}
		s.cutAfter--
	}
	return nil
}

// reported is what the caller gets for an error of admit.
func reported(err error) error {
	switch {
	case errors.Is(err, errCutNow):
		return ErrPowerCut
	case errors.As(err, new(shortError)):
		return disk.ErrShort
	}
	return err
}

// record ends an operation in the trace and the counts.
func (t *tree) record(ev Event, n int, err error) {
	t.counts.Events++
	ev.Seq, ev.N, ev.Err = uint64(t.counts.Events), n, err
	if len(t.trace) >= 2*t.opts.TraceMax {
		t.trace = append(t.trace[:0], t.trace[t.opts.TraceMax:]...)
	}
	t.trace = append(t.trace, ev)
	if err != nil {
		t.counts.Errors++
		return
	}
	switch ev.Action {
	case Write:
		t.counts.Writes++
		t.counts.BytesWritten += int64(n)
		if ev.Durable {
			t.counts.DurableWrites++
		}
	case Read:
		t.counts.Reads++
		t.counts.BytesRead += int64(n)
	case Sync:
		t.counts.Syncs++
	case SyncDir:
		t.counts.DirSyncs++
	}
}
