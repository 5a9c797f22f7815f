package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// ask is one call of a room for a tag.
type ask func(ctx context.Context, room marchv1.IDServiceClient, tag string) error

func next(ctx context.Context, room marchv1.IDServiceClient, tag string) error {
	_, err := room.Next(ctx, &marchv1.NextRequest{Tag: tag})
	return err
}

func leaseOne(ctx context.Context, room marchv1.IDServiceClient, tag string) error {
	_, err := room.Lease(ctx, &marchv1.LeaseRequest{Tag: tag, Count: 1})
	return err
}

// loadTags makes a room create the chains of all tags, and lease for each.
func loadTags(ctx context.Context, address string, tags int) error {
	return onTags(ctx, address, tags, 1, 64, next)
}

// onTags calls a room for every step-th of its tags, as so many callers.
func onTags(ctx context.Context, address string, tags, step, workers int, call ask) error {
	conn, err := api.Dial(address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := marchv1.NewIDServiceClient(conn)
	group, ctx := errgroup.WithContext(ctx)
	for k := range workers {
		group.Go(func() error {
			for i := k * step; i < tags; i += workers * step {
				if err := again(ctx, func() error { return call(ctx, client, string(tagName(i))) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// again repeats a call while the room says that a later one may succeed: here all processes
// share one disk.
func again(ctx context.Context, call func() error) error {
	const times = 100
	for i := 1; ; i++ {
		err := call()
		if status.Code(err) != codes.Unavailable || i == times || ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// caller calls a room as often as a good caller does: some goroutines, each with one call after
// another, with pauses, for a number of tags in turn.
type caller struct {
	room    *process
	busy    int // it calls for the first so many tags
	clients []marchv1.IDServiceClient
	calls   []int // of each client so far
}

// caller connects to a room.
func (p *part) caller(room *process, busy int) *caller {
	const clients = 4
	c := &caller{room: room, busy: busy, calls: make([]int, clients)}
	for range clients {
		conn := must(dialFrom(room.Address, goodCaller, func(conn net.Conn) net.Conn { return conn }))
		p.Cleanup(func() { _ = conn.Close() })
		c.clients = append(c.clients, marchv1.NewIDServiceClient(conn))
	}
	return c
}

// call makes calls for a while.
func (c *caller) call(ctx context.Context, during time.Duration) error {
	const pause = time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, during+time.Minute)
	defer cancel()
	end := time.Now().Add(during)
	group, ctx := errgroup.WithContext(ctx)
	for k, client := range c.clients {
		group.Go(func() error {
			for ; time.Now().Before(end); c.calls[k]++ {
				i := (c.calls[k]*len(c.clients) + k) % c.busy
				if _, err := client.Next(ctx, &marchv1.NextRequest{Tag: string(tagName(i))}); err != nil {
					return err
				}
				time.Sleep(pause)
			}
			return nil
		})
	}
	return group.Wait()
}

// turn is how long one of several callers calls before the next one's turn.
const turn = 250 * time.Millisecond

// times measures the times in the servers of several callers' calls, each for a while.
// They call in short turns, so that other work of the machine slows all of them alike.
func (p *part) times(each time.Duration, callers ...*caller) []reply {
	for _, c := range callers {
		c.room.ask("times") // discards earlier measurements
	}
	for left := each; left > 0; left -= turn {
		for _, c := range callers {
			p.check(c.call(p.ctx, min(left, turn)))
		}
	}
	var times []reply
	for _, c := range callers {
		r := c.room.ask("times")
		if r.Calls < 100 {
			p.Fatalf("only %d calls were measured", r.Calls)
		}
		times = append(times, r)
	}
	return times
}

// million measures a room with a million tags against one with ten.
func million(p *part) {
	const few = 10
	small, large := p.startRoom(few), p.startRoom(p.tags)
	small.ask("load")
	before, residentBefore := large.ask("memory"), large.resident()
	large.ask("load")

	// A new page costs a call up to 0.5 ms. So the heaps are used once around before, and the memory is measured after,
	// as a room gives free pages back to the system for it.
	for _, room := range []*process{small, large} {
		room.ask("around")
	}
	of, to := p.caller(small, few), p.caller(large, p.busy)
	var times []reply
	what := fmt.Sprintf("time in the server of Next, %d tags to %d: ", p.tags, few)
	p.measure(p.rounds,
		&row{what: what + "p99", goal: 1.2, atMost: true, unit: "s", yard: func() float64 {
			times = p.times(time.Duration(p.seconds)*time.Second, of, to)
			return times[0].P99.Seconds()
		}, march: func() float64 { return times[1].P99.Seconds() }},
		&row{what: what + "p99.9", goal: 2, atMost: true, unit: "s", yard: func() float64 {
			return times[0].P999.Seconds()
		}, march: func() float64 { return times[1].P999.Seconds() }})

	after, resident := large.ask("memory"), large.resident()
	per := func(bytes float64) float64 { return bytes / float64(p.tags) }
	p.figure(row{
		what: "memory per idle tag in a room", goal: 2048, atMost: true, unit: "bytes",
		note: fmt.Sprintf("in use after a collection; the process grew by %.4g bytes a tag, "+
			"with what loading left free in the heap's pages", per(float64(resident-residentBefore))),
	}, per(float64(after.Heap)-float64(before.Heap)))
	p.figure(row{what: fmt.Sprintf("page of ListChains, %d tags", p.tags), goal: 0.5, atMost: true, unit: "s"},
		p.pageTime(large.Address).Seconds())
}

// pageTime returns the longest time that a page of chains takes, of the first, the last and
// some between.
func (p *part) pageTime(address string) (longest time.Duration) {
	client, token := marchv1.NewRoomServiceClient(p.dial(address)), ""
	for range 200 {
		began := time.Now()
		page := must(client.ListChains(p.ctx, &marchv1.ListChainsRequest{PageToken: token}))
		longest = max(longest, time.Since(began))
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	return longest
}
