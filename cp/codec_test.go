package cp_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/cp"
)

// Every command read back is the command that was written.
func TestCommandRoundTrip(t *testing.T) {
	seen := map[reflect.Type]bool{}
	all := everyCommand()
	g := commands{dice: seededDice(1), s: grown(1, 300)}
	for range 2000 {
		all = append(all, g.command())
	}
	for _, cmd := range all {
		b := cp.Encode(cmd)
		got, err := cp.Decode(b)
		if err != nil {
			t.Fatalf("%T%+v: %v", cmd, cmd, err)
		}
		if !bytes.Equal(cp.Encode(got), b) {
			t.Fatalf("%T%+v is read as %+v", cmd, cmd, got)
		}
		if c, ok := cmd.(cp.CommitOffset); !ok || len(c.Positions) > 0 {
			if !reflect.DeepEqual(got, cmd) {
				t.Fatalf("%T%+v is read as %+v", cmd, cmd, got)
			}
		}
		seen[reflect.TypeOf(cmd)] = true
		for i := range b {
			if _, err := cp.Decode(b[:i]); err == nil {
				t.Fatalf("%T is read from %d of its %d bytes", cmd, i, len(b))
			}
		}
	}
	if len(seen) != 26 {
		t.Errorf("%d kinds of command were written", len(seen))
	}
}

// Every refusal survives the way through a log, with what it carries.
func TestReplyRoundTrip(t *testing.T) {
	for n := uint16(1); n < 100; n++ {
		r := cp.Reply{Err: cp.UnknownError{Code: n}, Length: 5, NextOffset: 6, NextSequence: 7, Generation: 8, Range: rangeID(1), Range2: rangeID(2), Export: []byte("x")}
		got, err := cp.DecodeReply(r.Encode())
		if err != nil || cp.Code(got.Err) != n || got.Err == nil {
			t.Fatalf("refusal %d is read as %+v, %v", n, got, err)
		}
		if got.Err, r.Err = nil, nil; !reflect.DeepEqual(got, r) {
			t.Fatalf("%+v is read as %+v", r, got)
		}
	}
	r, err := cp.DecodeReply(cp.Reply{Err: cp.AlreadySealed{Length: 12}, Length: 12}.Encode())
	var already cp.AlreadySealed
	if err != nil || !errors.As(r.Err, &already) || already.Length != 12 || !errors.Is(r.Err, cp.ErrAlreadySealed) {
		t.Fatalf("%+v, %v", r, err)
	}
	if r, err := cp.DecodeReply(cp.Reply{Err: cp.ErrMigrating}.Encode()); err != nil || r.Err != cp.ErrMigrating || !cp.Retryable(r.Err) {
		t.Fatalf("%+v, %v", r, err)
	}
	if cp.Retryable(cp.ErrNoSuchTopic) || cp.Retryable(nil) || cp.Retryable(io.EOF) {
		t.Error("a refusal that stays is called retryable")
	}
	if r, _ := cp.DecodeReply(cp.Reply{Err: io.EOF}.Encode()); r.Err == nil {
		t.Error("an error became an answer")
	}
	good := cp.Reply{Export: []byte("abc")}.Encode()
	for i := range good {
		if _, err := cp.DecodeReply(good[:i]); !errors.Is(err, cp.ErrMalformed) {
			t.Fatalf("%d bytes of a reply: %v", i, err)
		}
	}
	good[0] = 9
	if _, err := cp.DecodeReply(good); !errors.Is(err, cp.ErrNewerCommand) {
		t.Fatalf("a newer reply: %v", err)
	}
}

func TestTarget(t *testing.T) {
	donor := grown(1, 1)
	donor.Apply(cp.CreateTopic{Name: "moved", Bits: 4, ID: id(9)})
	for _, cmd := range everyCommand() {
		name, tid := cp.Target(cmd)
		home := false
		switch cmd.(type) {
		case cp.DefinePolicy, cp.DeletePolicy, cp.PutUser, cp.DeleteUser, cp.SetGrant, cp.PutToken, cp.DeleteToken, cp.SetQuota:
			home = true
		}
		if (name == "" && tid.IsZero()) != home {
			t.Errorf("%T is about %q, %v", cmd, name, tid)
		}
	}
	if name, _ := cp.Target(cp.InsertTopic{Export: donor.Export("moved")}); name != "moved" {
		t.Errorf("an export is about %q", name)
	}
	if name, _ := cp.Target(cp.InsertTopic{Export: []byte{1, 2}}); name != "" {
		t.Errorf("a damaged export is about %q", name)
	}
}

// Whatever bytes enter the log, applying them never panics and leaves a state
// that holds; and what is a command is written back byte for byte.
func FuzzDecode(f *testing.F) {
	for _, cmd := range everyCommand() {
		f.Add(cp.Encode(cmd))
	}
	f.Add([]byte{1, 10, 255, 255, 255, 255})
	base := cp.NewState()
	for _, cmd := range everyCommand() {
		base.Apply(cmd)
	}
	before := snapshot(f, base)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := base.Clone()
		r := s.ApplyBytes(b)
		if cmd, err := cp.Decode(b); err == nil {
			if got := cp.Encode(cmd); !bytes.Equal(got, b) {
				t.Fatalf("accepts %x but writes %x", b, got)
			}
			cp.Target(cmd)
		} else if r.Err != err {
			t.Fatalf("%x: answers %v, decodes to %v", b, r.Err, err)
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		if r.Err != nil && !bytes.Equal(before, snapshot(t, s)) {
			t.Fatalf("refused with %v and changed the state", r.Err)
		}
		if _, err := cp.DecodeReply(r.Encode()); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzDecodeReply(f *testing.F) {
	f.Add(cp.Reply{}.Encode())
	f.Add(cp.Reply{Err: cp.AlreadySealed{Length: 3}, Length: 3, Export: []byte("x")}.Encode())
	f.Add(cp.Reply{Err: cp.UnknownError{Code: math.MaxUint16}, Range: rangeID(5)}.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := cp.DecodeReply(b); err == nil && !bytes.Equal(r.Encode(), b) {
			t.Fatalf("accepts %x but writes %x", b, r.Encode())
		}
	})
}

// Whatever bytes are read as a snapshot, reading never panics, takes memory only
// in proportion to them, and accepts only a state that holds and that has these
// very bytes.
func FuzzRestore(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(snapshot(f, grown(seed, 100)))
	}
	f.Add(snapshot(f, cp.NewState()))
	for _, cmd := range userCommands() { // each with one more thing in it
		s := cp.NewState()
		for _, before := range userCommands() {
			s.Apply(before)
			if reflect.DeepEqual(before, cmd) {
				break
			}
		}
		f.Add(snapshot(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = restamped(b)
		s := cp.NewState()
		if s.Restore(bytes.NewReader(b)) != nil {
			if s.Len() != 0 {
				t.Fatal("a refused snapshot left topics")
			}
			return
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		if got := snapshot(t, s); !bytes.Equal(got, b) {
			t.Fatalf("accepts %x but writes %x", b, got)
		}
	})
}

// The same for a topic that another vnode exported.
func FuzzInsert(f *testing.F) {
	for seed := range uint64(4) {
		s := grown(seed, 200)
		for topic := range s.Topics() {
			f.Add(s.Export(topic.Name))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = restamped(b)
		s := cp.NewState()
		if r := s.Apply(cp.InsertTopic{Export: b}); r.Err != nil {
			if s.Len() != 0 {
				t.Fatal("a refused export left a topic")
			}
			return
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		name, _ := cp.Target(cp.InsertTopic{Export: b})
		if got := s.Export(name); !bytes.Equal(got, b) {
			t.Fatalf("accepts %x but writes %x", b, got)
		}
	})
}

// A value has one encoding; and a decoder believes no count: a few bytes that announce billions are refused
// without room being made for them.
func TestDecodeBounded(t *testing.T) {
	huge := []byte{255, 255, 255, 255}
	for tag := range byte(26) {
		for pad := range 40 {
			b := slices.Concat([]byte{1, tag}, make([]byte, pad), huge)
			if n := testing.AllocsPerRun(1, func() { cp.Decode(b) }); n > 50 {
				t.Fatalf("tag %d: %v allocations for %d bytes", tag, n, len(b))
			}
		}
	}
	bad := cp.Encode(cp.CommitOffset{Group: "g", Topic: "t", Reset: true})
	bad[len(bad)-1] = 2
	if _, err := cp.Decode(bad); !errors.Is(err, cp.ErrMalformed) {
		t.Fatalf("a flag of 2: %v", err)
	}
	var e []byte
	e = append(e, cp.Encode(cp.SealTopic{Name: "x"})[:2]...)
	e = append(e, 0, 0, 1, 0)
	e = append(e, make([]byte, 1<<16)...)
	if _, err := cp.Decode(e); !errors.Is(err, cp.ErrMalformed) {
		t.Fatalf("a name of 64 KiB: %v", err)
	}
	if _, err := cp.Decode(make([]byte, cp.MaxCommand+1)); !errors.Is(err, cp.ErrMalformed) {
		t.Fatalf("a command over the limit: %v", err)
	}
}
