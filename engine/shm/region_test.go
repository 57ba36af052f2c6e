package shm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Whatever the frames are, the engine finds the bytes that the client put there, and the
// client hears of each once, over many laps of the ring.
func TestFramesArriveAndAreAnswered(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	const n = 10_000
	failed := make(chan error, 1)
	go func() {
		for i := range uint32(n) {
			s, err := h.Next()
			if err != nil {
				failed <- err
				return
			}
			if want := fmt.Appendf(nil, "frame %d of producer %d", s.ID, s.Producer); s.ID != i || !bytes.Equal(h.Bytes(s), want) {
				failed <- fmt.Errorf("submission %d has id %d and %q, want %q", i, s.ID, h.Bytes(s), want)
				return
			}
			h.Complete(Completion{ID: s.ID, First: uint64(s.ID) * 3, Last: uint64(s.ID)*3 + 2, Range: s.ID, Repeats: s.ID % 5})
		}
		failed <- nil
	}()
	var flying [][]byte
	for sent, seen := uint32(0), uint32(0); seen < n; {
		if sent < n && len(flying) < small.Slots {
			b := block(t, g, 64)
			b = fmt.Appendf(b[:0], "frame %d of producer %d", sent, sent*7)
			if !g.send(sent, sent*7, b) {
				t.Fatalf("there is no slot, with %d of %d in use", len(flying), small.Slots)
			}
			flying = append(flying, b)
			sent++
			continue
		}
		c, err := g.Next()
		want := Completion{ID: seen, First: uint64(seen) * 3, Last: uint64(seen)*3 + 2, Range: seen, Repeats: seen % 5}
		if err != nil || c != want {
			t.Fatalf("%+v, %v, want %+v", c, err, want)
		}
		g.Arena().Free(flying[0])
		flying = flying[1:]
		seen++
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if err := g.Arena().Check(); err != nil || g.Arena().InUse() != 0 {
		t.Fatal(g.Arena().InUse(), err)
	}
}

// A client never has more under way than there are slots.
func TestFullRing(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	b := block(t, g, 100)
	for i := range uint32(small.Slots) {
		if !g.send(i, 0, b) {
			t.Fatalf("submission %d: no slot", i)
		}
	}
	if g.send(99, 0, b) {
		t.Fatal("there was a slot too many")
	}
	if _, err := h.Next(); err != nil {
		t.Fatal(err)
	}
	if g.send(99, 0, b) {
		t.Fatal("a slot is free whose submission is not answered")
	}
	h.Answered() // over the socket
	g.Answered()
	if !g.send(99, 0, b) {
		t.Fatal("no slot after an answer over the socket")
	}
	if n := h.Unanswered(); n != 0 {
		t.Fatalf("%d are not answered", n)
	}
}

func TestI01PagesAreThere(t *testing.T) {
	h, _ := pair(t, Options{Geometry: Geometry{ArenaBytes: 8 << 20, Slots: 256}})
	var st unix.Stat_t
	if err := unix.Fstat(int(h.File().Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 != st.Size || st.Size != int64(h.g.Size()) {
		t.Errorf("%d bytes of %d are there, want %d", st.Blocks*512, st.Size, h.g.Size())
	}
}

// I03: next to the memory there is nothing that an access which leaves it could meet.
func TestI03NothingBesideTheMemory(t *testing.T) {
	h, g := pair(t, Options{Geometry: Geometry{ArenaBytes: 8 << 20, Slots: 256}})
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var seen atomic.Uint32
	faults := func(p *byte) (fault bool) {
		defer func() { fault = recover() != nil }()
		seen.Store(uint32(*p))
		return false
	}
	for side, m := range map[string]*memory{"host": h.mem, "client": g.mem} {
		last := len(m.bytes) - 1
		if faults(&m.bytes[0]) || faults(&m.bytes[last]) {
			t.Errorf("%s: the memory itself cannot be read", side)
		}
		for _, at := range []int{-hugePage / 2, -1, last + 1, last + hugePage/2} {
			if !faults((*byte)(unsafe.Add(unsafe.Pointer(&m.bytes[0]), at))) {
				t.Errorf("%s: byte %d of %d can be read", side, at, last+1)
			}
		}
	}
}

// A host or a control group without so much memory is an error that says so, before
// anything is taken.
func TestI01NoRoom(t *testing.T) {
	free, where := roomLeft()
	if free == math.MaxUint64 {
		t.Skip("SKIPPED, NOT TESTED: this host does not say how much memory it has")
	}
	if free > 1<<44 || where == "" {
		t.Errorf("%d bytes of %q are left", free, where)
	}
	_, err := newMemory(1 << 50)
	if !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), fmt.Sprint(1<<50)) || !strings.Contains(err.Error(), where) {
		t.Errorf("%v", err)
	}
}

// The limit of a control group kills who goes over it. A region that would is refused, a
// smaller one works to its last byte.
func TestI01ControlGroup(t *testing.T) {
	needRoot(t)
	root, limit := groupRoot, "memory.max"
	if _, err := os.Stat(groupRoot + "/memory/memory.limit_in_bytes"); err == nil {
		root, limit = groupRoot+"/memory", "memory.limit_in_bytes"
	}
	dir := fmt.Sprintf("%s/ringfence-test-%d", root, os.Getpid())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no control group: %v", err)
	}
	defer os.Remove(dir)
	if err := os.WriteFile(dir+"/"+limit, []byte("100M"), 0); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no limit of memory for a control group: %v", err)
	}
	out, err := child("group", dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "refused: ") || !strings.Contains(string(out), dir) || !strings.Contains(string(out), "works") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func init() {
	children["group"] = func(dir string) error {
		if err := os.WriteFile(dir+"/cgroup.procs", fmt.Append(nil, os.Getpid()), 0); err != nil {
			return err
		}
		_, err := Create(Options{Geometry: Geometry{ArenaBytes: 128 << 20, Slots: 64}})
		if !errors.Is(err, ErrNoRoom) {
			return fmt.Errorf("128 MiB in a group of 100: %w", err)
		}
		fmt.Println("refused:", err)
		h, err := Create(Options{Geometry: Geometry{ArenaBytes: 32 << 20, Slots: 64}})
		if err != nil {
			return err
		}
		clear(h.Arena())
		fmt.Println("works")
		return h.Close()
	}
}

// Where the address space is limited, mapping fails with an error.
func TestI01AddressSpace(t *testing.T) {
	out, err := child("limited", "").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "refused: ") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func init() {
	children["limited"] = func(string) error {
		var now unix.Rlimit
		statm, _ := os.ReadFile("/proc/self/statm")
		var pages uint64
		fmt.Sscan(string(statm), &pages)
		now.Cur = pages*4096 + 256<<20
		now.Max = now.Cur
		if err := unix.Setrlimit(unix.RLIMIT_AS, &now); err != nil {
			return err
		}
		_, err := Create(Options{Geometry: Geometry{ArenaBytes: 512 << 20, Slots: 64}})
		if !errors.Is(err, ErrNoRoom) {
			return fmt.Errorf("512 MiB in an address space with 256 more: %w", err)
		}
		fmt.Println("refused:", err)
		fds, err := os.ReadDir("/proc/self/fd")
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.Contains(to, "memfd") {
				return fmt.Errorf("descriptor %s is left: %s", fd.Name(), to)
			}
		}
		return err
	}
}

// scribble writes into the region as a client does that keeps to no rule.
func (g *Guest) scribble(at int, v uint64) { atomic.StoreUint64(g.mem.word8(at), v) }

// Each field is read once: what Next answers was checked, whatever the client writes
// over it meanwhile.
func TestI03FieldsChangeWhileTheyAreChecked(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	stop := make(chan struct{})
	defer func() { stop <- struct{}{}; <-stop }()
	hostile := []uint64{0, Block, 1, math.MaxUint64, 1 << 63, uint64(small.ArenaBytes), uint64(small.ArenaBytes) - Block, 1 << 32, 5<<32 | 100}
	go func() {
		rng := rand.New(rand.NewPCG(1, 1))
		for {
			select {
			case <-stop:
				stop <- struct{}{}
				return
			default:
			}
			slot := rng.IntN(small.Slots)
			g.scribble(small.submissions()+slot*slotSize+16+8*rng.IntN(2), hostile[rng.IntN(len(hostile))])
		}
	}()
	b := block(t, g, 100)
	var taken, refused int
	for i := 0; taken < rounds(20_000, 2_000_000) || refused < 1000; i++ {
		if !g.send(uint32(i), 1, b) {
			t.Fatal("no slot")
		}
		s, err := h.Next()
		switch {
		case err == nil && h.g.holds(s.Offset, uint64(s.Length)):
			taken++
			_ = h.Bytes(s)[s.Length-1]
		case err == nil:
			t.Fatalf("took %+v", s)
		case !errors.Is(err, ErrPeer):
			t.Fatal(err)
		default:
			refused++
			h.taken++ // as if it had been taken
		}
		h.Answered()
		g.Answered()
	}
}

func TestI04Offsets(t *testing.T) {
	const size = MinArena
	offsets := []uint64{0, 1, Block - 1, Block, Block + 1, size - Block, size - 1, size, size + 1, size + Block, 1 << 31, 1<<32 - 1, 1 << 32, 1 << 63, math.MaxUint64, math.MaxUint64 - Block + 1}
	lengths := []uint64{0, 1, Block - 1, Block, Block + 1, size - 1, size, size + 1, 1 << 31, math.MaxUint32, 1 << 32, 1 << 63, math.MaxUint64}
	taken := 0
	for _, off := range offsets {
		for _, length := range lengths {
			h, g := pair(t, Options{Geometry: small})
			g.out.put(1, off, length)
			s, err := h.Next()
			// In numbers that do not wrap.
			fits := off%Block == 0 && length > 0 && float64(off)+float64(length) <= size
			switch {
			case fits && (err != nil || s.Offset != off || uint64(s.Length) != length):
				t.Errorf("offset %d, length %d: %+v, %v", off, length, s, err)
			case !fits && !errors.Is(err, ErrPeer):
				t.Errorf("offset %d, length %d were taken: %v", off, length, err)
			case fits:
				taken++
				if n := len(h.Bytes(s)); n != int(length) {
					t.Errorf("offset %d, length %d: %d bytes", off, length, n)
				}
			}
		}
	}
	if taken < 5 {
		t.Errorf("only %d were right", taken)
	}
}

// The client cannot cut the memory; and once it has submitted it cannot take pages out
// of it either.
func TestI11ClientCutsTheMemory(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	f := again(t, h.File())
	defer f.Close()
	size := int64(small.Size())
	punch := func() error {
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size)
	}
	for _, n := range []int64{0, size - 1, size + 1} {
		if err := f.Truncate(n); !errors.Is(err, syscall.EPERM) {
			t.Errorf("cut to %d: %v", n, err)
		}
	}
	b := block(t, g, 100)
	g.send(1, 1, b)
	s, err := h.Next()
	if err != nil {
		t.Fatal(err)
	}
	if err := punch(); !errors.Is(err, syscall.EPERM) {
		t.Errorf("punching a hole: %v", err)
	}
	if err := unix.Madvise(g.mem.bytes, unix.MADV_REMOVE); err == nil {
		t.Error("pages could be removed through the mapping")
	}
	if _, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, syscall.EPERM) {
		t.Errorf("mapping it anew for writing: %v", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, syscall.EPERM) {
		t.Errorf("another seal: %v", err)
	}
	if len(h.Bytes(s)) != 100 || h.File() != nil {
		t.Error("the engine keeps the descriptor, or lost the frame")
	}
}

// Holes from before the first submission are filled, and cost the client alone.
func TestI11HolesBeforeTheStart(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	b := block(t, g, 100)
	b[0] = 7
	if err := unix.Fallocate(int(h.File().Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, MinArena); err != nil {
		t.Fatal(err)
	}
	f := again(t, h.File())
	defer f.Close()
	g.send(1, 1, b)
	s, err := h.Next()
	if err != nil || h.Bytes(s)[0] != 0 {
		t.Fatal(s, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Blocks*512 != st.Size {
		t.Errorf("%d bytes of %d are there: %v", st.Blocks*512, st.Size, err)
	}

	h, _ = pair(t, Options{Geometry: small})
	if err := unix.Fallocate(int(h.File().Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(small.Size())); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Next(); !errors.Is(err, ErrPeer) {
		t.Errorf("slots that were holes: %v", err)
	}
}

func TestAttachRefusesAnotherRegion(t *testing.T) {
	h, err := Create(Options{Geometry: small})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, g := range []Geometry{{small.ArenaBytes * 2, small.Slots}, {small.ArenaBytes, small.Slots * 64}, {small.ArenaBytes, small.Slots * 2}, {0, 8}, {MinArena, 3}} {
		if _, err := Attach(again(t, h.File()), g, 0); err == nil {
			t.Errorf("%+v was attached as %+v", small, g)
		}
	}
	c := small.ArenaBytes
	for at, v := range map[int]uint64{offMagic: 1, offVersion: 2 | uint64(small.Slots)<<32, offArena: 5, offEngine: 6} {
		old := *h.mem.word8(c + at)
		*h.mem.word8(c + at) = v
		if _, err := Attach(again(t, h.File()), small, 0); !errors.Is(err, ErrPeer) {
			t.Errorf("control page with %d at %d: %v", v, at, err)
		}
		*h.mem.word8(c + at) = old
	}
	if g, err := Attach(again(t, h.File()), small, 0); err != nil {
		t.Error(err)
	} else if err := g.Close(); err != nil {
		t.Error(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := Attach(r, small, 0); err == nil {
		t.Error("a pipe was attached")
	}
	if _, err := r.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Error("Attach keeps the file")
	}
}

// FuzzRegion lets a client write anything anywhere. The engine takes what keeps to the
// rules, and is done with the client at the first thing that does not.
func FuzzRegion(f *testing.F) {
	f.Add([]byte{0, 0, 1, 1, 2, 2, 3, 3})
	f.Add([]byte{4, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 5, 5, 0, 0, 0, 0, 0, 0, 128})
	h, err := Create(Options{Geometry: small})
	if err != nil {
		f.Fatal(err)
	}
	g, err := Attach(again(f, h.File()), small, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { g.Close(); h.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		start := uint64(len(b)) - 20
		h.in.clear(start)
		h.out.clear(start)
		h.taken = 0
		h.answered.Store(0)
		g.out.pos, g.open = start, 0
		in := bytes.NewReader(b)
		for {
			op, err := in.ReadByte()
			if err != nil {
				return
			}
			var w [10]byte
			switch op % 4 {
			case 0: // a word anywhere in what the engine reads
				if _, err := io.ReadFull(in, w[:]); err != nil {
					return
				}
				at := int(uint16(w[0])|uint16(w[1])<<8) * 8 % (small.Size() - small.ArenaBytes)
				g.scribble(small.ArenaBytes+at, word(w[2:]))
			case 1: // a submission
				if _, err := io.ReadFull(in, w[:3]); err != nil {
					return
				}
				g.out.put(uint64(w[0]), uint64(w[1])*Block, uint64(w[2])<<8)
			case 2:
				if s, _ := h.in.look(); s == empty {
					continue
				}
				s, err := h.Next()
				if err != nil {
					if !errors.Is(err, ErrPeer) {
						t.Fatal(err)
					}
					return
				}
				if !small.holds(s.Offset, uint64(s.Length)) || h.Unanswered() > small.Slots {
					t.Fatalf("took %+v, with %d unanswered", s, h.Unanswered())
				}
				_ = h.Bytes(s)[s.Length-1]
			case 3:
				if h.Unanswered() > 0 {
					h.Complete(Completion{ID: 1})
				}
			}
		}
	})
}

func word(b []byte) (v uint64) {
	for i := range 8 {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}

// More takes what is there, in order, and neither waits nor passes a slot that no engine
// leaves so: that is for Next to tell.
func TestMore(t *testing.T) {
	h, g := pair(t, Options{Geometry: small})
	b := block(t, g, 10)
	for i := range uint32(6) {
		if !g.send(i, 0, b) {
			t.Fatal("no slot")
		}
		if _, err := h.Next(); err != nil {
			t.Fatal(err)
		}
		h.Complete(Completion{ID: i, First: uint64(i), Last: uint64(i)})
	}
	var got []Completion
	for _, room := range []int{1, 0, 3, 10} {
		all := make([]Completion, room)
		got = append(got, all[:g.More(all)]...)
	}
	if len(got) != 6 || g.open != 0 {
		t.Fatalf("%d completions, %d are open", len(got), g.open)
	}
	for i, c := range got {
		if c != (Completion{ID: uint32(i), First: uint64(i), Last: uint64(i)}) {
			t.Errorf("completion %d is %+v", i, c)
		}
	}
	h.out.put(1)
	h.out.at().turn += 2
	all := make([]Completion, 4)
	if n := g.More(all); n != 1 {
		t.Errorf("%d completions before a foul slot, want 1", n)
	}
	if _, err := g.Next(); !errors.Is(err, ErrPeer) {
		t.Errorf("a foul slot: %v", err)
	}
}
