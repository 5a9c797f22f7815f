package main

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/cmd/march/internal/secure"
	"github.com/march-id/march/cmd/march/internal/startup"
	"github.com/march-id/march/room"
	"github.com/march-id/march/room/tinyid"
)

// maxDevRooms is how many ports lie between the rooms' gRPC and HTTP ports.
const maxDevRooms = 10

// maxDevLayouts is how many layouts are read to find the rooms' ports: all that etcd
// keeps.
const maxDevLayouts = 1000

// The ports of march dev, as offsets from the base port.
const (
	portConsoleHTTP = 0
	portConsoleGRPC = 1
	portRoomGRPC    = 10 // and the room's number
	portRoomHTTP    = 20
	portEtcdClient  = 30
	portEtcdPeer    = 31
	portRedis       = 40 // and the room's number
	portLeaf        = 50
	portTinyID      = 60
	portCosID       = 70
	portAdminGRPC   = 80
	portAdminHTTP   = 90
	lastDevPort     = portAdminHTTP + maxDevRooms - 1
)

// devPorts are march dev's ports. All are opened before anything runs, so that
// march dev stops early if one of them is in use.
type devPorts struct {
	base      int
	admin     bool                 // whether rooms have ports of their own for operators
	doors     [len(doorKinds)]bool // which of them each room has
	listeners map[int]net.Listener // by offset from base, until taken
}

// slotsOf returns the slot of each room, the number of its ports. It is below
// maxDevRooms as long as no layout had more rooms. A room keeps its slot from one
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

// slots returns the rooms of the current layout in the order of their ports, and
// each room's slot: the number of its ports.
func (d *dev) slots(ctx context.Context, l *ledger.Ledger, stored record.Layout) ([]allocator.Room, map[allocator.Room]int, error) {
	records, _, err := admin.New(l, admin.DefaultConfig()).Layouts(ctx, 0, maxDevLayouts)
	if err != nil {
		return nil, nil, err
	}
	layouts := make([]allocator.Layout, 0, len(records)+1)
	for _, r := range slices.Backward(records) {
		layouts = append(layouts, r.Layout)
	}
	slots, names := slotsOf(append(layouts, stored.Layout)), stored.Layout.Rooms()
	slices.SortFunc(names, func(a, b allocator.Room) int { return slots[a] - slots[b] })
	if last := slots[names[len(names)-1]]; last >= maxDevRooms {
		return nil, nil, allocator.Errorf(allocator.Refused, "the layout in %s needs ports for more than %d rooms; march dev runs up to %d", d.data.dir, len(names), maxDevRooms)
	}
	return names, slots, nil
}

// check checks --base-port.
func (p *devPorts) check() error {
	last := portEtcdPeer
	for k, kind := range doorKinds {
		if p.doors[k] {
			last = kind.offset + maxDevRooms - 1
		}
	}
	if p.admin {
		last = lastDevPort
	}
	if most := 65535 - last; p.base < 1 || p.base > most {
		return allocator.Errorf(allocator.Invalid, "base-port: %d; allowed: 1 to %d", p.base, most)
	}
	return nil
}

func (p *devPorts) address(offset int) string {
	return fmt.Sprintf("127.0.0.1:%d", p.base+offset)
}

// open opens all ports. rooms is the expected number of rooms. A layout on disk may
// have another number; take then reports ports in use.
func (p *devPorts) open(rooms int) error {
	p.listeners = make(map[int]net.Listener)
	open := func(what string, offset int) error {
		l, err := startup.Listen(what, p.address(offset), "base-port")
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
		if err == nil && p.admin {
			err = open(fmt.Sprintf("room %d admin gRPC", i), portAdminGRPC+i)
		}
		if err == nil && p.admin {
			err = open(fmt.Sprintf("room %d admin HTTP", i), portAdminHTTP+i)
		}
		for k, kind := range doorKinds {
			if err == nil && p.doors[k] {
				err = open(fmt.Sprintf("room %d %s", i, kind.system), kind.offset+i)
			}
		}
		if err != nil && i < rooms {
			return err
		}
	}
	p.free(portEtcdClient, portEtcdPeer) // etcd opens them itself
	return nil
}

// take returns a listener, and nil if the port was in use. The caller closes it.
func (p *devPorts) take(offset int) net.Listener {
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

// freeAll closes every listener that was not taken.
func (p *devPorts) freeAll() {
	for _, l := range p.listeners {
		_ = l.Close()
	}
	clear(p.listeners)
}

// doorKind is a door for other systems' clients.
type doorKind struct {
	flag, system string
	offset       int // of march dev's ports, to which the room's number is added
	listener     func(*room.Doors) *net.Listener
}

// doorKinds are in the order of their ports.
var doorKinds = [...]doorKind{
	{"redis", "Redis", portRedis, func(d *room.Doors) *net.Listener { return &d.Redis }},
	{"leaf", "Leaf", portLeaf, func(d *room.Doors) *net.Listener { return &d.Leaf }},
	{"tinyid", "TinyId", portTinyID, func(d *room.Doors) *net.Listener { return &d.TinyID }},
	{"cosid", "CosId", portCosID, func(d *room.Doors) *net.Listener { return &d.CosID }},
}

// takeDoors gives a room its doors' listeners.
func (p *devPorts) takeDoors(slot int, doors *room.Doors) error {
	for k, kind := range doorKinds {
		if !p.doors[k] {
			continue
		}
		l := p.take(kind.offset + slot)
		if l == nil {
			return allocator.Errorf(allocator.Refused, "the %s port %s is in use; choose others with --base-port", kind.system, p.address(kind.offset+slot))
		}
		*kind.listener(doors) = l
	}
	return nil
}

// doorFlags say where a room answers other systems' clients.
type doorFlags struct {
	addresses [len(doorKinds)]string
	tokens    string
	snowflake string
	machines  string
	tls       bool
}

func (f *doorFlags) add(flags *pflag.FlagSet) {
	for k, kind := range doorKinds {
		flags.StringVar(&f.addresses[k], kind.flag, "", "where to answer clients of "+kind.system+", HOST:PORT; empty for nowhere")
	}
	flags.BoolVar(&f.tls, "tls-doors", true, "with --tls-cert: answer clients of other systems over TLS, too")
	f.addSnowflake(flags)
	f.addMachines(flags)
	flags.StringVar(&f.tokens, "tinyid-tokens", "", "file of TinyId's tokens: lines of a token and a bizType, * for all; read again each minute")
}

func (f *doorFlags) addSnowflake(flags *pflag.FlagSet) {
	flags.StringVar(&f.snowflake, "leaf-snowflake", "", "the tag of time-ordered IDs for Leaf's /api/snowflake/get")
}

func (f *doorFlags) addMachines(flags *pflag.FlagSet) {
	flags.StringVar(&f.machines, "cosid-machines", "", "the layout's reserved range for machine IDs of CosId's clients; empty for none")
}

func (f *doorFlags) machinesRange() (allocator.Room, error) {
	if f.machines == "" {
		return "", nil
	}
	name, err := allocator.ParseRoom(f.machines)
	if err != nil {
		return "", allocator.Errorf(allocator.Invalid, "cosid-machines: %w", err)
	}
	return name, nil
}

func (f *doorFlags) snowflakeTag() (allocator.Tag, error) {
	if f.snowflake == "" {
		return "", nil
	}
	tag, err := allocator.ParseTag(f.snowflake)
	if err != nil {
		return "", allocator.Errorf(allocator.Invalid, "leaf-snowflake: %w", err)
	}
	return tag, nil
}

// settings checks the flags, and reads what they name. policy says that the room has one. Its errors are Invalid.
func (f *doorFlags) settings(doors *room.Doors, policy bool, log hclog.Logger) (err error) {
	if doors.LeafSnowflake, err = f.snowflakeTag(); err != nil {
		return err
	}
	if doors.CosIDMachines, err = f.machinesRange(); err != nil {
		return err
	}
	if f.tokens != "" {
		doors.TinyIDTokens, err = tinyid.OpenTokens(f.tokens, log)
		return err
	}
	for k, kind := range doorKinds {
		if kind.flag == "tinyid" && f.addresses[k] != "" && !policy {
			return allocator.Errorf(allocator.Invalid, "tinyid: there are no tokens; allowed: with --tinyid-tokens FILE, or with --policy and --tokens")
		}
	}
	return nil
}

// at returns where the doors are to listen, and notes in doors whether they have TLS.
func (f *doorFlags) at(doors *room.Doors) (list []secure.Address) {
	doors.Plain = !f.tls
	for k, kind := range doorKinds {
		list = append(list, secure.Address{Flag: kind.flag, At: f.addresses[k], Plain: doors.Plain})
	}
	return list
}

// open opens the doors. The caller closes them where no server did.
func (f *doorFlags) open(doors *room.Doors) (err error) {
	for k, kind := range doorKinds {
		if f.addresses[k] == "" {
			continue
		}
		if *kind.listener(doors), err = startup.Listen("room "+kind.system, f.addresses[k], kind.flag); err != nil {
			return err
		}
	}
	return nil
}
