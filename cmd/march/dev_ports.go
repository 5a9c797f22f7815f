//go:build !nodev

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/room"
)

// mostDevRooms is how many ports lie between the rooms' gRPC and HTTP ports.
const mostDevRooms = 10

// mostDevLayouts is how many layouts are read to find the rooms' ports: all that etcd
// keeps.
const mostDevLayouts = 1000

// The ports of march dev, as offsets from the base port.
const (
	portConsoleHTTP = 0
	portConsoleGRPC = 1
	portRoomGRPC    = 10 // and the room's number
	portRoomHTTP    = 20
	portEtcdClient  = 30
	portEtcdPeer    = 31
	portRedis       = 40 // and, ten apart, of the other doorKinds
	portAdminGRPC   = 80
	portAdminHTTP   = 90
	portLast        = portAdminHTTP + mostDevRooms - 1

	// DefaultBase is the base port where none is given, and Next lies between it and those that are tried
	// after it.
	devBasePort   = 7000
	devPortsApart = 100
)

// devPorts are march dev's ports. All are opened before anything runs, so that
// march dev stops early if one of them is in use.
type devPorts struct {
	Base      int
	Admin     bool                 // whether rooms have ports of their own for operators
	Doors     [len(doorKinds)]bool // which of them each room has
	listeners map[int]net.Listener // by offset from base, until taken
}

// slotsOf returns the slot of each room, the number of its ports. It is below
// mostDevRooms as long as no layout had more rooms. A room keeps its slot from one
// layout to the next; a new room gets the lowest free slot. layouts are all layouts
// so far, the oldest first.
func slotsOf(layouts []allocator.Layout) map[allocator.Room]int {
	slots := make(map[allocator.Room]int)
	for _, l := range layouts {
		taken := make(map[int]bool)
		for room, slot := range slots {
			if _, stays := l.Ranges[room]; stays {
				taken[slot] = true
			} else {
				delete(slots, room)
			}
		}
		for _, room := range l.Rooms() {
			if _, has := slots[room]; has {
				continue
			}
			slot := 0
			for taken[slot] {
				slot++
			}
			slots[room], taken[slot] = slot, true
		}
	}
	return slots
}

// devSlots returns the rooms of the current layout in the order of their ports, and
// each room's slot: the number of its ports.
func devSlots(ctx context.Context, l *ledger.Ledger, stored record.Layout,
	dir string) ([]allocator.Room, map[allocator.Room]int, error) {
	records, _, err := admin.New(l, admin.DefaultConfig()).Layouts(ctx, 0, mostDevLayouts)
	if err != nil {
		return nil, nil, err
	}
	layouts := make([]allocator.Layout, 0, len(records)+1)
	for _, r := range slices.Backward(records) {
		layouts = append(layouts, r.Layout)
	}
	slots, names := slotsOf(append(layouts, stored.Layout)), stored.Layout.Rooms()
	slices.SortFunc(names, func(a, b allocator.Room) int { return slots[a] - slots[b] })
	if last := slots[names[len(names)-1]]; last >= mostDevRooms {
		return nil, nil, allocator.Errorf(allocator.Refused,
			"the layout in %s needs ports for more than %d rooms; march dev runs up to %d", dir, len(names),
			mostDevRooms)
	}
	return names, slots, nil
}

// Check checks --base-port.
func (p *devPorts) Check() error {
	last := portEtcdPeer
	for k, has := range p.Doors {
		if has {
			last = doorPort(k) + mostDevRooms - 1
		}
	}
	if p.Admin {
		last = portLast
	}
	if most := 65535 - last; p.Base < 1 || p.Base > most {
		return allocator.Errorf(allocator.Invalid, "base-port: %d; allowed: 1 to %d", p.Base, most)
	}
	return nil
}

func (p *devPorts) Address(offset int) string {
	return fmt.Sprintf("127.0.0.1:%d", p.Base+offset)
}

// Open opens all ports. rooms is the expected number of rooms. A layout on disk may
// have another number; take then reports ports in use.
func (p *devPorts) Open(rooms int) error {
	p.listeners = make(map[int]net.Listener)
	open := func(what string, offset int) error {
		l, err := listen(what, p.Address(offset), "base-port")
		if err == nil {
			p.listeners[offset] = l
		}
		return err
	}
	for _, fixed := range []struct {
		what   string
		offset int
	}{{"console HTTP", portConsoleHTTP}, {"console gRPC", portConsoleGRPC}, {"etcd client", portEtcdClient},
		{"etcd peer", portEtcdPeer}} {
		if err := open(fixed.what, fixed.offset); err != nil {
			return err
		}
	}
	for i := range mostDevRooms {
		err := open(fmt.Sprintf("room %d gRPC", i), portRoomGRPC+i)
		if err == nil {
			err = open(fmt.Sprintf("room %d HTTP", i), portRoomHTTP+i)
		}
		if err == nil && p.Admin {
			err = open(fmt.Sprintf("room %d admin gRPC", i), portAdminGRPC+i)
		}
		if err == nil && p.Admin {
			err = open(fmt.Sprintf("room %d admin HTTP", i), portAdminHTTP+i)
		}
		for k, kind := range doorKinds {
			if err == nil && p.Doors[k] {
				err = open(fmt.Sprintf("room %d %s", i, kind.System), doorPort(k)+i)
			}
		}
		if err != nil && i < rooms {
			return err
		}
	}
	p.free(portEtcdClient, portEtcdPeer) // etcd opens them itself
	return nil
}

// OpenFree opens the ports of the first base port at which all are free: Base, or Next more, and so on.
// Base is that port then.
func (p *devPorts) OpenFree() error {
	var taken error
	for p.Check() == nil {
		err := p.Open(mostDevRooms)
		if allocator.KindOf(err) != allocator.Refused {
			return err
		}
		p.FreeAll()
		p.Base, taken = p.Base+devPortsApart, err
	}
	return taken
}

// Take returns a listener, and nil if the port was in use. The caller closes it.
func (p *devPorts) Take(offset int) net.Listener {
	l := p.listeners[offset]
	delete(p.listeners, offset)
	return l
}

// free closes listeners that were not taken.
func (p *devPorts) free(offsets ...int) {
	for offset, l := range p.listeners {
		if slices.Contains(offsets, offset) {
			_ = l.Close()
			delete(p.listeners, offset)
		}
	}
}

// FreeAll closes every listener that was not taken.
func (p *devPorts) FreeAll() {
	for _, l := range p.listeners {
		_ = l.Close()
	}
	clear(p.listeners)
}

// TakeDoors gives a room its doors' listeners.
func (p *devPorts) TakeDoors(slot int, doors *room.Doors) error {
	for k, kind := range doorKinds {
		if !p.Doors[k] {
			continue
		}
		l := p.Take(doorPort(k) + slot)
		if l == nil {
			return allocator.Errorf(allocator.Refused, "the %s port %s is in use; choose others with --base-port",
				kind.System, p.Address(doorPort(k)+slot))
		}
		*kind.Listener(doors) = l
	}
	return nil
}

// doorPort is the port of the first room's door of a kind, an index in doorKinds.
func doorPort(kind int) int { return portRedis + kind*mostDevRooms }

// Lines writes the addresses of all servers, for a table of them.
func (p *devPorts) Lines(w io.Writer, scheme string, rooms []allocator.Room, slots map[allocator.Room]int,
	layout allocator.Layout) {
	_, _ = fmt.Fprintf(w, "  console\tgRPC %s\tHTTP %s\tits page: %s://%s/\n", p.Address(portConsoleGRPC),
		p.Address(portConsoleHTTP), scheme, p.Address(portConsoleHTTP))
	for _, name := range rooms {
		slot := slots[name]
		_, _ = fmt.Fprintf(w, "  room %s\tgRPC %s\tHTTP %s\tissues IDs with residue in %v mod %d\n", name,
			p.Address(portRoomGRPC+slot), p.Address(portRoomHTTP+slot), layout.Ranges[name], layout.Boundary)
	}
	for _, name := range rooms {
		if slot := slots[name]; p.Admin {
			_, _ = fmt.Fprintf(w, "  admin\tgRPC %s\tHTTP %s\troom %s, for operators\n", p.Address(portAdminGRPC+slot),
				p.Address(portAdminHTTP+slot), name)
		}
	}
	for k, kind := range doorKinds {
		for _, name := range rooms {
			if p.Doors[k] {
				_, _ = fmt.Fprintf(w, "  %s\t%s\troom %s\n", kind.Flag, p.Address(doorPort(k)+slots[name]), name)
			}
		}
	}
	_, _ = fmt.Fprintf(w, "  etcd\tclient %s\tpeer %s\n", p.Address(portEtcdClient), p.Address(portEtcdPeer))
}
