package console

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/serve"
)

// ListRooms implements ConsoleService.
func (s *Server) ListRooms(ctx context.Context, _ *marchv1.ListRoomsRequest) (*marchv1.ListRoomsResponse, error) {
	now, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.ListRoomsResponse{Problem: textOf(now.Unusable)}
	for _, room := range now.Layout.Layout.Rooms() {
		r := now.Layout.Layout.Ranges[room]
		p := &marchv1.Room{Name: string(room), Range: &marchv1.Range{Lower: r.Lower, Upper: r.Upper}}
		for _, i := range now.instances {
			if i.Room == room {
				p.Instances++
				if i.Alive && !i.Unknown {
					p.Alive++
				}
			}
		}
		answer.Rooms = append(answer.Rooms, p)
	}
	return answer, nil
}

func (s *problems) ListInstances(ctx context.Context,
	r *marchv1.ListInstancesRequest) (*marchv1.ListInstancesResponse, error) {
	var room allocator.Room
	if r.GetRoom() != "" {
		var err error
		if room, err = allocator.ParseRoom(r.GetRoom()); err != nil {
			return nil, err
		}
	}
	// While etcd is away, the instances that were read last are told: clients that look for their
	// room find it, and rooms still hold IDs.
	now, outage, err := s.shown(ctx)
	if err != nil {
		return nil, err
	}
	if r.GetStatus() || now.halted != nil {
		now = s.answered(ctx, lookWithin)
	}
	f := s.findings(now, outage) // of which only what is of instances counts
	f.etcd, f.workers, f.migration, f.rooms, f.sample = etcdSize{}, workerUse{}, nil, nil, sample{}
	f.instances, f.unreadable = inRoom(now.instances, room), s.withTags(ctx, now.BadRooms)
	if r.GetStatus() {
		f.sample = now.answers
	}
	answer := &marchv1.ListInstancesResponse{
		Halt: f.halt, Problem: textOf(now.Unusable), Unreadable: passedOver(now.BadRooms),
		Problems: s.met.Fill(f.problems(), time.Now()),
	}
	answer.Instances = instancesToProto(f.instances)
	for k, i := range f.instances {
		t, p := f.sample.instances[i.ID()], answer.GetInstances()[k]
		if p.Status = t.status; t.status != nil && len(t.rates) > 0 {
			p.Rate = proto.Float64(t.rate())
		}
	}
	return answer, nil
}

// instancesToProto returns instances as they are registered. Of one that cannot be read only
// the name is known.
func instancesToProto(list []instance) []*marchv1.Instance {
	all := make([]*marchv1.Instance, 0, len(list))
	for _, i := range list {
		p := &marchv1.Instance{Room: string(i.Room), Name: string(i.Name)}
		all = append(all, p)
		if i.Unreadable != nil {
			p.Unreadable = i.Unreadable.Error()
			continue
		}
		p.Address, p.AdminAddress, p.Build, p.Formats = i.Address, i.AdminAddress, i.Build, int32(i.Knows())
		p.Version, p.Started, p.Alive, p.Unknown = i.Version, timestamppb.New(i.Started), i.Alive, i.Unknown
		p.Hold, p.Unconfirmed = durationpb.New(i.Hold.Duration()), i.Unconfirmed
		p.LastSeen = problem.Stamp(i.LastSeen)
		if !i.Alive {
			p.SilentFor = durationpb.New(time.Since(i.SilentSince))
		}
	}
	return all
}

// ForgetInstance implements ConsoleService.
func (s *Server) ForgetInstance(ctx context.Context,
	r *marchv1.ForgetInstanceRequest) (*marchv1.ForgetInstanceResponse, error) {
	return &marchv1.ForgetInstanceResponse{}, changeInstance(ctx, r, s.admin.Forget)
}

// ConfirmInstance implements ConsoleService.
func (s *Server) ConfirmInstance(ctx context.Context,
	r *marchv1.ConfirmInstanceRequest) (*marchv1.ConfirmInstanceResponse, error) {
	return &marchv1.ConfirmInstanceResponse{}, changeInstance(ctx, r, s.admin.ConfirmInstance)
}

func changeInstance(ctx context.Context, r interface {
	GetRoom() string
	GetName() string
},
	change func(context.Context, allocator.Room, allocator.Instance, string) error) error {
	room, roomErr := allocator.ParseRoom(r.GetRoom())
	name, nameErr := allocator.ParseInstance(r.GetName())
	if err := errors.Join(roomErr, nameErr); err != nil {
		return err
	}
	return change(ctx, room, name, operator.Actor(ctx))
}

// askTimeout bounds the time in which one instance must answer. askAtOnce bounds
// the instances that are asked at once.
const (
	askTimeout = time.Second
	askAtOnce  = 32
)

// reply is what an instance answered, or why it did not.
type reply[T any] struct {
	is  T
	err error
}

var errNotAsked = errors.New("the instance was not asked")

// askEach asks the instances of a list that are at some places, each for within at most. It returns a reply for each
// instance of the list.
func askEach[T any](ctx context.Context, rooms *dialer, list []instance, places []int, within time.Duration,
	question func(context.Context, marchv1.RoomServiceClient) (T, error)) []reply[T] {
	replies := make([]reply[T], len(list))
	for k := range replies {
		replies[k].err = errNotAsked
	}
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	for _, k := range places {
		asking.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			conn, err := rooms.dial(list[k])
			if replies[k].err = err; err == nil {
				replies[k].is, replies[k].err = question(ctx, marchv1.NewRoomServiceClient(conn))
			}
			return nil
		})
	}
	_ = asking.Wait()
	return replies
}

// living returns the places of the instances that are alive.
func living(list []instance) (places []int) {
	for k, i := range list {
		if i.Alive {
			places = append(places, k)
		}
	}
	return places
}

// askChains asks the instances that are alive for their chain of a tag. silent
// names those that did not answer.
func (s *view) askChains(ctx context.Context, instances []instance,
	tag allocator.Tag) (chains []*marchv1.Chain, silent []string) {
	for k, r := range askEach(ctx, s.rooms, instances, living(instances), askTimeout,
		func(ctx context.Context, to marchv1.RoomServiceClient) (*marchv1.GetChainResponse, error) {
			return to.GetChain(ctx, &marchv1.GetChainRequest{Tag: string(tag)})
		}) {
		switch {
		case r.err == nil:
			chains = append(chains, r.is.GetChain())
		case allocator.KindOf(r.err) != allocator.NotFound:
			silent = append(silent, string(instances[k].ID()))
		}
	}
	return chains, silent
}

// eachChain calls use with the chains of an instance in pages, until it returns false.
func eachChain(ctx context.Context, of marchv1.RoomServiceClient, use func([]*marchv1.Chain) bool) error {
	for token := ""; ; {
		page, err := of.ListChains(ctx, &marchv1.ListChainsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			return err
		}
		if token = page.GetNextPageToken(); !use(page.GetChains()) || token == "" {
			return nil
		}
	}
}

// dialer keeps a connection to each instance that was asked.
type dialer struct {
	connect     func(address string, options ...grpc.DialOption) (*grpc.ClientConn, error)
	tracer      trace.TracerProvider // nil for none
	credentials api.Credentials

	mu struct {
		sync.Mutex
		conns  map[peer]*grpc.ClientConn
		closed bool
	}
}

// peer is an instance at an address; without a room where only the address is known.
type peer struct {
	address string
	room    allocator.Room
	name    allocator.Instance
}

// maxConns bounds the connections kept; instances come and go.
const maxConns = 1024

// dial returns a connection to an instance. Under TLS the certificate there must name the
// instance, because the address may be another process's by now.
func (d *dialer) dial(i instance) (*grpc.ClientConn, error) {
	to := peer{i.Operators(), i.Room, i.Name}
	d.mu.Lock()
	defer d.mu.Unlock()
	if conn, ok := d.mu.conns[to]; ok {
		return conn, nil
	}
	if d.mu.closed {
		return nil, allocator.Errorf(allocator.Unavailable, "this console has stopped")
	}
	// an idle connection is dialled again with the next call
	options := append(serve.CallsOut(d.tracer), grpc.WithIdleTimeout(time.Minute))
	if to.room == "" {
		options = append(options, d.credentials.Options()...)
	} else {
		options = append(options, d.credentials.InstanceOptions(string(to.room), string(to.name))...)
	}
	conn, err := d.connect(to.address, options...)
	if err != nil {
		return nil, err
	}
	if d.mu.conns == nil || len(d.mu.conns) >= maxConns {
		d.closeLocked()
		d.mu.conns = make(map[peer]*grpc.ClientConn)
	}
	d.mu.conns[to] = conn
	return conn, nil
}

func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.closed = true
	d.closeLocked()
}

func (d *dialer) closeLocked() {
	for _, conn := range d.mu.conns {
		_ = conn.Close()
	}
	d.mu.conns = nil
}
