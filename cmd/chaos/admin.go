package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/traffic"
)

// admin calls the consoles as operators do. It takes no link: an operator's own bad connection
// shows nothing.
type admin struct {
	cluster *cluster.Cluster
	conns   []*grpc.ClientConn
}

func newAdmin(c *cluster.Cluster) *admin { return &admin{cluster: c} }

// askWithin bounds one call of a console.
const askWithin = 3 * time.Second

// call asks the consoles in turn, until one of them answers. It may repeat a call that failed
// although it took effect: all its calls are safe to repeat.
func (a *admin) call(ctx context.Context, use func(context.Context, marchv1.ConsoleServiceClient) error) error {
	if a.conns == nil {
		for _, s := range a.cluster.Consoles {
			conn, err := api.Dial(s.GRPC, a.cluster.Credentials().Options()...)
			if err != nil {
				return err
			}
			a.conns = append(a.conns, conn)
		}
	}
	var errs error
	for _, conn := range a.conns {
		asking, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx,
			api.ActorHeader, "chaos"), askWithin)
		err := use(asking, marchv1.NewConsoleServiceClient(conn))
		cancel()
		if err == nil || allocator.KindOf(err) != allocator.Unavailable {
			return err
		}
		errs = errors.Join(errs, err)
	}
	return errs
}

func (a *admin) close() error {
	var errs []error
	for _, conn := range a.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// firstBoundary is the first layout's boundary.
const firstBoundary = 1000

// init makes the cluster, its first layout and its tags, once a console answers.
func (a *admin) init(ctx context.Context) error {
	layout := &marchv1.Layout{Boundary: firstBoundary, Rooms: map[string]*marchv1.Range{
		"a": {Lower: 0, Upper: 250}, "b": {Lower: 250, Upper: 500}, "c": {Lower: 550, Upper: 750},
		spare: {Lower: 750, Upper: 900},
	}, Reserved: map[string]*marchv1.Range{traffic.Machines: {Lower: 900, Upper: 1000}}}
	do := func(use func(context.Context, marchv1.ConsoleServiceClient) error) error {
		var last error
		err := cluster.Poll(ctx, "a console", func() bool {
			last = a.call(ctx, use)
			return last == nil || allocator.KindOf(last) != allocator.Unavailable
		})
		if last != nil && allocator.KindOf(last) != allocator.Exists { // an earlier try took effect although it failed
			return errors.Join(err, last)
		}
		return err
	}
	err := do(func(ctx context.Context, c marchv1.ConsoleServiceClient) error {
		_, err := c.InitLayout(ctx, &marchv1.InitLayoutRequest{Layout: layout})
		return err
	})
	if err != nil {
		return fmt.Errorf("init: %w", err)
	}
	var all []*marchv1.Tag
	for _, tag := range a.cluster.Tags {
		settings := &marchv1.Tag{Name: string(tag), Reserve: durationpb.New(startReserve),
			MaxStep: ptr(int64(3_000_000))}
		switch tag {
		case strictTag:
			settings.StrictRetract = ptr(true)
		case skewTag:
			settings.MaxSkew = ptr(int64(100_000)) // less than a skip of one room
		}
		all = append(all, settings)
	}
	for _, tag := range a.cluster.Others {
		settings := proto.CloneOf(others[tag])
		settings.Name, settings.Reserve = string(tag), durationpb.New(startReserve)
		settings.MaxStep = ptr(int64(10_000))
		all = append(all, settings)
	}
	for _, tag := range a.cluster.Times {
		all = append(all, &marchv1.Tag{Name: string(tag), Time: times[tag]})
	}
	for _, settings := range all {
		err := do(func(ctx context.Context, c marchv1.ConsoleServiceClient) error {
			_, err := c.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: settings})
			return err
		})
		if err != nil {
			return fmt.Errorf("create tag %s: %w", settings.GetName(), err)
		}
	}
	return nil
}

// skewTag is the tag with max_skew.
const skewTag allocator.Tag = "user"

// startReserve is a tag's reserve: short, so that rooms lease often.
const startReserve = 8 * time.Second

func ptr[T any](v T) *T { return &v }
