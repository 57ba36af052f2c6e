package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// What a client tells, of a connection that is lost and there again, looks like the rest of
// what a command says.
func TestPlainLog(t *testing.T) {
	var said strings.Builder
	log := slog.New(plainLog{w: &said}).With("server", "127.0.0.1:4040", "for", "requests")
	log.Warn("ringfence: no connection", "attempt", 1, "err", errors.New("shutting_down: the server is shutting down"))
	log.Debug("ringfence: no connection", "attempt", 2)
	log.Info("ringfence: connected again")
	const want = "ringfence: warning: no connection (server=127.0.0.1:4040 for=requests attempt=1): shutting_down: the server is shutting down\n" +
		"ringfence: connected again (server=127.0.0.1:4040 for=requests)\n"
	if said.String() != want {
		t.Errorf("said\n%swant\n%s", said.String(), want)
	}
}
