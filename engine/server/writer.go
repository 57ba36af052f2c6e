package server

import (
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/engine/wire"
)

// Sizes of what is written at a time, in bytes.
const (
	smallBuffer = 32 << 10 // answers are gathered in
	smallFrame  = 2 << 10  // a record frame up to this is copied there, a longer one sent from where it lies
	writeChunk  = 1 << 20  // one write, which has one deadline
)

// writer writes what its outbox has. One goroutine runs it.
type writer struct {
	c    *conn
	enc  wire.Encoder
	gave []byte      // buffer of answers, all but what lies behind pending belongs to bufs
	from int         // where in it the bytes begin that are not in bufs yet
	bufs net.Buffers // what the next write sends
	size int         // bytes of it and of gave behind from
	err  error       // of the connection: nothing more is written
	iov  net.Buffers // memory of bufs, which a write uses up

	try  func(fd uintptr) // writes now, as much of what is in left as the socket takes
	left []byte
}

// Writers are used again: a connection has one only while there is something to write.
var writers = sync.Pool{New: func() any {
	w := &writer{gave: make([]byte, 0, smallBuffer)}
	w.try = func(fd uintptr) {
		// An error is met again by the writer, which gets what is left.
		if n, err := unix.Write(int(fd), w.left); err == nil {
			w.left = w.left[n:]
		}
	}
	return w
}}

// send has a frame written that nothing but its message belongs to. It does not wait.
// Where the client waits for this one alone it is written here, as far as the socket
// takes it: that is sooner, and costs less, than to wake the writer.
func (c *conn) send(o outgoing) {
	if c.socket == nil || !c.out.lone(&o, 1) {
		c.out.put(o)
		return
	}
	w := writers.Get().(*writer)
	w.left = w.encode(&o)
	all := len(w.left)
	_ = c.socket.Control(w.try)
	c.s.count.sent.Add(int64(all - len(w.left)))
	c.out.wrote(slices.Clone(w.left))
	w.left = nil
	writers.Put(w)
}

// page writes a frame with what belongs to it, and returns when nobody looks at that any
// more. The caller may wait, so it does the writing where nobody else does.
func (c *conn) page(o outgoing) {
	if !c.out.lone(&o, c.out.requests) {
		sent := make(chan struct{}, 1)
		o.sent = sent
		c.out.put(o)
		<-sent
		return
	}
	w := writers.Get().(*writer)
	w.c = c
	w.write(&o)
	w.flush()
	if w.err != nil {
		c.abort(w.err)
	}
	w.reset()
	writers.Put(w)
	c.out.wrote(nil)
}

// run writes until the outbox ends. After an error it goes on taking what comes, so that
// everybody hears of what became of it.
func (c *conn) write() {
	defer close(c.written)
	var list []outgoing
	var failed error
	for {
		var ended bool
		if list, ended = c.out.take(list); ended {
			return
		}
		if len(list) == 0 {
			<-c.out.wake
			continue
		}
		if failed == nil {
			w := writers.Get().(*writer)
			w.c = c
			failed = w.writeAll(list)
			w.reset()
			writers.Put(w)
			if failed != nil {
				c.abort(failed)
			}
		}
		for i := range list {
			list[i].release()
		}
		clear(list)
	}
}

func (w *writer) writeAll(list []outgoing) error {
	for i := range list {
		w.write(&list[i])
	}
	w.flush()
	return w.err
}

func (w *writer) write(o *outgoing) {
	if o.pass != nil {
		w.pass(w.encode(o), o.pass)
		return
	}
	if o.given && w.give(o) {
		return
	}
	w.add(w.encode(o), true)
	for _, f := range o.frames {
		w.add(f, len(f) <= smallFrame)
	}
	if o.file != nil {
		w.flush()
		w.send(filePart{o.file, o.from, o.length})
	}
}

// encode is head and message of o, valid until the next call.
func (w *writer) encode(o *outgoing) []byte {
	if o.rest != nil {
		return o.rest
	}
	if o.msg != nil {
		return w.enc.Frame(o.key, o.flags, o.id, o.msg, o.raw)
	}
	return w.enc.ProduceReply(o.id, wire.ProduceReply{
		Range: o.place.Range, First: o.place.First, Last: o.place.Last, Repeats: o.place.Repeats,
	})
}

// add has b written behind what was added before. With copied, b may change afterwards.
func (w *writer) add(b []byte, copied bool) {
	if copied && len(b) <= cap(w.gave) {
		if len(w.gave)+len(b) > cap(w.gave) {
			w.flush()
		}
		w.gave = append(w.gave, b...)
		w.size += len(b)
	} else {
		w.seal()
		for len(b) > 0 {
			n := min(len(b), writeChunk-w.size)
			w.bufs = append(w.bufs, b[:n])
			w.size += n
			b = b[n:]
			if w.size == writeChunk {
				w.flush()
			}
		}
		if copied {
			w.flush() // it is the encoder's
		}
	}
	if w.size >= writeChunk {
		w.flush()
	}
}

// seal puts the answers gathered so far to what the next write sends.
func (w *writer) seal() {
	if w.from < len(w.gave) {
		w.bufs = append(w.bufs, w.gave[w.from:])
		w.from = len(w.gave)
	}
}

// flush writes what was added. The client has a deadline for taking it.
func (w *writer) flush() {
	w.seal()
	if w.err == nil && len(w.bufs) > 0 {
		w.err = w.c.nc.SetWriteDeadline(time.Now().Add(w.c.s.opts.WriteTimeout))
		if w.err == nil {
			w.iov = w.bufs
			var n int64
			n, w.err = w.iov.WriteTo(w.c.nc)
			w.c.s.count.sent.Add(n)
		}
	}
	clear(w.bufs)
	w.bufs, w.gave, w.from, w.size = w.bufs[:0], w.gave[:0], 0, 0
}

func (w *writer) reset() { w.c, w.err, w.iov = nil, nil, nil }
