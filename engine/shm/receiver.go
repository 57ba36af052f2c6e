package shm

import (
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Receiver reads from a Unix socket and keeps the descriptors that come along, in their
// order, until File hands them over. Who reads past it otherwise loses them. One goroutine
// reads.
type Receiver struct {
	*net.UnixConn
	Most int // descriptors that are kept, the last ones; 0 means 1

	oob [24]byte // of the reader: one descriptor

	mu     sync.Mutex // guards the rest; innermost
	files  []*os.File // nil: one that came and could not be taken
	over   bool       // no more are kept
	closed bool
}

// Read reads what is there. No more than what one call of Send wrote a descriptor beside
// comes at a time, but what was written before may come with it.
func (r *Receiver) Read(b []byte) (int, error) {
	if r.plain() {
		return r.UnixConn.Read(b)
	}
	n, got, flags, _, err := r.ReadMsgUnix(b, r.oob[:])
	if err != nil {
		return max(n, 0), err // a reader counts nothing then, and this call -1
	}
	if msgs, e := unix.ParseSocketControlMessage(r.oob[:got]); e == nil {
		for i := range msgs {
			fds, _ := unix.ParseUnixRights(&msgs[i])
			for _, fd := range fds {
				r.keep(os.NewFile(uintptr(fd), "received"))
			}
		}
	}
	if flags&unix.MSG_CTRUNC != 0 {
		r.keep(nil) // this process has no descriptor left for it
	}
	return n, err
}

func (r *Receiver) plain() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}

// keep is given a descriptor. Where there are too many the first goes.
func (r *Receiver) keep(f *os.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.over {
		if f != nil {
			_ = f.Close()
		}
		return
	}
	r.files = append(r.files, f)
	if len(r.files) > max(r.Most, 1) {
		r.next()
	}
}

// next takes the first one and closes it. mu is held.
func (r *Receiver) next() {
	if f := r.files[0]; f != nil {
		_ = f.Close()
	}
	r.files = r.files[1:]
}

// File hands over what came first; nil if nothing did, or could not be taken.
func (r *Receiver) File() *os.File {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.files) == 0 {
		return nil
	}
	f := r.files[0]
	r.files = r.files[1:]
	return f
}

// Over says that no more descriptors are to be kept. It is called between two reads.
func (r *Receiver) Over() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.clear()
}

// clear closes what was not taken. mu is held.
func (r *Receiver) clear() {
	for len(r.files) > 0 {
		r.next()
	}
}

// Close closes the connection, and what came over it and was not taken.
func (r *Receiver) Close() error {
	r.mu.Lock()
	r.closed = true
	r.clear()
	r.mu.Unlock()
	return r.UnixConn.Close()
}
