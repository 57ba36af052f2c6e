package server

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/ringfence/ringfence/engine/shm"
)

// Origin is where a client is, as far as it cannot choose that itself: an address, or where
// one client has many of them, the network of that; or a user of this host. The zero value
// is somewhere on this host.
type Origin struct {
	net  netip.Addr
	user bool // uid is one
	uid  uint32
}

// OriginOf is that of an address.
func OriginOf(a net.Addr) Origin {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return Origin{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return Origin{net: p.Addr()}
		}
	}
	return Origin{net: ip}
}

// originOf is who is on the other side of a connection, or of the socket that a peer is
// known from.
func originOf(nc net.Conn, peer *shm.Peer) Origin {
	u, ok := nc.(*net.UnixConn)
	if !ok {
		return OriginOf(nc.RemoteAddr())
	}
	if peer == nil {
		p, err := shm.PeerOf(u)
		if err != nil {
			return Origin{}
		}
		peer = &p
	}
	return Origin{user: true, uid: peer.UID}
}

func (o Origin) known() bool { return o.user || o.net.IsValid() }

func (o Origin) String() string {
	switch {
	case o.user:
		return fmt.Sprintf("user %d of this host", o.uid)
	case o.net.IsValid():
		return o.net.String()
	}
	return "this host"
}
