//go:build !nodev

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
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

	// The base port where none is given, and what lies between it and those that are tried after it.
	devBasePort   = 7000
	devPortsApart = 100
)

// devPorts are march dev's ports. All are opened before anything runs, so that
// march dev stops early if one of them is in use.
type devPorts struct {
	Base  int                  `flag:"base-port" help:"the first port, 1 to 65504"`
	Admin bool                 `flag:"admin-ports" help:"have the rooms serve operators on ports of their own"`
	Doors [len(doorKinds)]bool // which of them each room has

	mu        sync.Mutex
	listeners map[string]net.Listener // by address, until taken
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
		return nil, nil, refusedf("the layout in %s needs ports for more than %d rooms; march dev runs up to %d", dir,
			len(names), mostDevRooms)
	}
	return names, slots, nil
}

// devPort is a port, or one for each of several rooms.
type devPort struct {
	what   string
	flag   string // of its server
	offset int    // from the base port
	rooms  int    // 0 for a port of the cluster
}

// all returns the ports that the cluster has.
func (p *devPorts) all() []devPort {
	list := []devPort{{"console HTTP", "http", portConsoleHTTP, 0}, {"console gRPC", "grpc", portConsoleGRPC, 0},
		{"etcd client", "", portEtcdClient, 0}, {"etcd peer", "", portEtcdPeer, 0},
		{"gRPC", "grpc", portRoomGRPC, mostDevRooms}, {"HTTP", "http", portRoomHTTP, mostDevRooms}}
	for k, kind := range doorKinds {
		if p.Doors[k] {
			list = append(list, devPort{kind.System, kind.Flag, doorPort(k), mostDevRooms})
		}
	}
	if p.Admin {
		list = append(list, devPort{"admin gRPC", "admin-grpc", portAdminGRPC, mostDevRooms},
			devPort{"admin HTTP", "admin-http", portAdminHTTP, mostDevRooms})
	}
	return list
}

// Args are the arguments with the addresses of a room at a slot.
func (p *devPorts) Args(slot int) (args []string) {
	for _, port := range p.all() {
		if port.rooms > 0 {
			args = append(args, "--"+port.flag, p.Address(port.offset+slot))
		}
	}
	return args
}

// Check checks --base-port.
func (p *devPorts) Check() error {
	last := 0
	for _, port := range p.all() {
		last = max(last, port.offset+max(port.rooms-1, 0))
	}
	if most := 65535 - last; p.Base < 1 || p.Base > most {
		return invalidf("base-port: %d; allowed: 1 to %d", p.Base, most)
	}
	return nil
}

func (p *devPorts) Address(offset int) string {
	return fmt.Sprintf("127.0.0.1:%d", p.Base+offset)
}

// Open opens all ports. rooms is the expected number of rooms. A layout on disk may
// have another number; Take then reports ports in use.
func (p *devPorts) Open(rooms int) error {
	p.listeners = make(map[string]net.Listener)
	for _, port := range p.all() {
		for i := range max(port.rooms, 1) {
			what := port.what
			if port.rooms > 0 {
				what = fmt.Sprintf("room %d %s", i, what)
			}
			l, err := listen(what, p.Address(port.offset+i), "base-port")
			if err == nil {
				p.listeners[p.Address(port.offset+i)] = l
			} else if port.rooms == 0 || i < rooms {
				return err
			}
		}
	}
	for _, port := range []int{portEtcdClient, portEtcdPeer} { // etcd opens them itself
		_ = p.listeners[p.Address(port)].Close()
		delete(p.listeners, p.Address(port))
	}
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

// Take returns the listener of an address to the server that it is for. Its error is Refused if the port was in use.
func (p *devPorts) Take(what, address string) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.listeners[address]
	if l == nil {
		return nil, refusedf("%s: %s is in use; choose others with --base-port", what, address)
	}
	delete(p.listeners, address)
	return l, nil
}

// FreeAll closes every listener that was not taken.
func (p *devPorts) FreeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.listeners {
		_ = l.Close()
	}
	clear(p.listeners)
}

// doorPort is the port of the first room's door of a kind, an index in doorKinds.
func doorPort(kind int) int { return portRedis + kind*mostDevRooms }

// Lines writes the addresses of all servers, for a table of them.
func (p *devPorts) Lines(w io.Writer, scheme string, rooms []allocator.Room, slots map[allocator.Room]int,
	layout allocator.Layout) {
	put(w, "  console\tgRPC %s\tHTTP %s\tits page: %s://%s/\n", p.Address(portConsoleGRPC),
		p.Address(portConsoleHTTP), scheme, p.Address(portConsoleHTTP))
	for _, name := range rooms {
		slot := slots[name]
		put(w, "  room %s\tgRPC %s\tHTTP %s\tissues IDs with residue in %v mod %d\n", name,
			p.Address(portRoomGRPC+slot), p.Address(portRoomHTTP+slot), layout.Ranges[name], layout.Boundary)
	}
	for _, name := range rooms {
		if slot := slots[name]; p.Admin {
			put(w, "  admin\tgRPC %s\tHTTP %s\troom %s, for operators\n", p.Address(portAdminGRPC+slot),
				p.Address(portAdminHTTP+slot), name)
		}
	}
	for k, kind := range doorKinds {
		for _, name := range rooms {
			if p.Doors[k] {
				put(w, "  %s\t%s\troom %s\n", kind.Flag, p.Address(doorPort(k)+slots[name]), name)
			}
		}
	}
	put(w, "  etcd\tclient %s\tpeer %s\n", p.Address(portEtcdClient), p.Address(portEtcdPeer))
}

// devData is march dev's data directory:
//
//	lock        locked by the march dev that uses it
//	etcd        etcd's data
//	journal     the rooms' journals
//	unfinished  there while the first start is under way
//
// An etcd that is killed in its very first start may never start again on what
// its data. So the data of an unfinished first start is deleted: no room ran on it
// yet, so no ID was issued. An etcd directory that is older than the first march
// dev is never deleted.
type devData struct {
	Dir       string `flag:"data-dir" help:"directory that keeps everything (default a temporary one, removed at the end)"`
	Temporary bool
	lock      *fileutil.LockedFile
}

// Etcd is the folder of etcd's data.
func (d *devData) Etcd() string { return filepath.Join(d.Dir, "etcd") }

// Journal is the folder of the rooms' journals.
func (d *devData) Journal() string { return filepath.Join(d.Dir, "journal") }

func (d *devData) unfinished() string { return filepath.Join(d.Dir, "unfinished") }

// Open makes, locks and tidies the directory. If no directory was named, it makes a
// temporary one.
func (d *devData) Open() error {
	if d.Dir == "" {
		dir, err := os.MkdirTemp("", "march-dev-")
		if err != nil {
			return invalidf("temporary data directory: %w", err)
		}
		d.Dir, d.Temporary = dir, true
	}
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return invalidf("data-dir: %w", err)
	}
	var err error
	d.lock, err = fileutil.TryLockFile(filepath.Join(d.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return refusedf("data-dir: %s is in use by another march dev", d.Dir)
	}
	if err == nil {
		err = d.begin()
	}
	if err != nil {
		return invalidf("data-dir: %w", err)
	}
	return nil
}

// begin marks a first start, and deletes the data of an earlier unfinished one.
func (d *devData) begin() error {
	_, err := os.Stat(d.unfinished())
	switch {
	case err == nil:
		return os.RemoveAll(d.Etcd())
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if _, err := os.Stat(d.Etcd()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(d.unfinished(), nil, 0o600); err != nil {
		return err
	}
	return d.sync()
}

// Finish ends the first start. It must return before any room runs: from then on
// the data is always kept.
func (d *devData) Finish() error {
	err := os.Remove(d.unfinished())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = d.sync()
	}
	if err != nil {
		return invalidf("data-dir: %w", err)
	}
	return nil
}

// sync makes the names in the directory survive a crash of the machine.
func (d *devData) sync() error {
	dir, err := os.Open(d.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return dir.Sync()
}

// Close unlocks the directory and removes a temporary one.
func (d *devData) Close() {
	if d.lock != nil {
		_ = d.lock.Close()
	}
	if d.Temporary {
		_ = os.RemoveAll(d.Dir)
	}
}

// firstDevLayout returns the first layout of a data directory: rooms of equal ranges. If machines
// is a name, a tenth is reserved under that name. Its errors are Invalid.
func firstDevLayout(names []string, boundary int64, machines allocator.Room) (allocator.Layout, error) {
	if n := len(names); n < 1 || n > mostDevRooms {
		return allocator.Layout{}, invalidf("rooms: %d named; allowed: 1 to %d", n,
			mostDevRooms)
	}
	rooms := make([]allocator.Room, len(names))
	for i, name := range names {
		var err error
		if rooms[i], err = allocator.ParseRoom(strings.TrimSpace(name)); err != nil {
			return allocator.Layout{}, invalidf("rooms: %w", err)
		}
	}
	if boundary < int64(len(rooms)) {
		return allocator.Layout{}, invalidf("boundary: %d; allowed: at least one residue for each of the "+
			"%d rooms, up to %d", boundary, len(rooms), int64(allocator.MaxID))
	}
	if machines == "" {
		return allocator.EqualLayout(boundary, rooms)
	}
	return layoutWithMachines(boundary, rooms, machines)
}

// layoutWithMachines returns a first layout of which the last tenth is reserved.
func layoutWithMachines(boundary int64, rooms []allocator.Room, name allocator.Room) (allocator.Layout, error) {
	reserved := allocator.Range{Lower: boundary - boundary/10, Upper: boundary}
	if reserved.Lower == boundary || reserved.Lower < int64(len(rooms)) {
		return allocator.Layout{}, invalidf("boundary: %d; allowed with --cosid-machines: "+
			"at least 10, and a residue for each of the %d rooms below the last tenth", boundary, len(rooms))
	}
	l, err := allocator.EqualLayout(reserved.Lower, rooms)
	l.Boundary, l.Reserved = boundary, map[allocator.Room]allocator.Range{name: reserved}
	return l, err
}
