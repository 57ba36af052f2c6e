package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// kinds are records that differ in what is null, empty, small and large.
func kinds() []Record {
	big := bytes.Repeat([]byte("header"), 64<<10/6-2)
	return []Record{
		{Key: []byte("k"), Value: []byte("v")},
		{Key: nil, Value: []byte("null key")},
		{Key: []byte{}, Value: []byte("empty key")},
		{Key: []byte("tombstone"), Value: nil},
		{Key: []byte("empty value"), Value: []byte{}},
		{Key: nil, Value: nil},
		{Key: []byte{}, Value: []byte{}},
		{Key: []byte("h"), Value: []byte("headers"), Headers: []Header{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("a"), Value: []byte("2")}, {Key: []byte{}, Value: []byte{}}}},
		{Key: []byte("h64"), Value: []byte("64 KiB of headers"), Headers: []Header{{Key: []byte("big"), Value: big}}},
		{Key: bytes.Repeat([]byte("k"), 1<<20), Value: []byte("huge key")},
		{Key: bytes.Repeat([]byte("K"), 1<<20), Value: bytes.Repeat([]byte("V"), 1<<20)},
		{Key: []byte("old"), Value: []byte("before the epoch"), Time: time.UnixMilli(-86_400_000)},
		{Key: []byte("epoch"), Value: []byte("at the epoch"), Time: time.UnixMilli(0)},
		{Key: []byte("late"), Value: []byte("far ahead"), Time: time.UnixMilli(1 << 45)},
		{Key: []byte("last"), Value: []byte("v")},
	}
}

// same fails unless a record came back as it was sent.
func same(t *testing.T, got entry, sent Record) {
	t.Helper()
	if (got.Key == nil) != (sent.Key == nil) || !bytes.Equal(got.Key, sent.Key) {
		t.Fatalf("key of %d bytes (null %v) came back with %d (null %v)", len(sent.Key), sent.Key == nil, len(got.Key), got.Key == nil)
	}
	if (got.Value == nil) != (sent.Value == nil) || !bytes.Equal(got.Value, sent.Value) {
		t.Fatalf("value of %d bytes (null %v) came back with %d (null %v)", len(sent.Value), sent.Value == nil, len(got.Value), got.Value == nil)
	}
	if len(got.Headers) != len(sent.Headers) || len(got.Headers) > 0 && !reflect.DeepEqual(got.Headers, sent.Headers) {
		t.Fatalf("%d headers came back as %d", len(sent.Headers), len(got.Headers))
	}
	if !sent.Time.IsZero() && got.Time.UnixMilli() != sent.Time.UnixMilli() {
		t.Fatalf("time %v came back as %v", sent.Time, got.Time)
	}
}

// Every kind of record comes back as it was sent, in order, by each way in, also
// from another engine afterwards.
func TestRecordsComeBackAsTheyWere(t *testing.T) {
	ways := map[string]func(t *testing.T, p *Producer, r Record){
		"Produce": func(t *testing.T, p *Producer, r Record) {
			_, err := p.Produce(within(t), r)
			must(t, err)
		},
		"Append": func(t *testing.T, p *Producer, r Record) {
			must(t, p.Append(within(t), r, func(_ Placement, err error) {
				if err != nil {
					t.Error(err)
				}
			}))
		},
		"Batch": func(t *testing.T, p *Producer, r Record) {
			b, err := p.NewBatch(within(t), 4<<20)
			must(t, err)
			must(t, b.Add(r))
			must(t, b.Send(within(t), nil))
		},
		"Reserve": func(t *testing.T, p *Producer, r Record) {
			b, err := p.NewBatch(within(t), 4<<20)
			must(t, err)
			size := func(b []byte) int {
				if b == nil {
					return -1
				}
				return len(b)
			}
			if r.Headers != nil || !r.Time.IsZero() {
				must(t, b.Add(r))
			} else {
				k, v, err := b.Reserve(size(r.Key), size(r.Value))
				must(t, err)
				copy(k, r.Key)
				copy(v, r.Value)
				must(t, b.Commit(k))
			}
			must(t, b.Send(within(t), nil))
		},
	}
	for name, send := range ways {
		for _, codec := range []Codec{None, S2, Zstd} {
			t.Run(fmt.Sprintf("%s/codec=%v", name, codec), func(t *testing.T) {
				dir := t.TempDir()
				e := open(t, dir, Options{ArenaBytes: 32 << 20})
				newTopic(t, e, "kinds")
				p := newProducer(t, e, ProducerOptions{Topic: "kinds", BatchBytes: 4 << 20, Codec: codec})
				for _, r := range kinds() {
					send(t, p, r)
				}
				must(t, p.Flush(within(t)))
				check := func(e *Engine) {
					t.Helper()
					c := newConsumer(t, e, ConsumerOptions{Topic: "kinds", From: FromStart()})
					defer c.Close()
					got, _ := drain(t, c)
					sent := kinds()
					if len(got) != len(sent) {
						t.Fatalf("%d records, want %d", len(got), len(sent))
					}
					for i := range sent {
						same(t, got[i], sent[i])
					}
				}
				check(e)
				shut(t, e)
				check(open(t, dir, Options{}))
			})
		}
	}
}

// A record that no batch can hold is refused before anything happens, and leaves
// nothing behind.
func TestRecordTooLarge(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 64 << 10})
	ctx := within(t)
	for _, r := range []Record{
		{Value: make([]byte, 64<<10)},
		{Key: make([]byte, 64<<10)},
		{Key: []byte("k"), Headers: []Header{{Value: make([]byte, 65<<10)}}},
		{Headers: make([]Header, 1<<11)},
		{Value: make([]byte, 32<<20)},
	} {
		_, err := p.Produce(ctx, r)
		is(t, err, ErrRecordTooLarge, "BatchBytes", `"t"`)
		is(t, p.Append(ctx, r, nil), ErrRecordTooLarge)
		b, err := p.NewBatch(ctx, 0)
		must(t, err)
		is(t, b.Add(r), ErrRecordTooLarge)
		if len(r.Headers) == 0 {
			_, _, err = b.Reserve(len(r.Key), len(r.Value))
			is(t, err, ErrRecordTooLarge)
		}
		b.Discard()
	}
	produce(t, p, "k", "fits")
	want(t, e, "t", "fits")
	// A refused record left an open batch behind; Close gives its memory back.
	_, err := p.Produce(ctx, Record{Value: make([]byte, 1<<20)})
	is(t, err, ErrRecordTooLarge)
}

// The largest record that a batch holds is stored, and one byte more is not.
func TestLargestRecord(t *testing.T) {
	for _, size := range []int{minBatch, 256 << 10, MaxBatchBytes} {
		e := open(t, t.TempDir(), Options{ArenaBytes: 64 << 20, SegmentBytes: 16 << 20})
		newTopic(t, e, "t")
		p := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: size})
		fits, over := 0, size
		for over-fits > 1 {
			b, err := p.NewBatch(within(t), size)
			must(t, err)
			mid := (fits + over) / 2
			switch err := b.Add(Record{Key: []byte("k"), Value: make([]byte, mid)}); {
			case err == nil:
				fits = mid
			case errors.Is(err, ErrRecordTooLarge):
				over = mid
			default:
				t.Fatal(err)
			}
			b.Discard()
		}
		if fits < size-1024 {
			t.Fatalf("a batch of %d bytes holds %d at most", size, fits)
		}
		v := strings.Repeat("x", fits)
		produce(t, p, "k", v)
		_, err := p.Produce(within(t), Record{Key: []byte("k"), Value: make([]byte, fits+1)})
		is(t, err, ErrRecordTooLarge)
		want(t, e, "t", v)
		shut(t, e)
	}
}

func TestBatchLife(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	ctx := within(t)

	for _, size := range []int{-1, 1, minBatch - 1, MaxBatchBytes + 1} {
		if _, err := p.NewBatch(ctx, size); err == nil {
			t.Errorf("a batch of %d bytes was made", size)
		}
	}
	b, err := p.NewBatch(ctx, 0)
	must(t, err)
	if err := b.Send(ctx, nil); err == nil {
		t.Error("an empty batch was sent")
	}
	must(t, b.Add(Record{Value: []byte("1")}))
	if err := b.Commit(nil); err == nil {
		t.Error("committed what was not reserved")
	}
	k, v, err := b.Reserve(-1, 1)
	must(t, err)
	if k != nil {
		t.Error("a null key has memory")
	}
	v[0] = '2'
	must(t, b.Commit(nil))
	if b.Len() != 2 {
		t.Errorf("%d records, want 2", b.Len())
	}
	must(t, b.Send(ctx, nil))
	is(t, b.Add(Record{}), ErrBatchSent)
	is(t, b.Send(ctx, nil), ErrBatchSent)
	is(t, b.Commit(nil), ErrBatchSent)
	_, _, err = b.Reserve(1, 1)
	is(t, err, ErrBatchSent)
	if b.Len() != 2 {
		t.Errorf("%d records after Send, want 2", b.Len())
	}
	b.Discard() // nothing: it was sent

	full, err := p.NewBatch(ctx, minBatch)
	must(t, err)
	n := 0
	for err = nil; err == nil; n++ {
		err = full.Add(Record{Key: []byte("key"), Value: make([]byte, 100)})
	}
	is(t, err, ErrBatchFull)
	if full.Len() != n-1 {
		t.Errorf("%d records, want %d", full.Len(), n-1)
	}
	full.Discard()
	full.Discard()
	is(t, full.Send(ctx, nil), ErrBatchSent)

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	again, err := p.NewBatch(ctx, 0)
	must(t, err)
	must(t, again.Add(Record{Value: []byte("3")}))
	is(t, again.Send(cancelled, nil), context.Canceled)
	must(t, again.Send(ctx, nil)) // it was not sent before
	must(t, p.Flush(ctx))
	want(t, e, "t", "1", "2", "3")
}

// The key of a record in a batch is the one that lies in the memory of Reserve,
// whatever Commit is told, or its position would not be the record's and nobody
// could read it.
func TestReservedKeyDecidesThePosition(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	b, err := p.NewBatch(within(t), 0)
	must(t, err)
	k, v, err := b.Reserve(3, 1)
	must(t, err)
	copy(k, "abc")
	copy(v, "v")
	must(t, b.Commit([]byte("xyz")))
	_, v, err = b.Reserve(-1, 1)
	must(t, err)
	copy(v, "w")
	must(t, b.Commit([]byte("not null")))
	must(t, b.Send(within(t), nil))
	must(t, p.Flush(within(t)))
	want(t, e, "t", "v", "w")
}
