package engine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mounted makes a small file system with blocks of its own and returns where.
func mounted(t *testing.T, kind string, mib int) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skipf("SKIPPED: mounting a small %s needs root", kind)
	}
	dir = t.TempDir()
	switch kind {
	case "tmpfs":
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
			t.Skipf("SKIPPED: cannot mount a tmpfs: %v", err)
		}
	default:
		image := filepath.Join(t.TempDir(), "image")
		f, err := os.Create(image)
		must(t, err)
		must(t, f.Truncate(int64(mib)<<20))
		must(t, f.Close())
		if out, err := exec.Command("mkfs."+kind, "-q", "-F", "-m", "0", image).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: cannot make a small %s: %v %s", kind, err, out)
		}
		if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: cannot mount a small %s: %v %s", kind, err, out)
		}
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// fillUp writes a file until nothing more fits, and returns how to take it away.
func fillUp(t *testing.T, dir string) (empty func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	must(t, err)
	for size := 1 << 20; size >= 512; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			size /= 2
		}
	}
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	must(t, f.Close())
	return func() {
		t.Helper()
		must(t, os.Remove(name))
		if d, err := os.Open(dir); err == nil {
			d.Sync()
			d.Close()
		}
	}
}

// ledger writes numbered records and remembers which were acknowledged.
type ledger struct {
	p     *Producer
	next  int
	acked map[string]bool
}

func (l *ledger) put(t *testing.T, size int) error {
	t.Helper()
	v := fmt.Sprintf("%08d", l.next)
	l.next++
	_, err := l.p.Produce(within(t), Record{Key: []byte("k"), Value: append([]byte(v), make([]byte, size)...)})
	if err == nil {
		l.acked[v] = true
	}
	return err
}

// check fails unless every acknowledged record is there once, in order.
func (l *ledger) check(t *testing.T, e *Engine) {
	t.Helper()
	seen := map[string]bool{}
	last := ""
	for _, v := range readAll(t, e, "t", FromStart()) {
		v = v[:8]
		if v <= last {
			t.Fatalf("record %s comes behind %s", v, last)
		}
		last = v
		seen[v] = true
	}
	for v := range l.acked {
		if !seen[v] {
			t.Fatalf("record %s was acknowledged and is gone", v)
		}
	}
}

// D01: a full disk refuses records with one error and at once, keeps serving what is
// stored, and takes records again by itself when there is space. Nothing that was
// acknowledged is lost, also not to a restart in the middle of it.
func TestFullDisk(t *testing.T) {
	for _, kind := range []string{"ext4"} {
		for _, reserve := range []uint64{1, 4 << 20} { // writes meet the end, or stop short of it
			t.Run(fmt.Sprintf("%s/reserve=%d", kind, reserve), func(t *testing.T) {
				volume := mounted(t, kind, 64)
				dir := filepath.Join(volume, "data")
				o := Options{SegmentBytes: 2 << 20, ReserveBytes: reserve, ArenaBytes: 8 << 20}
				e := open(t, dir, o)
				newTopic(t, e, "t")
				l := &ledger{p: newProducer(t, e, ProducerOptions{Topic: "t"}), acked: map[string]bool{}}
				for range 20 {
					must(t, l.put(t, 100_000))
				}
				for range rounds(1) {
					empty := fillUp(t, volume)
					err := errors.New("")
					for n := 0; !errors.Is(err, ErrOutOfSpace); n++ {
						if err = l.put(t, 100_000); err != nil {
							is(t, err, ErrOutOfSpace, "full", `"t"`)
						}
						if n > 2000 {
							t.Fatal("the disk never fills up")
						}
					}
					l.check(t, e)
					began := time.Now()
					for range 20 {
						if err := l.put(t, 100_000); err != nil {
							is(t, err, ErrOutOfSpace)
						}
					}
					t.Logf("20 records on a full disk: %v; out of space: %v", time.Since(began).Round(time.Millisecond), e.Stats().Store.OutOfSpace)
					// Metadata: either it still fits, or it is refused as what it is.
					for i := range 50 {
						if err := e.CreateTopic(within(t), fmt.Sprintf("more-%d-%d", l.next, i), TopicOptions{}); err != nil {
							is(t, err, ErrOutOfSpace)
						}
					}
					l.check(t, e)
					empty()
					eventually(t, "records are taken again", func() bool {
						err := l.put(t, 100_000)
						if err != nil {
							is(t, err, ErrOutOfSpace)
						}
						return err == nil
					})
					l.check(t, e)
					must(t, e.CreateTopic(within(t), fmt.Sprint("after-", l.next), TopicOptions{}))
				}

				// A restart on a full disk serves what is there, and goes on when there is space.
				empty := fillUp(t, volume)
				for range 5 {
					if err := l.put(t, 100_000); err != nil {
						is(t, err, ErrOutOfSpace)
					}
				}
				if err := e.Close(); err != nil {
					is(t, err, ErrOutOfSpace)
				}
				e, err := Open(dir, small(o))
				if err != nil {
					t.Fatalf("does not open on a full disk: %v", err)
				}
				t.Cleanup(func() { shut(t, e) })
				l.check(t, e)
				l.p = newProducer(t, e, ProducerOptions{Topic: "t"})
				if err := l.put(t, 200_000); err != nil {
					is(t, err, ErrOutOfSpace)
				}
				empty()
				eventually(t, "records are taken again after the restart", func() bool { return l.put(t, 100_000) == nil })
				l.check(t, e)
				shut(t, e)
			})
		}
	}
}

// Retention works on a full disk: it is what makes space. Files kept for use again go
// first.
func TestRetentionOnFullDisk(t *testing.T) {
	volume := mounted(t, "ext4", 64)
	dir := filepath.Join(volume, "data")
	now := newClock()
	o := Options{SegmentBytes: 2 << 20, ReserveBytes: 4 << 20, ArenaBytes: 8 << 20, now: now.Now, RetainEvery: time.Hour}
	e := open(t, dir, o)
	bound(t, e, Policy{MaxAge: Limit(1000)})
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	l := &ledger{p: p, acked: map[string]bool{}}
	// Retired segments are kept for use again.
	for range 80 {
		must(t, l.put(t, 200_000))
	}
	now.Add(time.Minute)
	retain(t, e)
	pool := func() int64 {
		var n int64
		files, err := os.ReadDir(filepath.Join(dir, "log", "pool"))
		must(t, err)
		for _, f := range files {
			if st, err := f.Info(); err == nil { // or it was taken meanwhile
				n += st.Size()
			}
		}
		return n
	}
	if pool() == 0 {
		t.Fatal("no file is kept: the test tests nothing")
	}
	l.acked = map[string]bool{}
	var err error
	for err == nil {
		err = l.put(t, 200_000)
		if l.next > 2000 {
			t.Fatal("the disk never fills up")
		}
	}
	is(t, err, ErrOutOfSpace)
	if n := pool(); n != 0 {
		t.Errorf("%d bytes are kept for use again on a full disk", n)
	}
	if len(l.acked) < 150 {
		t.Errorf("the disk was full after %d records of 200 kB in 64 MiB", len(l.acked))
	}
	now.Add(time.Minute)
	retain(t, e)
	l.acked = map[string]bool{}
	eventually(t, "retention made space", func() bool { return l.put(t, 200_000) == nil })
	l.check(t, e)
}

// Where nothing at all is free, retention still removes the last segment of a range,
// though its successor takes a file; what is known of the producers goes on in it.
func TestRetentionWithoutSpace(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			volume := mounted(t, kind, 64)
			dir := filepath.Join(volume, "data")
			now := newClock()
			o := Options{SegmentBytes: 2 << 20, ReserveBytes: 4 << 20, ArenaBytes: 8 << 20, now: now.Now, RetainEvery: time.Hour, spaceEvery: quickly}
			e := open(t, dir, o)
			must(t, e.SetPolicy(within(t), "short", Policy{MaxAge: Limit(1000)}))
			topics := []string{"a", "b", "c"}
			for i, topic := range topics {
				newTopic(t, e, topic)
				must(t, e.BindPolicy(within(t), topic, "short"))
				p := newProducer(t, e, ProducerOptions{Topic: topic, ID: uint64(7 + i)})
				for range 5 {
					produce(t, p, "k", strings.Repeat("x", 100_000))
				}
				must(t, p.Close(within(t)))
				_, err := e.Roll(within(t), topic)
				must(t, err)
			}
			eventually(t, "space is set aside", func() bool {
				_, err := os.Stat(filepath.Join(dir, "log", "space.ballast"))
				return err == nil
			})
			empty := fillUp(t, volume)
			// Another process, which finds the volume full.
			shut(t, e)
			fillUp(t, volume)
			e = open(t, dir, o)
			now.Add(time.Minute)
			expired := 0
			eventually(t, "all has expired", func() bool {
				r, err := e.Retain(within(t))
				must(t, err)
				expired += r.Expired
				return r.Failed == 0
			})
			if expired != len(topics) {
				t.Errorf("%d segments expired", expired)
			}
			empty()
			eventually(t, "appends are taken again", func() bool { return !e.Stats().Store.OutOfSpace })
			for i, topic := range topics {
				p := newProducer(t, e, ProducerOptions{Topic: topic, ID: uint64(7 + i)})
				pl, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte(strings.Repeat("x", 100_000))})
				if err != nil || !pl.Duplicate {
					t.Errorf("%s: a record that was sent before: %+v %v", topic, pl, err)
				}
			}
		})
	}
}
