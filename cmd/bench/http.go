package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/textproto"
	"strconv"
	"sync"

	"github.com/march-id/march/cmd/internal/load"
)

// httpRows compares POST /v1/tags/{tag}/next with a POST to an empty handler, on a server with
// the same settings.
func httpRows(ctx context.Context, b *bench) error {
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	s, err := c.serve(ctx, "bench", true, tag)
	if err != nil {
		return err
	}
	next := b.add(row{what: "HTTP next vs an empty handler on the same server", unit: "/s", goal: 0.9})
	for range b.rounds {
		for _, m := range []struct {
			address, path string
			to            *[]float64
		}{
			{s.echoHTTP, "/v1/tags/" + tag + "/empty", &next.yard},
			{s.roomHTTP, "/v1/tags/" + tag + "/next", &next.measured},
		} {
			p := &posts{method: "POST", address: m.address, path: m.path}
			r, err := measure(ctx, load.Config{Duration: 2 * b.unit, New: p.caller})
			p.close()
			if err != nil {
				_ = s.stop()
				return err
			}
			*m.to = append(*m.to, r.CallsPerSecond())
		}
	}
	return s.stop()
}

// posts sends requests without a body to a path, each caller over a connection of its own. It
// does as little as possible. net/http's client takes longer than its server, and longer still
// for an answer with a body, which would hide the server's time.
type posts struct {
	method, address, path string
	header                string // further header lines; empty for none
	mu                    struct {
		sync.Mutex
		conns []net.Conn
	}
}

func (p *posts) caller(int) load.Caller {
	request := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\n%s\r\n", p.method,
		p.path, p.address, p.header)
	var conn net.Conn
	var from *bufio.Reader
	return func(ctx context.Context) (_ int64, err error) {
		if conn == nil {
			if conn, err = new(net.Dialer).DialContext(ctx, "tcp", p.address); err != nil {
				return 0, err
			}
			p.mu.Lock()
			p.mu.conns = append(p.mu.conns, conn)
			p.mu.Unlock()
			from = bufio.NewReader(conn)
		}
		if _, err := conn.Write(request); err != nil {
			return 0, err
		}
		return 1, skipAnswer(textproto.NewReader(from))
	}
}

// skipAnswer reads an answer, which must report success.
func skipAnswer(from *textproto.Reader) error {
	line, err := from.ReadLineBytes()
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("answered %q", line)
	}
	body := 0
	for {
		line, err := from.ReadLineBytes()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			_, err := from.R.Discard(body)
			return err
		}
		if length, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if body, err = strconv.Atoi(string(length)); err != nil {
				return err
			}
		}
	}
}

func (p *posts) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.mu.conns {
		_ = conn.Close()
	}
}
