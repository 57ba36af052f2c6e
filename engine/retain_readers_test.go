package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// When the last segment that knows a range's producers expires, they are known all
// the same: a producer that sends everything again stores nothing twice. That holds
// over splits and merges of ranges that nobody writes to any more, and restarts.
func TestProducersOutliveTheirRecords(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	e := open(t, dir, Options{now: now.Now})
	bound(t, e, Policy{MaxAge: Limit(1000)})
	const n = 40
	send := func(duplicates bool) {
		t.Helper()
		p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
		for i := range n {
			pl, err := p.Produce(within(t), Record{Key: text("k%d", i), Value: text("%d", i)})
			must(t, err)
			if pl.Duplicate != duplicates {
				t.Fatalf("record %d: %+v", i, pl)
			}
		}
		must(t, p.Close(within(t)))
	}
	expire := func() {
		t.Helper()
		_, err := e.Roll(within(t), "t")
		must(t, err)
		now.Add(time.Minute)
		retain(t, e)
		d, err := e.Describe(within(t), "t")
		must(t, err)
		if d.Records != 0 {
			t.Fatalf("%d records are left", d.Records)
		}
	}
	send(false)
	expire()
	send(true)
	expire()
	shut(t, e)
	e = open(t, dir, Options{now: now.Now})
	send(true)

	a, b, err := e.SplitRange(within(t), "t", 0)
	must(t, err)
	expire()
	send(true)
	_, _, err = e.SplitRange(within(t), "t", a)
	must(t, err)
	expire()
	expire()
	shut(t, e)
	e = open(t, dir, Options{now: now.Now})
	send(true)
	d, err := e.Describe(within(t), "t")
	must(t, err)
	var halves []uint32
	for _, r := range d.AllRanges {
		if r.Active && r.Seq != b {
			halves = append(halves, r.Seq)
		}
	}
	c, err := e.MergeRanges(within(t), "t", halves[0], halves[1])
	must(t, err)
	expire()
	_, err = e.MergeRanges(within(t), "t", b, c)
	must(t, err)
	expire()
	send(true)
	expire()
	send(true)
}

// L03, M07: a cursor and a group that stand in a range which was split, and whose
// records expired, hear of what they missed and go on with its children.
func TestCursorOfExpiredParent(t *testing.T) {
	now := newClock()
	e := open(t, t.TempDir(), Options{now: now.Now})
	bound(t, e, Policy{MaxAge: Limit(1000)})
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	for i := range 20 {
		produce(t, p, fmt.Sprint("k", i), fmt.Sprint("old", i))
	}
	c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
	for range 5 {
		page, err := c.Fetch(1)
		must(t, err)
		if len(page.Records) != 1 {
			t.Fatalf("%d records", len(page.Records))
		}
	}
	must(t, c.Commit(within(t)))
	cursor := c.Cursor()
	must(t, c.Close())

	_, _, err := e.SplitRange(within(t), "t", 0)
	must(t, err)
	now.Add(time.Minute)
	retain(t, e)
	for i := range 20 {
		produce(t, p, fmt.Sprint("k", i), fmt.Sprint("new", i))
	}
	for _, o := range []ConsumerOptions{{Topic: "t", From: FromCursor(cursor)}, {Topic: "t", Group: "g"}} {
		c := newConsumer(t, e, o)
		lag, err := c.Lag()
		must(t, err)
		if lag != 20 {
			t.Errorf("a lag of %d, want 20", lag)
		}
		got, skips := drain(t, c)
		if !slices.Equal(skips, []Skip{{Range: 0, From: 5, Offsets: 15}}) {
			t.Errorf("skips %v", skips)
		}
		if len(got) != 20 {
			t.Errorf("%d records of 20", len(got))
		}
		must(t, c.Close())
	}
}

// B12, B14: readers at the oldest records while retention takes them away, and files
// are written again. They get records or skips, in order, never an error or a record
// of another time.
func TestReadersBesideRetention(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: 1 << 20, RetainEvery: 5 * time.Millisecond})
	bound(t, e, Policy{MaxBytes: Limit(2 << 20)})
	ctx := within(t)
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			v := append(text("%d ", i), make([]byte, 10_000)...)
			if err := p.Append(ctx, Record{Key: []byte("k"), Value: v}, nil); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var skips [3]int
	for n := range skips {
		group.Go(func() {
			c, err := e.NewConsumer(ConsumerOptions{Topic: "t"})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			next := uint64(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				page, err := c.Fetch(7)
				if err != nil {
					t.Error(err)
					return
				}
				for _, s := range page.Skips {
					if s.From != next {
						t.Errorf("skip %+v, stood at %d", s, next)
					}
					next = s.From + s.Offsets
					skips[n]++
				}
				for _, r := range page.Records {
					var i uint64
					fmt.Sscan(string(r.Value[:min(20, len(r.Value))]), &i)
					if r.Offset != next || i != next {
						t.Errorf("record %d at offset %d, want %d", i, r.Offset, next)
						return
					}
					next++
				}
				if n == 0 {
					time.Sleep(time.Millisecond) // a slow one
				}
			}
		})
	}
	deadline := time.Now().Add(time.Second)
	if long() {
		deadline = deadline.Add(time.Minute)
	}
	for time.Now().Before(deadline) && !t.Failed() {
		time.Sleep(10 * time.Millisecond)
	}
	close(stop)
	group.Wait()
	must(t, p.Flush(ctx))
	eventually(t, "retention brings the topic down to its budget", func() bool {
		retain(t, e)
		d, err := e.Describe(ctx, "t")
		must(t, err)
		return d.Bytes <= 2<<20+2<<20
	})
	if skips[0] == 0 {
		t.Log("no reader was overtaken: the test shows less than it can")
	}
}

// A process that ends between deleting a segment from the metadata and removing its file
// leaves a file that is recognised and removed; one that was never registered, or that is
// not whole, is set aside.
func TestKilledBetweenMetadataAndFile(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{RetainEvery: time.Hour})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	for _, v := range []string{"v0", "v1", "v2"} {
		produce(t, p, "k", v)
		_, err := e.Roll(within(t), "t")
		must(t, err)
	}
	files := segmentFiles(t, e, "t")
	for _, id := range e.store.IDs()[:2] {
		must(t, e.front.DeleteSegment(id))
	}
	killed := copyTree(t, dir)
	inKilled := func(file string) string {
		rel, err := filepath.Rel(dir, file)
		must(t, err)
		return filepath.Join(killed, rel)
	}
	shut(t, e)
	for _, f := range files {
		if _, err := os.Stat(inKilled(f)); err != nil {
			t.Fatal(err) // it had no file to be left behind
		}
	}
	// The second one's header rotted.
	h, err := os.OpenFile(inKilled(files[1]), os.O_RDWR, 0)
	must(t, err)
	_, err = h.WriteAt(make([]byte, 32<<10), 0)
	must(t, errors.Join(err, h.Close()))
	e = open(t, killed, Options{})
	if o := e.Opened(); o.Removed != 1 || len(o.SetAside) != 1 || len(o.Damaged) != 0 {
		t.Errorf("%+v", o)
	}
	if _, err := os.Stat(inKilled(files[0])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the deleted segment's file: %v", err)
	}
	got, _ := skipped(t, e, ConsumerOptions{Topic: "t"})
	if !slices.Equal(got, []string{"v2"}) {
		t.Errorf("%q", got)
	}
}
