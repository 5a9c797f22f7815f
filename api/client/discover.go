package client

import (
	"cmp"
	"context"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Discover says how the client finds the instances of its room: it asks a console, again and
// again. So a room may move, grow or be drained, and its callers are not deployed again.
//
// A console is only a guide. While none answers, the client stays with the addresses that it has.
// It does so, too, while a console sees no live instance of the room: a console may be cut off
// from etcd, and an address that does not answer costs little. Then the client asks the rooms in
// Fallback, as for Options.Fallback.
type Discover struct {
	// Consoles are gRPC addresses of consoles, HOST:PORT: 1 to 16.
	Consoles []string
	// Room is the room whose IDs the client wants.
	Room string
	// Fallback are the rooms that the client may ask if no instance of Room leases any IDs, in
	// order of preference: 0 to 16. Default none.
	Fallback []string
	// Every is how often the client asks a console, 1 s to 1 h. It asks at once if no room
	// leases IDs. Default 10 s.
	Every time.Duration
}

// Defaults and bounds of Discover.
const (
	DefaultDiscoverEvery     = 10 * time.Second
	minDiscover, maxDiscover = time.Second, time.Hour
	discoverJitter           = 0.2 // of Every, so that clients do not ask all at once
	discoverPause            = time.Second
)

// validate checks d. Its errors are Invalid.
func (d *Discover) validate() error {
	if n := len(d.Consoles); n < 1 || n > maxAddresses {
		return allocator.Errorf(allocator.Invalid, "consoles: %d; allowed: 1 to %d", n, maxAddresses)
	}
	for _, address := range d.Consoles {
		if err := api.CheckAddress("consoles", address); err != nil {
			return err
		}
	}
	if n := len(d.Fallback); n > maxAddresses {
		return allocator.Errorf(allocator.Invalid, "fallback: %d rooms; allowed: 0 to %d", n, maxAddresses)
	}
	rooms := append([]string{d.Room}, d.Fallback...)
	for i, room := range rooms {
		if _, err := allocator.ParseRoom(room); err != nil {
			return err
		}
		if slices.Contains(rooms[:i], room) {
			return allocator.Errorf(allocator.Invalid, "fallback: room %q is named twice", room)
		}
	}
	if d.Every != 0 && (d.Every < minDiscover || d.Every > maxDiscover) {
		return allocator.Errorf(allocator.Invalid, "every: %v; allowed: %v to %v, 0s for %v", d.Every, minDiscover,
			maxDiscover, DefaultDiscoverEvery)
	}
	return nil
}

// discovery asks consoles for the addresses of a pool.
type discovery struct {
	Discover
	pool *pool
	seed maphash.Seed // each client takes other instances of a large room

	mu       sync.Mutex
	consoles []*grpc.ClientConn // the one that answered last comes first
}

func newDiscovery(opts Options, p *pool) (*discovery, error) {
	d := &discovery{Discover: *opts.Discover, pool: p, seed: maphash.MakeSeed()}
	d.Every = cmp.Or(d.Every, DefaultDiscoverEvery)
	first := rand.IntN(len(d.Consoles))
	for _, address := range slices.Concat(d.Consoles[first:], d.Consoles[:first]) {
		conn, err := api.Dial(address, opts.dialOptions()...)
		if err != nil {
			d.close()
			return nil, err
		}
		d.consoles = append(d.consoles, conn)
	}
	return d, nil
}

func (d *discovery) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	closeAll(d.consoles)
}

// poll asks until ctx ends, and calls also each time.
func (d *discovery) poll(ctx context.Context, also func(context.Context)) {
	for {
		pause := time.Duration(float64(d.Every) * (1 + discoverJitter*(2*rand.Float64()-1)))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case <-d.pool.lost:
			select { // not at once again
			case <-ctx.Done():
				return
			case <-time.After(time.Duration(float64(discoverPause) * (1 + rand.Float64()))):
			}
		}
		if err := d.ask(ctx); err != nil && ctx.Err() == nil {
			d.pool.log.Debug("no console tells the room's addresses: the client stays with those it has",
				"room", d.Room, "error", err)
		}
		also(ctx)
	}
}

// ask asks for the instances, and gives the pool the addresses. Its error is Unavailable if no console answers, or if
// the pool has no address then.
func (d *discovery) ask(ctx context.Context) error {
	answer, err := askConsoles(ctx, d, marchv1.ConsoleServiceClient.ListInstances, &marchv1.ListInstancesRequest{})
	if err != nil {
		return err
	}
	return d.tell(answer.GetInstances())
}

// askConsoles sends a request to one console after the other, and returns the first answer. Its Kind is that of the
// consoles' errors.
func askConsoles[Q, A any](ctx context.Context, d *discovery,
	method func(marchv1.ConsoleServiceClient, context.Context, Q, ...grpc.CallOption) (A, error),
	request Q) (none A, _ error) {
	d.mu.Lock()
	consoles := slices.Clone(d.consoles)
	d.mu.Unlock()
	var failures []error
	for i, conn := range consoles {
		asking, cancel := context.WithTimeout(ctx, d.pool.timeout)
		answer, err := method(marchv1.NewConsoleServiceClient(conn), asking, request)
		cancel()
		if err != nil {
			failures = append(failures, allocator.Errorf(allocator.KindOf(api.FromStatus(err)),
				"console at %s: %w", conn.Target(), err))
			continue
		}
		consoles[0], consoles[i] = consoles[i], consoles[0]
		d.mu.Lock()
		d.consoles = consoles
		d.mu.Unlock()
		return answer, nil
	}
	return none, together(failures)
}

// tell gives the pool the addresses of live instances.
func (d *discovery) tell(instances []*marchv1.Instance) error {
	own, others := d.live(instances, d.Room), []string(nil)
	for _, room := range d.Fallback {
		others = append(others, d.live(instances, room)...)
	}
	others = slices.DeleteFunc(others, func(a string) bool { return slices.Contains(own, a) })
	if own == nil {
		own = d.pool.own()
	}
	if len(own) == 0 && len(others) == 0 {
		return allocator.Errorf(allocator.Unavailable, "room %s has no live instance, and no fallback has", d.Room)
	}
	return d.pool.set(own, others[:min(len(others), maxAddresses)])
}

// live returns up to maxAddresses addresses of live instances of a room, in an order of this
// client's own, which stays when others come and go.
func (d *discovery) live(instances []*marchv1.Instance, room string) []string {
	var addresses []string
	for _, i := range instances {
		if i.GetRoom() == room && i.GetAlive() && api.CheckAddress("address", i.GetAddress()) == nil &&
			!slices.Contains(addresses, i.GetAddress()) {
			addresses = append(addresses, i.GetAddress())
		}
	}
	slices.SortFunc(addresses, func(a, b string) int {
		return cmp.Compare(maphash.String(d.seed, a), maphash.String(d.seed, b))
	})
	return addresses[:min(len(addresses), maxAddresses)]
}

// Place is where an ID lies in a layout.
type Place struct {
	Version int64  // of the layout
	Block   int64  // id / boundary
	Residue int64  // id mod boundary
	Room    string // that has the residue; empty if none has
}

// Layout returns the cluster's layout, which the client keeps. It asks a console the first time. Later the client
// follows changes each Discover.Every, and within some seconds if a lease shows that there was one. Its errors are
// Refused without Options.Discover, the consoles', and ErrClosed.
func (c *Client) Layout(ctx context.Context) (Layout, error) {
	l, err := c.keptLayout(ctx)
	l.Ranges = maps.Clone(l.Ranges) // the caller's
	return l, err
}

func (c *Client) keptLayout(ctx context.Context) (Layout, error) {
	switch kept := c.layout.Load(); {
	case c.closed():
		return Layout{}, ErrClosed
	case kept != nil:
		return *kept, nil
	case c.discover == nil:
		return Layout{}, allocator.Errorf(allocator.Refused, "the client knows no console; give it Options.Discover")
	}
	return c.readLayout(ctx)
}

// readLayout asks the consoles for the layout, and keeps it. One that is newer stays.
func (c *Client) readLayout(ctx context.Context) (Layout, error) {
	answer, err := askConsoles(ctx, c.discover, marchv1.ConsoleServiceClient.GetLayout, &marchv1.GetLayoutRequest{})
	switch {
	case c.closed():
		return Layout{}, ErrClosed
	case err != nil:
		return Layout{}, err
	}
	l, err := api.LayoutFromProto(answer.GetLayout().GetLayout())
	if err != nil {
		return Layout{}, allocator.Errorf(allocator.Internal, "a console's answer makes no sense: %w", err)
	}
	for {
		kept := c.layout.Load()
		if kept != nil && kept.Version >= l.Version {
			return *kept, nil
		}
		if c.layout.CompareAndSwap(kept, &l) {
			return l, nil
		}
	}
}

// followLayout reads the layout again if it is kept. What is kept stays where no console answers.
func (c *Client) followLayout(ctx context.Context) {
	if c.layout.Load() != nil {
		_, _ = c.readLayout(ctx)
	}
}

// Decode returns where an ID of a counter lies in the layout that the client keeps. A layout before it may have given
// the residue to another room: IDService.Decode knows which room leased an ID. Its errors are Layout's, and Invalid.
func (c *Client) Decode(ctx context.Context, id int64) (Place, error) {
	if id < 0 {
		return Place{}, allocator.Errorf(allocator.Invalid, "id: %d; allowed: 0 to %d", id, int64(allocator.MaxID))
	}
	l, err := c.keptLayout(ctx)
	if err != nil {
		return Place{}, err
	}
	room, _ := l.RoomOf(id)
	return Place{Version: l.Version, Block: l.Block(id), Residue: l.Residue(id), Room: string(room)}, nil
}

// RoomOf returns the room that has an ID's residue, for a program that routes by ID. Its errors are Decode's, and
// NotFound if no room has the residue.
func (c *Client) RoomOf(ctx context.Context, id int64) (room string, err error) {
	p, err := c.Decode(ctx, id)
	if err == nil && p.Room == "" {
		err = allocator.Errorf(allocator.NotFound, "no room has the residue %d in layout version %d", p.Residue,
			p.Version)
	}
	return p.Room, err
}
