package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/segfile/record"
)

// fakeEngine keeps frames in memory and does what a test tells it to do late or wrong.
// A frame is one record of one range; a cursor is its offset in digits.
type fakeEngine struct {
	*fakeUsers

	mu       sync.Mutex
	topics   map[string]*fakeTopic
	policies map[string]api.Policy
	open     int // producers and consumers
	taken    int // bytes of frames that were given out and neither sent nor discarded
	mostHeld int
	maxFrame int
	memory   chan struct{} // not nil: NewFrame waits until it is closed
	disk     chan struct{} // not nil: frames are durable once it is closed
	call     chan struct{} // not nil: who sent frames hears of them once it is closed
	meta     chan struct{} // not nil: requests about topics wait until it is closed
	groups   fakeGroups
	sendErr  error      // of the next Send
	diskErr  error      // of frames that become durable
	file     string     // not "": what every page of stored frames lies in, from byte 0 on
	length   int64      // bytes of it
	pages    []*os.File // of those
}

type fakeTopic struct {
	name    string
	frames  [][]byte
	changed chan struct{}
	groups  map[string]string
}

func newFakeEngine() *fakeEngine {
	return &fakeEngine{fakeUsers: &fakeUsers{}, topics: map[string]*fakeTopic{}, policies: map[string]api.Policy{}, maxFrame: 9 << 20}
}

// set changes what the engine does.
func (e *fakeEngine) set(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

func (e *fakeEngine) openHandles() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open
}

// numbers are those of a topic's frames, in order.
func (e *fakeEngine) numbers(topic string) (list []uint64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.topics[topic].frames {
		n, err := numberOf(f)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

func (e *fakeEngine) wait(ctx context.Context, gate func() chan struct{}) error {
	e.mu.Lock()
	g := gate()
	e.mu.Unlock()
	if g == nil {
		return ctx.Err()
	}
	select {
	case <-g:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *fakeEngine) enter(ctx context.Context) error {
	return e.wait(ctx, func() chan struct{} { return e.meta })
}

func (e *fakeEngine) topic(name string) (*fakeTopic, error) {
	if t := e.topics[name]; t != nil {
		return t, nil
	}
	return nil, &api.TopicError{Topic: name, Range: -1, Err: api.ErrNoSuchTopic}
}

func (e *fakeEngine) Log() string { return "fake" }

func (e *fakeEngine) CreateTopic(ctx context.Context, name string, o api.TopicOptions) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.topics[name] != nil {
		return &api.TopicError{Topic: name, Range: -1, Err: api.ErrTopicExists}
	}
	e.topics[name] = &fakeTopic{name: name, changed: make(chan struct{}), groups: map[string]string{}}
	return nil
}

func (e *fakeEngine) DeleteTopic(ctx context.Context, name string) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := e.topic(name)
	delete(e.topics, name)
	return err
}

func (e *fakeEngine) TopicPage(ctx context.Context, after string, limit int, wanted func(string) bool) (list []api.TopicInfo, more bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(e.topics)) {
		switch {
		case name <= after || !wanted(name):
		case len(list) == limit:
			return list, true, nil
		default:
			list = append(list, api.TopicInfo{Name: name, Records: uint64(len(e.topics[name].frames))})
		}
	}
	return list, false, nil
}

func (e *fakeEngine) DescribeFrom(ctx context.Context, name string, _ TopicPlace, _ int) (d api.TopicDetail, next *TopicPlace, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.topic(name)
	if err != nil {
		return d, nil, err
	}
	d.Name = name
	d.AllRanges = []api.RangeInfo{{Seq: 0, End: 1 << 32, Active: true, NextOffset: uint64(len(t.frames)), Segments: []api.SegmentInfo{{Seq: 1, Active: true, File: "f"}}}}
	return d, nil, nil
}

func (e *fakeEngine) SplitRange(ctx context.Context, topic string, seq uint32) (left, right uint32, err error) {
	return seq*2 + 1, seq*2 + 2, e.enter(ctx)
}

func (e *fakeEngine) MergeRanges(ctx context.Context, topic string, a, b uint32) (uint32, error) {
	return a + b, e.enter(ctx)
}

func (e *fakeEngine) Roll(ctx context.Context, topic string) (int, error) { return 3, e.enter(ctx) }

func (e *fakeEngine) Routes(topic string) (api.Routes, error) {
	if topic == "none" {
		return api.Routes{}, api.ErrNoSuchTopic
	}
	return api.Routes{Topic: topic, Ranges: []api.Route{{Range: 3, Last: 1<<31 - 1}, {Range: 1, Last: 1<<32 - 1}}}, nil
}

func (e *fakeEngine) SetPolicy(ctx context.Context, name string, p api.Policy) error {
	e.set(func() { e.policies[name] = p })
	return nil
}

func (e *fakeEngine) DeletePolicy(ctx context.Context, name string) error {
	e.set(func() { delete(e.policies, name) })
	return nil
}

func (e *fakeEngine) Policies(ctx context.Context) (map[string]api.Policy, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.policies), nil
}

func (e *fakeEngine) BindPolicy(ctx context.Context, topic, policy string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.policies[policy]; !ok {
		return &api.TopicError{Topic: topic, Range: -1, Err: api.ErrNoSuchPolicy}
	}
	return nil
}

func (e *fakeEngine) OpenProducer(ctx context.Context, topic string, id uint64, unnumbered bool) (Producer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.topic(topic)
	if err != nil {
		return nil, err
	}
	e.open++
	return &fakeProducer{e: e, t: t, id: cmp.Or(id, 77)}, nil
}

func (e *fakeEngine) OpenConsumer(topic, group string, from api.From) (Consumer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.topic(topic)
	if err != nil {
		return nil, err
	}
	c := &fakeConsumer{e: e, t: t}
	switch from.Kind {
	case api.AtEnd:
		c.at = len(t.frames)
	case api.AtCursor:
		if c.at, err = strconv.Atoi(from.Cursor); err != nil {
			return nil, fmt.Errorf("%w: %w", api.ErrInvalidCursor, err)
		}
	}
	e.open++
	return c, nil
}

func (e *fakeEngine) CommitCursor(ctx context.Context, topic, group, cursor string, reset bool) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.topic(topic)
	if err == nil {
		t.groups[group] = cursor
	}
	return err
}

func (e *fakeEngine) CursorLag(topic, cursor string) (uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, err := e.topic(topic)
	if err != nil {
		return 0, err
	}
	at, err := strconv.Atoi(cursor)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", api.ErrInvalidCursor, err)
	}
	return uint64(len(t.frames) - at), nil
}

type fakeProducer struct {
	e       *fakeEngine
	t       *fakeTopic
	id      uint64
	flights sync.WaitGroup
	closed  bool
}

func (p *fakeProducer) ID() uint64    { return p.id }
func (p *fakeProducer) MaxFrame() int { return p.e.maxFrame }

func (p *fakeProducer) NewFrame(ctx context.Context, size int) (Frame, error) {
	if err := p.e.wait(ctx, func() chan struct{} { return p.e.memory }); err != nil {
		return nil, err
	}
	p.e.set(func() { p.e.taken += size; p.e.mostHeld = max(p.e.mostHeld, p.e.taken) })
	return &fakeFrame{p: p, b: make([]byte, size)}, nil
}

// Lend takes a copy, and keeps what it was lent as long as an engine does that has none.
func (p *fakeProducer) Lend(frame []byte, release func()) (Frame, error) {
	f := &fakeFrame{p: p, b: append([]byte(nil), frame...), release: release}
	p.e.set(func() { p.e.taken += len(frame) })
	return f, nil
}

func (e *fakeEngine) Register([]byte) (func() error, error) { return func() error { return nil }, nil }

func (p *fakeProducer) Close(ctx context.Context) error {
	landed := make(chan struct{})
	go func() { p.flights.Wait(); close(landed) }()
	select {
	case <-landed:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.e.set(func() {
		if !p.closed {
			p.closed = true
			p.e.open--
		}
	})
	return nil
}

type fakeFrame struct {
	p       *fakeProducer
	b       []byte
	release func() // of what is lent
}

func (f *fakeFrame) Bytes() []byte  { return f.b }
func (f *fakeFrame) Header() []byte { return f.b[:record.HeaderSize] }
func (f *fakeFrame) Discard() {
	f.p.e.set(func() { f.p.e.taken -= len(f.b) })
	f.giveBack()
}

func (f *fakeFrame) giveBack() {
	if f.release != nil {
		f.release()
	}
}

// Send stores the frame at once or, where the disk is slow, when that is done: those
// that wait are stored in the order they were sent.
func (f *fakeFrame) Send(ctx context.Context, _ bool, done func(api.Placement, error)) error {
	e := f.p.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.sendErr; err != nil {
		e.sendErr = nil
		return err
	}
	e.taken -= len(f.b)
	err, disk, call := e.diskErr, e.disk, e.call
	at := uint64(len(f.p.t.frames))
	if err == nil {
		f.p.t.frames = append(f.p.t.frames, f.b)
		close(f.p.t.changed)
		f.p.t.changed = make(chan struct{})
	}
	f.p.flights.Add(1)
	go func() {
		if disk != nil {
			<-disk
		}
		f.giveBack()
		f.p.flights.Done()
		if call != nil {
			<-call
		}
		done(api.Placement{First: at, Last: at}, err)
	}()
	return nil
}

type fakeConsumer struct {
	e     *fakeEngine
	t     *fakeTopic
	at    int
	using sync.Mutex // whoever uses it
}

// use fails when two goroutines use the consumer at a time.
func (c *fakeConsumer) use() func() {
	if !c.using.TryLock() {
		panic("two goroutines use one consumer")
	}
	return c.using.Unlock
}

func (c *fakeConsumer) FetchFrames(maxBytes int, stored bool) (p FramePage, err error) {
	defer c.use()()
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	p.First = uint64(c.at)
	if stored && c.e.file != "" {
		p.Next, p.Salt, p.Length = p.First+1, 5, c.e.length
		p.File, err = os.Open(c.e.file)
		c.e.pages = append(c.e.pages, p.File)
		return p, err
	}
	for size := 0; c.at < len(c.t.frames); c.at++ {
		f := c.t.frames[c.at]
		if size += len(f); size > maxBytes && len(p.Frames) > 0 {
			break
		}
		p.Frames = append(p.Frames, f)
	}
	p.Next, p.Cursor, p.Mark = uint64(c.at), strconv.Itoa(c.at), 5
	p.CaughtUp = len(p.Frames) == 0
	return p, nil
}

func (c *fakeConsumer) Changed() <-chan struct{} {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.t.changed
}

func (c *fakeConsumer) Cursor() string { return strconv.Itoa(c.at) }

func (c *fakeConsumer) Close() error {
	defer c.use()()
	c.e.set(func() { c.e.open-- })
	return nil
}
