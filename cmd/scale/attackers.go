package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sync/errgroup"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// The attackers go on whatever the server answers, and open another connection
// where one was closed.

// rawConn is a connection of HTTP/2 that is written to by hand. It throws away the bytes
// that it receives.
type rawConn struct {
	*http2.Framer
	conn    net.Conn
	out     bytes.Buffer
	headers []byte
	next    uint32
}

func dialRaw(ctx context.Context, address, from, method string) (*rawConn, error) {
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &rawConn{conn: conn, next: 1}
	c.Framer = http2.NewFramer(&c.out, nil)
	c.out.WriteString(http2.ClientPreface)
	if err := c.WriteSettings(); err != nil {
		return nil, err
	}
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		e.SetMaxDynamicTableSizeLimit(0)
		if err := e.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			return nil, err
		}
	}
	c.headers = block.Bytes()
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	return c, nil
}

// open opens a stream and returns its number.
func (c *rawConn) open() (uint32, error) {
	stream := c.next
	c.next += 2
	return stream, c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.headers, EndHeaders: true})
}

func (c *rawConn) flush() error {
	_, err := c.out.WriteTo(c.conn)
	return err
}

// forever calls try again and again, a moment after it failed.
func forever(ctx context.Context, try func() error) error {
	for ctx.Err() == nil {
		if err := try(); err != nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
	return ctx.Err()
}

// resets opens streams and resets them at once, on four connections.
func resets(ctx context.Context, address string) error {
	group, ctx := errgroup.WithContext(ctx)
	for range 4 {
		group.Go(func() error {
			return forever(ctx, func() error {
				c, err := dialRaw(ctx, address, badCaller+"1", marchv1.IDService_Next_FullMethodName)
				if err != nil {
					return err
				}
				defer func() { _ = c.conn.Close() }()
				for {
					for range 100 {
						stream, err := c.open()
						if err == nil {
							err = c.WriteRSTStream(stream, http2.ErrCodeCancel)
						}
						if err != nil {
							return err
						}
					}
					if err := c.flush(); err != nil {
						return err
					}
				}
			})
		})
	}
	return group.Wait()
}

// silent opens 60,000 streams on one connection, and says nothing on them.
func silent(ctx context.Context, address string) error {
	return forever(ctx, func() error {
		c, err := dialRaw(ctx, address, badCaller+"1", marchv1.IDService_Stream_FullMethodName)
		if err != nil {
			return err
		}
		defer func() { _ = c.conn.Close() }()
		for i := range 60_000 {
			if _, err := c.open(); err != nil {
				return err
			}
			if i%100 == 99 {
				if err := c.flush(); err != nil {
					return err
				}
			}
		}
		<-ctx.Done()
		return nil
	})
}

// eager sends requests on 500 streams of 10 connections, as fast as they go.
func eager(ctx context.Context, address string) error {
	const conns, streams = 10, 50
	group, ctx := errgroup.WithContext(ctx)
	for range conns {
		conn, err := dial(address, badCaller+"1")
		if err != nil {
			return err
		}
		client := marchv1.NewIDServiceClient(conn)
		for k := range streams {
			group.Go(func() error {
				return forever(ctx, func() error {
					stream, err := client.Stream(ctx)
					if err != nil {
						return err
					}
					go func() {
						for {
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

// unknownTags has 2,000 callers at 100 addresses ask for tags that do not exist,
// half of them always for the same one.
func unknownTags(ctx context.Context, address string) error {
	const addresses, each = 100, 20
	group, ctx := errgroup.WithContext(ctx)
	for a := range addresses {
		conn, err := dial(address, fmt.Sprint(badCaller, a+1))
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
