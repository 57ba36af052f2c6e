package engine

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// segmentFiles are the paths of a topic's segment files, in order.
func segmentFiles(t testing.TB, e *Engine, topic string) (paths []string) {
	t.Helper()
	d, err := e.Describe(within(t), topic)
	must(t, err)
	for _, r := range d.AllRanges {
		for _, s := range r.Segments {
			if s.File != "" {
				paths = append(paths, s.File)
			}
		}
	}
	return paths
}

// flip changes n bytes of a file from a position on.
func flip(t testing.TB, path string, at, n int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	b := make([]byte, n)
	_, err = f.ReadAt(b, at)
	must(t, err)
	for i := range b {
		b[i] ^= 0xff
	}
	_, err = f.WriteAt(b, at)
	must(t, err)
}

// readUntil reads a topic from the start until an error or the end.
func readUntil(t testing.TB, e *Engine, topic string) (got []string, err error) {
	t.Helper()
	c := newConsumer(t, e, ConsumerOptions{Topic: topic, From: FromStart()})
	defer c.Close()
	for {
		page, err := c.Fetch(1)
		if err != nil || page.CaughtUp {
			return got, err
		}
		got = append(got, values(keep(nil, page))...)
	}
}

// A11, B04: a sealed segment that is damaged or gone is an error with its file when
// it is read, never the end; everything else goes on, retention too.
func TestSealedSegmentLost(t *testing.T) {
	cases := map[string]struct {
		do    func(t *testing.T, path string)
		words []string
		late  bool // found when it is read
	}{
		"removed":       {do: func(t *testing.T, p string) { must(t, os.Remove(p)) }, words: []string{"missing", ".seg"}},
		"emptied":       {do: func(t *testing.T, p string) { must(t, os.Truncate(p, 0)) }, words: []string{".seg"}},
		"cut":           {do: func(t *testing.T, p string) { must(t, os.Truncate(p, 8192)) }, words: []string{".seg", "byte"}, late: true},
		"header":        {do: func(t *testing.T, p string) { flip(t, p, 0, segfile.DataStart+4096) }, words: []string{".seg"}},
		"first records": {do: func(t *testing.T, p string) { flip(t, p, segfile.DataStart, 3*4096) }, words: []string{".seg", "byte"}, late: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			now := newClock()
			e := open(t, dir, Options{now: now.Now})
			newTopic(t, e, "t")
			newTopic(t, e, "u")
			fill(t, e)
			p := newProducer(t, e, ProducerOptions{Topic: "t"})
			produce(t, p, "k", "v3")
			produce(t, newProducer(t, e, ProducerOptions{Topic: "u"}), "k", "safe")
			files := segmentFiles(t, e, "t")
			shut(t, e)
			c.do(t, files[1])

			e = open(t, dir, Options{now: now.Now})
			if n := len(e.Opened().Damaged); n != 1 && !c.late {
				t.Fatalf("%d damaged files are reported, want 1", n)
			}
			got, err := readUntil(t, e, "t")
			is(t, err, ErrDamaged, append(c.words, filepath.Base(files[1]), `"t"`)...)
			if !slices.Equal(got, []string{"v0"}) {
				t.Errorf("read %q before the damage", got)
			}
			want(t, e, "u", "safe")
			if got := readAll(t, e, "t", FromEnd()); len(got) != 0 {
				t.Errorf("read %q from the end", got)
			}
			p = newProducer(t, e, ProducerOptions{Topic: "t"})
			produce(t, p, "k", "v4") // the last segment is there: it knows the producers

			// A12: retention goes on, and takes what was lost with it.
			must(t, e.SetPolicy(within(t), "short", Policy{MaxAge: Limit(1000)}))
			must(t, e.BindPolicy(within(t), "t", "short"))
			now.Add(time.Minute)
			for range 3 {
				_, err := e.Retain(within(t))
				must(t, err)
			}
			want(t, e, "t", "v4")
			d, err := e.Describe(within(t), "t")
			must(t, err)
			if d.Segments != 1 {
				t.Errorf("%d segments after retention", d.Segments)
			}
			produce(t, p, "k", "v5")
			shut(t, e)
			e = open(t, dir, Options{now: now.Now})
			if n := len(e.Opened().Damaged); n != 0 {
				t.Errorf("%d damaged files are left", n)
			}
			want(t, e, "t", "v4", "v5")
		})
	}
}

// Damage to what a file holds twice costs nothing: it is mended or reported, and read.
func TestSealedSegmentFaulty(t *testing.T) {
	dir := t.TempDir()
	stored(t, dir)
	e := open(t, dir, Options{})
	files := segmentFiles(t, e, "t")
	shut(t, e)
	flip(t, files[1], 0, segfile.DataStart) // header and latch
	flip(t, files[2], 4096, 4096)           // one slot of two
	e = open(t, dir, Options{})
	if o := e.Opened(); len(o.Damaged) != 0 {
		t.Errorf("damaged %v", o.Damaged)
	}
	want(t, e, "t", "v0", "v1", "v2")
}

// The last segment of a range carries what the range knows of its producers. When it
// is lost, the range takes no more until retention has let it go.
func TestLastSegmentLost(t *testing.T) {
	dir := t.TempDir()
	now := newClock()
	e := open(t, dir, Options{now: now.Now})
	newTopic(t, e, "t")
	fill(t, e)
	files := segmentFiles(t, e, "t")
	shut(t, e)
	must(t, os.Remove(files[2]))

	e = open(t, dir, Options{now: now.Now})
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	_, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte("v")})
	is(t, err, ErrDamaged, "producers", "missing", filepath.Base(files[2]))
	must(t, e.SetPolicy(within(t), "short", Policy{MaxAge: Limit(1000)}))
	must(t, e.BindPolicy(within(t), "t", "short"))
	now.Add(time.Minute)
	for range 3 {
		_, err := e.Retain(within(t))
		must(t, err)
	}
	produce(t, p, "k", "again")
	want(t, e, "t", "again")
	shut(t, e)
	e = open(t, dir, Options{now: now.Now})
	want(t, e, "t", "again")
}

// A segment that a killed process left open, and that cannot be told the end of any
// more, is an error for its range alone.
func TestOpenSegmentLost(t *testing.T) {
	dir := t.TempDir()
	kill(t, dir)
	files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*.seg"))
	must(t, err)
	if len(files) != 1 {
		t.Fatalf("%d files", len(files))
	}
	good, err := os.ReadFile(files[0])
	must(t, err)
	flip(t, files[0], 0, segfile.DataStart+4096)

	for range 2 {
		e := open(t, dir, Options{})
		if n := len(e.Opened().Damaged); n != 1 {
			t.Fatalf("%d damaged files", n)
		}
		base := filepath.Base(files[0])
		_, err = readUntil(t, e, "left")
		is(t, err, ErrDamaged, base)
		_, err = newProducer(t, e, ProducerOptions{Topic: "left"}).Produce(within(t), Record{Value: []byte("v")})
		is(t, err, ErrDamaged, base)
		_, _, err = e.SplitRange(within(t), "left", 0)
		is(t, err, ErrDamaged, base)
		_, err = e.Roll(within(t), "left")
		is(t, err, ErrDamaged, base)
		_, err = e.NewConsumer(ConsumerOptions{Topic: "left", From: FromTime(time.UnixMilli(0))})
		is(t, err, ErrDamaged, base)
		_, err = newConsumer(t, e, ConsumerOptions{Topic: "left", From: FromStart()}).Lag()
		is(t, err, ErrDamaged, base)
		d, err := e.Describe(within(t), "left")
		must(t, err)
		if s := d.AllRanges[0].Segments; len(s) != 1 || !s[0].Missing || !s[0].Active {
			t.Fatalf("described as %+v", s)
		}
		_, err = e.Retain(within(t))
		must(t, err)
		if err := e.CreateTopic(within(t), "other", TopicOptions{}); err != nil && !errors.Is(err, ErrTopicExists) {
			t.Fatal(err)
		}
		p := newProducer(t, e, ProducerOptions{Topic: "other"})
		produce(t, p, "k", "v")
		must(t, p.Close(within(t)))
		shut(t, e)
	}

	// Put back, it is whole again.
	must(t, os.WriteFile(files[0], good, 0o600))
	e := open(t, dir, Options{})
	if got := readAll(t, e, "left", FromStart()); len(got) != 10 || got[9] != "left 9" {
		t.Fatalf("%q", got)
	}
	shut(t, e)
}

// Damage in front of the last records of a segment that a killed process left open:
// the hole is reported, what surrounds it is served up to it, and the range goes on.
func TestOpenSegmentDamagedInside(t *testing.T) {
	dir := t.TempDir()
	kill(t, dir)
	files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*.seg"))
	must(t, err)
	flip(t, files[0], segfile.DataStart+3*4096+200, 8)
	e := open(t, dir, Options{})
	got, err := readUntil(t, e, "left")
	is(t, err, ErrDamaged, filepath.Base(files[0]), "byte")
	if len(got) == 0 || len(got) >= 10 {
		t.Errorf("read %q before the damage", got)
	}
	p := newProducer(t, e, ProducerOptions{Topic: "left"})
	pl, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte("behind")})
	must(t, err)
	if pl.First != 10 {
		t.Errorf("went on at offset %d, want 10: %s", pl.First, strings.Join(got, ","))
	}
}

// The last flush of a segment that a killed process left open may be torn or rotten, which one
// file cannot tell: what is cut off is told, with file, byte and records.
func TestOpenSegmentCutIsTold(t *testing.T) {
	dir := t.TempDir()
	kill(t, dir)
	files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*.seg"))
	must(t, err)
	b, err := os.ReadFile(files[0])
	must(t, err)
	last := bytes.LastIndex(b, []byte("RFrm"))
	flip(t, files[0], int64(last)+record.HeaderSize, 8)
	var log logBook
	e := open(t, dir, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if got := readAll(t, e, "left", FromStart()); len(got) != 9 {
		t.Fatalf("read %q", got)
	}
	if log.count("ends in what is not whole") != 1 || log.count(fmt.Sprintf("file=%s byte=%d ", files[0], last)) != 1 || log.count(" records=1 ") != 1 {
		t.Errorf("logged\n%s", log.b.String())
	}
	shut(t, e)
	open(t, dir, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if n := log.count("ends in what is not whole"); n != 1 {
		t.Errorf("told %d times, want once", n)
	}
}

// A file that nobody knows is set aside and reported, whatever it is.
func TestUnknownFiles(t *testing.T) {
	dir := t.TempDir()
	stored(t, dir)
	topics := filepath.Join(dir, "log", "topics")
	subs, err := os.ReadDir(topics)
	must(t, err)
	first := filepath.Join(topics, subs[0].Name())
	for i, name := range []string{
		filepath.Join(topics, "stray"), filepath.Join(first, "stray.seg"), filepath.Join(first, "0000000a-00000007.seg"),
		filepath.Join(first, "00000000-000000ff.seg"),
	} {
		must(t, os.WriteFile(name, make([]byte, i*4096), 0o600))
	}
	e := open(t, dir, Options{})
	if n := len(e.Opened().SetAside); n != 4 {
		t.Errorf("%d files set aside, want 4: %q", n, e.Opened().SetAside)
	}
	for _, f := range e.Opened().SetAside {
		if _, err := os.Stat(filepath.Join(dir, "log", f)); err != nil {
			t.Error(err)
		}
	}
	want(t, e, "t", "v0", "v1", "v2")
	shut(t, e)
	e = open(t, dir, Options{})
	if n := len(e.Opened().SetAside); n != 0 {
		t.Errorf("%d files set aside again", n)
	}
}

// A10: the only segment of a range is cut so that no record survives. The range takes
// records at once, from the offset at which the segment began.
func TestOpenSegmentCut(t *testing.T) {
	for _, size := range []int64{0, 4096, segfile.DataStart - 1, segfile.DataStart, segfile.DataStart + 4096} {
		t.Run(fmt.Sprint("size=", size), func(t *testing.T) {
			dir := t.TempDir()
			kill(t, dir) // leaves 10 records in an open segment
			e := open(t, dir, Options{})
			shut(t, e)
			kill(t, dir) // and 10 more in the next
			files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*.seg"))
			must(t, err)
			last := files[len(files)-1]
			must(t, os.Truncate(last, size))
			e = open(t, dir, Options{})
			p := newProducer(t, e, ProducerOptions{Topic: "left"})
			pl, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte("next")})
			if len(e.Opened().Damaged) > 0 {
				is(t, err, ErrDamaged, filepath.Base(last)) // what it was cannot be told any more
				return
			}
			must(t, err)
			if pl.First != 10 {
				t.Errorf("went on at offset %d, want 10", pl.First)
			}
			if got := readAll(t, e, "left", FromStart()); len(got) != 11 || got[10] != "next" {
				t.Errorf("%q", got)
			}
		})
	}
}

// A file of which nothing but the start is left is not taken for one that held nothing: the
// damage is told, and the file stays.
func TestSegmentOfWhichOnlyTheStartIsLeft(t *testing.T) {
	for _, zeros := range []bool{false, true} {
		dir := t.TempDir()
		kill(t, dir) // leaves 10 records in an open segment
		files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*.seg"))
		must(t, err)
		st, err := os.Stat(files[0])
		must(t, err)
		must(t, os.Truncate(files[0], segfile.DataStart+4096))
		if zeros {
			must(t, os.Truncate(files[0], st.Size()))
		}
		e := open(t, dir, Options{})
		d, err := e.Describe(within(t), "left")
		must(t, err)
		if s := d.AllRanges[0].Segments; d.Damaged != 1 || len(s) == 0 || !strings.Contains(s[0].Damage, "pointer") {
			t.Errorf("zeros %v: %+v", zeros, s)
		}
		p := newProducer(t, e, ProducerOptions{Topic: "left"})
		_, err = p.Produce(within(t), Record{Value: []byte("next")})
		must(t, err)
		shut(t, e)
		if _, err := os.Stat(files[0]); err != nil {
			t.Errorf("zeros %v: %v", zeros, err)
		}
	}
}

// L12: a loss that somebody accepted is reported as a skip, the group commits past it
// and stays past it, and the lag does not count it.
func TestL12_AcceptedLoss(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	var all []string
	for i := range 30 {
		all = append(all, fmt.Sprintf("%d%0999d", i, 0))
	}
	produce(t, p, "k", all...)
	_, err := e.Roll(within(t), "t")
	must(t, err)
	produce(t, p, "k", "behind")
	path := segmentFiles(t, e, "t")[0]
	shut(t, e)
	flip(t, path, segfile.DataStart+10*4096+300, 8)

	e = open(t, dir, Options{})
	got, err := readUntil(t, e, "t")
	is(t, err, ErrDamaged, filepath.Base(path), "byte")
	before := len(got)
	shut(t, e)
	if before == 0 || before >= 30 {
		t.Fatalf("%d records before the damage", before)
	}

	d, err := disk.Open(filepath.Join(dir, "log"), disk.Options{ArenaBytes: 1 << 20})
	must(t, err)
	name := strings.TrimPrefix(path, filepath.Join(dir, "log")+"/")
	holes, err := segfile.AcceptLoss(d, name)
	must(t, errors.Join(err, d.Close()))
	if len(holes) != 1 || holes[0].Records != 1 {
		t.Fatalf("accepted %+v", holes)
	}
	for round := range 2 {
		e = open(t, dir, Options{})
		c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
		lag, err := c.Lag()
		must(t, err)
		got, skips := drain(t, c)
		if round == 0 {
			if !slices.Equal(skips, []Skip{{Range: 0, From: uint64(before), Offsets: 1, Damaged: true}}) || len(got) != 30 {
				t.Fatalf("%d records, skips %v", len(got), skips)
			}
			must(t, c.Commit(within(t)))
		} else if len(got)+len(skips) != 0 || lag != 0 {
			t.Fatalf("a lag of %d, %d records and skips %v after the commit", lag, len(got), skips)
		}
		must(t, c.Close())
		shut(t, e)
	}
}

// B06, I6: a file that holds more than its segment was sealed with reaches into the
// next one. Nobody reads past the seal, the seal stands, and reading the segment is an
// error that says both ends.
func TestSegmentLongerThanItsSeal(t *testing.T) {
	dir := t.TempDir()
	kill(t, dir) // leaves 10 records in an open segment
	files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*.seg"))
	must(t, err)
	whole, err := os.ReadFile(files[0])
	must(t, err)
	must(t, os.Truncate(files[0], segfile.DataStart+2*4096+5*4096)) // start mark, pointer, a flush each
	e := open(t, dir, Options{})
	if o := e.Opened(); o.Recovered != 1 || o.Records != 5 {
		t.Fatalf("%+v", o)
	}
	p := newProducer(t, e, ProducerOptions{Topic: "left"})
	produce(t, p, "k", "behind")
	shut(t, e)
	must(t, os.WriteFile(files[0], whole, 0o600))
	for range 2 {
		e = open(t, dir, Options{})
		if n := len(e.Opened().Damaged); n != 1 {
			t.Fatalf("%d damaged files", n)
		}
		got, err := readUntil(t, e, "left")
		is(t, err, ErrDamaged, filepath.Base(files[0]), "ends at offset 10", "sealed at offset 5")
		if len(got) != 0 {
			t.Errorf("served %q of it", got)
		}
		d, err := e.Describe(within(t), "left")
		must(t, err)
		first := d.AllRanges[0].Segments[0]
		if first.Active || first.Records != 5 || !first.Missing || first.Lost != 5 || d.Records != 1 || d.Damaged != 1 {
			t.Errorf("described as %+v", d)
		}
		shut(t, e)
	}
}

// A file of an earlier time, which ends before its segment was sealed, is no shorter
// log: reading it is an error that says both ends, and other topics work.
func TestSegmentOfAnEarlierTime(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	newTopic(t, e, "u")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "0", "1", "2")
	path := segmentFiles(t, e, "t")[0]
	earlier, err := os.ReadFile(path)
	must(t, err)
	produce(t, p, "k", "3", "4", "5")
	produce(t, newProducer(t, e, ProducerOptions{Topic: "u"}), "k", "safe")
	shut(t, e)
	must(t, os.WriteFile(path, earlier, 0o600))
	for range 2 {
		e = open(t, dir, Options{})
		if n := len(e.Opened().Damaged); n != 1 {
			t.Fatalf("%d damaged files", n)
		}
		got, err := readUntil(t, e, "t")
		is(t, err, ErrDamaged, filepath.Base(path), "ends at offset 3", "sealed at offset 6")
		if len(got) != 0 {
			t.Errorf("served %q of it", got)
		}
		_, err = newProducer(t, e, ProducerOptions{Topic: "t"}).Produce(within(t), Record{Key: []byte("k"), Value: []byte("v")})
		is(t, err, ErrDamaged, filepath.Base(path))
		want(t, e, "u", "safe")
		shut(t, e)
	}
}
