package ring

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	abi "github.com/iceber/iouring-go/syscall"
	"golang.org/x/sys/unix"
)

// maxBuffer is the kernel's limit for one registered buffer; larger ones are cut.
const maxBuffer = 1 << 30

// file is a place in the table of registered files.
type file struct {
	used  bool         // guarded by Ring.mu
	users atomic.Int32 // requests in flight
}

// buffer is a place in the table of registered buffers. An empty one has no mem.
type buffer struct {
	mem   []byte       // guarded by Ring.mu
	users atomic.Int32 // requests in flight
}

// registerTables registers what Options name. Where the memlock limit forbids it,
// the ring works without registered buffers and says so, unless they are a must.
func (r *Ring) registerTables(o Options) error {
	if o.Files > 0 {
		fds := make([]int32, o.Files)
		for i := range fds {
			fds[i] = -1
		}
		if errno := r.k.register(uint32(abi.IORING_REGISTER_FILES), unsafe.Pointer(&fds[0]), uint32(len(fds))); errno != 0 {
			return &SetupError{Step: stepFiles, Errno: errno, Hint: fmt.Sprintf("table of %d files", o.Files)}
		}
		r.files = make([]file, o.Files)
	}
	var pieces [][]byte
	for _, b := range o.Buffers {
		pieces = append(pieces, cut(b)...)
	}
	places := len(pieces) + o.Spare
	if places == 0 {
		return nil
	}
	r.buffers = make([]buffer, places)
	errno := r.registerPlaces(pieces)
	if errno == 0 {
		r.info.Registered = len(pieces) > 0
		return nil
	}
	err := bufferError(errno, pieces)
	if o.MustRegister {
		return err
	}
	r.note(err.Error())
	if errno := r.registerPlaces(nil); errno != 0 {
		r.buffers = nil // not even an empty table: RegisterBuffer will say ErrNoSlot
	}
	return nil
}

// registerPlaces registers the whole table, of which all places behind pieces are
// empty.
func (r *Ring) registerPlaces(pieces [][]byte) syscall.Errno {
	vecs := make([]unix.Iovec, len(r.buffers))
	for i, b := range pieces {
		vecs[i].Base = &b[0]
		vecs[i].SetLen(len(b))
	}
	errno := r.k.register(uint32(abi.IORING_REGISTER_BUFFERS), unsafe.Pointer(&vecs[0]), uint32(len(vecs)))
	if errno == 0 {
		for i, b := range pieces {
			r.buffers[i].mem = b
		}
	}
	return errno
}

func (r *Ring) unregisterTables() {
	// Not left to the end of the ring, which the kernel puts off: after this the pages
	// are ours alone and the files can be unmounted.
	if r.buffers != nil {
		_ = r.k.register(uint32(abi.IORING_UNREGISTER_BUFFERS), nil, 0)
	}
	if r.files != nil {
		_ = r.k.register(uint32(abi.IORING_UNREGISTER_FILES), nil, 0)
	}
}

// RegisterFile puts a file into the table, which saves looking it up for each
// request. The slot is what an Op with FixedFile names.
func (r *Ring) RegisterFile(fd int) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, ErrClosed
	}
	for i := range r.files {
		if f := &r.files[i]; !f.used {
			if errno := r.updateFile(i, int32(fd)); errno != 0 {
				return 0, &SetupError{Step: stepFiles, Errno: errno, Hint: fmt.Sprintf("file descriptor %d", fd)}
			}
			f.used = true
			return i, nil
		}
	}
	return 0, ErrNoSlot
}

// UnregisterFile empties a slot. It refuses with ErrBusy while a request uses it: a
// late write must never meet the slot's next file.
func (r *Ring) UnregisterFile(slot int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return ErrClosed
	case slot < 0 || slot >= len(r.files) || !r.files[slot].used:
		return fmt.Errorf("%w: file slot %d is empty", ErrInvalid, slot)
	case r.files[slot].users.Load() > 0:
		return ErrBusy
	}
	if errno := r.updateFile(slot, -1); errno != 0 {
		return &SetupError{Step: stepFiles, Errno: errno}
	}
	r.files[slot].used = false
	return nil
}

func (r *Ring) updateFile(slot int, fd int32) syscall.Errno {
	u := filesUpdate{offset: uint32(slot), fds: unsafe.Pointer(&fd)}
	return r.k.register(uint32(abi.IORING_REGISTER_FILES_UPDATE), unsafe.Pointer(&u), 1)
}

// RegisterBuffer registers memory while the ring is at work. Memory that the kernel
// cannot pin, such as a read-only mapping, is refused here, not at the first write.
// It needs one of Options.Spare for each GiB begun.
func (r *Ring) RegisterBuffer(mem []byte) error {
	if len(mem) == 0 {
		return fmt.Errorf("%w: empty buffer", ErrInvalid)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	pieces, places := cut(mem), []int(nil)
	for i := range r.buffers {
		if r.buffers[i].mem == nil && len(places) < len(pieces) {
			places = append(places, i)
		}
	}
	if len(places) < len(pieces) {
		return ErrNoSlot
	}
	for n, b := range pieces {
		if errno := r.updateBuffer(places[n], b); errno != 0 {
			for _, i := range places[:n] {
				_ = r.updateBuffer(i, nil)
			}
			return bufferError(errno, pieces)
		}
	}
	return nil
}

// UnregisterBuffer undoes RegisterBuffer of the same memory. It refuses with ErrBusy
// while a request uses it. After it the kernel holds none of its pages.
func (r *Ring) UnregisterBuffer(mem []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	var places []int
	for _, b := range cut(mem) {
		i := r.findBuffer(b)
		if i < 0 {
			return fmt.Errorf("%w: buffer is not registered", ErrInvalid)
		}
		if r.buffers[i].users.Load() > 0 {
			return ErrBusy
		}
		places = append(places, int(i))
	}
	for _, i := range places {
		if errno := r.updateBuffer(i, nil); errno != 0 {
			return &SetupError{Step: stepBuffers, Errno: errno}
		}
	}
	return nil
}

func (r *Ring) updateBuffer(place int, mem []byte) syscall.Errno {
	var vec unix.Iovec
	if mem != nil {
		vec.Base = &mem[0]
		vec.SetLen(len(mem))
	}
	u := rsrcUpdate{offset: uint32(place), data: unsafe.Pointer(&vec), nr: 1}
	errno := r.k.register(registerBuffersUpdate, unsafe.Pointer(&u), uint32(unsafe.Sizeof(u)))
	if errno == 0 {
		r.buffers[place].mem = mem
	}
	return errno
}

// findBuffer returns the place of the registered buffer that holds all of b, or -1.
// There are few of them; the caller holds mu.
func (r *Ring) findBuffer(b []byte) int32 {
	at := addressOf(b)
	for i := range r.buffers {
		mem := r.buffers[i].mem
		start := addressOf(mem)
		if at >= start && at-start+uint64(len(b)) <= uint64(len(mem)) {
			return int32(i)
		}
	}
	return -1
}

func cut(mem []byte) [][]byte {
	var pieces [][]byte
	for len(mem) > maxBuffer {
		pieces = append(pieces, mem[:maxBuffer:maxBuffer])
		mem = mem[maxBuffer:]
	}
	if len(mem) > 0 {
		pieces = append(pieces, mem)
	}
	return pieces
}
