package host

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

func topicID(n int) fence.TopicID {
	return fence.TopicID{0: 1, 12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
}

func createTopic(n int) (string, cp.CreateTopic) {
	name := fmt.Sprintf("topic-%d", n)
	return name, cp.CreateTopic{Name: name, Bits: 8, ID: topicID(n), At: 1}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func open(t testing.TB, dir string) *Host {
	t.Helper()
	h, err := Open(Options{Dir: dir, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		t0 := time.Now()
		h := open(t, dir)
		t.Log("open", time.Since(t0))
		for i := range 40 {
			name, cmd := createTopic(100*round + i)
			r, err := h.Propose(context.Background(), name, cmd)
			if err != nil || r.Err != nil {
				t.Fatal(r, err)
			}
		}
		n := 0
		views, _, err := h.Views(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range views {
			n += v.State.Len()
		}
		if n != 40*(round+1) {
			t.Fatal(n)
		}
		t0 = time.Now()
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		t.Log("close", time.Since(t0))
	}
}
