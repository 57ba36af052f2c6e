// Command ringfence makes, fills, reads and examines topics in a data directory.
//
// It opens the directory with an engine of its own, so nothing else may have it
// open. Each subcommand is one file here; root.go holds what they share, exit.go
// the exit codes. What a command reports goes to standard output, as text or with
// --json as JSON; progress and errors go to standard error.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
