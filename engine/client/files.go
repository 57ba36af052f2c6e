package client

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/ringfence/ringfence/engine/wire"
)

// A server that shares memory may answer a page with the descriptor of a closed segment's
// file and where in it the frames lie (wire.Page). The consumer reads them from there, once
// and at once, to memory of its own, and closes the file: from there on the page is one
// like any other, whose frames are verified as they are handed out. So no more descriptors
// are open than consumers have pages that came and were not looked at, one each.
//
// The file is read and not mapped. What is mapped may change after it was verified, and the
// records of a page are the caller's to look at; and an access to what cannot be read, or
// was cut off, ends the process and is no error. A copy of a page to memory that was used
// for the one before costs little beside its verification.
//
// What cannot be read, or is not what the page says, is asked for again, verified: the
// server knows what is wrong with the file.

// maxFiles bounds the descriptors that came over a connection and are not those of pages yet.
const maxFiles = 16

var (
	errNoDescriptor = errors.New("client: no descriptor came through")
	errFileCut      = errors.New("client: the file is not what its page says")
)

// held are the files of pages that came and were not read yet.
type held struct {
	mu     sync.Mutex // innermost
	files  map[*os.File]struct{}
	closed bool
}

// hold keeps a file until release, or until the client is closed.
func (h *held) hold(f *os.File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		_ = f.Close()
		return
	}
	if h.files == nil {
		h.files = map[*os.File]struct{}{}
	}
	h.files[f] = struct{}{}
}

// release closes a file, whoever else does.
func (h *held) release(f *os.File) {
	h.mu.Lock()
	delete(h.files, f)
	h.mu.Unlock()
	_ = f.Close() // it was only read
}

// close closes those that are left, and those that come.
func (h *held) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for f := range h.files {
		_ = f.Close()
	}
	h.files = nil
}

// readPage reads the frames of a page that lies in a file, appended to b, and closes it.
func (c *Client) readPage(b []byte, f *os.File, m *wire.Page, limit uint32) ([]byte, error) {
	if f == nil {
		return b, errNoDescriptor
	}
	defer c.held.release(f)
	if m.Salt == 0 || m.FileBytes > uint64(limit) {
		return b, fmt.Errorf("%w: a page of range %d: %d bytes of a file, under salt %d", ErrProtocol, m.Range, m.FileBytes, m.Salt)
	}
	st, err := f.Stat()
	if err != nil {
		return b, err
	}
	if !st.Mode().IsRegular() { // reading others may take for ever
		return b, fmt.Errorf("%w: a page of range %d: its file is none", ErrProtocol, m.Range)
	}
	// Memory is taken for what is there, not for what was announced.
	if size := uint64(st.Size()); m.FileFrom > size || m.FileBytes > size-m.FileFrom {
		return b, errFileCut
	}
	n := int(m.FileBytes)
	if cap(b)-len(b) < n {
		b = append(make([]byte, 0, len(b)+n), b...)
	}
	got, err := f.ReadAt(b[len(b):len(b)+n], int64(m.FileFrom))
	if got < n {
		return b, errors.Join(errFileCut, err)
	}
	return b[:len(b)+n], nil
}
