package engine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/segfile"
)

// withoutFile is a topic of three sealed segments with a record each, of which one has
// lost its file.
func withoutFile(t *testing.T, o Options, lost int) (e *Engine, dir, file string) {
	t.Helper()
	dir = t.TempDir()
	e = open(t, dir, o)
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	for _, v := range []string{"v0", "v1", "v2"} {
		produce(t, p, "k", v)
		_, err := e.Roll(within(t), "t")
		must(t, err)
	}
	file = segmentFiles(t, e, "t")[lost]
	shut(t, e)
	must(t, os.Rename(file, filepath.Join(dir, "kept")))
	return open(t, dir, o), dir, file
}

// A sealed segment without its file fails every read until it is given up; then just
// its records are skipped, at once and after a restart, and consumers are told. A file
// that comes back is served again.
func TestAcceptLossOfAMissingFile(t *testing.T) {
	e, dir, file := withoutFile(t, Options{}, 1)
	_, err := readUntil(t, e, "t")
	is(t, err, ErrDamaged, "missing", "accept-loss")
	d, err := e.Describe(within(t), "t")
	must(t, err)
	if s := d.AllRanges[0].Segments[1]; d.Damaged != 1 || d.Records != 2 || !s.Missing || s.Lost != 1 || s.GivenUp != 0 || s.Damage == "" {
		t.Errorf("described as %+v, %+v", d.TopicInfo, s)
	}
	want := Skip{Range: 0, From: 1, Offsets: 1, Damaged: true}
	for range 2 { // again changes nothing
		if got, err := e.AcceptLoss(within(t), "t", 0, 1); err != nil || got != want {
			t.Fatalf("gave up %+v %v, want %+v", got, err, want)
		}
	}
	check := func() {
		t.Helper()
		got, skips := skipped(t, e, ConsumerOptions{Topic: "t"})
		if !slices.Equal(got, []string{"v0", "v2"}) || !slices.Equal(skips, []Skip{want}) {
			t.Errorf("read %q and skipped %+v", got, skips)
		}
		if got := readAll(t, e, "t", FromTime(time.UnixMilli(1))); !slices.Equal(got, []string{"v0", "v2"}) {
			t.Errorf("from a time: %q", got)
		}
		c := newConsumer(t, e, ConsumerOptions{Topic: "t"})
		defer c.Close()
		if lag, err := c.Lag(); lag != 2 || err != nil {
			t.Errorf("lag %d %v", lag, err)
		}
		d, err := e.Describe(within(t), "t")
		must(t, err)
		if s := d.AllRanges[0].Segments[1]; d.Damaged != 0 || d.Records != 2 || s.Lost != 1 || s.GivenUp != 1 {
			t.Errorf("described as %+v, %+v", d.TopicInfo, s)
		}
	}
	check()
	shut(t, e)
	e = open(t, dir, Options{})
	if n := len(e.Opened().Damaged); n != 0 {
		t.Errorf("%d damaged files after it was given up", n)
	}
	check()
	shut(t, e)

	must(t, os.Rename(filepath.Join(dir, "kept"), file))
	e = open(t, dir, Options{})
	if got, skips := skipped(t, e, ConsumerOptions{Topic: "t"}); !slices.Equal(got, []string{"v0", "v1", "v2"}) || len(skips) != 0 {
		t.Errorf("with the file back: %q, skipped %+v", got, skips)
	}
}

// A range whose last segment was given up takes records again; its producers go on from
// what the segment before knew, and what was lost is stored anew.
func TestWriteBehindAcceptedLoss(t *testing.T) {
	e, dir, _ := withoutFile(t, Options{}, 2)
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	_, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte("v0")})
	is(t, err, ErrDamaged)
	_, err = e.AcceptLoss(within(t), "t", 0, 2)
	must(t, err)
	p = newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	for i, v := range []string{"v0", "v1", "v2"} {
		at, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte(v)})
		if err != nil || at.Duplicate != (i < 2) {
			t.Errorf("%s again: %+v %v", v, at, err)
		}
	}
	for range 2 {
		if got, skips := skipped(t, e, ConsumerOptions{Topic: "t"}); !slices.Equal(got, []string{"v0", "v1", "v2"}) || len(skips) != 1 || skips[0].From != 2 {
			t.Errorf("read %q and skipped %+v", got, skips)
		}
		shut(t, e)
		e = open(t, dir, Options{})
	}
}

// What was given up expires as everything does, and leaves nothing; neither does a
// topic that is deleted.
func TestAcceptedLossExpires(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, e *Engine, now *clock){
		"retention": func(t *testing.T, e *Engine, now *clock) {
			now.Add(time.Hour)
			if r := retain(t, e); r.Expired != 3 {
				t.Fatalf("%+v", r)
			}
			if got, skips := skipped(t, e, ConsumerOptions{Topic: "t"}); len(got) != 0 || !slices.Equal(skips, []Skip{{From: 0, Offsets: 3}}) {
				t.Errorf("read %q and skipped %+v", got, skips)
			}
		},
		"deleted": func(t *testing.T, e *Engine, _ *clock) { must(t, e.DeleteTopic(within(t), "t")) },
	} {
		t.Run(name, func(t *testing.T) {
			now := newClock()
			e, _, file := withoutFile(t, Options{now: now.Now, Retention: Policy{MaxAge: Limit(60_000)}}, 0)
			_, err := e.AcceptLoss(within(t), "t", 0, 0)
			must(t, err)
			if _, err := os.Stat(file + ".loss"); err != nil {
				t.Fatalf("nothing was put on record: %v", err)
			}
			end(t, e, now)
			if _, err := os.Stat(file + ".loss"); !os.IsNotExist(err) {
				t.Errorf("the record is still there: %v", err)
			}
		})
	}
}

// Only what is missing, and whose end is known, is given up whole.
func TestAcceptLossRefuses(t *testing.T) {
	e, dir, file := withoutFile(t, Options{}, 1)
	produce(t, newProducer(t, e, ProducerOptions{Topic: "t"}), "k", "open")
	ctx := within(t)
	for _, tt := range []struct {
		topic        string
		rng, segment uint32
		want         error
	}{
		{"t", 0, 0, ErrNotMissing}, {"t", 0, 3, cp.ErrSegmentActive}, {"t", 0, 9, cp.ErrNoSuchSegment}, {"t", 9, 0, cp.ErrNoSuchSegment}, {"none", 0, 0, ErrNoSuchTopic},
	} {
		_, err := e.AcceptLoss(ctx, tt.topic, tt.rng, tt.segment)
		is(t, err, tt.want, tt.topic)
	}
	shut(t, e)

	// A file without a header is not missing; once it is moved away it is. Nothing is left
	// of its directory in the end.
	must(t, os.Rename(filepath.Join(dir, "kept"), file))
	flip(t, file, 0, segfile.DataStart+4096)
	e = open(t, dir, Options{})
	_, err := e.AcceptLoss(ctx, "t", 0, 1)
	is(t, err, ErrNotMissing, "move it")
	shut(t, e)
	must(t, os.Rename(filepath.Dir(file), filepath.Join(dir, "away")))
	e = open(t, dir, Options{})
	for _, seg := range []uint32{0, 1, 2, 3} {
		_, err := e.AcceptLoss(ctx, "t", 0, seg)
		must(t, err)
	}
	if got, skips := skipped(t, e, ConsumerOptions{Topic: "t"}); len(got) != 0 || len(skips) != 4 {
		t.Errorf("read %q and skipped %+v", got, skips)
	}
	produce(t, newProducer(t, e, ProducerOptions{Topic: "t"}), "k", "new")

	// A record of losses that rotted says nothing: what is not known is not accepted.
	shut(t, e)
	flip(t, file+".loss", 20, 1)
	e = open(t, dir, Options{})
	_, err = readUntil(t, e, "t")
	is(t, err, ErrDamaged, filepath.Base(file), ".loss")
}
