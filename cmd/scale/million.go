package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/internal/load"
)

// dial connects to a room from an address of this machine.
func dial(address, from string) (*grpc.ClientConn, error) {
	return dialThrough(address, from, func(conn net.Conn) net.Conn { return conn })
}

// dialThrough is dial with a wrapper around each connection.
func dialThrough(address, from string, wrap func(net.Conn) net.Conn) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			return wrap(conn), nil
		}))
}

// loadTags makes a room create the chains of all tags, and lease for each.
func loadTags(ctx context.Context, address string, tags int) error {
	conn, err := dial(address, "127.0.0.1")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := marchv1.NewIDServiceClient(conn)
	const workers = 64
	group, ctx := errgroup.WithContext(ctx)
	for k := range workers {
		group.Go(func() error {
			for i := k; i < tags; i += workers {
				err := again(ctx, func() error {
					_, err := client.Next(ctx, &marchv1.NextRequest{Tag: string(tagName(i))})
					return err
				})
				if err != nil {
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
	conns   []*grpc.ClientConn
	calls   []int // of each client so far
}

// newCaller connects to a room.
func newCaller(p *process, busy int) (*caller, error) {
	const clients = 4
	c := &caller{room: p, busy: busy, calls: make([]int, clients)}
	for range clients {
		conn, err := dial(p.Address, goodCaller)
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.conns, c.clients = append(c.conns, conn), append(c.clients, marchv1.NewIDServiceClient(conn))
	}
	return c, nil
}

func (c *caller) close() (err error) {
	for _, conn := range c.conns {
		err = errors.Join(err, conn.Close())
	}
	return err
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

// timesOf measures the times in the server of a good caller's calls.
func timesOf(ctx context.Context, p *process, busy int, during time.Duration) (reply, error) {
	c, err := newCaller(p, busy)
	if err != nil {
		return reply{}, err
	}
	times, err := timesInTurn(ctx, during, c)
	return times[0], errors.Join(err, c.close())
}

// turn is how long one of several callers calls before the next one's turn.
const turn = 250 * time.Millisecond

// timesInTurn measures the times in the servers of several callers' calls, each for a while.
// They call in short turns, so that other work of the machine slows all of them alike.
func timesInTurn(ctx context.Context, each time.Duration, callers ...*caller) ([]reply, error) {
	times := make([]reply, len(callers))
	for _, c := range callers {
		if _, err := c.room.ask("times"); err != nil { // discards earlier measurements
			return times, err
		}
	}
	for left := each; left > 0; left -= turn {
		for _, c := range callers {
			if err := c.call(ctx, min(left, turn)); err != nil {
				return times, err
			}
		}
	}
	for i, c := range callers {
		r, err := c.room.ask("times")
		if err == nil && r.Calls < 100 {
			err = fmt.Errorf("only %d calls were measured", r.Calls)
		}
		if err != nil {
			return times, err
		}
		times[i] = r
	}
	return times, nil
}

// million measures a room with a million tags against one with ten.
func million(ctx context.Context, s sizes, add func(row)) error {
	const few = 10
	small, err := startRoom(ctx, few)
	if err != nil {
		return err
	}
	large, err := startRoom(ctx, s.tags)
	if err != nil {
		return err
	}
	if _, err := small.ask("load"); err != nil {
		return err
	}
	before, err := large.ask("memory")
	if err != nil {
		return err
	}
	residentBefore, err := large.resident()
	if err != nil {
		return err
	}
	if _, err := large.ask("load"); err != nil {
		return err
	}
	after, err := large.ask("memory")
	if err != nil {
		return err
	}
	resident, err := large.resident()
	if err != nil {
		return err
	}
	per := func(bytes float64) float64 { return bytes / float64(s.tags) }
	add(row{
		what: "memory per idle tag in a room", measured: per(float64(after.Heap) - float64(before.Heap)),
		goal: 1536, unit: "bytes",
		note: fmt.Sprintf("in use after a collection; the process grew by %.4g bytes a tag, "+
			"with what loading left free in the heap's pages", per(float64(resident-residentBefore))),
	})
	page, err := pageTime(ctx, large.Address)
	if err != nil {
		return err
	}
	add(row{what: fmt.Sprintf("page of ListChains, %d tags", s.tags), measured: page.Seconds(), goal: 0.5, unit: "s"})

	smallCaller, err := newCaller(small, few)
	if err != nil {
		return err
	}
	largeCaller, err := newCaller(large, s.busy)
	if err != nil {
		return err
	}
	var p99s, p999s []float64
	for range s.rounds {
		times, err := timesInTurn(ctx, time.Duration(s.seconds)*time.Second, smallCaller, largeCaller)
		if err != nil {
			return err
		}
		a, b := times[0], times[1]
		p99s = append(p99s, float64(b.P99)/float64(a.P99))
		p999s = append(p999s, float64(b.P999)/float64(a.P999))
	}
	what := fmt.Sprintf("time in the server of Next, %d tags to %d: ", s.tags, few)
	add(row{what: what + "p99", measured: load.Median(p99s), goal: 1.2, unit: "times"})
	add(row{what: what + "p99.9", measured: load.Median(p999s), goal: 2, unit: "times"})
	return errors.Join(smallCaller.close(), largeCaller.close(), small.close(), large.close())
}

// pageTime returns the longest time that a page of chains takes, of the first, the last and
// some between.
func pageTime(ctx context.Context, address string) (longest time.Duration, err error) {
	conn, err := dial(address, "127.0.0.1")
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	client, token := marchv1.NewRoomServiceClient(conn), ""
	for range 200 {
		began := time.Now()
		page, err := client.ListChains(ctx, &marchv1.ListChainsRequest{PageToken: token})
		if err != nil {
			return 0, err
		}
		longest = max(longest, time.Since(began))
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	return longest, nil
}
