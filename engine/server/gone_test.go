package server

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// A client that leaves before it is answered, as a consumer does that waits for records, has
// done nothing wrong: it is not counted, nor told of, with those that were cut off.
func TestClientLeavesBeforeItIsAnswered(t *testing.T) {
	leakFree(t)
	var log locked
	w := newWorld(t, Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	defer w.stop()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(l) }()
	const times = 200
	for range times {
		nc, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c := &client{t: t, nc: nc}
		c.hello()
		var pings bytes.Buffer
		for id := uint32(1); id <= 100; id++ {
			pings.Write(c.frame(wire.KeyPing, 1+id, &wire.Ping{}))
		}
		c.write(pings.Bytes())
		nc.Close()
	}
	for w.server.Stats().Connections > 0 {
		time.Sleep(time.Millisecond)
	}
	if n := strings.Count(log.String(), "its client was gone"); n == 0 {
		t.Errorf("no answer of %d connections found its client gone", times)
	}
	if n := w.server.Stats().CutOff; n != 0 || strings.Contains(log.String(), "cut off") {
		t.Errorf("%d connections count as cut off:\n%s", n, log.String())
	}
	l.Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
