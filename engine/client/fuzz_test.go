package client

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// asked is an owner that counts its answers.
type asked struct {
	answers int
	last    answer
}

func (o *asked) wrote(*request) {}

func (o *asked) answered(_ *request, a answer) {
	o.answers++
	o.last = a
}

// Whatever a server sends once it has said hello: the client does not panic, nothing is
// answered twice, and an answer is of the kind that was asked for.
func FuzzServerBytes(f *testing.F) {
	var enc wire.Encoder
	frame := func(key wire.Key, id uint32, m wire.Message, raw ...byte) []byte {
		return append(append([]byte{}, enc.Frame(key, wire.FlagReply, id, m, len(raw))...), raw...)
	}
	add := func(frames ...[]byte) { f.Add(slices.Concat(frames...)) }
	add()
	fetched := frame(wire.KeyFetch, 3, &wire.Page{Consumer: 1, Next: 1, Cursor: fakeCursor(1)}, sampleFrame(f)...)
	stored := frame(wire.KeyProduce, 4, &wire.ProduceReply{First: 1, Last: 2})
	add(fetched, stored, frame(wire.KeyPing, 6, &wire.Done{}), frame(wire.KeyListTopics, 5, &wire.ListTopicsReply{Topics: []*wire.TopicInfo{{Name: "t"}}}))
	add(stored, stored)
	add(stored[:20])
	add(frame(wire.KeyFetch, 4, &wire.ProduceReply{}))
	add(frame(wire.KeyListTopics, 5, &wire.ListTopicsReply{}, 1, 2, 3))
	add(enc.Frame(wire.KeyListTopics, 0, 5, &wire.ListTopics{}, 0))
	add(enc.Fail(wire.KeyFetch, 3, &wire.Error{Code: wire.CodeDamaged, Detail: "byte 7"}))
	add(enc.Fail(0, 0, &wire.Error{Code: wire.CodeShuttingDown}))
	f.Fuzz(func(t *testing.T, b []byte) {
		mine, theirs := net.Pipe()
		defer theirs.Close()
		c := &conn{
			nc: &steady{Conn: mine, patience: time.Minute}, in: bufio.NewReaderSize(bytes.NewReader(b), 4096), limit: wire.MaxFrame, slots: 4,
			wake: make(chan struct{}, 1), dead: make(chan struct{}), pending: map[uint32]*request{},
		}
		keys := []wire.Key{wire.KeyFetch, wire.KeyProduce, wire.KeyListTopics, wire.KeyPing}
		owners := make([]asked, len(keys))
		for i, key := range keys {
			c.pending[uint32(3+i)] = &request{key: key, pages: key == wire.KeyFetch, owner: &owners[i]}
		}
		c.kill(c.read())
		if c.err == nil {
			t.Fatal("reading ended without a reason")
		}
		for i := range owners {
			o := &owners[i]
			if o.answers > 1 || (o.answers == 1) == (c.pending[uint32(3+i)] != nil) {
				t.Fatalf("%s was answered %d times", keys[i], o.answers)
			}
			if o.answers == 0 || o.last.err != nil {
				continue
			}
			switch m := o.last.msg.(type) {
			case *wire.Page:
				if p, err := newPage(m, o.last.raw, fakeTopic); err == nil && p.rest() {
					_ = p.frame(new(record.Scratch))
				}
			case *wire.ListTopicsReply, *wire.Done:
			default:
				if keys[i] != wire.KeyProduce {
					t.Fatalf("%s was answered with %T", keys[i], m)
				}
			}
		}
	})
}

// sampleFrame is a record frame as a server sends it.
func sampleFrame(t testing.TB) []byte {
	var b record.Builder
	b.Reset(make([]byte, 4096), 1)
	if err := b.Add(&record.Record{Key: []byte("k"), Value: []byte("v"), Headers: []record.Header{{Key: []byte("h")}}}, 1); err != nil {
		t.Fatal(err)
	}
	frame, err := b.Finish(0)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// Whatever a page says and holds: what is handed out lies in what it says, in order,
// none twice, and each cursor on the way is one.
func FuzzPage(f *testing.F) {
	one := sampleFrame(f)
	two := append(append([]byte{}, one...), one...)
	record.Stamp(two[len(one):], 1, 0, 0)
	gap := append([]byte{}, two...)
	record.Stamp(gap[len(one):], 6, 0, 0)
	padded := append(append([]byte{}, one...), make([]byte, 4096-len(one))...)
	padded = append(padded, two[len(one):]...)
	for _, salt := range []uint64{0, 77} {
		f.Add(uint64(0), uint64(1), uint64(0), uint64(0), salt, one)
		f.Add(uint64(0), uint64(2), uint64(0), uint64(0), salt, two)
		f.Add(uint64(0), uint64(7), uint64(1), uint64(5), salt, gap)
		f.Add(uint64(0), uint64(7), uint64(0), uint64(0), salt, gap)
		f.Add(uint64(1), uint64(2), uint64(0), uint64(0), salt, two)
		f.Add(uint64(5), uint64(1), uint64(0), uint64(0), salt, one)
		f.Add(^uint64(0), uint64(1), ^uint64(0), ^uint64(0), salt, []byte(nil))
		f.Add(uint64(0), uint64(2), uint64(0), uint64(0), salt, padded)
	}
	f.Fuzz(func(t *testing.T, first, next, from, offsets, salt uint64, raw []byte) {
		restamp(raw, salt)
		m := &wire.Page{First: first, Next: next, Mark: 9, Salt: salt, Cursor: fakeCursor(next), Skips: []*wire.Skip{{From: from, Offsets: offsets}}}
		p, err := newPage(m, raw, fakeTopic)
		if err != nil {
			return
		}
		r := &Consumer{topic: fakeTopic, page: p, place: fakeCursor(first)}
		for at := first; r.page != nil; {
			page, err := r.deliver(3)
			if err != nil {
				return
			}
			for _, rec := range page.Records {
				if rec.Offset < at || rec.Offset >= next {
					t.Fatalf("offset %d after %d, the page has [%d, %d)", rec.Offset, at, first, next)
				}
				at = rec.Offset + 1
			}
			if _, _, err := api.DecodeCursor(fakeTopic, r.Cursor()); err != nil {
				t.Fatal(err)
			}
			if len(page.Records) == 0 && r.page != nil {
				t.Fatal("nothing handed out, and the page does not end")
			}
		}
	})
}

// restamp gives the heads of frames a good checksum, or that hides all the code behind
// it.
func restamp(raw []byte, salt uint64) {
	for rest := raw; len(rest) >= record.HeaderSize; {
		n := int(binary.LittleEndian.Uint32(rest[8:]))
		record.Stamp(rest, binary.LittleEndian.Uint64(rest[24:]), int64(binary.LittleEndian.Uint64(rest[112:])), salt)
		if n < record.HeaderSize || n > len(rest) {
			return
		}
		if rest = rest[n:]; salt != 0 { // to wherever something lies again
			rest = bytes.TrimLeft(rest, "\x00")
		}
	}
}
