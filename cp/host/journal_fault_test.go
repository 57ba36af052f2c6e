package host

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "github.com/lni/dragonboat/v4/raftpb"
)

// fill makes some saves and returns the journal, still open.
func fill(t *testing.T, d *simDisk, saves int) (*journal, *raftModel) {
	t.Helper()
	m := &raftModel{rng: d.rng, want: image{}}
	j := mustOpenSim(t, d)
	for range saves {
		ops := m.next()
		if err := j.commit(ops...); err != nil {
			t.Fatal(err)
		}
		m.took(ops)
	}
	return j, m
}

func TestChooseSlot(t *testing.T) {
	for _, c := range []struct {
		state      [2]slotState
		generation [2]uint64
		want       int
		refused    bool
	}{
		{state: [2]slotState{slotNew, slotNew}, want: -1},
		{state: [2]slotState{slotValid, slotNew}, generation: [2]uint64{1, 0}, want: 0},
		{state: [2]slotState{slotNew, slotValid}, generation: [2]uint64{0, 1}, want: 1},
		{state: [2]slotState{slotValid, slotNew}, generation: [2]uint64{2, 0}, refused: true},
		{state: [2]slotState{slotNew, slotValid}, generation: [2]uint64{0, 7}, refused: true},
		{state: [2]slotState{slotValid, slotValid}, generation: [2]uint64{1, 2}, want: 1},
		{state: [2]slotState{slotValid, slotValid}, generation: [2]uint64{9, 8}, want: 0},
		{state: [2]slotState{slotValid, slotValid}, generation: [2]uint64{9, 7}, refused: true},
		{state: [2]slotState{slotValid, slotValid}, generation: [2]uint64{4, 4}, refused: true},
		{state: [2]slotState{slotBad, slotValid}, generation: [2]uint64{0, 2}, refused: true},
		{state: [2]slotState{slotValid, slotBad}, generation: [2]uint64{1, 0}, refused: true},
		{state: [2]slotState{slotBad, slotNew}, refused: true},
		{state: [2]slotState{slotNew, slotBad}, refused: true},
		{state: [2]slotState{slotBad, slotBad}, refused: true},
	} {
		got, err := choose(c.state, c.generation)
		if (err != nil) != c.refused || err == nil && got != c.want {
			t.Errorf("%v %v: slot %d, %v", c.state, c.generation, got, err)
		}
	}
}

// H04: a flipped bit anywhere in a journal that was closed is refused with file and
// byte, or hits bytes that mean nothing; what is read back is never something else.
func TestH04FlippedBitInClosedJournal(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	d := newSimDisk(rng)
	j, m := fill(t, d, 60)
	active, end := j.active, j.pos
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if end < 60*block {
		t.Fatalf("only %d bytes to damage", end)
	}
	found, harmless := 0, 0
	for range long(400) {
		c := d.reboot()
		slot := active
		at := rng.Int64N(end)
		if rng.IntN(10) == 0 {
			slot, at = 1-active, rng.Int64N(block)
		}
		c.slots[slot].data[at] ^= 1 << rng.IntN(8)
		j, err := openSim(c)
		var damage *DamageError
		switch {
		case err == nil:
			if !bytes.Equal(dump(j.image), dump(m.want)) {
				t.Fatalf("byte %d of slot %d: recovered\n%s\nwant\n%s", at, slot, describe(j.image), describe(m.want))
			}
			harmless++
		case errors.Is(err, ErrNewer):
			t.Fatalf("byte %d: a damaged version was believed: %v", at, err)
		case !errors.As(err, &damage) || damage.File != slotName(slot) || damage.Byte > at+block || damage.Byte < at-1<<20:
			t.Fatalf("byte %d of slot %d: %v", at, slot, err)
		default:
			found++
		}
	}
	if found == 0 || harmless == 0 {
		t.Errorf("%d found, %d harmless: one kind was never met", found, harmless)
	}
}

func slotName(slot int) string { return [2]string{"journal-0", "journal-1"}[slot] }

// H04: every kind of loss of a whole slot, or of its end, is refused.
func TestH04LostSlot(t *testing.T) {
	for name, harm := range map[string]func(active, spare *simSlot, end int64){
		"active emptied":   func(a, _ *simSlot, _ int64) { a.data = nil },
		"spare emptied":    func(_, s *simSlot, _ int64) { s.data = nil },
		"active zeroed":    func(a, _ *simSlot, _ int64) { clear(a.data) },
		"active cut short": func(a, _ *simSlot, _ int64) { a.data = a.data[:2*block] },
		"active is spare":  func(a, s *simSlot, _ int64) { a.data = bytes.Clone(s.data) },
		"foreign file":     func(a, _ *simSlot, _ int64) { copy(a.data, "#!/bin/sh\n") },
		"frame elsewhere": func(a, _ *simSlot, end int64) { // the device put a write in another place
			copy(a.data[end-5*block:end-4*block], a.data[end-3*block:])
		},
	} {
		d := newSimDisk(rand.New(rand.NewPCG(7, 7)))
		j, _ := fill(t, d, 40)
		j.limit = j.pos // rotate once, so that both slots are in use
		if err := j.commit(op{kind: opBootstrap, key: replicaKey{9, 1}}); err != nil {
			t.Fatal(err)
		}
		for range 300 {
			if err := j.commit(op{kind: opState, key: replicaKey{9, 1}, state: pb.State{Term: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		active, end := j.active, j.pos
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		c := d.reboot()
		harm(c.slots[active], c.slots[1-active], end)
		_, err := openSim(c)
		var damage *DamageError
		if !errors.As(err, &damage) || strings.Contains(damage.Reason, "<nil>") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := slotName(active)
		if name == "spare emptied" {
			want = slotName(1 - active)
		}
		if damage.File != want && name != "active is spare" { // which of two that are the same is the right one nobody knows
			t.Errorf("%s: %v, want it of %s", name, err, want)
		}
	}
}

// H16: a commit index beyond the log's end, and a log that does not reach back to
// its snapshot, are refused with a clear message instead of a panic in Raft.
func TestH16StateBeyondLog(t *testing.T) {
	key := replicaKey{1, 1}
	boot := op{kind: opBootstrap, key: key}
	for name, ops := range map[string][]op{
		"commit beyond log": {boot,
			{kind: opEntries, key: key, entries: []pb.Entry{{Index: 1, Term: 1}}},
			{kind: opState, key: key, state: pb.State{Term: 1, Commit: 2}}},
		"gap behind snapshot": {boot,
			{kind: opSnapshot, key: key, snap: pb.Snapshot{Index: 5, Term: 1}},
			{kind: opFirst, key: key, first: 8},
			{kind: opEntries, key: key, entries: []pb.Entry{{Index: 8, Term: 1}}}},
		"no bootstrap": {{kind: opState, key: key, state: pb.State{Term: 1}}},
	} {
		d := newSimDisk(rand.New(rand.NewPCG(1, 1)))
		j := mustOpenSim(t, d)
		if err := j.commit(ops...); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := openSim(d.reboot())
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// D01: when the disk is full the journal goes on in the blocks it has; it turns new
// commands away before they are used up, takes those that free space longer, and
// recovers by itself.
func TestD01FullDiskTurnsCommandsAway(t *testing.T) {
	d := newSimDisk(rand.New(rand.NewPCG(3, 3)))
	j := mustOpenSim(t, d)
	key := replicaKey{1, 1}
	if err := j.commit(op{kind: opBootstrap, key: key}); err != nil {
		t.Fatal(err)
	}
	d.capacity = int64(len(d.slots[0].data) + len(d.slots[1].data)) // not a byte more
	index := uint64(0)
	save := func() {
		t.Helper()
		index++
		e := pb.Entry{Index: index, Term: 1, Cmd: make([]byte, 2000)}
		if err := j.commit(op{kind: opEntries, key: key, entries: []pb.Entry{e}}); err != nil {
			t.Fatal(err)
		}
	}
	for j.room(2000, false) == nil {
		save()
		if index > 1e4 {
			t.Fatal("never full")
		}
	}
	if err := j.room(2000, false); !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	turned := index
	for j.room(2000, true) == nil {
		save() // commands that free space
	}
	if index == turned {
		t.Fatal("commands that free space were turned away as early as others")
	}
	for range 30 { // what Raft itself writes meanwhile still goes through
		save()
	}

	// A snapshot replaces the log: there is room although the disk stays full.
	if err := j.commit(op{kind: opSnapshot, key: key, snap: pb.Snapshot{Index: index, Term: 1}}); err != nil {
		t.Fatal(err)
	}
	j.mu.Lock()
	j.image[key].compact(index)
	j.mu.Unlock()
	if err := j.room(2000, false); err != nil {
		t.Fatal(err)
	}

	d.capacity = 0
	for range 2 {
		if err := j.maintain(); err != nil {
			t.Fatal(err)
		}
	}
	if j.cramped != nil {
		t.Fatalf("space is back, yet: %v", j.cramped)
	}
	want := dump(j.image)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	again := mustOpenSim(t, d.reboot())
	again.image[key].compact(index) // forgetting is not recorded
	if !bytes.Equal(dump(again.image), want) {
		t.Fatalf("recovered\n%s", describe(again.image))
	}
}

// D01: a save that does not fit a full disk waits for space instead of failing or
// writing half, and ends when the journal is closed.
func TestD01SaveWaitsForSpace(t *testing.T) {
	key := replicaKey{1, 1}
	big := op{kind: opEntries, key: key, entries: []pb.Entry{{Index: 1, Term: 1, Cmd: make([]byte, 6<<20)}}}
	start := func() (*simDisk, *journal, chan error) {
		d := newSimDisk(rand.New(rand.NewPCG(3, 3)))
		j := mustOpenSim(t, d)
		if err := j.commit(op{kind: opBootstrap, key: key}); err != nil {
			t.Fatal(err)
		}
		d.capacity = int64(len(d.slots[0].data) + len(d.slots[1].data))
		done := make(chan error, 1)
		go func() { done <- j.commit(big) }()
		for j.room(1, true) == nil {
			time.Sleep(time.Millisecond)
		}
		select {
		case err := <-done:
			t.Fatalf("did not wait: %v", err)
		default:
		}
		return d, j, done
	}

	d, j, done := start()
	d.mu.Lock()
	d.capacity = 0
	d.mu.Unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := j.room(1, false); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j := mustOpenSim(t, d.reboot()); len(j.image[key].entries) != 1 {
		t.Fatal("the save that waited is lost")
	}

	_, j, done = start()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrNoSpace) {
		t.Fatalf("a save that waited at close: %v", err)
	}
}

// H04: the slots are opened so that a write is durable when it returns.
func TestH04SlotWritesAreDurable(t *testing.T) {
	s, err := openSlot(filepath.Join(t.TempDir(), "slot"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", s.f.Fd()))
	if err != nil {
		t.Skip(err)
	}
	var pos, flags int
	if _, err := fmt.Sscanf(string(info), "pos:\t%d\nflags:\t%o", &pos, &flags); err != nil {
		t.Fatalf("%v\n%s", err, info)
	}
	if flags&syscall.O_DSYNC == 0 {
		t.Errorf("flags %o", flags)
	}
}

// A failed write is never retried into success: every later save fails too.
func TestJournalFailsForGood(t *testing.T) {
	d := newSimDisk(rand.New(rand.NewPCG(3, 3)))
	j, m := fill(t, d, 10)
	d.fail = syscall.EIO
	if err := j.commit(m.next()...); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	d.fail = nil
	before := d.writes
	if err := j.commit(m.next()...); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if err := j.room(1, true); !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if d.writes != before {
		t.Error("wrote after a failed write")
	}
	if j := mustOpenSim(t, d.reboot()); !bytes.Equal(dump(j.image), dump(m.want)) {
		t.Fatal("what was saved before the failure is not there")
	}
}

// Saves that arrive while a write is under way share the next one.
func TestSavesShareWrites(t *testing.T) {
	d := newSimDisk(rand.New(rand.NewPCG(3, 3)))
	j := mustOpenSim(t, d)
	gate := make(chan struct{})
	d.mu.Lock()
	d.wait = gate
	d.mu.Unlock()
	before := d.writes
	var wg sync.WaitGroup
	const n = 50
	for i := range n {
		wg.Go(func() {
			if err := j.commit(op{kind: opBootstrap, key: replicaKey{uint64(i + 1), 1}}); err != nil {
				t.Error(err)
			}
		})
	}
	for joined := 0; joined < n-1; { // the first is being written, the rest gathers
		j.mu.Lock()
		joined = len(j.next.ops)
		j.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	d.mu.Lock()
	d.wait = nil
	d.mu.Unlock()
	close(gate)
	wg.Wait()
	if got := d.writes - before; got != 2 {
		t.Errorf("%d writes for %d saves, want 2", got, n)
	}
	if len(j.image) != n {
		t.Errorf("%d replicas", len(j.image))
	}
}

// C05: a journal that was cut is refused, with its file, whatever its length: closed or
// left by a process that died, in its first generation or a later one, in a frame,
// between two, or behind the last.
func TestC05JournalCutAnywhere(t *testing.T) {
	for _, closed := range []bool{true, false} {
		for _, rotated := range []bool{true, false} {
			d := newSimDisk(rand.New(rand.NewPCG(5, 5)))
			j, m := fill(t, d, 12)
			if rotated {
				j.limit = j.pos
			}
			for range 8 {
				ops := m.next()
				if err := j.commit(ops...); err != nil {
					t.Fatal(err)
				}
				m.took(ops)
			}
			active, end := j.active, j.pos
			if closed {
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
			}
			size := int64(len(d.slots[active].data))
			cuts := []int64{1, 59, 60, 512, size - block, size - 1, size}
			for at := int64(0); at <= end+block; at += block {
				cuts = append(cuts, at, at+d.rng.Int64N(block))
			}
			for _, at := range cuts {
				c := d.reboot()
				c.slots[active].data = c.slots[active].data[:at]
				j, err := openJournal(c.files(), [2]string{"journal-0", "journal-1"}, [16]byte{7}, false, next, quiet())
				var damage *DamageError
				switch {
				case at == size:
					if err != nil || !bytes.Equal(dump(j.image), dump(m.want)) {
						t.Fatalf("closed %v, rotated %v, not cut: %v", closed, rotated, err)
					}
				case !errors.As(err, &damage) && !errors.Is(err, ErrWiped):
					t.Fatalf("closed %v, rotated %v, cut to %d of %d, where frames end at %d: %v", closed, rotated, at, size, end, err)
				}
			}
		}
	}
}

// A spare slot of any length, as what was begun in it last may have left, is used again.
func TestSpareSlotOfAnyLength(t *testing.T) {
	d := newSimDisk(rand.New(rand.NewPCG(6, 6)))
	j, m := fill(t, d, 20)
	spare := 1 - j.active
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{60, block - 1, block, block + 1, 3*block + 512, len(d.slots[spare].data) - 1} {
		c := d.reboot()
		c.slots[spare].data = c.slots[spare].data[:size]
		for range 3 {
			j := mustOpenSim(t, c)
			if !bytes.Equal(dump(j.image), dump(m.want)) {
				t.Fatalf("spare of %d bytes: recovered\n%s", size, describe(j.image))
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			c = c.reboot()
		}
	}
}
