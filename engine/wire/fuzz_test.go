package wire

import (
	"bytes"
	"reflect"
	"testing"
)

// ParseHead takes anything, and what it accepts it writes back byte for byte.
func FuzzParseHead(f *testing.F) {
	var e Encoder
	f.Add(bytes.Clone(e.Produce(1, 2, 3)), uint32(MaxFirst))
	f.Add(bytes.Clone(e.Fail(0, 0, &Error{Code: CodeShuttingDown})), uint32(MaxFrame))
	f.Add([]byte{1, 2, 3}, uint32(1<<31))
	f.Add(bytes.Repeat([]byte{0xff}, HeadSize), uint32(1<<32-1))
	f.Fuzz(func(t *testing.T, b []byte, limit uint32) {
		h, err := ParseHead(b, limit)
		if err != nil {
			return
		}
		if h.Length > limit || h.Message > MaxMessage || h.Message > h.Length || h.Raw() < 0 {
			t.Fatalf("accepts %+v under %d", h, limit)
		}
		var out [HeadSize]byte
		h.Put(out[:])
		if !bytes.Equal(out[:], b[:HeadSize]) {
			t.Fatalf("accepts %x but writes %x", b[:HeadSize], out)
		}
	})
}

// FuzzMessage: any bytes under any key and flags are refused or read without a panic,
// into memory in proportion to them, and what is read is what it becomes when it is
// sent again.
func FuzzMessage(f *testing.F) {
	var e Encoder
	for _, k := range everyMessage() {
		f.Add(uint16(k.key), k.flags, bytes.Clone(e.Frame(k.key, k.flags, 1, sample(k.table), 0)[HeadSize:]))
		f.Add(uint16(k.key), k.flags, emptyMessage())
	}
	f.Add(uint16(1000), uint16(0), []byte{})
	f.Fuzz(func(t *testing.T, key, flags uint16, msg []byte) {
		k := Key(key)
		verdict := Verify(k, flags, msg)
		m, err := decode(k, flags, msg)
		if (m != nil) != (verdict == nil) {
			t.Fatalf("verified: %v, but read: %v", verdict, err)
		}
		hotPathsAgree(t, msg)
		if m == nil {
			return
		}
		size := 0
		for _, v := range everyField(reflect.ValueOf(m)) {
			switch v.Kind() {
			case reflect.String:
				size += v.Len()
			case reflect.Slice:
				size += v.Len() * int(v.Type().Elem().Size())
			case reflect.Pointer:
				size += int(v.Type().Elem().Size())
			}
		}
		if size > 512+16*len(msg) {
			t.Fatalf("%d bytes unpack to %d", len(msg), size)
		}
		if len(msg) > MaxMessage/8 {
			return // what it leaves out is written, so it may become too long
		}
		var e Encoder
		frame := e.Frame(k, flags, 1, m.(Message), 0)
		again, err := decode(k, flags, frame[HeadSize:])
		if err != nil {
			t.Fatalf("is not accepted again: %v", err)
		}
		if !reflect.DeepEqual(m, again) {
			t.Fatalf("read as %+v, sent again as %+v", m, again)
		}
	})
}

func hotPathsAgree(t *testing.T, msg []byte) {
	producer, err := ParseProduce(msg)
	if m, slow := Request(KeyProduce, msg); (err == nil) != (slow == nil) || err == nil && m.(*Produce).Producer != producer {
		t.Fatalf("ParseProduce: %d, %v; Request: %+v, %v", producer, err, m, slow)
	}
	r, err := ParseProduceReply(msg)
	if m, slow := Reply(KeyProduce, FlagReply, msg); (err == nil) != (slow == nil) || err == nil && *m.(*ProduceReply) != r {
		t.Fatalf("ParseProduceReply: %+v, %v; Reply: %+v, %v", r, err, m, slow)
	}
}
