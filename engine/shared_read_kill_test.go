package engine

import (
	"bufio"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
)

// A client that is killed while it reads leaves no descriptor with the server; one whose
// server is killed reads on from the next one, each record once.
func TestSharedReaderOrServerIsKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	e := open(t, dir, Options{SegmentBytes: 4 << 20})
	needBuffered(t, e)
	newTopic(t, e, "t")
	var all []string
	for i := range 4 {
		all = append(all, fillSegment(t, e, "t", fmt.Sprint("segment ", i))...)
	}
	s := shareMemory(t, e, server.Options{})
	fds := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(list)
	}
	start := func() (*exec.Cmd, *bufio.Reader) {
		cmd := child(t, "shm reader", s.path)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		return cmd, bufio.NewReader(out)
	}
	whole := fmt.Sprintf("read %d\n", len(all))
	cmd, out := start()
	if line, _ := out.ReadString('\n'); line != whole {
		t.Fatalf("the reader said %q, want %q", line, whole)
	}
	cmd.Process.Kill()
	cmd.Wait()
	idle := func(want int) {
		t.Helper()
		for end := time.Now().Add(patience); fds() > want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d descriptors are open, %d before", fds(), want)
			}
		}
	}
	for end := time.Now().Add(patience); s.Stats().Connections > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	base := fds()
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for range rounds(10) {
		cmd, out := start()
		_, _ = out.ReadByte() // it has read everything once
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		cmd.Process.Kill()
		cmd.Wait()
		idle(base)
	}
	if n := s.Stats().Shared; n.Files == 0 || n.Hostile+n.Faults != 0 {
		t.Errorf("%+v", n)
	}
	s.stop(within(t))
	shut(t, e)

	serve := func() *exec.Cmd {
		cmd := child(t, "shm serve", dir, tcpEnv+"=127.0.0.1:0")
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		if line, _ := bufio.NewReader(out).ReadString('\n'); line != "serving\n" {
			t.Fatalf("the server said %q", line)
		}
		return cmd
	}
	serving := serve()
	c, err := client.DialShm(within(t), dir+".sock", client.Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: patience})
	must(t, err)
	defer c.Close()
	kills := 0
	for range rounds(2) {
		r, err := c.NewConsumer(ConsumerOptions{Topic: "t", From: FromStart()})
		must(t, err)
		var got []string
		for pages := 0; ; pages++ {
			page, err := r.Fetch(40)
			must(t, err)
			if got = append(got, values(keep(nil, page))...); page.CaughtUp {
				break
			}
			if pages == 20 || rng.IntN(60) == 0 && kills < 3 {
				serving.Process.Kill()
				serving.Wait()
				serving = serve()
				kills++
			}
		}
		if !slices.Equal(got, all) {
			t.Errorf("%d records, or others than the %d that were stored", len(got), len(all))
		}
		must(t, r.Close())
	}
	serving.Process.Kill()
	serving.Wait()
	t.Logf("the server was killed %d times", kills)
}

// A process that has no descriptor left reads as well, through the server.
func TestSharedReaderWithoutDescriptors(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: 4 << 20})
	needBuffered(t, e)
	newTopic(t, e, "t")
	all := fillSegment(t, e, "t", "value")
	s := shareMemory(t, e, server.Options{})
	out, err := child(t, "shm reader", s.path, countEnv+"=1").Output()
	must(t, err)
	if want := fmt.Sprintf("read %d\n", len(all)); string(out) != want {
		t.Errorf("the reader said %q, want %q", out, want)
	}
	if n := s.Stats().Shared.Files; n != 1 {
		t.Errorf("%d descriptors were sent, want one, which does not come through", n)
	}
}
