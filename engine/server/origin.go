package server

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/ringfence/ringfence/engine/shm"
)

// origin is who has connections: a network, or a user of this host.
type origin struct {
	net  netip.Addr
	user bool // uid is one
	uid  uint32
}

// originOf is who is on the other side of a connection, and not known where that is neither
// of the two.
func originOf(nc net.Conn, peer *shm.Peer) origin {
	if u, ok := nc.(*net.UnixConn); ok {
		if peer == nil {
			p, err := shm.PeerOf(u)
			if err != nil {
				return origin{}
			}
			peer = &p
		}
		return origin{user: true, uid: peer.UID}
	}
	return origin{net: NetworkOf(nc.RemoteAddr())}
}

func (o origin) known() bool { return o.user || o.net.IsValid() }

func (o origin) String() string {
	if o.user {
		return fmt.Sprintf("user %d of this host", o.uid)
	}
	return o.net.String()
}

// NetworkOf is where a client is, as far as it cannot choose that itself: its address, or
// where one has many of them, the network of that. It is not valid for clients of a Unix
// socket.
func NetworkOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}
