package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// Socks accepts connections for several links, on a free port of the loopback, as a SOCKS5
// proxy (RFC 1928, CONNECT to an IPv4 address, no authentication). route returns the link to
// the address that the client names, nil for an unknown one.
//
// It tells the links between etcd's members apart: all members dial the same URL of a member,
// but each of them through a proxy of its own.
func Socks(route func(netip.AddrPort) *Link) (*Listener, error) {
	return serve(func(conn net.Conn) {
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		link, err := handshake(conn, route)
		if err != nil {
			reset(conn)
			return
		}
		_ = conn.SetDeadline(time.Time{})
		link.Carry(conn)
	})
}

const (
	socksVersion = 5
	socksConnect = 1
	socksIPv4    = 1
)

var errSocks = errors.New("not what a SOCKS5 client says")

func handshake(conn net.Conn, route func(netip.AddrPort) *Link) (*Link, error) {
	var b [255]byte
	if _, err := io.ReadFull(conn, b[:2]); err != nil {
		return nil, err
	}
	if b[0] != socksVersion {
		return nil, errSocks
	}
	if _, err := io.ReadFull(conn, b[:b[1]]); err != nil { // the ways to authenticate
		return nil, err
	}
	if _, err := conn.Write([]byte{socksVersion, 0}); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, b[:10]); err != nil {
		return nil, err
	}
	if b[0] != socksVersion || b[1] != socksConnect || b[3] != socksIPv4 {
		return nil, errSocks
	}
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[8:]))
	link := route(address)
	if link == nil {
		return nil, fmt.Errorf("there is no link to %v", address)
	}
	_, err := conn.Write([]byte{socksVersion, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	return link, err
}
