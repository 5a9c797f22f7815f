package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api/client"
)

// clientLoop calls a client's Next as its documentation shows, as nextLoop does for a chain.
//
//go:noinline
func clientLoop(ctx context.Context, t *client.Tag, failed *failure) func(*atomic.Bool) int64 {
	return func(stop *atomic.Bool) (done int64) {
		var sum int64
		for !stop.Load() {
			for range 1000 {
				id, ok := t.TryNext()
				if !ok {
					var err error
					if id, err = t.Next(ctx); err != nil {
						failed.set(err)
						return done
					}
				}
				sum += id
			}
			done += 1000
		}
		sink.Store(sum)
		return done
	}
}

// plainClientLoop calls Next each time.
//
//go:noinline
func plainClientLoop(ctx context.Context, t *client.Tag, failed *failure) func(*atomic.Bool) int64 {
	return func(stop *atomic.Bool) (done int64) {
		var sum int64
		for !stop.Load() {
			for range 1000 {
				id, err := t.Next(ctx)
				if err != nil {
					failed.set(err)
					return done
				}
				sum += id
			}
			done += 1000
		}
		sink.Store(sum)
		return done
	}
}

// paced is the number of IDs per second at which the client's calls to the room are counted.
const paced = 10_000_000

// pacedLoop takes IDs of t one by one for a while, paced of them per second, and returns how
// many it took.
func pacedLoop(ctx context.Context, t *client.Tag, d time.Duration) (ids int64, err error) {
	for start := time.Now(); time.Since(start) < d; {
		for due := int64(time.Since(start).Seconds() * paced); ids < due; ids++ {
			if _, ok := t.TryNext(); !ok {
				if _, err := t.Next(ctx); err != nil {
					return ids, err
				}
			}
		}
		time.Sleep(time.Millisecond)
	}
	return ids, nil
}

// clientRows measures a client in this process against the chain alone, over a room on
// loopback, and counts the client's calls to the room.
func clientRows(ctx context.Context, b *bench) error {
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	ch, err := c.chain(ctx, time.Now)
	if err != nil {
		return err
	}
	defer ch.stop()
	s, err := c.serve(ctx, "served", true, tag, otherTag)
	if err != nil {
		return err
	}
	var calls atomic.Int64
	ids, err := client.New(ctx, client.Options{
		Addresses: []string{s.address}, WarmTags: []string{tag, otherTag},
		Dial: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
			conn *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			calls.Add(1)
			return invoker(ctx, method, req, reply, conn, opts...)
		})},
	})
	if err == nil {
		err = b.client(ctx, ch.Chain, ids, &calls)
		ids.Close()
	}
	if stopped := s.stop(); err == nil {
		err = stopped
	}
	return err
}

func (b *bench) client(ctx context.Context, chain *allocator.Chain, ids *client.Client, calls *atomic.Int64) error {
	t, err := ids.Tag(tag)
	if err != nil {
		return err
	}
	pace, err := ids.Tag(otherTag)
	if err != nil {
		return err
	}
	one := b.add(row{what: "client Next, 1 goroutine, vs the chain's", unit: "/s", goal: 0.95})
	plain := b.add(row{what: "the same, Next not inlined, vs the chain's", unit: "/s"})
	var failed failure
	perSecond(2*b.unit, 1, nextLoop(ctx, chain, &failed)) // let the steps grow
	perSecond(2*b.unit, 1, clientLoop(ctx, t, &failed))
	// Both run the same instructions, and a machine differs more from one second to the next:
	// use many short rounds, and take turns in going first.
	const parts = 20
	for n := range parts * b.rounds {
		loops := []struct {
			to   *[]float64
			loop func(*atomic.Bool) int64
		}{
			{&one.yard, nextLoop(ctx, chain, &failed)}, {&one.measured, clientLoop(ctx, t, &failed)},
			{&plain.yard, plainLoop(ctx, chain, &failed)}, {&plain.measured, plainClientLoop(ctx, t, &failed)},
		}
		if n%2 == 1 {
			slices.Reverse(loops)
		}
		for _, l := range loops {
			*l.to = append(*l.to, perSecond(b.unit/parts, 1, l.loop))
		}
	}
	rate := b.add(row{what: fmt.Sprintf("client paced to %s, IDs", number(paced)), unit: "/s"})
	rpcs := b.add(row{what: "its calls to the room", unit: "/s", goal: 10, atMost: true})
	cold := b.add(row{what: "the same, in all, in the first round, from cold", unit: "calls"})
	for range b.rounds { // the first from cold
		before, start := calls.Load(), time.Now()
		n, err := pacedLoop(ctx, pace, 4*b.unit)
		if err != nil {
			return err
		}
		took := time.Since(start).Seconds()
		rate.measured = append(rate.measured, float64(n)/took)
		if cold.measured == nil {
			cold.measured = []float64{float64(calls.Load() - before)}
		}
		rpcs.measured = append(rpcs.measured, float64(calls.Load()-before)/took)
	}
	return failed.get()
}
