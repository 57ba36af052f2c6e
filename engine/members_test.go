package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
)

// handout is what the members of a group were handed out: the records of each key must
// come in order and none may be left out, whoever gets them.
type handout struct {
	t *testing.T

	mu    sync.Mutex
	next  map[string]int // by key, the first record that was not handed out
	again int            // records that were handed out before
	total int            // that were handed out for the first time
}

func (l *handout) take(page Page) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range page.Records {
		n, err := strconv.Atoi(string(r.Value))
		if err != nil {
			l.t.Error(err)
		}
		key := string(r.Key)
		switch {
		case n > l.next[key]:
			l.t.Errorf("key %s: record %d of range %d came before %d", key, n, r.Range, l.next[key])
		case n < l.next[key]:
			l.again++
			continue
		}
		l.next[key] = n + 1
		l.total++
	}
}

func (l *handout) count() (total, again int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.again
}

// memberProcess is one process with a member of group "g" of topic "t".
type memberProcess struct {
	l    *handout
	c    *client.Client
	in   *client.Consumer
	stop context.CancelFunc
	done chan struct{}
}

// startMember starts one. It commits what a page has with a chance of 1 in rarely, or at its
// end.
func startMember(t *testing.T, addr string, l *handout, name string, rarely int) *memberProcess {
	t.Helper()
	return startMemberOf(t, dial(t, addr), l, name, rarely)
}

func startMemberOf(t *testing.T, c *client.Client, l *handout, name string, rarely int) *memberProcess {
	t.Helper()
	r := &memberProcess{l: l, c: c, done: make(chan struct{})}
	var err error
	r.in, err = r.c.NewConsumer(ConsumerOptions{Topic: "t", Group: "g", Member: name})
	must(t, err)
	var ctx context.Context
	ctx, r.stop = context.WithCancel(within(t))
	go func() {
		defer close(r.done)
		for {
			page, err := r.in.Poll(ctx, 7)
			l.take(page)
			if ctx.Err() != nil {
				return
			}
			if err == nil && rand.IntN(rarely) == 0 {
				err = r.in.Commit(ctx)
			}
			if err != nil && ctx.Err() == nil && !errors.Is(err, client.ErrRangeMoved) {
				t.Errorf("member %s: %v", name, err)
				return
			}
		}
	}()
	return r
}

// leave ends a reader in good order. Who could not be reached may have lost its ranges.
func (r *memberProcess) leave(t *testing.T) {
	t.Helper()
	r.stop()
	<-r.done
	if err := r.in.Commit(within(t)); err != nil && !errors.Is(err, client.ErrRangeMoved) {
		t.Fatal(err)
	}
	must(t, r.in.Close())
	must(t, r.c.Close())
}

// kill ends one without a word, like a process that dies.
func (r *memberProcess) kill() {
	r.stop()
	<-r.done
	r.c.Close()
}

// feed stores records of eight keys in turn.
type feed struct {
	p    *Producer
	sent int
}

func (f *feed) put(t *testing.T, n int) {
	t.Helper()
	for range n {
		must(t, f.p.Append(within(t), Record{Key: text("key-%d", f.sent%8), Value: text("%d", f.sent/8)}, func(_ Placement, err error) {
			if err != nil {
				t.Error(err)
			}
		}))
		f.sent++
	}
	must(t, f.p.Flush(within(t)))
}

func groupWorld(t *testing.T, session time.Duration, splits int) (e *Engine, addr string, l *handout, f *feed) {
	e = open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	for i := range splits {
		_, _, err := e.SplitRange(within(t), "t", uint32(i))
		must(t, err)
	}
	addr, stop := serveWith(t, e, server.Options{Session: session})
	t.Cleanup(stop)
	return e, addr, &handout{t: t, next: map[string]int{}}, &feed{p: newProducer(t, e, ProducerOptions{Topic: "t"})}
}

func (l *handout) caughtUp(f *feed) func() bool {
	return func() bool { n, _ := l.count(); return n == f.sent }
}

// L05: members come, and leave in good order, while records are stored: nothing is left
// out and nothing comes twice.
func TestL05_CleanHandOver(t *testing.T) {
	e, addr, l, f := groupWorld(t, 30*time.Second, 3)
	readers := []*memberProcess{startMember(t, addr, l, "m0", 3)}
	for i := range rounds(6) {
		f.put(t, 100)
		readers = append(readers, startMember(t, addr, l, fmt.Sprint("m", i+1), 3))
		f.put(t, 100)
		if len(readers) > 2 {
			readers[0].leave(t)
			readers = readers[1:]
		}
	}
	eventually(t, "all records are read", l.caughtUp(f))
	for _, r := range readers {
		r.leave(t)
	}
	if total, again := l.count(); again != 0 || total != f.sent {
		t.Errorf("%d of %d records came, %d of them again", total, f.sent, again)
	}
	if g := group(t, e, "g"); g.Lag != 0 {
		t.Errorf("%+v", g)
	}
}

// L05: of two members one is killed. The other goes on with its ranges when its session
// is over; nothing is lost, and nothing comes again but what was not committed.
func TestL05_KilledMember(t *testing.T) {
	e, addr, l, f := groupWorld(t, time.Second, 3)
	a, b := startMember(t, addr, l, "a", 1), startMember(t, addr, l, "b", 1<<30)
	admin := dial(t, addr)
	eventually(t, "both have ranges", func() bool {
		g, err := admin.DescribeGroup(within(t), "t", "g")
		must(t, err)
		of := map[string]int{}
		for _, r := range g.Ranges {
			of[r.Member]++
		}
		return of["a"] == 2 && of["b"] == 2
	})
	f.put(t, 400)
	eventually(t, "all records are read", l.caughtUp(f))
	uncommitted := group(t, e, "g").Lag
	if uncommitted == 0 {
		t.Fatal("everything was committed: the test has nothing to show")
	}
	b.kill()
	f.put(t, 400)
	eventually(t, "all records are read", l.caughtUp(f))
	a.leave(t)
	total, again := l.count()
	if total != f.sent || again == 0 || uint64(again) > uncommitted+400 {
		t.Errorf("%d of %d records came, %d again; %d were not committed", total, f.sent, again, uncommitted)
	}
	if g := group(t, e, "g"); g.Lag != 0 {
		t.Errorf("%+v", g)
	}
}

// L01: the records of a key come in order while its range is split, split again and
// merged, to groups of 1, 2 and 5 members, some of which are killed and come back.
func TestL01_OrderOverTheNetwork(t *testing.T) {
	for _, members := range []int{1, 2, 5} {
		t.Run(fmt.Sprint("members=", members), func(t *testing.T) {
			e, addr, l, f := groupWorld(t, time.Second, 0)
			var readers []*memberProcess
			name := func(i int) string { return fmt.Sprint("m", i) }
			for i := range members {
				readers = append(readers, startMember(t, addr, l, name(i), 2))
			}
			for round := range rounds(8) {
				f.put(t, 80)
				d, err := e.Describe(within(t), "t")
				must(t, err)
				var active []RangeInfo
				for _, r := range d.AllRanges {
					if r.Active {
						active = append(active, r)
					}
				}
				r := active[rand.IntN(len(active))]
				if round%3 < 2 {
					_, _, err := e.SplitRange(within(t), "t", r.Seq)
					must(t, err)
				} else {
					for _, o := range active {
						if size := r.End - r.Start; o.End-o.Start == size && o.Start == r.Start^size {
							_, err := e.MergeRanges(within(t), "t", r.Seq, o.Seq)
							must(t, err)
						}
					}
				}
				f.put(t, 80)
				if i := rand.IntN(members); round%2 == 0 {
					readers[i].kill()
					readers[i] = startMember(t, addr, l, name(i), 2)
				}
			}
			eventually(t, "all records are read", l.caughtUp(f))
			for _, r := range readers {
				r.leave(t)
			}
			if g := group(t, e, "g"); g.Lag != 0 || len(g.Ranges) < 2 && !strings.Contains(t.Name(), "=1") {
				t.Errorf("%+v", g)
			}
		})
	}
}

// Connections that break, and a server that is started again, cost members records that
// come twice, and none that are left out or out of order.
func TestMembersOverCutConnections(t *testing.T) {
	e, _, l, f := groupWorld(t, time.Hour, 2)
	direct, stop := serveWith(t, e, server.Options{Session: 2 * time.Second})
	var readers []*memberProcess
	var proxies []*cutter
	for i := range 3 {
		p, addr := newCutter(t, direct)
		proxies = append(proxies, p)
		readers = append(readers, startMember(t, addr, l, fmt.Sprint("m", i), 2))
	}
	cut := func() (n int) {
		for _, p := range proxies {
			p.cut(1)
			p.mu.Lock()
			n += p.cuts
			p.mu.Unlock()
		}
		return n
	}
	for round := range rounds(6) {
		f.put(t, 200)
		cut()
		if round == 2 { // what it knew of the members is gone
			stop()
			addr, end := serveWith(t, e, server.Options{Session: 2 * time.Second})
			t.Cleanup(end)
			for _, p := range proxies {
				p.mu.Lock()
				p.to = addr
				p.mu.Unlock()
				p.cut(1)
			}
			_, _, err := e.SplitRange(within(t), "t", 3)
			must(t, err)
		}
		eventually(t, "all records are read", l.caughtUp(f))
	}
	if n := cut(); n < 3 {
		t.Fatalf("%d connections were cut", n)
	}
	for _, r := range readers {
		r.leave(t)
	}
	// What the last commits did not reach comes once more.
	last := startMember(t, serve(t, e), l, "last", 1)
	eventually(t, "all is committed", func() bool { return group(t, e, "g").Lag == 0 })
	last.leave(t)
}

// L07: a process that is started again takes its own place, and the one before it stops.
func TestL07_StartedAgainUnderItsName(t *testing.T) {
	_, addr, l, f := groupWorld(t, 30*time.Second, 1)
	f.put(t, 40)
	c := dial(t, addr)
	first, err := c.NewConsumer(ConsumerOptions{Topic: "t", Group: "g", Member: "m"})
	must(t, err)
	page, err := first.Poll(within(t), 5)
	must(t, err)
	if len(page.Records) == 0 {
		t.Fatal("nothing to read")
	}
	second := startMember(t, addr, l, "m", 1)
	eventually(t, "the second one reads everything", l.caughtUp(f))
	is(t, first.Commit(within(t)), client.ErrRangeMoved)
	eventually(t, "the first one is told", func() bool {
		_, err := first.Fetch(100)
		return errors.Is(err, client.ErrMemberReplaced)
	})
	must(t, first.Close())
	g, err := c.DescribeGroup(within(t), "t", "g")
	must(t, err)
	if len(g.Members) != 1 {
		t.Errorf("%+v", g)
	}
	is(t, c.DeleteGroup(within(t), "t", "g"), client.ErrGroupInUse)
	second.leave(t)
	g, err = c.DescribeGroup(within(t), "t", "g")
	must(t, err)
	if len(g.Members) != 0 || g.Lag != 0 {
		t.Errorf("%+v", g)
	}
	must(t, c.DeleteGroup(within(t), "t", "g"))
}
