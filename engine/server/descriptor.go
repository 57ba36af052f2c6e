package server

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// A client that shares memory may have the descriptor of a closed segment's file in place of
// a page's bytes. It is opened for that page, for reading, and asked for page by page, so
// what a page takes of permissions and of a group's generation is asked each time. What a
// client has it keeps: the file holds one segment of the topic that it may read, and nothing
// else for as long as it exists (segfile.Reader.Give).

// mostAloft is how many descriptors one client may have on their way and not taken: the
// kernel has a limit for those of all processes of the server's user together.
const mostAloft = 8

// pass writes a frame with a descriptor.
func (w *writer) pass(b []byte, f *os.File) {
	w.flush()
	if w.err == nil {
		w.err = w.c.nc.SetWriteDeadline(time.Now().Add(w.c.s.opts.WriteTimeout))
	}
	if w.err == nil {
		w.err = shm.Send(w.c.raw.(*net.UnixConn), b, f)
		w.c.s.count.sent.Add(int64(len(b)))
	}
}

// give writes a page with a descriptor of the file that its frames lie in, and without
// them. Where there are too many descriptors it writes nothing and says so.
func (w *writer) give(o *outgoing) bool {
	w.flush()
	if w.err != nil || !w.taken() {
		return false
	}
	page, raw := o.msg.(*wire.Page), o.raw
	page.FileFrom, page.FileBytes, o.raw = uint64(o.from), uint64(o.length), 0
	w.pass(w.encode(o), o.file)
	if errors.Is(w.err, syscall.ETOOMANYREFS) { // of which the kernel says before it takes anything
		w.err = nil
		page.FileFrom, page.FileBytes, o.raw = 0, 0, raw
		return false
	}
	w.c.aloft++
	w.c.s.sharers.gave(w.c.peer.UID, o.length)
	return true
}

// taken says whether another descriptor may go: the client has taken all that was sent
// lately, or few of those before this one can be on their way.
func (w *writer) taken() bool {
	if w.c.aloft < mostAloft {
		return true
	}
	left := 1
	err := w.c.socket.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil {
			left = n
		}
	})
	if err != nil || left > 0 {
		return false
	}
	w.c.aloft = 0
	return true
}
