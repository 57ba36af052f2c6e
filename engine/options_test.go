package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"IO":           {IO: "floppy"},
		"ArenaBytes":   {ArenaBytes: 1 << 20},
		"SegmentBytes": {SegmentBytes: 4096},
		"Shards":       {Shards: -1},
		"Vnodes":       {Vnodes: -1},
		"PoolBytes":    {PoolBytes: -1},
		"RetainEvery":  {RetainEvery: -time.Second},
		"OpenFiles":    {OpenFiles: 3},
		"MaxAge":       {Retention: Policy{MaxAge: Limit(-5)}},
	} {
		dir := t.TempDir()
		e, err := Open(dir, o)
		if err == nil {
			e.Close()
			t.Errorf("%s: %+v was taken", name, o)
			continue
		}
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: a refused Open left %v", name, left)
		}
	}
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	for name, o := range map[string]ProducerOptions{
		"BatchBytes":  {Topic: "t", BatchBytes: 1},
		"too large":   {Topic: "t", BatchBytes: MaxBatchBytes + 1},
		"ArenaBytes":  {Topic: "t", BatchBytes: 8 << 20},
		"MaxInFlight": {Topic: "t", MaxInFlight: -1},
		"Linger":      {Topic: "t", Linger: -1},
		"Codec":       {Topic: "t", Codec: 77},
	} {
		if p, err := e.NewProducer(o); err == nil {
			must(t, p.Close(within(t)))
			t.Errorf("%s: %+v was taken", name, o)
		}
	}
	c := newConsumer(t, e, ConsumerOptions{Topic: "t"})
	for _, n := range []int{0, -1} {
		if _, err := c.Fetch(n); err == nil {
			t.Errorf("a page of %d records", n)
		}
	}
}

// The number of metadata shards is fixed when a directory is made.
func TestVnodesAreFixed(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{Vnodes: 2})
	newTopic(t, e, "t")
	shut(t, e)
	if e, err := Open(dir, small(Options{Vnodes: 3})); err == nil {
		e.Close()
		t.Error("another number of shards was taken")
	} else if !strings.Contains(err.Error(), "2 vnodes") {
		t.Error(err)
	}
	shut(t, open(t, dir, Options{Vnodes: 2}))
}

// N01: what cannot hold a store is refused with its name, and stays as it is.
func TestUnusableDirectories(t *testing.T) {
	base := t.TempDir()
	file := filepath.Join(base, "file")
	must(t, os.WriteFile(file, []byte("mine"), 0o600))
	for _, dir := range []string{"", file, filepath.Join(file, "below"), "/proc/ringfence", "/dev/null"} {
		e, err := Open(dir, small(Options{}))
		if err == nil {
			e.Close()
			t.Errorf("%q was opened", dir)
			continue
		}
		if dir != "" && !strings.Contains(err.Error(), dir) {
			t.Errorf("%q: %v", dir, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Errorf("the file that was there: %q %v", b, err)
	}
	// A directory that does not exist yet, and a link to one.
	deep := filepath.Join(base, "a", "b", "c")
	shut(t, open(t, deep, Options{}))
	link := filepath.Join(base, "link")
	must(t, os.Symlink(deep, link))
	e := open(t, link, Options{})
	if e.Opened().Stop != StopClean {
		t.Errorf("%+v", e.Opened())
	}
}

// Both ways of doing I/O write the same files: one reads what the other wrote.
func TestEnginesReadEachOther(t *testing.T) {
	dir := t.TempDir()
	var all []string
	for i, io := range []string{"pool", "auto", "pool", "io_uring"} {
		e, err := Open(dir, small(Options{IO: io}))
		if err != nil && io == "io_uring" {
			t.Skipf("SKIPPED: io_uring is refused here: %v", err)
		}
		must(t, err)
		t.Cleanup(func() { shut(t, e) })
		if i == 0 {
			newTopic(t, e, "t")
		}
		if io != "auto" && e.Opened().IO.Engine != io {
			t.Errorf("asked for %s, got %+v", io, e.Opened().IO)
		}
		v := strings.Repeat(io, 1000)
		produce(t, newProducer(t, e, ProducerOptions{Topic: "t"}), "k", v)
		all = append(all, v)
		want(t, e, "t", all...)
		shut(t, e)
	}
}

// Groups are named and listed; each has a place of its own.
func TestGroups(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "1", "2", "3")
	read := func(group string, n int) (got []string) {
		t.Helper()
		c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: group})
		defer c.Close()
		for range n {
			page, err := c.Fetch(1)
			must(t, err)
			got = append(got, values(keep(nil, page))...)
		}
		must(t, c.Commit(within(t)))
		return got
	}
	for _, s := range []struct {
		group string
		n     int
		want  []string
	}{{"a", 1, []string{"1"}}, {"b", 2, []string{"1", "2"}}, {"a", 2, []string{"2", "3"}}, {"b", 1, []string{"3"}}, {"c", 0, nil}} {
		if got := read(s.group, s.n); !slices.Equal(got, s.want) {
			t.Errorf("group %s read %q, want %q", s.group, got, s.want)
		}
	}
	d, err := e.Describe(within(t), "t")
	must(t, err)
	if !slices.Equal(d.Groups, []string{"a", "b", "c"}) {
		t.Errorf("groups %q", d.Groups)
	}
}

// Describe and Stats say what is there, while records come and after.
func TestDescribe(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	check := func(records uint64, segments, ranges int) {
		t.Helper()
		d, err := e.Describe(within(t), "t")
		must(t, err)
		if d.Records != records || d.Segments != segments || d.Ranges != ranges || records > 0 && d.Bytes == 0 {
			t.Errorf("%d records in %d segments of %d ranges, want %d, %d, %d", d.Records, d.Segments, d.Ranges, records, segments, ranges)
		}
		for _, r := range d.AllRanges {
			for _, s := range r.Segments {
				if _, err := os.Stat(s.File); err != nil || s.Missing {
					t.Errorf("segment %d of range %d: %v", s.Seq, r.Seq, err)
				}
			}
		}
		list, err := e.Topics(within(t))
		must(t, err)
		if len(list) != 1 || list[0].Records != records {
			t.Errorf("topics %+v", list)
		}
	}
	check(0, 0, 1)
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "1", "2")
	check(2, 1, 1)
	_, _, err := e.SplitRange(within(t), "t", 0)
	must(t, err)
	check(2, 1, 2)
	produce(t, p, "k", "3")
	check(3, 2, 2)
	s := e.Stats()
	if s.Store.Records != 3 || s.Fences != 1 || s.FenceMax == 0 || s.Arena == 0 || s.Uptime <= 0 {
		t.Errorf("%+v", s)
	}
	shut(t, e)
	e = open(t, dir, Options{})
	check(3, 2, 2)
}

// A consumer that is not at the tail is told of new records at once.
func TestPollWakes(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	c := newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromEnd()})
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	ctx := within(t)
	for i := range 20 {
		got := make(chan error, 1)
		go func() {
			page, err := c.Poll(ctx, 10)
			if err == nil && (len(page.Records) != 1 || string(page.Records[0].Value) != string(text("%d", i))) {
				err = errors.New("another page than the one that was due")
			}
			got <- err
		}()
		if i%3 == 0 {
			time.Sleep(time.Millisecond)
		}
		if i == 10 {
			_, _, err := e.SplitRange(ctx, "t", 0)
			must(t, err)
		}
		produce(t, p, "k", string(text("%d", i)))
		soon(t, "Poll", func() { must(t, <-got) })
	}
	short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
	defer stop()
	_, err := c.Poll(short, 1)
	is(t, err, context.DeadlineExceeded)
}
