// Command ringfence makes, fills, reads and examines topics in a data directory.
//
// It opens the directory with an engine of its own, so nothing else may have it
// open. Each subcommand is one file here; root.go holds what they share, exit.go
// the exit codes. What a command reports goes to standard output, as text or with
// --json as JSON; progress, warnings and, last, the error go to standard error, the
// error as JSON too.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// sameSignal is how long a signal that comes again is taken for the first.
const sameSignal = 300 * time.Millisecond

func main() {
	spareProcessor()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once. timeout(1) sends its signal twice, to
	// the process and to its group, and means it once.
	context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) })
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// spareProcessor gives Go one processor more than the machine has, for the engine
// to hold while it waits for the disk (engine.Options.RawWait), unless the
// environment says how many there are to be.
func spareProcessor() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
}
