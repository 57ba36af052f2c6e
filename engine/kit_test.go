package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain runs the tests, or one of the children that they start: this binary
// again, with childEnv set.
func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		os.Exit(runChild(name))
	}
	goleak.VerifyTestMain(m)
}

// patience bounds what may take long only when something is wrong.
const patience = 60 * time.Second

// long says whether the tests may take their time.
func long() bool { return os.Getenv("RINGFENCE_LONG") != "" }

// rounds is how often a test with chance in it runs.
func rounds(n int) int {
	if long() {
		n *= 20
	}
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within is a context for what a test does.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// small are options for tests: a small arena, no reserve of free space.
func small(o Options) Options {
	if o.ArenaBytes == 0 {
		o.ArenaBytes = 16 << 20
	}
	if o.ReserveBytes == 0 {
		o.ReserveBytes = 1 << 20
	}
	o.retainLater = true // or a test's own look at retention would find some of it done
	return o
}

func open(t testing.TB, dir string, o Options) *Engine {
	t.Helper()
	e, err := Open(dir, small(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, e) })
	return e
}

// shut closes an engine and checks that it gave its memory back. Closing twice is
// no error.
func shut(t testing.TB, e *Engine) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if n := e.arena.InUse(); n != 0 {
		t.Errorf("%d bytes of the arena are still in use", n)
	}
}

func newTopic(t testing.TB, e *Engine, name string) {
	t.Helper()
	must(t, e.CreateTopic(within(t), name, TopicOptions{}))
}

func newProducer(t testing.TB, e *Engine, o ProducerOptions) *Producer {
	t.Helper()
	p, err := e.NewProducer(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newConsumer(t testing.TB, e *Engine, o ConsumerOptions) *Consumer {
	t.Helper()
	c, err := e.NewConsumer(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// produce stores values under one key and fails unless each was stored anew.
func produce(t testing.TB, p *Producer, key string, values ...string) {
	t.Helper()
	ctx := within(t)
	for _, v := range values {
		pl, err := p.Produce(ctx, Record{Key: []byte(key), Value: []byte(v)})
		if err != nil || pl.Duplicate {
			t.Fatalf("%q: %+v %v", v, pl, err)
		}
	}
}

// entry is a consumed record that outlives its page.
type entry struct {
	Range      uint32
	Offset     uint64
	Key, Value []byte
	Headers    []Header
	Time       time.Time
}

// drain reads until the consumer has caught up.
func drain(t testing.TB, c *Consumer) (got []entry, skips []Skip) {
	t.Helper()
	for {
		page, err := c.Fetch(1000)
		if err != nil {
			t.Fatal(err)
		}
		got = keep(got, page)
		skips = append(skips, page.Skips...)
		if page.CaughtUp {
			return got, skips
		}
	}
}

// keep adds copies of a page's records.
func keep(got []entry, page Page) []entry {
	for i := range page.Records {
		r := &page.Records[i]
		e := entry{Range: r.Range, Offset: r.Offset, Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value), Time: r.Time}
		for _, h := range r.Headers {
			e.Headers = append(e.Headers, Header{Key: bytes.Clone(h.Key), Value: bytes.Clone(h.Value)})
		}
		got = append(got, e)
	}
	return got
}

// readAll reads a topic to its end and returns the values.
func readAll(t testing.TB, e *Engine, topic string, from From) []string {
	t.Helper()
	c := newConsumer(t, e, ConsumerOptions{Topic: topic, From: from})
	defer c.Close()
	got, _ := drain(t, c)
	return values(got)
}

func values(got []entry) []string {
	list := make([]string, len(got))
	for i := range got {
		list[i] = string(got[i].Value)
	}
	return list
}

// want fails unless a topic holds these values in this order.
func want(t testing.TB, e *Engine, topic string, list ...string) {
	t.Helper()
	if got := readAll(t, e, topic, FromStart()); !slices.Equal(got, list) {
		t.Fatalf("topic %q holds %q, want %q", topic, got, list)
	}
}

// eventually waits for what another goroutine is about to do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s\n%s", what, stacks())
		}
		time.Sleep(time.Millisecond)
	}
}

func stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}

// soon fails when do does not return: it hangs.
func soon(t testing.TB, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("hangs: %s\n%s", what, stacks())
	}
}

// is fails unless err is the sentinel, and says where it happened.
func is(t testing.TB, err, sentinel error, words ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Fatalf("got %v, want %v", err, sentinel)
	}
	for _, w := range words {
		if !bytes.Contains([]byte(err.Error()), []byte(w)) {
			t.Fatalf("%q does not say %q", err, w)
		}
	}
}

// clock is a wall clock that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.UnixMilli(1_700_000_000_000)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func text(format string, args ...any) []byte { return fmt.Appendf(nil, format, args...) }
