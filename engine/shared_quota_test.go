package engine

import (
	"sync"
	"testing"

	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// I03: a client changes the number of records in a frame between the charge to its quota
// and the frame's verification, the one way and the other. What is charged is what is
// stored: the number was read once, before both.
func TestI03CountChangesBehindTheQuota(t *testing.T) {
	t.Run("copied", func(t *testing.T) { countChanges(t, server.Options{}) })
	t.Run("written from where it lies", func(t *testing.T) { countChanges(t, trusting()) })
}

func countChanges(t *testing.T, o server.Options) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	const records = 1500
	frame := frameOf(t, 7, 1, many(records)...)
	head, err := record.ParseHead(frame, 0)
	must(t, err)
	claim := func(mem []byte, count uint32) { // with a checksum that is right
		h := head
		h.Count = count
		h.Put(mem, 0)
	}
	var mu sync.Mutex
	var between func()
	var charged []int
	o.Spend = func(_ server.Identity, records, bytes int) error {
		mu.Lock()
		defer mu.Unlock()
		between() // the frame is the engine's, and not verified
		charged = append(charged, records, bytes)
		return nil
	}
	s := shareMemory(t, e, o)
	b, err := dialBare(s.path)
	must(t, err)
	defer b.leave()
	p, err := b.producer("t", 7)
	must(t, err)
	mem, _ := b.g.Arena().Alloc(len(frame))
	send := func(says, then uint32) {
		mu.Lock()
		defer mu.Unlock()
		copy(mem, frame)
		claim(mem, says)
		between = func() { claim(mem, then) }
		b.g.Submit(1<<31, p, mem)
		b.g.Ring()
	}

	// It says the truth, is charged for that, and then says that there is one.
	send(records, 1)
	var c shm.Completion
	soon(t, "the answer", func() { c, err = b.g.Next() })
	if must(t, err); c.Last-c.First+1 != records {
		t.Errorf("stored as %+v", c)
	}
	// It says that there is one, is charged for that, and then says the truth.
	p, err = b.producer("t", 7)
	must(t, err)
	send(1, records)
	if _, _, err := b.read(); err == nil {
		t.Error("more records than were charged are taken")
	} else {
		is(t, err, wire.CodeCorruptFrame)
	}
	b.g.Answered()
	mu.Lock()
	defer mu.Unlock()
	if len(charged) != 4 || charged[0] != records || charged[2] != 1 || charged[1] != len(frame) || charged[3] != len(frame) {
		t.Errorf("charged %v", charged)
	}
	if got := readEntries(t, e); len(got) != records {
		t.Errorf("%d records are stored, %d were charged", len(got), charged[0])
	}
	lent := s.Stats().Shared.Lent
	if (lent > 0) != (o.Sharing.Trusted != nil) {
		t.Errorf("%d frames of %d bytes were lent", lent, len(frame))
	}
}
