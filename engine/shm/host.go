package shm

import (
	"os"
	"sync"
	"sync/atomic"
)

// Options say what region to make.
type Options struct {
	Geometry
	Engine uint64 // incarnation of the engine

	start uint64 // position of the first slots: of tests, for what wraps
}

// Host is the engine's side of a region. One goroutine calls Next; Bytes, Complete,
// Answered and Stop may be called by any, until Close.
type Host struct {
	g    Geometry
	mem  *memory
	wait waiter

	// Of the goroutine that calls Next.
	in     lane
	taken  uint64
	frozen bool

	answered atomic.Uint64 // of those taken

	mu     sync.Mutex // guards the rest; innermost
	file   *os.File   // nil once the memory is frozen
	out    lane
	guest  bell
	closed bool
}

// Create makes a region. Its file is to be sent to the client, which maps it.
func Create(o Options) (*Host, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	f, err := newMemory(o.Size())
	if err != nil {
		return nil, err
	}
	m, err := mapMemory(f, o.Size(), true)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	h := &Host{g: o.Geometry, mem: m, file: f}
	c := o.ArenaBytes
	h.in = lane{slots: m.slots(o.submissions(), o.Slots)}
	h.out = lane{slots: m.slots(o.completions(), o.Slots)}
	h.in.clear(o.start)
	h.out.clear(o.start)
	h.wait = newWaiter(bell{m.word4(c + offHost)})
	h.guest = bell{m.word4(c + offGuest)}
	*m.word8(c + offMagic) = magic
	*m.word4(c + offVersion) = Version
	*m.word4(c + offSlots) = uint32(o.Slots)
	*m.word8(c + offArena) = uint64(o.ArenaBytes)
	*m.word8(c + offStart) = o.start
	*m.word8(c + offEngine) = o.Engine
	return h, nil
}

// File is what the client maps. It is closed once the client has submitted something.
func (h *Host) File() *os.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.file
}

// HugePages tells whether the region lies on 2 MiB pages.
func (h *Host) HugePages() bool { return h.mem.huge }

// Arena is where the client's frames lie. The client changes it as it likes, and until
// Next has answered once it can replace its pages: the kernel is shown them after that.
func (h *Host) Arena() []byte { return h.mem.bytes[:h.g.ArenaBytes:h.g.ArenaBytes] }

// Bytes is the memory of a submission.
func (h *Host) Bytes(s Submission) []byte {
	end := s.Offset + uint64(s.Length)
	return h.mem.bytes[s.Offset:end:end]
}

// Next waits for the next submission and checks it. After an error, a PeerError or
// ErrStopped, there is none any more.
func (h *Host) Next() (Submission, error) {
	if h.wait.stopped.Load() {
		return Submission{}, ErrStopped
	}
	if err := h.wait.await(&h.in, 0); err != nil {
		return Submission{}, err
	}
	if !h.frozen {
		// The client has submitted, so it has mapped the memory, and needs no more.
		if err := h.freeze(); err != nil {
			return Submission{}, err
		}
	}
	var w [3]uint64
	h.in.take(w[:])
	s := Submission{ID: uint32(w[0]), Producer: uint32(w[0] >> 32), Offset: w[1], Length: uint32(w[2])}
	if !h.g.holds(w[1], w[2]) {
		return s, breach("%d bytes at offset %d of an arena of %d, where frames begin at multiples of %d", w[2], w[1], h.g.ArenaBytes, Block)
	}
	h.taken++
	if open := h.taken - h.answered.Load(); open > uint64(h.g.Slots) {
		return s, breach("%d submissions are not answered, and there are %d slots", open, h.g.Slots)
	}
	return s, nil
}

func (h *Host) freeze() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrStopped
	}
	if err := freeze(h.file, h.g.Size()); err != nil {
		return err
	}
	h.frozen = true
	err := h.file.Close()
	h.file = nil
	return err
}

// Complete answers a submission. It does not wait. After Close it does nothing.
func (h *Host) Complete(c Completion) {
	h.answered.Add(1) // before the client can see it, and submit anew
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.out.put(uint64(c.ID)|uint64(c.Range)<<32, c.First, c.Last, uint64(c.Repeats))
	h.guest.ring()
}

// Answered says that a submission is about to be answered over the socket.
func (h *Host) Answered() { h.answered.Add(1) }

// Pending says whether Next would not have to wait, for the goroutine that calls it.
func (h *Host) Pending() bool {
	s, _ := h.in.look()
	return s != empty
}

// Unanswered is how many submissions were taken and not answered, for the goroutine that
// calls Next.
func (h *Host) Unanswered() int { return int(h.taken - h.answered.Load()) }

// Stop has Next return ErrStopped, now and ever after.
func (h *Host) Stop() { h.wait.stop() }

// Close gives the memory back. Next must have returned for good, and nobody may use what
// Bytes or Arena returned any more.
func (h *Host) Close() error {
	h.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	var err error
	if h.file != nil {
		err = h.file.Close()
	}
	if e := h.mem.unmap(); err == nil {
		err = e
	}
	return err
}
