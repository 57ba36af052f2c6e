package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/segfile/record"
)

// frameOf builds a frame as somebody outside does.
func frameOf(t testing.TB, producer, first uint64, keys ...string) []byte {
	t.Helper()
	var b record.Builder
	b.Reset(make([]byte, 64<<10), producer)
	for i, key := range keys {
		seq := uint64(0)
		if first > 0 {
			seq = first + uint64(i)
		}
		must(t, b.Add(&record.Record{Key: text("%s", key), Value: text("%s %d", key, seq), Timestamp: 1}, seq))
	}
	frame, err := b.Finish(0)
	must(t, err)
	return frame
}

// sendFrame sends one and waits for the outcome; err is of Send.
func sendFrame(t testing.TB, p *Producer, frame []byte) (pl Placement, outcome, err error) {
	t.Helper()
	f, err := p.NewFrame(within(t), len(frame))
	must(t, err)
	defer f.Discard()
	copy(f.Bytes(), frame)
	done := make(chan struct{})
	err = f.Send(within(t), false, func(got Placement, e error) { pl, outcome = got, e; close(done) })
	if err == nil {
		soon(t, "the frame's outcome", func() { <-done })
	}
	return pl, outcome, err
}

// Who leads does the engine's waiting: nobody else is there to do it. Those who come
// meanwhile do not wait with it.
func TestFrameLeads(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	send := func(lead bool, seq uint64, done func(error)) {
		frame := frameOf(t, 7, seq, "k")
		f, err := p.NewFrame(within(t), len(frame))
		must(t, err)
		copy(f.Bytes(), frame)
		must(t, f.Send(within(t), lead, func(_ Placement, err error) { done(err) }))
	}
	answered := make(chan error, 1)
	send(false, 1, func(err error) { answered <- err }) // opens the write head, on a goroutine of its own
	must(t, <-answered)
	var led int
	for seq := uint64(2); seq <= 100; seq++ {
		over := false
		send(true, seq, func(err error) {
			must(t, err)
			over = true
			answered <- nil
		})
		select {
		case <-answered:
			led++
		default:
			<-answered // the engine's own goroutine was at it
		}
		if !over {
			t.Fatal("answered before done was called")
		}
	}
	if led == 0 {
		t.Error("nobody ever led")
	}
	var all sync.WaitGroup
	for seq := uint64(101); seq <= 200; seq++ {
		all.Add(1)
		send(seq%3 == 0, seq, func(err error) {
			must(t, err)
			all.Done()
		})
	}
	all.Wait()
	must(t, p.Close(within(t)))
	got := readAll(t, e, "t", FromStart())
	if len(got) != 200 {
		t.Errorf("%d records, want 200", len(got))
	}
}

func many(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%d", i)
	}
	return keys
}

// Frames that were built elsewhere are stored as they are, once each, also where their
// records belong to several ranges.
func TestFramesOfOthers(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	keys := many(100)
	pl, outcome, err := sendFrame(t, p, frameOf(t, 7, 1, keys...))
	must(t, err)
	must(t, outcome)
	if pl != (Placement{First: 0, Last: 99}) {
		t.Errorf("stored at %+v", pl)
	}
	_, _, err = e.SplitRange(within(t), "t", 0)
	must(t, err)
	_, outcome, err = sendFrame(t, p, frameOf(t, 7, 101, keys...))
	must(t, err)
	must(t, outcome)
	again := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	for _, first := range []uint64{1, 101} {
		pl, outcome, err = sendFrame(t, again, frameOf(t, 7, first, keys...))
		must(t, err)
		must(t, outcome)
		if !pl.Duplicate || pl.Repeats != 100 {
			t.Errorf("a frame sent again was stored at %+v", pl)
		}
	}
	got := readAll(t, e, "t", FromStart())
	var expect []string
	for _, first := range []int{1, 101} {
		for i, key := range keys {
			expect = append(expect, fmt.Sprintf("%s %d", key, first+i))
		}
	}
	slices.Sort(got)
	slices.Sort(expect)
	if !slices.Equal(got, expect) {
		t.Errorf("read %d records, sent %d", len(got), len(expect))
	}
	if n := e.Stats().Store.Duplicates; n != 200 {
		t.Errorf("%d records were recognised as repeats, want 200", n)
	}
}

// A frame that is damaged, or not the producer's, is refused before anything of it is
// stored, and leaves the producer as it was.
func TestFramesRefused(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	good := frameOf(t, 7, 1, "a", "b")
	mark, err := record.BuildMark(make([]byte, 4096), []byte("mark"))
	must(t, err)
	lent := slices.Clone(good)
	h, err := record.ParseHead(lent, 0)
	must(t, err)
	h.Flags = record.FlagLent
	h.Put(lent, 0)
	long := append(slices.Clone(good), 0, 0, 0, 0, 0, 0, 0, 0)
	for name, bad := range map[string][]byte{
		"of another producer":  frameOf(t, 8, 1, "a"),
		"without sequences":    frameOf(t, 7, 0, "a"),
		"a mark":               mark,
		"that says it is lent": lent,
		"with bytes behind":    long,
		"cut":                  good[:len(good)-1],
	} {
		if _, _, err := sendFrame(t, p, bad); err == nil {
			t.Errorf("a frame %s was taken", name)
		} else {
			is(t, err, record.ErrCorrupt)
		}
	}
	for bit := range len(good) * 8 {
		bad := slices.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, _, err := sendFrame(t, p, bad); err == nil {
			t.Fatalf("a frame with bit %d changed was taken", bit)
		}
	}
	for _, size := range []int{-1, 0, record.HeaderSize, p.MaxFrame() + 1} {
		_, err := p.NewFrame(context.Background(), size)
		is(t, err, ErrRecordTooLarge)
	}
	_, outcome, err := sendFrame(t, p, good)
	must(t, err)
	must(t, outcome)
	want(t, e, "t", "a 1", "b 2")
}

// Pages of frames hold what pages of records hold, of any size and over segments,
// splits and skips, and their cursors fit.
func TestFetchFrames(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	seq := uint64(1)
	put := func(n int) {
		_, outcome, err := sendFrame(t, p, frameOf(t, 7, seq, many(n)...))
		must(t, err)
		must(t, outcome)
		seq += uint64(n)
	}
	for i := range 20 {
		put(1 + i)
		if i%7 == 3 {
			_, err := e.Roll(within(t), "t")
			must(t, err)
		}
		if i == 9 {
			_, _, err := e.SplitRange(within(t), "t", 0)
			must(t, err)
		}
	}
	expect := readAll(t, e, "t", FromStart())
	sorted := slices.Sorted(slices.Values(expect))
	for _, size := range []int{0, 1, 500, 4 << 10, 1 << 20} {
		c := newConsumer(t, e, ConsumerOptions{Topic: "t"})
		first, err := c.Fetch(1) // pages of both kinds mix
		must(t, err)
		got := []string{string(first.Records[0].Value)}
		cursor := c.Cursor()
		pages, next := 0, map[uint32]uint64{0: 1}
		for {
			page, err := c.FetchFrames(size, false)
			must(t, err)
			if page.CaughtUp {
				break
			}
			if pages++; page.First != next[page.Range] {
				t.Errorf("a page of range %d begins at offset %d, the one before ended at %d", page.Range, page.First, next[page.Range])
			}
			next[page.Range] = page.Next
			got = append(got, valuesOf(t, page)...)
		}
		slices.Sort(got) // the two ranges take turns
		if !slices.Equal(got, sorted) {
			t.Errorf("pages of %d bytes hold %d records, want %d", size, len(got), len(expect))
		}
		if size == 1<<20 && pages > 8 {
			t.Errorf("%d pages, of 5 segments", pages)
		}
		again := newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromCursor(cursor)})
		page, err := again.FetchFrames(1, false)
		must(t, err)
		if rest := valuesOf(t, page); rest[0] != expect[1] {
			t.Errorf("a cursor inside a frame goes on at %q, want %q", rest[0], expect[1])
		}
		must(t, again.Close())
		must(t, c.Close())
	}
}

// valuesOf takes a page's records apart.
func valuesOf(t testing.TB, page FramePage) (list []string) {
	t.Helper()
	at := page.First
	for b := page.Frames; len(b) > 0; {
		h, err := record.ParseHead(b, 0)
		must(t, err)
		batch, err := record.Verify(b[:h.FrameLen], 0, nil)
		must(t, err)
		for i := range batch.Len() {
			if o := batch.Offset(i); o >= page.First && o < page.Next {
				if o != at {
					t.Errorf("offset %d, want %d", o, at)
				}
				at++
				list = append(list, string(batch.Value(i)))
			}
		}
		b = b[h.FrameLen:]
	}
	if at != page.Next {
		t.Errorf("the page ends at offset %d, and says %d", at, page.Next)
	}
	return list
}

// How many records of a frame are repeats is told exactly, whatever the borders of the
// frames that they came in before, and over how many ranges they are.
func TestRepeatsAreCounted(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	keys := many(60)
	send := func(first uint64, n int, repeats uint32) {
		t.Helper()
		p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7}) // who comes back
		pl, outcome, err := sendFrame(t, p, frameOf(t, 7, first, keys[first-1:][:n]...))
		must(t, err)
		must(t, outcome)
		if pl.Repeats != repeats || pl.Duplicate != (int(repeats) == n) {
			t.Errorf("sequences %d to %d: %+v, want %d repeats", first, first+uint64(n)-1, pl, repeats)
		}
		must(t, p.Close(within(t)))
	}
	send(1, 10, 0)
	send(1, 10, 10)
	send(6, 10, 5) // to 15
	send(3, 4, 4)
	send(1, 30, 15) // to 30
	_, _, err := e.SplitRange(within(t), "t", 0)
	must(t, err)
	send(1, 30, 30)
	send(1, 40, 30)
	send(31, 20, 10) // to 50
	send(41, 10, 10)
	if n := len(readAll(t, e, "t", FromStart())); n != 50 {
		t.Errorf("%d records, want 50", n)
	}
}

// A frame with lower sequences than one before it on the same producer would be taken for
// a repeat, whatever is in it: it is refused. Who comes back may send from the start.
func TestDescendingFramesAreRefused(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	stored := func(p *Producer, first uint64, n int, repeats uint32) {
		t.Helper()
		pl, outcome, err := sendFrame(t, p, frameOf(t, 7, first, many(n)...))
		must(t, err)
		must(t, outcome)
		if pl.Repeats != repeats {
			t.Errorf("sequences from %d on: %+v, want %d repeats", first, pl, repeats)
		}
	}
	stored(p, 101, 10, 0)
	stored(p, 101, 10, 10) // as it was, again
	for _, first := range []uint64{1, 91, 95, 101, 105, 110} {
		n := 10
		if first == 101 {
			n = 9 // another one
		}
		_, _, err := sendFrame(t, p, frameOf(t, 7, first, many(n)...))
		is(t, err, record.ErrSequence)
	}
	stored(p, 111, 10, 0) // as it was
	again := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	stored(again, 101, 10, 10)
	stored(again, 111, 20, 10)
	if n := len(readAll(t, e, "t", FromStart())); n != 30 {
		t.Errorf("%d records, want 30", n)
	}
	loose := newProducer(t, e, ProducerOptions{Topic: "t", ID: 8, NotIdempotent: true})
	for range 2 {
		_, outcome, err := sendFrame(t, loose, frameOf(t, 8, 0, many(2)...))
		must(t, err)
		must(t, outcome)
	}
}
