package server

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// What a connection was allowed can end while it is open: its next frame, its next page and
// what waits for one are refused.
func TestPermissionEnds(t *testing.T) {
	var denied atomic.Bool
	allow := func(_ Identity, op Op, _ string) error {
		if denied.Load() && op != OpCreate {
			return errors.New("not any more")
		}
		return nil
	}
	inBubble(t, Options{Allow: allow}, func(w *world) {
		c := w.connect()
		p, q, r, s := c.producer("a"), c.producer("a"), c.consumer("a"), c.consumer("a")
		want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 200)...)
		if m := want[*wire.Page](c, wire.KeyFetch, &wire.Fetch{Consumer: r}); m.Next != 1 {
			t.Fatalf("fetched %+v", m)
		}
		waits := c.send(wire.KeyFetch, &wire.Fetch{Consumer: r, WaitMs: 5000})
		subscribed := c.send(wire.KeySubscribe, &wire.Subscribe{Consumer: s, Window: 1 << 20})
		for range 2 { // the record, and that there is no other
			if a := c.next(); a.ID != subscribed || a.msg == nil {
				t.Fatalf("pushed %+v", a)
			}
		}
		denied.Store(true)
		c.refused(wire.CodePermissionDenied, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(2, 200)...)
		c.refused(wire.CodePermissionDenied, wire.KeyLag, &wire.Lag{Consumer: r})
		denied.Store(false)
		c.refused(wire.CodeProducerHalted, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(3, 200)...) // or 2 would be missing
		denied.Store(true)
		w.engine.set(func() { // a record of somebody else wakes both
			a := w.engine.topics["a"]
			a.frames = append(a.frames, frameOf(4, 200))
			close(a.changed)
			a.changed = make(chan struct{})
		})
		got := []uint32{}
		for range 2 {
			a := c.next()
			if a.code() != wire.CodePermissionDenied {
				t.Errorf("%s: %v", a.Key, a.err)
			}
			got = append(got, a.ID)
		}
		if slices.Sort(got); !slices.Equal(got, []uint32{waits, subscribed}) {
			t.Errorf("refused %v", got)
		}
		denied.Store(false)
		want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: q}, frameOf(5, 200)...)
		if list, _ := w.engine.numbers("a"); !slices.Equal(list, []uint64{1, 4, 5}) {
			t.Errorf("stored %v", list)
		}
	})
}

// What changes a topic is told with the ranges that it is about; what a producer asks for to
// find its way is not told.
func TestWhatIsAudited(t *testing.T) {
	for _, tt := range []struct {
		key         wire.Key
		m           wire.Message
		about       string
		ofOperators bool
	}{
		{wire.KeyDeleteTopic, &wire.Topic{Topic: "a"}, "a", true},
		{wire.KeyRollTopic, &wire.Topic{Topic: "a"}, "a", true},
		{wire.KeyRoute, &wire.Topic{Topic: "a"}, "a", false},
		{wire.KeySplitRange, &wire.SplitRange{Topic: "a", Range: 7}, "a, range 7", true},
		{wire.KeyMergeRanges, &wire.MergeRanges{Topic: "a", A: 8, B: 9}, "a, ranges 8 and 9", true},
		{wire.KeyOpenProducer, &wire.OpenProducer{Topic: "a"}, "a", false},
	} {
		if about, ofOperators := subject(tt.key, tt.m); about != tt.about || ofOperators != tt.ofOperators {
			t.Errorf("%s: %q, %v; want %q, %v", tt.key, about, ofOperators, tt.about, tt.ofOperators)
		}
	}
}

// A frame is charged with its records and bytes before it is stored, and one that the
// quota refuses is not stored, nor what is behind it.
func TestSpend(t *testing.T) {
	type cost struct{ records, bytes int }
	var spent []cost
	spend := func(_ Identity, records, bytes int) error {
		spent = append(spent, cost{records, bytes})
		if len(spent) == 2 {
			return &wire.Error{Code: wire.CodeRateLimited, Detail: "slower", RetryAfter: 250 * time.Millisecond}
		}
		return nil
	}
	inBubble(t, Options{Spend: spend}, func(w *world) {
		c := w.connect()
		p := c.producer("a")
		var b record.Builder
		b.Reset(make([]byte, 4096), 7)
		for i := range 3 {
			if err := b.Add(&record.Record{Value: []byte("v")}, uint64(i+1)); err != nil {
				t.Fatal(err)
			}
		}
		frame, err := b.Finish(0)
		if err != nil {
			t.Fatal(err)
		}
		want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: p}, frame...)
		a := c.do(wire.KeyProduce, &wire.Produce{Producer: p}, frame...)
		if a.code() != wire.CodeRateLimited || a.err.RetryAfter != 250*time.Millisecond {
			t.Errorf("over the quota: %v", a.err)
		}
		c.refused(wire.CodeProducerHalted, wire.KeyProduce, &wire.Produce{Producer: p}, frame...)
		if st := w.server.Stats(); st.Throttled != 2 || st.Failed != 0 {
			t.Errorf("%d throttled, %d failed, want the frame that was put off, the one behind it, and none", st.Throttled, st.Failed)
		}
		want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: c.producer("a")}, frame...)
		if w := []cost{{3, len(frame)}, {3, len(frame)}, {3, len(frame)}}; !slices.Equal(spent, w) {
			t.Errorf("spent %v, want %v", spent, w)
		}
		if n := len(w.engine.topics["a"].frames); n != 2 {
			t.Errorf("%d frames stored", n)
		}
	})
}

// Operators' requests are told with their outcome, refusals of others once in a while.
func TestAudit(t *testing.T) {
	var mu sync.Mutex
	var told []string
	audit := func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		outcome := "done"
		if e.Err != nil {
			var we *wire.Error
			errors.As(e.Err, &we)
			outcome = we.Code.String()
		}
		if e.User != "u" || e.Remote == nil || e.Connection == 0 {
			t.Errorf("%+v", e)
		}
		told = append(told, e.Request.String()+" "+e.About+" "+outcome)
	}
	allow := func(_ Identity, op Op, name string) error {
		if op == OpProduce && name == "b" || op == OpDelete {
			return errors.New("no")
		}
		return nil
	}
	inBubble(t, Options{Authenticate: letIn, Allow: allow, Audit: audit}, func(w *world) {
		c := w.dial()
		c.hello()
		want[*wire.AuthenticateReply](c, wire.KeyAuthenticate, &wire.Authenticate{Mechanism: "password", User: "u", Secret: []byte("right")})
		p := c.producer("a")
		want[*wire.Done](c, wire.KeySetPolicy, &wire.SetPolicy{Policy: &wire.Policy{Name: "p"}})
		want[*wire.DescribeTopicReply](c, wire.KeyDescribeTopic, &wire.DescribeTopic{Topic: "a"})
		c.refused(wire.CodePermissionDenied, wire.KeyDeleteTopic, &wire.Topic{Topic: "a"})
		c.refused(wire.CodePermissionDenied, wire.KeyOpenProducer, &wire.OpenProducer{Topic: "b"})
		w.engine.set(func() { w.engine.topics["b"] = w.engine.topics["a"] })
		want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 200)...)
		want[*wire.Done](c, wire.KeyCommit, &wire.Commit{Topic: "a", Group: "g", Cursor: "1"})
		want[*wire.Done](c, wire.KeyCommit, &wire.Commit{Topic: "a", Group: "g", Cursor: "0", Reset: true})
		if w := []string{
			"CreateTopic a done", "SetPolicy p done", "DeleteTopic a permission_denied", "OpenProducer b permission_denied", "Commit a/g done",
		}; !slices.Equal(told, w) {
			t.Errorf("told %q, want %q", told, w)
		}
	})
}

// A flood of refusals is one line in a second.
func TestAuditFlood(t *testing.T) {
	var told, asked atomic.Int64
	allow := func(_ Identity, op Op, _ string) error {
		if op == OpConsume && asked.Add(1) > 1 {
			return errors.New("no")
		}
		return nil
	}
	inBubble(t, Options{Allow: allow, Audit: func(e Event) {
		if e.Err != nil {
			told.Add(1)
		}
	}}, func(w *world) {
		c := w.connect()
		c.producer("a")
		r := c.consumer("a")
		for range 3 {
			for range 100 {
				c.refused(wire.CodePermissionDenied, wire.KeyFetch, &wire.Fetch{Consumer: r})
			}
			time.Sleep(time.Second)
		}
		if n := told.Load(); n != 3 {
			t.Errorf("told %d times of 300 refusals in 3 seconds", n)
		}
	})
}

// Whether a client must log in is asked when it says hello.
func TestAnonymous(t *testing.T) {
	var open atomic.Bool
	open.Store(true)
	inBubble(t, Options{Authenticate: letIn, Anonymous: open.Load, Mechanisms: []string{"password", "certificate"}}, func(w *world) {
		c := w.dial()
		if r := c.hello(); r.Authenticate {
			t.Errorf("hello: %+v", r)
		}
		c.ping()
		open.Store(false)
		c.ping()
		d := w.dial()
		if r := d.hello(); !r.Authenticate || !slices.Equal(r.Mechanisms, []string{"password"}) { // it showed no certificate
			t.Errorf("hello: %+v", r)
		}
		d.refused(wire.CodeNotAuthenticated, wire.KeyPing, &wire.Ping{})
	})
}
