package host

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/lni/dragonboat/v4/logger"
)

// dragonboat logs through one global logger and panics through it when it cannot go
// on. An engine that is linked into somebody's process must not end that process
// because a disk failed, so the panic ends here: the host that it concerns is marked
// as failed, and the goroutine that met the problem, one of dragonboat's workers,
// ends. What it held is released by its deferred calls; its replica stands still,
// which is what fail-stop means. dragonboat waits for that goroutine when it is
// closed, so a failed host leaves some idle goroutines behind, see [Host.Close].

// One of dragonboat's packages takes the standard log of the whole process for its own
// when it is linked. It is given back before the program's own code runs.
func init() {
	log.SetFlags(log.LstdFlags)
	log.SetPrefix("")
	log.SetOutput(os.Stderr)
}

// hosts are the open ones.
var hosts struct {
	sync.Mutex
	open map[*Host]struct{}
}

func register(h *Host) {
	hosts.Lock()
	defer hosts.Unlock()
	if hosts.open == nil {
		hosts.open = map[*Host]struct{}{}
	}
	hosts.open[h] = struct{}{}
}

func unregister(h *Host) {
	hosts.Lock()
	defer hosts.Unlock()
	delete(hosts.open, h)
}

func eachHost(do func(*Host)) {
	hosts.Lock()
	open := slices.Collect(maps.Keys(hosts.open))
	hosts.Unlock()
	for _, h := range open {
		do(h)
	}
}

func init() {
	// Somebody else in this process may use dragonboat too and have set a logger:
	// then theirs stays, and so does what they do about panics.
	defer func() { _ = recover() }()
	logger.SetLoggerFactory(func(pkg string) logger.ILogger { return bridge{pkg} })
}

// bridge sends dragonboat's messages to the open hosts' loggers, at debug level
// whatever dragonboat thinks of them: what matters to an operator is said by Host.
type bridge struct{ pkg string }

func (b bridge) SetLevel(logger.LogLevel) {}

func (b bridge) Debugf(format string, args ...any)   { b.log(format, args) }
func (b bridge) Infof(format string, args ...any)    { b.log(format, args) }
func (b bridge) Warningf(format string, args ...any) { b.log(format, args) }
func (b bridge) Errorf(format string, args ...any)   { b.log(format, args) }

func (b bridge) log(format string, args []any) {
	eachHost(func(h *Host) {
		if h.log.Enabled(context.Background(), slog.LevelDebug) {
			h.log.Debug(fmt.Sprintf(format, args...), "from", "raft/"+b.pkg)
		}
	})
}

// Panicf does not return.
func (b bridge) Panicf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	var known *hostError
	for _, a := range args {
		if err, ok := a.(error); ok && errors.As(err, &known) {
			break
		}
	}
	if known != nil {
		_ = known.h.fail(known.err)
	} else { // dragonboat's own: it does not say whose
		eachHost(func(h *Host) { _ = h.fail(fmt.Errorf("raft/%s: %s", b.pkg, text)) })
	}
	if calledByHost() {
		panic(raftPanic{b.pkg, text}) // the host's own call: it recovers
	}
	runtime.Goexit()
}

// hostError is an error that dragonboat was given and will panic with; it says whose
// it was.
type hostError struct {
	h   *Host
	err error
}

func (e *hostError) Error() string { return e.err.Error() }
func (e *hostError) Unwrap() error { return e.err }

// raftPanic is a panic of dragonboat's on one of our goroutines.
type raftPanic struct{ pkg, text string }

func (p raftPanic) Error() string { return "raft/" + p.pkg + ": " + p.text }

// calledByHost says whether a method of Host is on the stack: then a caller waits
// for its answer, and the goroutine is not ours to end.
func calledByHost() bool {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, "/cp/host.(*Host).") {
			return true
		}
		if !more {
			return false
		}
	}
}

// guard runs a call into dragonboat on our own goroutine and turns a panic in it
// into an error.
func (h *Host) guard(call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = h.fail(fmt.Errorf("%v", r))
		}
	}()
	return call()
}
