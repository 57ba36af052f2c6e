package engine

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

// lentDamage verifies every segment file of a directory, and counts the records of lent
// frames that are damaged, which is all that may be.
func lentDamage(t *testing.T, dir string) (records uint64) {
	t.Helper()
	log := filepath.Join(dir, "log")
	files, err := filepath.Glob(filepath.Join(log, segfile.TopicsDir, "*", "*.seg"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files to verify: %v", len(files), err)
	}
	d, err := disk.Open(log, disk.Options{ReadOnly: true})
	must(t, err)
	defer d.Close()
	for _, file := range files {
		name := strings.TrimPrefix(file, log+"/")
		rep, err := segfile.Verify(d, name, nil)
		lent := 0
		for _, h := range rep.Holes {
			if h.Lent {
				lent++
				records += h.Records
			}
		}
		if len(rep.Problems) != lent || len(rep.Holes) != lent || (err != nil) != (lent > 0) {
			t.Errorf("%s: %v %v", name, err, rep.Problems)
		}
	}
	return records
}

// Frames that turned void leave a gap of which every kind of reader tells, and which no
// page carries: read from memory, as pages of files, and by a client of a server.
func TestVoidFramesAreSkipped(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	m := newSharedMemory(t, 4, 64<<10)
	unregister, err := e.Register(m.mem)
	must(t, err)
	b := e.Backend()
	big := newProducer(t, e, ProducerOptions{Topic: "t"})
	var wanted []string
	voided := 0
	for id := uint64(100); voided < 3; id++ {
		l := &lender{TB: t, m: m}
		l.p, err = b.OpenProducer(within(t), "t", id, false)
		must(t, err)
		// Both wait while the write head is opened, which takes a file: time to change one.
		out := make(chan error, 2)
		hear := func(_ Placement, err error) { out <- err }
		must(t, l.lend(frameOf(t, id, 1, "good"), hear))
		l.oneIn = 1
		must(t, l.lend(frameOf(t, id, 2, "bad", "bad", "bad"), hear))
		m.scribble()
		if err := <-out; err == nil {
			wanted = append(wanted, "good 1")
		} else {
			t.Fatal(err)
		}
		if err := <-out; err == nil {
			wanted = append(wanted, "bad 2", "bad 3", "bad 4") // it was too late
		} else {
			is(t, err, ErrChanged)
			voided++
		}
		must(t, l.p.Close(within(t)))
		for i := range 40 {
			value := fmt.Sprintf("%d-%d %s", id, i, strings.Repeat("x", 8<<10))
			must(t, big.Append(within(t), Record{Value: []byte(value)}, nil))
			wanted = append(wanted, value)
		}
		must(t, big.Flush(within(t)))
		_, err = e.Roll(within(t), "t")
		must(t, err)
	}
	must(t, unregister())
	if n := e.Stats().Store.Voided; n != uint64(voided) {
		t.Fatalf("%d void frames, want %d", n, voided)
	}
	check := func(what string, got []entry, skips []Skip) {
		t.Helper()
		if !slices.Equal(values(got), wanted) {
			t.Errorf("%s: %d records, want %d", what, len(got), len(wanted))
		}
		var offsets uint64
		for _, s := range skips {
			if offsets += s.Offsets; s.Damaged || s.Offsets%3 != 0 {
				t.Errorf("%s: skips %+v", what, s)
			}
		}
		if offsets != 3*uint64(voided) {
			t.Errorf("%s: skips %d offsets, want %d", what, offsets, 3*voided)
		}
	}
	reader := func() *Consumer { return newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()}) }
	c := reader()
	lag, err := c.Lag()
	if must(t, err); lag != uint64(len(wanted)+3*voided) {
		t.Errorf("lag %d, want %d with what is void", lag, len(wanted)+3*voided)
	}
	got, skips := drain(t, c)
	check("records", got, skips)
	if lag, err = c.Lag(); err != nil || lag != 0 {
		t.Errorf("lag %d behind all: %v", lag, err)
	}
	must(t, c.Close())
	for _, size := range []int{1, 1 << 20} {
		c := reader()
		got, skips, files := drainFrames(t, c, size, true)
		check(fmt.Sprintf("pages of %d bytes, %d of files", size, files), got, skips)
		if fs := e.Opened().IO.FileSystem; size > 1 && files == 0 && (fs == "ext4" || fs == "xfs") {
			t.Error("no page was of a file")
		}
		must(t, c.Close())
	}
	remote, err := dial(t, serve(t, e)).NewConsumer(ConsumerOptions{Topic: "t", From: FromStart()})
	must(t, err)
	got, skips = nil, nil
	for caught := false; !caught; {
		page, err := remote.Fetch(100)
		if err != nil {
			t.Fatalf("%d records read: %v", len(got), err)
		}
		got, skips, caught = keep(got, page), append(skips, page.Skips...), page.CaughtUp
	}
	check("a client", got, skips)
	must(t, remote.Close())
}
