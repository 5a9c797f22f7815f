package devsetup

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
	"github.com/march-id/march/cmd/march/internal/startup"
	"github.com/march-id/march/room"
)

// MaxRooms is how many ports lie between the rooms' gRPC and HTTP ports.
const MaxRooms = 10

// maxLayouts is how many layouts are read to find the rooms' ports: all that etcd
// keeps.
const maxLayouts = 1000

// The ports of march dev, as offsets from the base port.
const (
	ConsoleHTTP = 0
	ConsoleGRPC = 1
	RoomGRPC    = 10 // and the room's number
	RoomHTTP    = 20
	EtcdClient  = 30
	EtcdPeer    = 31
	Redis       = 40 // this and the next three: in the order of startup.DoorKinds
	Leaf        = 50
	TinyID      = 60
	CosID       = 70
	AdminGRPC   = 80
	AdminHTTP   = 90
	LastPort    = AdminHTTP + MaxRooms - 1

	// DefaultBase is the base port where none is given, and Next lies between it and those that are tried
	// after it.
	DefaultBase = 7000
	Next        = 100
)

// Ports are march dev's ports. All are opened before anything runs, so that
// march dev stops early if one of them is in use.
type Ports struct {
	Base      int
	Admin     bool                         // whether rooms have ports of their own for operators
	Doors     [len(startup.DoorKinds)]bool // which of them each room has
	listeners map[int]net.Listener         // by offset from base, until taken
}

// slotsOf returns the slot of each room, the number of its ports. It is below
// MaxRooms as long as no layout had more rooms. A room keeps its slot from one
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

// Slots returns the rooms of the current layout in the order of their ports, and
// each room's slot: the number of its ports.
func Slots(ctx context.Context, l *ledger.Ledger, stored record.Layout,
	dir string) ([]allocator.Room, map[allocator.Room]int, error) {
	records, _, err := admin.New(l, admin.DefaultConfig()).Layouts(ctx, 0, maxLayouts)
	if err != nil {
		return nil, nil, err
	}
	layouts := make([]allocator.Layout, 0, len(records)+1)
	for _, r := range slices.Backward(records) {
		layouts = append(layouts, r.Layout)
	}
	slots, names := slotsOf(append(layouts, stored.Layout)), stored.Layout.Rooms()
	slices.SortFunc(names, func(a, b allocator.Room) int { return slots[a] - slots[b] })
	if last := slots[names[len(names)-1]]; last >= MaxRooms {
		return nil, nil, allocator.Errorf(allocator.Refused,
			"the layout in %s needs ports for more than %d rooms; march dev runs up to %d", dir, len(names), MaxRooms)
	}
	return names, slots, nil
}

// Check checks --base-port.
func (p *Ports) Check() error {
	last := EtcdPeer
	for k, has := range p.Doors {
		if has {
			last = DoorPort(k) + MaxRooms - 1
		}
	}
	if p.Admin {
		last = LastPort
	}
	if most := 65535 - last; p.Base < 1 || p.Base > most {
		return allocator.Errorf(allocator.Invalid, "base-port: %d; allowed: 1 to %d", p.Base, most)
	}
	return nil
}

// Address is the address of a port.
func (p *Ports) Address(offset int) string {
	return fmt.Sprintf("127.0.0.1:%d", p.Base+offset)
}

// Open opens all ports. rooms is the expected number of rooms. A layout on disk may
// have another number; take then reports ports in use.
func (p *Ports) Open(rooms int) error {
	p.listeners = make(map[int]net.Listener)
	open := func(what string, offset int) error {
		l, err := startup.Listen(what, p.Address(offset), "base-port")
		if err == nil {
			p.listeners[offset] = l
		}
		return err
	}
	for _, fixed := range []struct {
		what   string
		offset int
	}{{"console HTTP", ConsoleHTTP}, {"console gRPC", ConsoleGRPC}, {"etcd client", EtcdClient},
		{"etcd peer", EtcdPeer}} {
		if err := open(fixed.what, fixed.offset); err != nil {
			return err
		}
	}
	for i := range MaxRooms {
		err := open(fmt.Sprintf("room %d gRPC", i), RoomGRPC+i)
		if err == nil {
			err = open(fmt.Sprintf("room %d HTTP", i), RoomHTTP+i)
		}
		if err == nil && p.Admin {
			err = open(fmt.Sprintf("room %d admin gRPC", i), AdminGRPC+i)
		}
		if err == nil && p.Admin {
			err = open(fmt.Sprintf("room %d admin HTTP", i), AdminHTTP+i)
		}
		for k, kind := range startup.DoorKinds {
			if err == nil && p.Doors[k] {
				err = open(fmt.Sprintf("room %d %s", i, kind.System), DoorPort(k)+i)
			}
		}
		if err != nil && i < rooms {
			return err
		}
	}
	p.free(EtcdClient, EtcdPeer) // etcd opens them itself
	return nil
}

// OpenFree opens the ports of the first base port at which all are free: Base, or Next more, and so on.
// Base is that port then.
func (p *Ports) OpenFree() error {
	var taken error
	for p.Check() == nil {
		err := p.Open(MaxRooms)
		if allocator.KindOf(err) != allocator.Refused {
			return err
		}
		p.FreeAll()
		p.Base, taken = p.Base+Next, err
	}
	return taken
}

// Take returns a listener, and nil if the port was in use. The caller closes it.
func (p *Ports) Take(offset int) net.Listener {
	l := p.listeners[offset]
	delete(p.listeners, offset)
	return l
}

// free closes listeners that were not taken.
func (p *Ports) free(offsets ...int) {
	for offset, l := range p.listeners {
		if slices.Contains(offsets, offset) {
			_ = l.Close()
			delete(p.listeners, offset)
		}
	}
}

// FreeAll closes every listener that was not taken.
func (p *Ports) FreeAll() {
	for _, l := range p.listeners {
		_ = l.Close()
	}
	clear(p.listeners)
}

// TakeDoors gives a room its doors' listeners.
func (p *Ports) TakeDoors(slot int, doors *room.Doors) error {
	for k, kind := range startup.DoorKinds {
		if !p.Doors[k] {
			continue
		}
		l := p.Take(DoorPort(k) + slot)
		if l == nil {
			return allocator.Errorf(allocator.Refused, "the %s port %s is in use; choose others with --base-port",
				kind.System, p.Address(DoorPort(k)+slot))
		}
		*kind.Listener(doors) = l
	}
	return nil
}

// DoorPort is the port of the first room's door of a kind, an index in startup.DoorKinds.
func DoorPort(kind int) int { return Redis + kind*MaxRooms }

// Lines writes the addresses of all servers, for a table of them.
func (p *Ports) Lines(w io.Writer, scheme string, rooms []allocator.Room, slots map[allocator.Room]int,
	layout allocator.Layout) {
	_, _ = fmt.Fprintf(w, "  console\tgRPC %s\tHTTP %s\tits page: %s://%s/\n", p.Address(ConsoleGRPC),
		p.Address(ConsoleHTTP), scheme, p.Address(ConsoleHTTP))
	for _, name := range rooms {
		slot := slots[name]
		_, _ = fmt.Fprintf(w, "  room %s\tgRPC %s\tHTTP %s\tissues IDs with residue in %v mod %d\n", name,
			p.Address(RoomGRPC+slot), p.Address(RoomHTTP+slot), layout.Ranges[name], layout.Boundary)
	}
	for _, name := range rooms {
		if slot := slots[name]; p.Admin {
			_, _ = fmt.Fprintf(w, "  admin\tgRPC %s\tHTTP %s\troom %s, for operators\n", p.Address(AdminGRPC+slot),
				p.Address(AdminHTTP+slot), name)
		}
	}
	for k, kind := range startup.DoorKinds {
		for _, name := range rooms {
			if p.Doors[k] {
				_, _ = fmt.Fprintf(w, "  %s\t%s\troom %s\n", kind.Flag, p.Address(DoorPort(k)+slots[name]), name)
			}
		}
	}
	_, _ = fmt.Fprintf(w, "  etcd\tclient %s\tpeer %s\n", p.Address(EtcdClient), p.Address(EtcdPeer))
}
