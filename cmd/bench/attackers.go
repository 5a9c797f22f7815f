package main

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// The attackers go on whatever the server answers, and open another connection if one was
// closed. They count what they do: an attacker without a processor does no harm, and its row
// would say nothing about the room.

// counts are an attacker's actions. A message counts as sent when the kernel has it, so that it
// does not wait in the attacker.
type counts struct{ sent, answered atomic.Int64 }

// dialRaw connects an attacker, which calls one method in all of its streams. Answers are counted and discarded.
func dialRaw(ctx context.Context, counts *counts, address, method string) (*testcluster.Frames, error) {
	conn, err := testcluster.DialFrom(ctx, badCaller+"1", address)
	if err != nil {
		return nil, err
	}
	c, err := testcluster.NewFrames(conn, method)
	if err != nil {
		return nil, err
	}
	go func() { // ends with the connection
		for {
			frame, err := c.ReadFrame()
			if err != nil {
				return
			}
			if h := frame.Header(); h.Type == http2.FrameRSTStream || endsStream(h) {
				counts.answered.Add(1)
			}
		}
	}()
	return c, nil
}

// atOnce is how many streams an attacker opens before it sends them.
const atOnce = 100

// countedConn counts the messages on a connection of gRPC: each message of this program fits
// one frame.
type countedConn struct {
	net.Conn
	counts  *counts
	in, out frameParser
}

// Read implements net.Conn.
func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.counts.answered.Add(messages(&c.in, b[:n]))
	return n, err
}

// Write implements net.Conn.
func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.counts.sent.Add(messages(&c.out, b[:n]))
	return n, err
}

// messages returns how many frames with messages begin in b. p parses b.
func messages(p *frameParser, b []byte) (n int64) {
	p.parse(b, func(h http2.FrameHeader) {
		if h.Type == http2.FrameData {
			n++
		}
	})
	return n
}

// dialCounted returns a connection of gRPC from an address that counts its messages.
func dialCounted(counts *counts, address, from string) (*grpc.ClientConn, error) {
	return dialFrom(address, from, func(conn net.Conn) net.Conn {
		return &countedConn{Conn: conn, counts: counts, out: fromClient()}
	})
}

// pause is how long an attacker waits after a failure, but for one that does not.
const pause = 10 * time.Millisecond

// forever calls try again and again, with a pause after a failure.
func forever(ctx context.Context, pause time.Duration, try func() error) error {
	for ctx.Err() == nil {
		if err := try(); err != nil {
			time.Sleep(pause)
		}
	}
	return ctx.Err()
}

// resets opens streams and resets them at once, on four connections.
func resets(ctx context.Context, counts *counts, address string) error {
	group, ctx := errgroup.WithContext(ctx)
	for range 4 {
		group.Go(func() error {
			return forever(ctx, pause, func() error {
				c, err := dialRaw(ctx, counts, address, marchv1.IDService_Next_FullMethodName)
				if err != nil {
					return err
				}
				defer func() { _ = c.Conn.Close() }()
				for ; ; counts.sent.Add(atOnce) {
					for range atOnce {
						_ = c.WriteRSTStream(c.Open(), http2.ErrCodeCancel)
					}
					if err := c.Flush(); err != nil {
						return err
					}
				}
			})
		})
	}
	return group.Wait()
}

// silent opens 60,000 streams on one connection, and sends nothing on them.
func silent(ctx context.Context, counts *counts, address string) error {
	return forever(ctx, pause, func() error {
		c, err := dialRaw(ctx, counts, address, marchv1.IDService_Stream_FullMethodName)
		if err != nil {
			return err
		}
		defer func() { _ = c.Conn.Close() }()
		for range 60_000 / atOnce {
			for range atOnce {
				c.Open()
			}
			if err := c.Flush(); err != nil {
				return err
			}
			counts.sent.Add(atOnce)
		}
		<-ctx.Done()
		return nil
	})
}

// eager sends requests on 500 streams of 10 connections as fast as it can, and reads the
// answers.
func eager(ctx context.Context, counts *counts, address string) error {
	return eagerStreams(ctx, counts, address, 1, true, pause)
}

// reopener is eager, and opens a stream that was refused again without a pause.
func reopener(ctx context.Context, counts *counts, address string) error {
	return eagerStreams(ctx, counts, address, 1, true, 0)
}

// eagerCallers is eager, from 50 addresses.
func eagerCallers(ctx context.Context, counts *counts, address string) error {
	return eagerStreams(ctx, counts, address, 50, true, pause)
}

// deaf is eager, but reads no answer.
func deaf(ctx context.Context, counts *counts, address string) error {
	return eagerStreams(ctx, counts, address, 1, false, pause)
}

// eagerStreams has 500 streams on ten connections, or on one of each caller. It opens a stream that was refused
// again, after a pause.
func eagerStreams(ctx context.Context, counts *counts, address string, callers int, read bool,
	pause time.Duration) error {
	conns := max(10, callers)
	streams := 500 / conns
	group, ctx := errgroup.WithContext(ctx)
	for n := range conns {
		conn, err := dialCounted(counts, address, fmt.Sprint(badCaller, n%callers+1))
		if err != nil {
			return err
		}
		client := marchv1.NewIDServiceClient(conn)
		for k := range streams {
			group.Go(func() error {
				return forever(ctx, pause, func() error {
					stream, err := client.Stream(ctx)
					if err != nil {
						return err
					}
					go func() {
						for read {
							if _, err := stream.Recv(); err != nil {
								return
							}
						}
					}()
					for {
						if err := stream.Send(&marchv1.NextRequest{Tag: string(tagName(k % 10))}); err != nil {
							return err
						}
					}
				})
			})
		}
	}
	return group.Wait()
}

// unknownTags makes 2,000 callers at 100 addresses ask for tags that do not exist, half of them
// always for the same one.
func unknownTags(ctx context.Context, counts *counts, address string) error {
	const addresses, each = 100, 20
	group, ctx := errgroup.WithContext(ctx)
	for a := range addresses {
		conn, err := dialCounted(counts, address, fmt.Sprint(badCaller, a+1))
		if err != nil {
			return err
		}
		client := marchv1.NewIDServiceClient(conn)
		for k := range each {
			group.Go(func() error {
				for i := 0; ; i++ {
					tag := fmt.Sprintf("unknown-%d-%d", a, k)
					if k%2 == 0 {
						tag = fmt.Sprintf("unknown-%d-%d-%d", a, k, i)
					}
					_, err := client.Next(ctx, &marchv1.NextRequest{Tag: tag})
					if ctx.Err() != nil {
						return err
					}
				}
			})
		}
	}
	return group.Wait()
}
