package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// bound makes topic "t", bound to a policy.
func bound(t testing.TB, e *Engine, p Policy) {
	t.Helper()
	must(t, e.SetPolicy(within(t), "p", p))
	must(t, e.CreateTopic(within(t), "t", TopicOptions{Policy: "p"}))
}

func retain(t testing.TB, e *Engine) RetainReport {
	t.Helper()
	r, err := e.Retain(within(t))
	must(t, err)
	if r.Failed > 0 {
		t.Fatalf("%+v", r)
	}
	return r
}

// skips reads a topic from its start and returns what was moved past.
func skipped(t testing.TB, e *Engine, o ConsumerOptions) (got []string, skips []Skip) {
	t.Helper()
	c := newConsumer(t, e, o)
	defer c.Close()
	list, skips := drain(t, c)
	return values(list), skips
}

// Nobody waits for the next look at retention who changes a policy, and a process that
// stores once in a while removes what has expired meanwhile.
func TestRetentionIsLookedAtWhenItMatters(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	begin := func() *Engine {
		o := small(Options{now: now.Now, RetainEvery: time.Hour})
		o.retainLater = false
		e, err := Open(dir, o)
		must(t, err)
		return e
	}
	segments := func(e *Engine) int {
		d, err := e.Describe(within(t), "t")
		must(t, err)
		return d.Segments
	}
	fill := func(e *Engine) {
		for range 3 {
			produce(t, newProducer(t, e, ProducerOptions{Topic: "t"}), "k", "v")
			_, err := e.Roll(within(t), "t")
			must(t, err)
		}
	}
	e := begin()
	must(t, e.CreateTopic(within(t), "t", TopicOptions{}))
	fill(e)
	if n := segments(e); n < 3 {
		t.Fatalf("%d segments", n)
	}
	must(t, e.SetPolicy(within(t), "none", Policy{MaxBytes: Limit(0)}))
	must(t, e.BindPolicy(within(t), "t", "none"))
	eventually(t, "a policy that is bound", func() bool { return segments(e) < 2 })

	must(t, e.Close()) // and no look under the old policy is under way
	e = begin()
	must(t, e.SetPolicy(within(t), "none", Policy{MaxAge: Limit(60_000)}))
	fill(e)
	must(t, e.Close())
	now.Add(time.Hour)
	e = begin()
	defer shut(t, e)
	before := segments(e) // nobody writes
	newProducer(t, e, ProducerOptions{Topic: "t"})
	eventually(t, "the first producer", func() bool { return segments(e) < 2 })
	if before < 3 {
		t.Errorf("%d segments of 3 were there when nothing was written yet", before)
	}
}

// M05, B13: one record and no more traffic. It goes within the age at which an open
// segment is closed and the age at which a closed one expires; the range goes on
// where it was, also after a restart.
func TestIdleTopicExpires(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	e := open(t, dir, Options{now: now.Now})
	bound(t, e, Policy{MaxAge: Limit(60_000), SegmentMaxAge: Limit(60_000)})
	produce(t, newProducer(t, e, ProducerOptions{Topic: "t"}), "k", "v")
	if r := retain(t, e); r.Rolled+r.Expired != 0 {
		t.Fatalf("%+v", r)
	}
	now.Add(60 * time.Second)
	if r := retain(t, e); r.Rolled != 1 || r.Expired != 0 {
		t.Fatalf("%+v", r)
	}
	want(t, e, "t", "v")
	now.Add(60 * time.Second)
	if r := retain(t, e); r.Expired != 0 {
		t.Fatalf("expired at its age, not after it: %+v", r)
	}
	now.Add(time.Millisecond)
	if r := retain(t, e); r.Expired != 1 || r.Bytes == 0 {
		t.Fatalf("%+v", r)
	}
	check := func(offset uint64) {
		t.Helper()
		got, skips := skipped(t, e, ConsumerOptions{Topic: "t"})
		if len(got) != 0 || !slices.Equal(skips, []Skip{{Range: 0, From: 0, Offsets: offset}}) {
			t.Fatalf("%q %v", got, skips)
		}
		p := newProducer(t, e, ProducerOptions{Topic: "t"})
		pl, err := p.Produce(within(t), Record{Key: []byte("k"), Value: []byte("w")})
		must(t, err)
		if pl.First != offset {
			t.Fatalf("goes on at offset %d, want %d", pl.First, offset)
		}
	}
	check(1)
	now.Add(60 * time.Second)
	retain(t, e)
	now.Add(2 * time.Minute)
	retain(t, e)
	shut(t, e)
	e = open(t, dir, Options{now: now.Now})
	check(2)
}

// Retention by size keeps the newest segments that fit, of each range.
func TestRetentionBySize(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	bound(t, e, Policy{MaxBytes: Limit(25_000)})
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	var all []string
	for i := range 8 {
		v := fmt.Sprintf("%d%09000d", i, 0)
		produce(t, p, "k", v)
		all = append(all, v)
		_, err := e.Roll(within(t), "t")
		must(t, err)
	}
	if r := retain(t, e); r.Expired != 6 {
		t.Fatalf("%+v", r)
	}
	got, skips := skipped(t, e, ConsumerOptions{Topic: "t"})
	if !slices.Equal(got, all[6:]) || !slices.Equal(skips, []Skip{{From: 0, Offsets: 6}}) {
		t.Fatalf("%d records, skips %v", len(got), skips)
	}
	if r := retain(t, e); r.Expired != 0 {
		t.Fatalf("%+v", r)
	}
	// A budget of nothing keeps nothing that is closed.
	must(t, e.SetPolicy(within(t), "p", Policy{MaxBytes: Limit(0)}))
	if r := retain(t, e); r.Expired != 2 {
		t.Fatalf("%+v", r)
	}
	produce(t, p, "k", "open")
	if got, _ := skipped(t, e, ConsumerOptions{Topic: "t"}); !slices.Equal(got, []string{"open"}) {
		t.Fatalf("%q", got)
	}
}

// D10, A12: empty files, large ones and directories that are nobody's count for no
// limit and stop no pass: they are set aside, and what the topic takes on disk stays
// below its budget and a segment, pass after pass.
func TestD10StrangeFilesBesideRetention(t *testing.T) {
	const segment, budget = 1 << 20, 2 << 20
	dir := t.TempDir()
	o := Options{SegmentBytes: segment, RetainEvery: time.Hour}
	e := open(t, dir, o)
	bound(t, e, Policy{MaxBytes: Limit(budget)})
	produce(t, newProducer(t, e, ProducerOptions{Topic: "t"}), "k", "first")
	topic := filepath.Dir(segmentFiles(t, e, "t")[0])
	shut(t, e)
	strange := map[string]int{"empty": 0, "00000000-00000fff.seg": 0, "00000000-00000001.seg": 0, "00000007-00000000.seg": 4096, "notes.txt": 5, "large.bin": 3 << 20}
	for name, size := range strange {
		must(t, os.WriteFile(filepath.Join(topic, name), make([]byte, size), 0o600))
	}
	must(t, os.Mkdir(filepath.Join(topic, "00000000-00000002.seg"), 0o700))

	e = open(t, dir, o)
	if n := len(e.Opened().SetAside); n != len(strange)+1 {
		t.Fatalf("%d files set aside: %q", n, e.Opened().SetAside)
	}
	for _, name := range e.Opened().SetAside {
		if _, err := os.Stat(filepath.Join(dir, "log", name)); err != nil {
			t.Fatal(err)
		}
	}
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	expired := 0
	for pass := range 5 {
		for range 30 {
			_, err := p.Produce(within(t), Record{Key: []byte("k"), Value: make([]byte, 100_000)})
			must(t, err)
		}
		eventually(t, "rolls are done", func() bool { return len(e.front.DueRolls()) == 0 })
		expired += retain(t, e).Expired
		used := int64(0)
		eventually(t, "files of expired segments are gone", func() bool {
			used = 0
			entries, err := os.ReadDir(topic)
			must(t, err)
			for _, entry := range entries {
				if st, err := entry.Info(); err == nil && !entry.IsDir() {
					used += st.Size()
				}
			}
			return used <= budget+2*segment // the open one is as long as it was prepared
		})
		if used == 0 {
			t.Fatalf("pass %d: nothing is there", pass)
		}
	}
	if expired < 8 {
		t.Fatalf("%d segments expired", expired)
	}
}

// Nothing of a topic bound to a policy that is not defined expires, whatever the
// defaults; and it is reported.
func TestUndefinedPolicyExpiresNothing(t *testing.T) {
	now := newClock()
	e := open(t, t.TempDir(), Options{now: now.Now, Retention: Policy{MaxAge: Limit(1000)}})
	bound(t, e, Policy{MaxAge: Unlimited()})
	newTopic(t, e, "u")
	for _, topic := range []string{"t", "u"} {
		produce(t, newProducer(t, e, ProducerOptions{Topic: topic}), "k", "v")
		_, err := e.Roll(within(t), topic)
		must(t, err)
	}
	must(t, e.ForgetPolicy(within(t), "p"))
	now.Add(time.Hour)
	if r := retain(t, e); r.Expired != 1 || !slices.Equal(r.Unresolved, []string{"t"}) {
		t.Fatalf("%+v", r)
	}
	want(t, e, "t", "v")
	if got, _ := skipped(t, e, ConsumerOptions{Topic: "u"}); len(got) != 0 {
		t.Fatalf("the default did not hold for a topic without a policy: %q", got)
	}
	must(t, e.BindPolicy(within(t), "t", ""))
	if r := retain(t, e); r.Expired != 1 {
		t.Fatalf("%+v", r)
	}
}

// M01: records without a sane time do not make their segment old.
func TestTimesOfRecordsDoNotExpireThem(t *testing.T) {
	now := newClock()
	e := open(t, t.TempDir(), Options{now: now.Now})
	bound(t, e, Policy{MaxAge: Limit(60_000)})
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	for _, ms := range []int64{0, -1, 1, -1 << 40, 1 << 45} {
		_, err := p.Produce(within(t), Record{Key: []byte("k"), Value: text("%d", ms), Time: time.UnixMilli(ms)})
		must(t, err)
	}
	_, err := e.Roll(within(t), "t")
	must(t, err)
	now.Add(59 * time.Second)
	if r := retain(t, e); r.Expired != 0 {
		t.Fatalf("%+v", r)
	}
	want(t, e, "t", "0", "-1", "1", "-1099511627776", "35184372088832")
}

// A clock that jumps, either way, loses nothing that it must not and stops nobody.
func TestClockJumps(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	e := open(t, dir, Options{now: now.Now})
	bound(t, e, Policy{MaxAge: Limit(3_600_000), SegmentMaxAge: Limit(60_000)})
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	roll := func() {
		t.Helper()
		_, err := e.Roll(within(t), "t")
		must(t, err)
	}
	produce(t, p, "k", "a")
	roll()
	now.Add(-100 * 24 * time.Hour) // back by months, as after a dead battery
	if r := retain(t, e); r.Expired+r.Rolled != 0 {
		t.Fatalf("%+v", r)
	}
	produce(t, p, "k", "b")
	roll()
	produce(t, p, "k", "c")
	now.Add(-10 * 365 * 24 * time.Hour)
	if r := retain(t, e); r.Expired+r.Rolled != 0 {
		t.Fatalf("%+v", r)
	}
	shut(t, e)
	e = open(t, dir, Options{now: now.Now}) // written "in the future"
	want(t, e, "t", "a", "b", "c")
	p = newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "d")
	if got := readAll(t, e, "t", FromTime(now.Now())); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
		t.Fatalf("%q", got)
	}
	c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
	drain(t, c)
	must(t, c.Commit(within(t)))
	must(t, c.Close())
	now.Add(10*365*24*time.Hour + 100*24*time.Hour) // right again
	if r := retain(t, e); r.Rolled != 1 {
		t.Fatalf("%+v", r)
	}
	produce(t, p, "k", "e")
	if got, _ := skipped(t, e, ConsumerOptions{Topic: "t", Group: "g"}); !slices.Equal(got, []string{"e"}) {
		t.Fatalf("the group got %q", got)
	}
}
