package server

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/ringfence/ringfence/engine/wire"
)

// secured is the connection to speak on: the socket itself, or TLS over it once both sides
// have shaken hands.
func (c *conn) secured(ctx context.Context) (net.Conn, error) {
	if c.s.plain(c.raw) {
		return c.raw, nil
	}
	defer c.s.arrivals.begin(c)()
	c.shaking = &shaking{Conn: c.raw, c: c}
	t := tls.Server(c.shaking, c.s.opts.TLS)
	return t, t.HandshakeContext(ctx)
}

// shaking is the socket under TLS. Before its client is logged in TLS keeps of what it sends
// up to 64 KiB, or with certificates 256, and that twice: more than a little of it is taken
// from the server's heap, or thousands who only begin would have gigabytes. Of the reader.
type shaking struct {
	net.Conn
	c     *conn
	seen  int64 // bytes that were read
	taken int64 // of the server's heap
}

// handshake is what everybody may send to shake hands and log in.
const handshake = 4 << 10

func (s *shaking) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if s.c.who.Load() != nil {
		s.giveBack()
		return n, err
	}
	s.seen += int64(n)
	if more := 2*(s.seen-handshake) - s.taken; more > 0 {
		if !s.c.s.heap.try(more) {
			s.c.s.arrivals.cutOff(more)
			return 0, refusal(wire.CodeOverloaded, "no memory is left for more than %d bytes of a TLS handshake", handshake)
		}
		s.taken += more
		s.c.arriving.Store(s.taken)
	}
	return n, err
}

func (s *shaking) giveBack() {
	s.c.s.heap.give(s.taken)
	s.taken = 0
}
