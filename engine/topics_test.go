package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
)

func TestTopicNames(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	for _, name := range []string{
		"", ".", "..", "a b", "a/b", "../a", "a\x00", "ä", "a\n", "*", "a:b", strings.Repeat("n", 256), string([]byte{0xff}),
	} {
		is(t, e.CreateTopic(within(t), name, TopicOptions{}), ErrInvalidTopicName)
		if _, err := e.NewProducer(ProducerOptions{Topic: name}); !errors.Is(err, ErrNoSuchTopic) && !errors.Is(err, ErrInvalidTopicName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	good := []string{"a", "...", "A-Z_0.9", "-", strings.Repeat("n", 255), ".hidden"}
	for _, name := range good {
		must(t, e.CreateTopic(within(t), name, TopicOptions{}))
		p := newProducer(t, e, ProducerOptions{Topic: name})
		produce(t, p, "k", name)
	}
	shut(t, e)
	e = open(t, dir, Options{})
	list, err := e.Topics(within(t))
	must(t, err)
	if len(list) != len(good) {
		t.Errorf("%d topics, want %d", len(list), len(good))
	}
	for _, name := range good {
		want(t, e, name, name)
	}
}

func TestMissingTopic(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	ctx := within(t)
	_, _, splitErr := e.SplitRange(ctx, "none", 0)
	for what, err := range map[string]error{
		"NewProducer": second(e.NewProducer(ProducerOptions{Topic: "none"})),
		"NewConsumer": second(e.NewConsumer(ConsumerOptions{Topic: "none"})),
		"DeleteTopic": e.DeleteTopic(ctx, "none"), "Describe": second(e.Describe(ctx, "none")),
		"Roll": second(e.Roll(ctx, "none")), "Merge": second(e.MergeRanges(ctx, "none", 0, 1)), "Split": splitErr,
		"BindPolicy": e.BindPolicy(ctx, "none", ""),
	} {
		if !errors.Is(err, ErrNoSuchTopic) || !strings.Contains(err.Error(), `"none"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestTopicOptions(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	ctx := within(t)
	newTopic(t, e, "t")
	is(t, e.CreateTopic(ctx, "t", TopicOptions{}), ErrTopicExists, `"t"`)
	is(t, e.CreateTopic(ctx, "bits", TopicOptions{Bits: 33}), cp.ErrInvalidBits)
	is(t, e.CreateTopic(ctx, "policy", TopicOptions{Policy: "none"}), ErrNoSuchPolicy, `"none"`)
	if _, err := e.Describe(ctx, "policy"); !errors.Is(err, ErrNoSuchTopic) {
		t.Errorf("a topic was made though its policy was refused: %v", err)
	}
	must(t, e.SetPolicy(ctx, "p", Policy{MaxAge: Limit(5)}))
	must(t, e.CreateTopic(ctx, "bound", TopicOptions{Policy: "p", Bits: 1}))
	d, err := e.Describe(ctx, "bound")
	must(t, err)
	if d.Policy != "p" || d.Bits != 1 {
		t.Errorf("%+v", d.TopicInfo)
	}
	is(t, e.SetPolicy(ctx, "", Policy{}), cp.ErrInvalidPolicy)
	is(t, e.SetPolicy(ctx, "q", Policy{MaxAge: Limit(-1)}), cp.ErrInvalidPolicy, `"q"`, "MaxAge is -1 ms: want 0 ms to ")
	is(t, e.DeletePolicy(ctx, "p"), ErrPolicyInUse, `"p"`, "bound to it: bound")
	is(t, e.DeletePolicy(ctx, ""), cp.ErrInvalidPolicy)
	is(t, e.DeletePolicy(ctx, "none"), ErrNoSuchPolicy, `"none"`)
	must(t, e.BindPolicy(ctx, "bound", ""))
	must(t, e.DeletePolicy(ctx, "p"))
	is(t, e.BindPolicy(ctx, "bound", "p"), ErrNoSuchPolicy, `"p"`)

	// A topic of 2^1 positions has two ranges at most.
	a, _, err := e.SplitRange(ctx, "bound", 0)
	must(t, err)
	_, _, err = e.SplitRange(ctx, "bound", a)
	is(t, err, cp.ErrCannotSplit)
	_, _, err = e.SplitRange(ctx, "bound", 0)
	is(t, err, cp.ErrRangeSealed)
	_, _, err = e.SplitRange(ctx, "bound", 77)
	is(t, err, cp.ErrNoSuchRange)
	_, err = e.MergeRanges(ctx, "bound", a, a)
	is(t, err, cp.ErrNotBuddies)
	_, err = e.MergeRanges(ctx, "bound", a, 77)
	is(t, err, cp.ErrNoSuchRange)
}

// A topic is deleted under producers and consumers: each hears that it is gone, none
// waits, nothing of it is left on disk, and one made anew under the same name is
// another topic.
func TestDeleteTopicInUse(t *testing.T) {
	for range rounds(3) {
		dir := t.TempDir()
		e := open(t, dir, Options{})
		newTopic(t, e, "t")
		ctx := within(t)
		gone := func(err error) bool {
			if err != nil && !errors.Is(err, ErrNoSuchTopic) {
				t.Errorf("%v, want %v", err, ErrNoSuchTopic)
			}
			return err != nil
		}
		var users sync.WaitGroup
		for w := range 4 {
			p := newProducer(t, e, ProducerOptions{Topic: "t"})
			users.Go(func() {
				for i := 0; ; i++ {
					r := Record{Key: text("%d", i%9), Value: make([]byte, 100)}
					if w%2 == 0 {
						if _, err := p.Produce(ctx, r); gone(err) {
							return
						}
						continue
					}
					failed := make(chan struct{})
					var once sync.Once
					for {
						err := p.Append(ctx, r, func(_ Placement, err error) {
							if gone(err) {
								once.Do(func() { close(failed) })
							}
						})
						if gone(err) {
							return
						}
						select {
						case <-failed:
							return
						default:
						}
					}
				}
			})
		}
		for range 2 {
			c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
			users.Go(func() {
				for {
					if _, err := c.Poll(ctx, 100); gone(err) {
						gone(c.Commit(ctx))
						c.Close()
						return
					}
				}
			})
		}
		idle := newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromEnd()})
		cursor := idle.Cursor()
		users.Go(func() {
			for {
				if _, _, err := e.SplitRange(ctx, "t", 0); errors.Is(err, ErrNoSuchTopic) || errors.Is(err, cp.ErrNoSuchRange) {
					return
				}
				if _, err := e.Roll(ctx, "t"); errors.Is(err, ErrNoSuchTopic) {
					return
				}
			}
		})
		time.Sleep(50 * time.Millisecond)
		must(t, e.DeleteTopic(ctx, "t"))
		soon(t, "users of a deleted topic", users.Wait)
		is(t, e.DeleteTopic(ctx, "t"), ErrNoSuchTopic)
		if ids := e.store.IDs(); len(ids) != 0 {
			t.Errorf("%d segments are left: %v", len(ids), ids)
		}
		// A file goes with its last user, who may be giving unused blocks back.
		eventually(t, "the topic's files go", func() bool {
			files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*"))
			must(t, err)
			return len(files) == 0
		})

		newTopic(t, e, "t")
		if got := readAll(t, e, "t", FromStart()); len(got) != 0 {
			t.Errorf("a new topic holds %d records", len(got))
		}
		_, err := e.NewConsumer(ConsumerOptions{Topic: "t", From: FromCursor(cursor)})
		is(t, err, ErrForeignCursor)
		_, err = idle.Fetch(1)
		is(t, err, ErrNoSuchTopic)
		must(t, idle.Close())
		c := newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "g"})
		p := newProducer(t, e, ProducerOptions{Topic: "t"})
		produce(t, p, "k", "new")
		got, _ := drain(t, c)
		if len(got) != 1 || got[0].Offset != 0 {
			t.Errorf("the group of the topic before is still there: %+v", got)
		}
		must(t, c.Close())
		shut(t, e)
		e = open(t, dir, Options{})
		if o := e.Opened(); len(o.SetAside) > 0 || len(o.Damaged) > 0 {
			t.Errorf("%+v", o)
		}
		want(t, e, "t", "new")
		shut(t, e)
	}
}

// A deleted topic leaves no directory: it goes at once, or with the next start if somebody
// was still reading a file in it.
func TestDeleteTopicTakesItsDirectory(t *testing.T) {
	for _, read := range []bool{false, true} {
		dir := t.TempDir()
		topics := func() int {
			list, err := os.ReadDir(filepath.Join(dir, "log", "topics"))
			must(t, err)
			return len(list)
		}
		e := open(t, dir, Options{})
		for _, topic := range []string{"gone", "kept"} {
			newTopic(t, e, topic)
			p := newProducer(t, e, ProducerOptions{Topic: topic})
			for range 100 {
				must(t, second(p.Produce(within(t), Record{Value: make([]byte, 10_000)})))
			}
			must(t, second(e.Roll(within(t), topic)))
		}
		c := newConsumer(t, e, ConsumerOptions{Topic: "gone", From: FromStart()})
		if read {
			must(t, second(c.Poll(within(t), 1)))
		}
		must(t, e.DeleteTopic(within(t), "gone"))
		if n, left := topics(), 1; read && n != left+1 {
			t.Errorf("%d directories, although a file is read: the test tests nothing", n)
		} else if !read && n != left {
			t.Errorf("%d directories of %d topics", n, left)
		}
		must(t, c.Close())
		shut(t, e)
		e = open(t, dir, Options{})
		if n := topics(); n != 1 {
			t.Errorf("%d directories of one topic after a start", n)
		}
		if n := len(readAll(t, e, "kept", FromStart())); n != 100 {
			t.Errorf("%d records of the other topic", n)
		}
		shut(t, e)
	}
}

// Poll on a topic that nobody ever wrote to ends when the topic does.
func TestDeleteEmptyTopicUnderPoll(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	c := newConsumer(t, e, ConsumerOptions{Topic: "t"})
	done := make(chan error, 1)
	go func() { done <- second(c.Poll(within(t), 1)) }()
	time.Sleep(10 * time.Millisecond)
	must(t, e.DeleteTopic(within(t), "t"))
	soon(t, "Poll", func() { is(t, <-done, ErrNoSuchTopic) })
}

// Many topics with a segment each are created, listed, closed and opened again, with
// few files open. RINGFENCE_LONG=1 makes 100 000 of them.
func TestManyTopics(t *testing.T) {
	n := 2000
	if long() {
		n = 100_000
	}
	if s := os.Getenv("RINGFENCE_TOPICS"); s != "" {
		fmt.Sscan(s, &n)
	}
	most := min(512, fileLimit()/2)
	dir := t.TempDir()
	o := Options{OpenFiles: most}
	e := open(t, dir, o)
	ctx := context.Background()
	began := time.Now()
	each := func(do func(i int) error) {
		t.Helper()
		list := make([]int, n)
		for i := range list {
			list[i] = i
		}
		must(t, several(list, do))
	}
	lap := func(what string) {
		t.Helper()
		open, _ := os.ReadDir("/proc/self/fd")
		t.Logf("%s %d topics: %v, %d files open", what, n, time.Since(began).Round(time.Millisecond), len(open))
		if len(open) > most+100 {
			t.Errorf("%d files are open, want %d at most and a few", len(open), most)
		}
		began = time.Now()
	}
	name := func(i int) string { return fmt.Sprintf("topic-%06d", i) }
	each(func(i int) error { return e.CreateTopic(ctx, name(i), TopicOptions{}) })
	lap("created")
	each(func(i int) error {
		p, err := e.NewProducer(ProducerOptions{Topic: name(i), BatchBytes: minBatch})
		if err != nil {
			return err
		}
		_, err = p.Produce(ctx, Record{Key: []byte("k"), Value: []byte(name(i))})
		return errors.Join(err, p.Close(ctx))
	})
	lap("wrote to")
	list, err := e.Topics(ctx)
	must(t, err)
	if len(list) != n {
		t.Fatalf("%d topics, want %d", len(list), n)
	}
	lap("listed")
	must(t, e.Close())
	lap("closed")
	e = open(t, dir, o)
	lap("opened")
	each(func(i int) error {
		c, err := e.NewConsumer(ConsumerOptions{Topic: name(i)})
		if err != nil {
			return err
		}
		defer c.Close()
		page, err := c.Fetch(10)
		if err != nil {
			return err
		}
		if len(page.Records) != 1 || string(page.Records[0].Value) != name(i) {
			return fmt.Errorf("topic %d holds %d records", i, len(page.Records))
		}
		return nil
	})
	lap("read")
	shut(t, e)
	lap("closed")
}

// More changes at once than the metadata takes wait for their turn.
func TestManyChangesAtOnce(t *testing.T) {
	e := open(t, t.TempDir(), Options{Vnodes: 1})
	var group sync.WaitGroup
	for i := range 6000 {
		group.Go(func() {
			if err := e.CreateTopic(within(t), fmt.Sprint("t", i), TopicOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	list, err := e.Topics(within(t))
	must(t, err)
	if len(list) != 6000 {
		t.Errorf("%d topics", len(list))
	}
}

// Topics that come and go leave nothing behind in memory.
func TestTopicsComeAndGo(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	for i := range 50 {
		name := fmt.Sprint("t", i)
		newTopic(t, e, name)
		p := newProducer(t, e, ProducerOptions{Topic: name})
		produce(t, p, "k", "v")
		if i%2 == 0 {
			_, _, err := e.SplitRange(within(t), name, 0)
			must(t, err)
			produce(t, p, "k", "w")
		}
		c := newConsumer(t, e, ConsumerOptions{Topic: name})
		drain(t, c)
		must(t, c.Close())
		must(t, p.Close(within(t)))
		must(t, e.DeleteTopic(within(t), name))
	}
	n := 0
	e.held.Range(func(any, any) bool { n++; return true })
	if n != 0 {
		t.Errorf("%d locks of ranges are left", n)
	}
	if s := e.Stats().Store; s.Segments != 0 {
		t.Errorf("%d segments are left", s.Segments)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.members) != 0 {
		t.Errorf("%d producers are left", len(e.members))
	}
}

// A page of topics is the first of them by name, whatever order they come in, and few of the
// others are looked at closely.
func TestFirstTopicsByName(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range rounds(200) {
		n, limit := rng.IntN(500), 1+rng.IntN(40)
		var list, want []*cp.Topic
		wanted := func(name string) bool { return name[len(name)-1] != '3' }
		for _, i := range rng.Perm(n) {
			list = append(list, &cp.Topic{Name: fmt.Sprintf("%05d", i)})
		}
		for i := range n {
			if name := fmt.Sprintf("%05d", i); wanted(name) {
				want = append(want, &cp.Topic{Name: name})
			}
		}
		got, more := firstByName(slices.Clone(list), limit, wanted)
		name := func(list []*cp.Topic) (names []string) {
			for _, t := range list {
				names = append(names, t.Name)
			}
			return names
		}
		if !slices.Equal(name(got), name(want[:min(limit, len(want))])) || more != (len(want) > limit) {
			t.Fatalf("%d topics, %d wanted: %q, more %v", n, limit, name(got), more)
		}
	}
	var list []*cp.Topic
	for _, i := range rng.Perm(20_000) {
		list = append(list, &cp.Topic{Name: fmt.Sprintf("%05d", i)})
	}
	asked := 0
	if got, more := firstByName(list, 10, func(string) bool { asked++; return true }); len(got) != 10 || got[9].Name != "00009" || !more {
		t.Errorf("%d topics, more %v", len(got), more)
	}
	if asked > 1000 {
		t.Errorf("looked at %d names closely", asked)
	}
}
