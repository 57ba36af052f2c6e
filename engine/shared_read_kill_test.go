package engine

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
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

// L05: members that read closed segments from their files share the topic as others do:
// while they come and leave each record comes once, and those of a key in order.
func TestL05_SharedMembersHandOver(t *testing.T) {
	e, _, l, f := groupWorld(t, time.Hour, 3)
	needBuffered(t, e)
	s := shareMemory(t, e, server.Options{})
	pad := []Header{{Key: []byte("pad"), Value: make([]byte, 1000)}}
	for range 3 {
		for range rounds(2000) {
			must(t, f.p.Append(within(t), Record{Key: text("key-%d", f.sent%8), Value: text("%d", f.sent/8), Headers: pad}, nil))
			f.sent++
		}
		must(t, f.p.Flush(within(t)))
		_, err := e.Roll(within(t), "t")
		must(t, err)
	}
	var readers []*memberProcess
	for i := range rounds(6) {
		readers = append(readers, startMemberOf(t, s.dial(1<<20), l, fmt.Sprint("m", i), 3))
		eventually(t, "some more is read", func() bool { n, _ := l.count(); return n >= min(f.sent, (i+1)*f.sent/20) })
		if len(readers) > 2 {
			readers[0].leave(t)
			readers = readers[1:]
		}
	}
	eventually(t, "all records are read", l.caughtUp(f))
	for _, r := range readers {
		r.leave(t)
	}
	if total, again := l.count(); again != 0 || total != f.sent {
		t.Errorf("%d of %d records came, %d of them again", total, f.sent, again)
	}
	if s.Stats().Shared.Files == 0 {
		t.Error("nothing was read from files")
	}
}

// B14: retention takes segments away under those who read them from their files, fast and
// slow. They get every record that is there, in order, or are told how many are not.
func TestB14_SharedReadersBesideRetention(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: 4 << 20})
	needBuffered(t, e)
	bound(t, e, Policy{MaxBytes: Limit(1 << 20)})
	s := shareMemory(t, e, server.Options{})
	ctx, stop := context.WithCancel(within(t))
	defer stop()
	var readers sync.WaitGroup
	const batch = 400
	end := uint64(rounds(20) * batch)
	half := make(chan struct{}) // closed when so much is stored, and most of it gone
	var skipped atomic.Uint64
	for i := range 4 {
		r, err := s.dial(1 << 20).NewConsumer(ConsumerOptions{Topic: "t", From: FromStart()})
		must(t, err)
		readers.Go(func() {
			defer r.Close()
			at := uint64(0)
			if i == 3 {
				<-half
			}
			for at < end {
				page, err := r.Poll(ctx, 50)
				if err != nil {
					t.Errorf("reader %d at offset %d: %v", i, at, err)
					return
				}
				for _, skip := range page.Skips {
					if skip.From != at || skip.Damaged {
						t.Errorf("reader %d at offset %d: skip %+v", i, at, skip)
					}
					at += skip.Offsets
					skipped.Add(skip.Offsets)
				}
				for _, rec := range page.Records {
					if want := fmt.Sprintf("%d %01000d", at, at); rec.Offset != at || string(rec.Value) != want {
						t.Errorf("reader %d at offset %d: offset %d, value %.20q", i, at, rec.Offset, rec.Value)
						return
					}
					at++
				}
				if i == 2 {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 64 << 10})
	for sent := 0; sent < int(end); {
		for range batch {
			must(t, p.Append(ctx, Record{Key: []byte("k"), Value: text("%d %01000d", sent, sent)}, nil))
			sent++
		}
		must(t, p.Flush(ctx))
		_, err := e.Roll(ctx, "t")
		must(t, err)
		retain(t, e)
		if sent == int(end)/batch/2*batch {
			close(half)
		}
	}
	must(t, p.Close(ctx))
	readers.Wait()
	if n := s.Stats().Shared; n.Files == 0 || skipped.Load() == 0 {
		t.Errorf("%d pages were read from files, %d records were gone: the test tests nothing", n.Files, skipped.Load())
	}
}
