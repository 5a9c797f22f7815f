package main

import (
	"fmt"
	"net"
	"slices"

	"github.com/march-id/march/allocator"
)

// maxDevRooms is how many ports lie between the rooms' gRPC and HTTP ports.
const maxDevRooms = 10

// What march dev runs where: the base port and so much.
const (
	portConsoleHTTP = 0
	portConsoleGRPC = 1
	portRoomGRPC    = 10 // and the room's number
	portRoomHTTP    = 20
	portEtcdClient  = 30
	portEtcdPeer    = 31
)

// devPorts are march dev's ports. All are opened before anything runs, so that
// one in use stops it early.
type devPorts struct {
	base      int
	listeners map[int]net.Listener // by offset from base, until taken
}

// check checks --base-port.
func (p *devPorts) check() error {
	if most := 65535 - portEtcdPeer; p.base < 1 || p.base > most {
		return allocator.Errorf(allocator.Invalid, "base-port: %d; allowed: 1 to %d", p.base, most)
	}
	return nil
}

func (p *devPorts) address(offset int) string {
	return fmt.Sprintf("127.0.0.1:%d", p.base+offset)
}

// open opens all ports. rooms is how many rooms there will be as far as is
// known: a layout on disk may have more or fewer, of which take tells.
func (p *devPorts) open(rooms int) error {
	p.listeners = make(map[int]net.Listener)
	open := func(what string, offset int) error {
		l, err := listen(what, p.address(offset), "base-port")
		if err == nil {
			p.listeners[offset] = l
		}
		return err
	}
	for _, fixed := range []struct {
		what   string
		offset int
	}{{"console HTTP", portConsoleHTTP}, {"console gRPC", portConsoleGRPC}, {"etcd client", portEtcdClient}, {"etcd peer", portEtcdPeer}} {
		if err := open(fixed.what, fixed.offset); err != nil {
			return err
		}
	}
	for i := range maxDevRooms {
		err := open(fmt.Sprintf("room %d gRPC", i), portRoomGRPC+i)
		if err == nil {
			err = open(fmt.Sprintf("room %d HTTP", i), portRoomHTTP+i)
		}
		if err != nil && i < rooms {
			return err
		}
	}
	p.free(portEtcdClient, portEtcdPeer) // etcd opens them itself
	return nil
}

// take returns a listener, nil where the port was in use. Who takes it closes
// it.
func (p *devPorts) take(offset int) net.Listener {
	l := p.listeners[offset]
	delete(p.listeners, offset)
	return l
}

// free closes listeners that nobody took.
func (p *devPorts) free(offsets ...int) {
	for offset, l := range p.listeners {
		if slices.Contains(offsets, offset) {
			_ = l.Close()
			delete(p.listeners, offset)
		}
	}
}

// freeAll closes every listener that nobody took.
func (p *devPorts) freeAll() {
	for _, l := range p.listeners {
		_ = l.Close()
	}
	clear(p.listeners)
}
