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
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/operator"
)

// ListRooms implements ConsoleService.
func (s *Server) ListRooms(ctx context.Context, _ *marchv1.ListRoomsRequest) (*marchv1.ListRoomsResponse, error) {
	stored, unusable, err := s.admin.LastLayout(ctx)
	if err != nil {
		return nil, err
	}
	instances, _, err := s.instances(ctx)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.ListRoomsResponse{Problem: textOf(unusable)}
	for _, room := range stored.Layout.Rooms() {
		r := stored.Layout.Ranges[room]
		p := &marchv1.Room{Name: string(room), Range: &marchv1.Range{Lower: r.Lower, Upper: r.Upper}}
		for _, i := range instances {
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

// ListInstances implements ConsoleService.
func (s *Server) ListInstances(ctx context.Context,
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
	v, outage, err := s.viewOrKnown(ctx)
	if err != nil {
		return nil, err
	}
	var now sample
	if r.GetStatus() {
		now, _ = s.sampled(ctx, lookWithin)
	}
	f := findings{
		halt: s.haltAsked(ctx, lookWithin), unusable: v.unusable, instances: inRoom(v.instances, room),
		sample: now, own: s.ownProblems(),
		forgetAfter: s.cfg.ForgetAfter, unreadable: s.withTags(ctx, v.badRooms), damage: s.damage(""), outage: outage,
	}
	answer := &marchv1.ListInstancesResponse{
		Halt: f.halt, Problem: textOf(v.unusable), Unreadable: passedOver(v.badRooms),
		Problems: s.met.Fill(f.problems(), time.Now()),
	}
	answer.Instances = instancesToProto(f.instances)
	for k, i := range f.instances {
		t, p := now.instances[i.ID()], answer.GetInstances()[k]
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
		p.Version, p.Started, p.Alive = i.Version, timestamppb.New(i.Started), i.Alive
		p.Unknown = i.Unknown
		p.Hold, p.Unconfirmed = durationpb.New(i.Hold.Duration()), i.Unconfirmed
		if !i.LastSeen.IsZero() {
			p.LastSeen = timestamppb.New(i.LastSeen)
		}
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

// changeInstance changes the instance that a request names.
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

// chainsOf asks every instance that is alive for its chain of a tag. silent
// names those that did not answer.
func (s *Server) chainsOf(ctx context.Context, tag allocator.Tag) (chains []*marchv1.Chain,
	silent []string, err error) {
	instances, _, err := s.instances(ctx)
	if err != nil {
		return nil, nil, err
	}
	chains, silent = s.askChains(ctx, instances, tag)
	return chains, silent, nil
}

// askChains asks the instances that are alive for their chain of a tag. silent
// names those that did not answer.
func (s *Server) askChains(ctx context.Context, instances []instance,
	tag allocator.Tag) (chains []*marchv1.Chain, silent []string) {
	answers, failed := make([]*marchv1.Chain, len(instances)), make([]bool, len(instances))
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	for i, instance := range instances {
		if !instance.Alive {
			failed[i] = true
			continue
		}
		asking.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			var err error
			answers[i], err = s.askChain(ctx, instance, tag)
			failed[i] = err != nil && allocator.KindOf(err) != allocator.NotFound
			return nil
		})
	}
	_ = asking.Wait()
	for i, instance := range instances {
		switch {
		case answers[i] != nil:
			chains = append(chains, answers[i])
		case failed[i]:
			silent = append(silent, string(instance.Room)+"/"+string(instance.Name))
		}
	}
	return chains, silent
}

// askChain asks an instance over gRPC.
func (s *Server) askChain(ctx context.Context, i instance, tag allocator.Tag) (*marchv1.Chain, error) {
	conn, err := s.rooms.dial(i)
	if err != nil {
		return nil, err
	}
	answer, err := marchv1.NewRoomServiceClient(conn).GetChain(ctx, &marchv1.GetChainRequest{Tag: string(tag)})
	return answer.GetChain(), err
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
	options := append(observe.CallsOut(d.tracer), grpc.WithIdleTimeout(time.Minute))
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
