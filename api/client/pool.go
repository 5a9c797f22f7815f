package client

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// avoidFor is how long an instance that failed is asked only after all others.
const avoidFor = 5 * time.Second

// pool has the endpoints that the client may ask.
type pool struct {
	log     hclog.Logger
	timeout time.Duration
	dial    []grpc.DialOption
	lost    chan struct{} // holds a token after no endpoint answered, or the layout changed

	mu struct {
		sync.Mutex
		endpoints []*endpoint // the own room's in the order of asking, then other rooms'
		retired   []*endpoint // that set removed: a call may be under way
		answers   *endpoint   // the endpoint that answered last; nil if none has, or all failed
	}
}

// endpoint is the address of an instance, or of several instances of one room.
type endpoint struct {
	address string
	other   bool // it belongs to another room
	conn    *grpc.ClientConn
	ids     marchv1.IDServiceClient
	avoid   time.Time // until then it is asked only after all others; guarded by pool.mu, as lags
	lags    time.Time // until then it is asked only after the room's others
	until   time.Time // of a retired one: no call is under way then
}

// newPool makes the connections; they connect when they are first used.
func newPool(opts Options) (*pool, error) {
	p := &pool{log: opts.Logger, timeout: opts.Timeout, dial: opts.dialOptions(), lost: make(chan struct{}, 1)}
	own := opts.Addresses
	if len(own) > 0 {
		first := rand.IntN(len(own))
		own = slices.Concat(own[first:], own[:first])
	}
	if err := p.set(own, opts.Fallback); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// set replaces the endpoints: those of the room, and those of other rooms, in the order of
// asking. An endpoint that stays keeps its connection. One that goes keeps it for as long as a
// call may ask all endpoints, one after the other, so that no call finds it closed.
func (p *pool) set(own, others []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, next, fresh := p.mu.endpoints, []*endpoint(nil), []*grpc.ClientConn(nil)
	for i, address := range slices.Concat(own, others) {
		other := i >= len(own)
		at := slices.IndexFunc(before, func(e *endpoint) bool { return e.address == address && e.other == other })
		if at >= 0 {
			next = append(next, before[at])
			continue
		}
		conn, err := api.Dial(address, append([]grpc.DialOption{
			// Keepalives detect a peer that is gone without closing the connection.
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second,
				PermitWithoutStream: true}),
		}, p.dial...)...)
		if err != nil {
			closeAll(fresh)
			return err
		}
		e := &endpoint{address: address, other: other, conn: conn, ids: marchv1.NewIDServiceClient(conn)}
		next, fresh = append(next, e), append(fresh, conn)
		if len(before) > 0 {
			p.log.Info("the client asks another address, too", "address", e.address, "other_room", e.other)
		}
	}
	now := time.Now()
	p.mu.retired = slices.DeleteFunc(p.mu.retired, func(e *endpoint) bool {
		over := now.After(e.until)
		if over {
			_ = e.conn.Close()
		}
		return over
	})
	for _, e := range before {
		if slices.Contains(next, e) {
			continue
		}
		e.until = now.Add(2 * maxAddresses * p.timeout)
		p.mu.retired = append(p.mu.retired, e)
		if p.mu.answers == e {
			p.mu.answers = nil
		}
		p.log.Info("the client no longer asks an address", "address", e.address, "other_room", e.other)
	}
	p.mu.endpoints = next
	return nil
}

// own returns the addresses of the room itself.
func (p *pool) own() (addresses []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.mu.endpoints {
		if !e.other {
			addresses = append(addresses, e.address)
		}
	}
	return addresses
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range slices.Concat(p.mu.endpoints, p.mu.retired) {
		_ = e.conn.Close()
	}
}

// askConsole has the discovery, if there is one, ask a console soon.
func (p *pool) askConsole() {
	select {
	case p.lost <- struct{}{}:
	default:
	}
}

func closeAll(conns []*grpc.ClientConn) {
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// ask calls call with one endpoint after the other until one call succeeds, and returns
// that endpoint. The order is: prefer, if it is not nil; the endpoint that answered
// last; the room's other endpoints, last those that lag behind; those of other rooms; and
// last those that failed recently. It stops after as long as triesPerLease instances may hang. Its errors carry a
// Kind: Unavailable if an endpoint did not answer, see together, or if ctx ended, which is
// no endpoint's failure.
func (p *pool) ask(ctx context.Context, what string, prefer *endpoint,
	call func(context.Context, *endpoint) error) (*endpoint, error) {
	var failures []error
	answers := false // whether some instance answers
	start := time.Now()
	for _, e := range p.order(start, prefer) {
		began := time.Now()
		asking, cancel := context.WithTimeout(ctx, p.timeout)
		err := call(asking, e)
		cancel()
		switch {
		case err == nil:
			p.answered(e, failures)
			return e, nil
		case ended(ctx) != nil && time.Since(began) < p.timeout:
			return nil, together(append(failures, allocator.Errorf(allocator.Unavailable, "%s: %w", what, ended(ctx))))
		case errors.Is(asking.Err(), context.DeadlineExceeded):
			err = allocator.Errorf(allocator.Unavailable, "room at %s: no answer within %v", e.address, p.timeout)
		case !elsewhere(err):
			return nil, allocator.Errorf(allocator.KindOf(err), "room at %s: %w", e.address, err)
		case api.Elsewhere(err):
			err = allocator.Errorf(allocator.KindOf(err), "room at %s: %w", e.address, err)
		default:
			err = allocator.Errorf(allocator.Unavailable, "room at %s: %w", e.address, err)
		}
		failures = append(failures, err)
		if answers = answers || api.NoWindow(err); !api.NoWindow(err) {
			p.avoid(&e.avoid)
		}
		if time.Since(start) >= triesPerLease*p.timeout {
			break
		}
	}
	if !answers {
		p.answered(nil, failures)
	}
	return nil, together(failures)
}

// ended is ctx.Err, and says it of a deadline that has passed also where ctx's timer has not fired yet: a server that
// knows the deadline may end the call first.
func ended(ctx context.Context) error {
	if at, has := ctx.Deadline(); has && !time.Now().Before(at) {
		return cmp.Or(ctx.Err(), context.DeadlineExceeded)
	}
	return ctx.Err()
}

// ask sends a request to one endpoint after the other, as pool.ask does, and returns the first
// answer that check, if it is given, has nothing against.
func ask[Q, A any](ctx context.Context, p *pool, what string,
	method func(marchv1.IDServiceClient, context.Context, Q, ...grpc.CallOption) (A, error), request Q,
	check func(A) error) (answer A, err error) {
	_, err = p.ask(ctx, what, nil, func(ctx context.Context, e *endpoint) error {
		if answer, err = method(e.ids, ctx, request); err == nil && check != nil {
			return check(answer)
		}
		return err
	})
	return answer, err
}

// elsewhere reports whether another instance may succeed: also where the server ended the call, for example because it
// stops.
func elsewhere(err error) bool {
	return api.Elsewhere(err) || allocator.KindOf(err) == allocator.Internal &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// together returns one error for the failures of all endpoints.
func together(failures []error) error {
	messages := make([]string, len(failures))
	for i, err := range failures {
		messages[i] = err.Error()
	}
	return &allocator.Error{Kind: api.Foremost(failures), Msg: strings.Join(messages, "; "),
		Err: errors.Join(failures...)}
}

// order returns all endpoints in the order in which to ask them.
func (p *pool) order(now time.Time, prefer *endpoint) []*endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	order := slices.Clone(p.mu.endpoints)
	rank := func(e *endpoint) int {
		switch {
		case e == prefer:
			return -1
		case now.Before(e.avoid):
			return 4
		case e.other:
			return 3
		case now.Before(e.lags):
			return 2
		case e != p.mu.answers:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(order, func(a, b *endpoint) int { return cmp.Compare(rank(a), rank(b)) })
	return order
}

// avoid makes the client ask an endpoint only after others for a while.
func (p *pool) avoid(until *time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*until = time.Now().Add(avoidFor)
}

// answered notes that e answered after the others failed; a nil e means that none did.
func (p *pool) answered(e *endpoint, failures []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.mu.answers
	if e == nil {
		p.askConsole()
	} else if !slices.Contains(p.mu.endpoints, e) {
		return // it went meanwhile
	}
	if p.mu.answers = e; e == before {
		return
	}
	switch why := errors.Join(failures...); {
	case e == nil:
		p.log.Warn("no room leases IDs: the client goes on with the IDs that it holds", "error", why)
	case before != nil && why != nil:
		p.log.Warn("another instance leases IDs", "address", e.address, "before", before.address,
			"other_room", e.other, "error", why)
	default:
		p.log.Info("room leases IDs", "address", e.address, "other_room", e.other)
	}
}
