package client

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// Frames as they lie in a file: each on its boundary, with zeros up to the next block
// and no more than that.
func TestStoredPages(t *testing.T) {
	const salt = 1 << 40
	frame := func(base uint64) []byte {
		f := sampleFrame(t)
		record.Stamp(f, base, 0, salt)
		return f
	}
	flagged := func(base uint64, flag uint8, salt uint64) []byte {
		f := frame(base)
		h, err := record.ParseHead(f, 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		if h.Flags = flag; flag == record.FlagVoid {
			h = h.AsVoid()
		}
		h.Put(f, salt)
		return f
	}
	zeros := func(n int) []byte { return make([]byte, n) }
	a, b := frame(0), frame(1)
	size := len(a)
	if size%record.FrameAlign == 0 {
		t.Fatal("a frame that needs no padding")
	}
	align := record.FrameAlign - size%record.FrameAlign
	for name, c := range map[string]struct {
		raw  [][]byte
		next uint64
		ok   bool
	}{
		"one":                     {[][]byte{a}, 1, true},
		"a lent one":              {[][]byte{flagged(0, record.FlagLent, salt), zeros(align), b}, 2, true},
		"a void one":              {[][]byte{flagged(0, record.FlagVoid, salt), zeros(align), b}, 2, false},
		"aligned":                 {[][]byte{a, zeros(align), b}, 2, true},
		"in the next block":       {[][]byte{a, zeros(4096 - size), b}, 2, true},
		"behind the longest gap":  {[][]byte{a, zeros(align + 63*64), b}, 2, true},
		"behind a block of zeros": {[][]byte{a, zeros(align + 64*64), b}, 2, false},
		"not aligned":             {[][]byte{a, zeros(align + 1), b}, 2, false},
		"without padding":         {[][]byte{a, b}, 2, false},
		"zeros at the end":        {[][]byte{a, zeros(align + 64)}, 1, false},
		"nothing but zeros":       {[][]byte{zeros(4096)}, 1, false},
		"another salt":            {[][]byte{sampleFrame(t)}, 1, false},
		"the second one missing":  {[][]byte{a}, 2, false},
		"the second one of zeros": {[][]byte{a, zeros(align), zeros(size)}, 2, false},
	} {
		m := &wire.Page{Next: c.next, Salt: salt, Cursor: fakeCursor(c.next)}
		p, err := newPage(m, bytes.Join(c.raw, nil), fakeTopic)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		for p.rest() {
			if err := p.frame(new(record.Scratch)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			p.next = p.batch.Head.Next()
		}
	}
	// What the server has verified has no flags.
	for _, flag := range []uint8{0, record.FlagLent} {
		m := &wire.Page{Next: 1, Cursor: fakeCursor(1)}
		if _, err := newPage(m, flagged(0, flag, 0), fakeTopic); (err == nil) != (flag == 0) || err != nil && !errors.Is(err, ErrProtocol) {
			t.Errorf("a verified frame with flags %#x: %v", flag, err)
		}
	}
}

// Frames that came damaged out of a file are asked for once more, verified: then they
// are there, or the server says what is wrong with them. It cannot pass on others.
func TestDamagedStoredPages(t *testing.T) {
	const salt = 99
	payload := func(p *wire.Page, raw []byte) { raw[len(raw)-1] ^= 1 }
	for name, c := range map[string]struct {
		damage func(p *wire.Page, raw []byte) // of the second frame
		plain  wire.Code                      // what the server says to who wants it verified; 0: the frame
		lies   bool                           // or it sends it as it is stored
		err    error
	}{
		"payload":              {damage: payload},
		"head":                 {damage: func(p *wire.Page, raw []byte) { raw[len(raw)-record.HeaderSize-1] ^= 1; clear(raw[len(raw)/2:]) }},
		"missing":              {damage: func(p *wire.Page, raw []byte) { p.Next++ }},
		"damaged in the file":  {damage: payload, plain: wire.CodeDamaged, err: api.ErrDamaged},
		"sent as it is stored": {damage: payload, lies: true, err: ErrProtocol},
	} {
		t.Run(name, bubble(func(t *testing.T) {
			f := newFake(t)
			plain := 0
			f.on = func(s *fakeConn, h wire.Head, msg, _ []byte) bool {
				if h.Key != wire.KeyFetch {
					return false
				}
				m, err := wire.Request(h.Key, msg)
				if err != nil {
					t.Error(err)
				}
				ask := m.(*wire.Fetch)
				if !ask.Stored {
					plain++
				}
				if !ask.Stored && !c.lies {
					if c.plain != 0 {
						s.fail(h, c.plain, "file f at byte 7")
					}
					return c.plain != 0
				}
				p, raw, _ := s.page(ask.Consumer)
				if len(raw) == 0 {
					s.answer(h, p, nil)
					return true
				}
				p.Salt = salt
				raw = asStored(raw, salt)
				if p.Next == 2 {
					c.damage(p, raw)
				}
				s.answer(h, p, raw)
				return true
			}
			cl := f.client(t, Options{})
			p := producer(t, cl, api.ProducerOptions{})
			for i := range 2 {
				if _, err := p.Produce(t.Context(), rec(i)); err != nil {
					t.Fatal(err)
				}
			}
			r, err := cl.NewConsumer(api.ConsumerOptions{Topic: "t", From: api.FromStart()})
			if err != nil {
				t.Fatal(err)
			}
			var got []uint64
			for {
				page, err := r.Fetch(1)
				for _, rec := range page.Records {
					got = append(got, rec.Offset)
				}
				if page.CaughtUp || err != nil {
					if !errors.Is(err, c.err) || plain == 0 {
						t.Errorf("ended with %v, want %v; %d asked for verified", err, c.err, plain)
					}
					break
				}
			}
			if want := []uint64{0, 1}; c.err == nil && !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}))
	}
}

// asStored lays frames out as they lie in a file, each in a flush of its own.
func asStored(raw []byte, salt uint64) (out []byte) {
	for len(raw) > 0 {
		h, _ := record.ParseHead(raw, 0)
		if len(out) > 0 {
			out = append(out, make([]byte, -len(out)&4095)...)
		}
		at := len(out)
		out = append(out, raw[:h.FrameLen]...)
		record.Stamp(out[at:], h.Base, h.Durable, salt)
		raw = raw[h.FrameLen:]
	}
	return out
}

// The next page is asked for while a large one is handed out; behind a small one that was
// waited for there is nothing yet, and it is handed out first. No record is missed either way.
func TestNextPageIsAskedFor(t *testing.T) {
	f := newFake(t)
	var asked atomic.Int32
	f.on = func(_ *fakeConn, h wire.Head, _, _ []byte) bool {
		if h.Key == wire.KeyFetch {
			asked.Add(1)
		}
		return false
	}
	c := f.client(t, Options{})
	p := producer(t, c, api.ProducerOptions{})
	in, err := c.NewConsumer(api.ConsumerOptions{Topic: "t", From: api.FromStart()})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for i, c := range []struct {
		size  int
		asked int32 // once the record was handed out
	}{{100, 1}, {smallPage, 3}, {100, 3}, {100, 4}, {smallPage, 6}} {
		size := c.size
		if _, err := p.Produce(t.Context(), api.Record{Value: bytes.Repeat([]byte{byte(i)}, size)}); err != nil {
			t.Fatal(err)
		}
		page, err := in.Poll(t.Context(), 10)
		if err != nil || len(page.Records) != 1 || len(page.Records[0].Value) != size || page.Records[0].Value[0] != byte(i) {
			t.Fatalf("record %d: %d records, %v", i, len(page.Records), err)
		}
		// Whatever was asked before this went over the same connection.
		if _, err := in.Lag(); err != nil {
			t.Fatal(err)
		}
		if got := asked.Load(); got != c.asked {
			t.Fatalf("after record %d of %d bytes %d pages were asked for, want %d", i, size, got, c.asked)
		}
	}
}
