package engine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A world is an engine with one topic, and what should be true of it: every record
// with its place, and of every consumer and group which records it has still to get.
type world struct {
	t   *testing.T
	rng *rand.Rand
	now *clock
	dir string
	e   *Engine

	records   []*fact
	at        map[where]*fact
	senders   []*sender
	consumers []*reader
	groups    map[string]set
	log       []string // what was done, for the failure
}

type where struct {
	rng    uint32
	offset uint64
}

// fact is a record that is stored.
type fact struct {
	where
	key, value []byte
	time       int64
	order      int  // among all records
	expired    bool // its segment is gone
}

type set map[*fact]bool

// sender is one producer id and all it ever sent, in order.
type sender struct {
	id   uint64
	p    *Producer
	sent []Record
}

// reader is a consumer with what it has still to get.
type reader struct {
	name  string
	c     *Consumer
	group string
	left  set
}

const modelTopic = "t"

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: newClock(), dir: t.TempDir(),
		at: map[where]*fact{}, groups: map[string]set{},
	}
	w.open()
	must(t, w.e.CreateTopic(within(t), modelTopic, TopicOptions{Bits: 4}))
	must(t, w.e.SetPolicy(within(t), "minute", Policy{MaxAge: Limit(60_000)}))
	must(t, w.e.BindPolicy(within(t), modelTopic, "minute"))
	return w
}

func (w *world) open() {
	w.e = open(w.t, w.dir, Options{now: w.now.Now, RetainEvery: time.Hour})
}

func (w *world) did(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, l := range w.log[max(0, len(w.log)-40):] {
		w.t.Log(l)
	}
	w.t.Fatalf(format, args...)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.fail("%v", err)
	}
}

// someRecord is a record of a few keys, with a time around now.
func (w *world) someRecord() Record {
	r := Record{
		Value: text("%d-%d", len(w.records), w.rng.Uint32()),
		Time:  w.now.Now().Add(time.Duration(w.rng.IntN(2000)-1000) * time.Millisecond),
	}
	if n := w.rng.IntN(12); n > 0 {
		r.Key = text("key%d", n)
	}
	if w.rng.IntN(20) == 0 {
		r.Value = append(r.Value, make([]byte, w.rng.IntN(20_000))...)
	}
	return r
}

// store notes that a record was stored.
func (w *world) store(r Record, pl Placement) {
	w.t.Helper()
	f := &fact{
		where: where{pl.Range, pl.First}, key: r.Key, value: r.Value, time: r.Time.UnixMilli(), order: len(w.records),
	}
	if old := w.at[f.where]; old != nil {
		w.fail("%q was stored at %v, where %q is", r.Value, f.where, old.value)
	}
	w.at[f.where] = f
	w.records = append(w.records, f)
	for _, c := range w.consumers {
		c.left[f] = true
	}
	for _, g := range w.groups {
		g[f] = true
	}
}

func (w *world) active() []RangeInfo {
	d, err := w.e.Describe(within(w.t), modelTopic)
	w.must(err)
	return slices.DeleteFunc(d.AllRanges, func(r RangeInfo) bool { return !r.Active })
}

func (w *world) split() {
	ranges := w.active()
	r := ranges[w.rng.IntN(len(ranges))]
	if r.End-r.Start < 1<<29 {
		return
	}
	a, b, err := w.e.SplitRange(within(w.t), modelTopic, r.Seq)
	w.must(err)
	w.did("range %d split into %d and %d", r.Seq, a, b)
}

func (w *world) merge() {
	ranges := w.active()
	for range 10 {
		a, b := ranges[w.rng.IntN(len(ranges))], ranges[w.rng.IntN(len(ranges))]
		if size := a.End - a.Start; b.End-b.Start == size && a.Start^size == b.Start {
			c, err := w.e.MergeRanges(within(w.t), modelTopic, a.Seq, b.Seq)
			w.must(err)
			w.did("ranges %d and %d merged into %d", a.Seq, b.Seq, c)
			return
		}
	}
}

func (w *world) roll() {
	n, err := w.e.Roll(within(w.t), modelTopic)
	w.must(err)
	w.did("%d segments rolled", n)
}

// expire lets everything that is sealed go.
func (w *world) expire() {
	w.now.Add(2 * time.Minute)
	for range 2 {
		_, err := w.e.Retain(within(w.t))
		w.must(err)
	}
	d, err := w.e.Describe(within(w.t), modelTopic)
	w.must(err)
	n := 0
	for _, f := range w.records {
		kept := false
		for _, s := range d.AllRanges[f.rng].Segments {
			kept = kept || s.Start <= f.offset && f.offset < s.Start+s.Records
		}
		if !kept && !f.expired {
			n++
			f.expired = true
		}
	}
	w.did("%d records expired", n)
}

// reopen closes the engine and opens it again. Consumers go on from their cursors.
func (w *world) reopen() {
	w.did("reopen")
	var cursors []string
	for _, r := range w.consumers {
		cursors = append(cursors, r.c.Cursor())
		w.must(r.c.Close())
	}
	w.must(w.e.Close())
	w.open()
	for i, r := range w.consumers {
		c, err := w.e.NewConsumer(ConsumerOptions{Topic: modelTopic, Group: r.group, From: FromCursor(cursors[i])})
		w.must(err)
		r.c = c
	}
	for _, s := range w.senders {
		s.p = nil
		w.restart(s)
	}
}

func (w *world) all() set {
	left := set{}
	for _, f := range w.records {
		left[f] = true
	}
	return left
}

// since is what a consumer from a time has to get: of each range all from the first
// record of that time or later on.
func (w *world) since(ms int64) set {
	first := map[uint32]uint64{}
	for _, f := range w.records {
		if at, ok := first[f.rng]; !f.expired && f.time >= ms && (!ok || f.offset < at) {
			first[f.rng] = f.offset
		}
	}
	left := set{}
	for _, f := range w.records {
		if at, ok := first[f.rng]; ok && f.offset >= at {
			left[f] = true
		}
	}
	return left
}

func (w *world) consume() {
	if len(w.consumers) >= 5 {
		i := w.rng.IntN(len(w.consumers))
		w.did("%s closes", w.consumers[i].name)
		w.must(w.consumers[i].c.Close())
		w.consumers = slices.Delete(w.consumers, i, i+1)
	}
	r := &reader{}
	var from From
	switch w.rng.IntN(5) {
	case 0:
		r.name, from, r.left = "start", FromStart(), w.all()
	case 1:
		r.name, from, r.left = "end", FromEnd(), set{}
	case 2:
		at := w.now.Now().Add(time.Duration(w.rng.IntN(200_000)-150_000) * time.Millisecond)
		r.name, from, r.left = fmt.Sprint("time ", at.UnixMilli()), FromTime(at), w.since(at.UnixMilli())
	case 3:
		if len(w.consumers) == 0 {
			return
		}
		other := w.consumers[w.rng.IntN(len(w.consumers))]
		r.name, from, r.left = "cursor of "+other.name, FromCursor(other.c.Cursor()), clone(other.left)
		if len(r.name) > 100 {
			r.name = "cursor"
		}
	default:
		r.group = fmt.Sprint("g", w.rng.IntN(2))
		r.name, from = "group "+r.group, FromGroup()
		if left, ok := w.groups[r.group]; ok {
			r.left = clone(left)
		} else {
			r.left = w.all()
		}
	}
	c, err := w.e.NewConsumer(ConsumerOptions{Topic: modelTopic, Group: r.group, From: from})
	w.must(err)
	r.c = c
	w.consumers = append(w.consumers, r)
	w.did("%s begins with %d records left", r.name, len(r.left))
}

func clone(s set) set {
	c := set{}
	for f := range s {
		c[f] = true
	}
	return c
}

// fetch takes one page and checks every record and skip on it.
func (w *world) fetch(r *reader) (caughtUp bool) {
	page, err := r.c.Fetch(1 + w.rng.IntN(30))
	w.must(err)
	for _, s := range page.Skips {
		w.did("%s skips %+v", r.name, s)
		for offset := s.From; offset < s.From+s.Offsets; offset++ {
			f := w.at[where{s.Range, offset}]
			if f == nil || !f.expired {
				w.fail("%s: skip %+v goes over a record that is stored: %+v", r.name, s, f)
			}
			delete(r.left, f)
		}
	}
	for _, rec := range page.Records {
		f := w.at[where{rec.Range, rec.Offset}]
		switch {
		case f == nil:
			w.fail("%s: got %q at range %d offset %d, where nothing was stored", r.name, rec.Value, rec.Range, rec.Offset)
		case !r.left[f]:
			w.fail("%s: got %q at %v, which it was not to get, or not again", r.name, rec.Value, f.where)
		case !bytes.Equal(rec.Value, f.value) || !bytes.Equal(rec.Key, f.key) || (rec.Key == nil) != (f.key == nil) || rec.Time.UnixMilli() != f.time:
			w.fail("%s: got %q at %v, want %q", r.name, rec.Value, f.where, f.value)
		}
		delete(r.left, f)
		for other := range r.left {
			if f.key != nil && other.order < f.order && bytes.Equal(other.key, f.key) && !other.expired {
				w.fail("%s: got %q before %q, of the same key", r.name, f.value, other.value)
			}
		}
	}
	if page.CaughtUp {
		for f := range r.left {
			w.fail("%s: has caught up and never got %q at %v (expired: %v), one of %d", r.name, f.value, f.where, f.expired, len(r.left))
		}
	}
	w.did("%s got %d records, %d left", r.name, len(page.Records), len(r.left))
	return page.CaughtUp
}

func (w *world) read() {
	if len(w.consumers) > 0 {
		r := w.consumers[w.rng.IntN(len(w.consumers))]
		for range 1 + w.rng.IntN(5) {
			w.fetch(r)
		}
		lag, err := r.c.Lag()
		w.must(err)
		n := 0
		for f := range r.left {
			if !f.expired {
				n++
			}
		}
		if int(lag) != n {
			w.fail("%s: a lag of %d, and %d records left", r.name, lag, n)
		}
	}
}

func (w *world) commit() {
	for _, r := range w.consumers {
		if r.group == "" || w.rng.IntN(2) == 0 {
			continue
		}
		before, ok := w.groups[r.group]
		if w.rng.IntN(5) == 0 {
			w.did("%s resets the group", r.name)
			w.must(r.c.Reset(within(w.t)))
			ok = false
		} else {
			w.did("%s commits", r.name)
			w.must(r.c.Commit(within(w.t)))
		}
		after := clone(r.left)
		if ok {
			for f := range after {
				if !before[f] {
					delete(after, f) // a commit never moves a group back
				}
			}
		}
		w.groups[r.group] = after
	}
}

// finish reads everything with everybody.
func (w *world) finish() {
	w.reopen()
	for _, g := range slices.Sorted(keysOf(w.groups)) {
		c, err := w.e.NewConsumer(ConsumerOptions{Topic: modelTopic, Group: g})
		w.must(err)
		w.consumers = append(w.consumers, &reader{name: "group " + g, c: c, group: g, left: clone(w.groups[g])})
	}
	c, err := w.e.NewConsumer(ConsumerOptions{Topic: modelTopic})
	w.must(err)
	w.consumers = append(w.consumers, &reader{name: "last", c: c, left: w.all()})
	for _, r := range w.consumers {
		for n := 0; !w.fetch(r); n++ {
			if n > 100_000 {
				w.fail("%s never catches up", r.name)
			}
		}
		w.must(r.c.Close())
	}
	w.must(w.e.Close())
}

func keysOf(m map[string]set) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}
