package engine

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A process that stored nothing leaves no segment, whatever it repeated, also in the
// halves of a range that was split; and what it repeated is known as before.
func TestNothingStoredLeavesNoSegment(t *testing.T) {
	dir := t.TempDir()
	send := func(e *Engine, duplicates bool, values ...string) {
		t.Helper()
		p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
		for _, v := range values {
			at, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte(v)})
			if err != nil || at.Duplicate != duplicates {
				t.Fatalf("%s: %+v %v", v, at, err)
			}
		}
		must(t, p.Close(within(t)))
	}
	files := func() int {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*"))
		must(t, err)
		return len(list)
	}
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	send(e, false, "v0", "v1")
	shut(t, e)
	for range 3 {
		e = open(t, dir, Options{})
		send(e, true, "v0", "v1")
		if n := files(); n != 2 {
			t.Fatalf("%d files while there is a segment for repeats, want 2: this test would prove nothing", n)
		}
		shut(t, e)
		if n := files(); n != 1 {
			t.Fatalf("%d files after a run that stored nothing, want 1", n)
		}
	}
	// Also where a segment for repeats was closed while the run went on.
	e = open(t, dir, Options{})
	for range 3 {
		send(e, true, "v0", "v1")
		_, err := e.Roll(within(t), "t")
		must(t, err)
	}
	send(e, true, "v0", "v1")
	if n := files(); n < 3 {
		t.Fatalf("%d files while the run closes segments for repeats, want 3 or more: this test would prove nothing", n)
	}
	shut(t, e)
	if n := files(); n != 1 {
		t.Fatalf("%d files after a run that closed segments and stored nothing, want 1", n)
	}
	e = open(t, dir, Options{})
	_, _, err := e.SplitRange(within(t), "t", 0)
	must(t, err)
	send(e, true, "v0", "v1")
	shut(t, e)
	if n := files(); n != 1 {
		t.Errorf("%d files after a split and a run that stored nothing, want 1", n)
	}
	e = open(t, dir, Options{})
	if o := e.Opened(); len(o.Damaged)+len(o.SetAside)+o.Recovered+o.Unwritten != 0 {
		t.Errorf("the start found %+v", o)
	}
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	for i, v := range []string{"v0", "v1", "v2"} {
		at, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte(v)})
		if err != nil || at.Duplicate != (i < 2) {
			t.Fatalf("%s: %+v %v", v, at, err)
		}
	}
	want(t, e, "t", "v0", "v1", "v2")
}

// A segment without a record that alone knows the range's producers stays.
func TestEmptySegmentThatKnowsProducersStays(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	o := Options{now: now.Now, Retention: Policy{MaxAge: Limit(60_000)}}
	e := open(t, dir, o)
	newTopic(t, e, "t")
	produce(t, newProducer(t, e, ProducerOptions{Topic: "t", ID: 7}), "k", "v0")
	_, err := e.Roll(within(t), "t")
	must(t, err)
	now.Add(time.Hour)
	if r := retain(t, e); r.Expired != 1 {
		t.Fatalf("%+v", r)
	}
	file := segmentFiles(t, e, "t")[0] // opened so that the producers are not forgotten
	shut(t, e)
	if _, err := os.Stat(file); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir, o)
	at, err := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7}).Produce(within(t), Record{Key: []byte("k"), Value: []byte("v0")})
	if err != nil || !at.Duplicate {
		t.Errorf("a repeat of what has expired: %+v %v", at, err)
	}
}

// A segment that a killed process had opened and stored nothing in leaves no trace.
func TestKilledBeforeTheFirstRecordLeavesNoSegment(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "t")
	produce(t, newProducer(t, e, ProducerOptions{Topic: "t", ID: 7}), "k", "v0")
	shut(t, e)
	e = open(t, dir, Options{})
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	if at, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte("v0")}); err != nil || !at.Duplicate {
		t.Fatalf("%+v %v", at, err)
	}
	killed := copyTree(t, dir)
	must(t, p.Close(within(t)))
	if n := len(segmentFiles(t, e, "t")); n != 2 {
		t.Fatalf("%d segments while there is one for repeats, want 2", n)
	}
	shut(t, e)
	for start := range 2 {
		e = open(t, killed, Options{})
		if o := e.Opened(); o.Recovered != 1-start || len(o.Damaged)+len(o.SetAside)+o.Unwritten != 0 {
			t.Errorf("start %d found %+v", start, o)
		}
		if n := len(segmentFiles(t, e, "t")); n != 1 {
			t.Errorf("%d segments, want 1", n)
		}
		want(t, e, "t", "v0")
		shut(t, e)
	}
}
