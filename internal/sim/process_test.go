package sim_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// process is a running instance of a room, or a console.
type process struct {
	id      string // its name
	link    *link
	stop    context.CancelFunc // stops it cleanly
	gone    chan struct{}      // closed when the process has ended
	serving <-chan struct{}    // closed when it may be called

	console *console.Server          // of a console
	room    *room.Server             // of an instance
	timed   *timed                   // of an instance that issues time-ordered IDs instead
	again   func(id string) *process // starts another process of its name
	in      allocator.Room
	name    allocator.Instance
	doors   room.Doors  // where it answers other systems' clients
	address string      // its own
	journal string      // its directory, empty for none
	forgets atomic.Bool // its journal is lost with it
}

// crash ends p without warning.
func (p *process) crash() {
	p.link.kill()
	p.stop()
}

// slot is a place in which a process is kept running, as systemd would.
type slot struct {
	name string
	room allocator.Room // empty for a console
	mu   struct {
		sync.Mutex
		now  *process
		down time.Time // no new process starts before
	}
}

// running returns the slot's process, nil when there is none.
func (s *slot) running() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.now
}

func (s *slot) stayDown(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.down = time.Now().Add(d)
}

func (s *slot) mayStart() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().After(s.mu.down)
}

// keep keeps a process running until the end.
func (w *world) keep(room allocator.Room, name string, start func(id string) *process) *slot {
	return w.keepWithin(room, name, 500*time.Millisecond, start)
}

// keepWithin is keep for a process that starts again within some time.
func (w *world) keepWithin(room allocator.Room, name string, most time.Duration, start func(id string) *process) *slot {
	s := &slot{name: name, room: room}
	d, lane := w.dice("keep "+name), w.lane()
	w.actors.Go(func() {
		for n := 1; w.sleep(w.end, d.between(min(time.Millisecond, most/2), most), lane); {
			if !s.mayStart() && !w.healed.Load() {
				continue
			}
			p := start(fmt.Sprint(name, "#", n))
			n++
			s.mu.Lock()
			s.mu.now = p
			s.mu.Unlock()
			select {
			case <-p.gone:
			case <-w.end:
				p.stop()
				<-p.gone
			}
			if p.console == nil {
				w.bury(p)
			}
			s.mu.Lock()
			s.mu.now = nil
			s.mu.Unlock()
		}
	})
	return s
}

// ledger returns a process's ledger.
func (w *world) ledger(l *link) *ledger.Ledger {
	cfg := ledger.DefaultConfig()
	cfg.Logger, cfg.Now = w.logger(l.name), l.now
	made, err := ledger.New(l, cfg)
	if err != nil {
		panic(err) // the default is valid
	}
	return made
}

// start starts a process that serves until it ends.
func (w *world) start(id string, serve func(context.Context) error) *process {
	ctx, stop := context.WithCancel(context.Background())
	p := &process{id: id, stop: stop, gone: make(chan struct{})}
	w.log("--- %s starts", id)
	go func() {
		defer close(p.gone)
		defer stop()
		err := serve(ctx)
		if err != nil && !w.expected(err) {
			w.Errorf("%s ended: %v", id, err)
		}
		w.log("--- %s ended: %v", id, kind(err))
	}()
	return p
}

func (w *world) startConsole(id string) *process {
	lane := w.lane()
	listener, link := testcluster.NewSilent(), w.link(id, lane)
	link.role = keys.ConsoleRole()
	cfg := console.DefaultConfig()
	cfg.Ledger, cfg.GRPC, cfg.ForgetAfter, cfg.Logger = w.ledger(link), listener, time.Minute, w.logger(id)
	cfg.Rand = func() float64 { return w.dice(fmt.Sprint(id, time.Since(w.began))).Float64() }
	cfg.Dial, cfg.Advertise = w.dial, fmt.Sprint("192.0.2.2:", lane)
	w.mirrors(&cfg, id)
	server, err := console.New(cfg)
	if err != nil {
		panic(err) // the settings are valid
	}
	p := w.start(id, server.Run)
	p.link, p.console, p.serving, p.address = link, server, listener.Serving(), cfg.Advertise
	return p
}

// dial returns a connection to an instance over which a console reads chains. Nothing is sent:
// the instance's method is called.
func (w *world) dial(address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return api.Dial(address, append(options, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string,
		request, answer any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		asked, ok := request.(*marchv1.GetChainRequest)
		if !ok {
			return allocator.Errorf(allocator.Unavailable, "the simulation has no %s", method)
		}
		chain, err := w.chain(ctx, address, allocator.Tag(asked.GetTag()))
		if err == nil {
			answer.(*marchv1.GetChainResponse).Chain = chain
		}
		return err
	}))...)
}

// chain reads a tag's chain of the instance at an address.
func (w *world) chain(ctx context.Context, address string, tag allocator.Tag) (*marchv1.Chain, error) {
	p := w.at(address)
	if p == nil {
		return nil, allocator.Errorf(allocator.Unavailable, "no process serves at the address %s", address)
	}
	if p.room == nil {
		return nil, allocator.Errorf(allocator.NotFound, "%s has no chains", p.id)
	}
	answer, err := p.room.GetChain(ctx, &marchv1.GetChainRequest{Tag: string(tag)})
	return answer.GetChain(), err
}

func (w *world) startRoom(in allocator.Room, name allocator.Instance, id string) *process {
	lane := w.lane()
	listener, link := testcluster.NewSilent(), w.roomLink(in, id, lane)
	cfg := room.DefaultConfig()
	cfg.Advertise = fmt.Sprint("192.0.2.1:", lane)
	if w.journals != "" { // a double runs on another host
		kept, _, _ := strings.Cut(id, "#")
		if _, double, ok := strings.Cut(id, "/"); ok {
			kept = double
		}
		cfg.Journal = filepath.Join(w.journals, kept)
		link.remembers(w.journalsIn(cfg.Journal))
	}
	cfg.Room, cfg.Name, cfg.Ledger, cfg.GRPC, cfg.Hold, cfg.Logger = in, name, w.ledger(link),
		listener, w.hold, w.logger(id)
	cfg.IdleAfter = pick(w.dice("idle "+id), []time.Duration{3 * time.Second, time.Hour})
	cfg.Dial = func(address string, _ ...grpc.DialOption) (grpc.ClientConnInterface, error) {
		return peer{w, link, address}, nil
	}
	cfg.Rand = func() float64 { return w.dice(fmt.Sprint(id, time.Since(w.began))).Float64() }
	if w.fit != nil {
		w.fit(&cfg, link)
	}
	server, err := room.New(cfg)
	if err != nil {
		panic(err) // the settings are valid
	}
	p := w.start(id, server.Run)
	p.link, p.room, p.serving, p.in, p.name = link, server, listener.Serving(), in, name
	p.address, p.journal, p.doors = cfg.Advertise, cfg.Journal, cfg.Doors
	p.again = func(id string) *process { return w.startRoom(in, name, id) }
	w.mu.Lock()
	w.mu.processes = append(w.mu.processes, p)
	w.mu.Unlock()
	if w.fit != nil {
		return p
	}
	for _, tag := range w.tags {
		d, lane := w.dice("caller "+id+string(tag)), w.lane()
		w.actors.Go(func() { w.call(p, tag, d, lane) })
	}
	return p
}

// call calls an instance for IDs of a tag until it is gone, sometimes often and sometimes
// rarely.
func (w *world) call(p *process, tag allocator.Tag, d dice, lane int) {
	select {
	case <-p.serving:
	case <-p.gone:
		return
	}
	if wait := w.quiet(p); wait > 0 && !w.sleep(p.gone, wait, lane) {
		return
	}
	pace := 400 * time.Millisecond
	for w.sleep(p.gone, d.between(time.Millisecond, pace), lane) {
		if d.chance(30) {
			pace = pick(d, []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, time.Second, 8 * time.Second})
		}
		ctx, cancel := context.WithTimeout(context.Background(), d.between(200*time.Millisecond, 2*time.Second))
		w.ask(ctx, p, tag, d)
		cancel()
	}
}

// ask makes one call of any kind, and notes the IDs.
func (w *world) ask(ctx context.Context, p *process, tag allocator.Tag, d dice) {
	a := answered{by: p, tag: tag, began: time.Now()}
	var err error
	switch d.IntN(5) {
	case 0:
		var r *marchv1.LeaseResponse
		if r, err = p.room.Lease(ctx, &marchv1.LeaseRequest{Tag: string(tag), Count: 1 + d.Int64N(30)}); err == nil {
			a.lease(r)
		}
	case 1:
		var r *marchv1.NextBatchResponse
		if r, err = p.room.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: string(tag),
			Count: 1 + d.Int64N(40)}); err == nil {
			for _, run := range r.GetRuns() {
				a.runs = append(a.runs, allocator.Run{First: run.GetFirst(), Count: run.GetCount()})
			}
		}
	default:
		var r *marchv1.NextResponse
		if r, err = p.room.Next(ctx, &marchv1.NextRequest{Tag: string(tag)}); err == nil {
			a.runs = []allocator.Run{{First: r.GetId(), Count: 1}}
		}
	}
	a.at = time.Now()
	if err == nil {
		a.done = a.at
		w.passedOn(&a)
		w.note(a)
		w.mu.Lock()
		w.mu.latest[string(tag)+" "+string(p.name)] = a.done
		w.mu.Unlock()
		return
	}
	w.log("%-12s %s: %v", p.id, tag, kind(err))
	w.count("call: "+kind(err), 1)
	if !w.expected(err) {
		w.Errorf("%s, tag %s: %v", p.id, tag, err)
	}
}

// expected reports whether an error is one that faults and operators may cause.
func expected(err error) bool {
	switch allocator.KindOf(err) {
	case allocator.Unavailable, allocator.NoRange, allocator.Exhausted, allocator.WentBack, allocator.Refused,
		allocator.Conflict, allocator.NotFound, allocator.Exists:
		return true
	}
	return false
}

// kind returns the kind of an error in one word.
func kind(err error) string {
	if err == nil {
		return "done"
	}
	return allocator.KindOf(err).Error()
}
