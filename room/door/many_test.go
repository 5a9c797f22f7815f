package door_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/room/tinyid"
)

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	ended chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// open runs TinyId's door until the test ends, and returns what dials it.
func open(t *testing.T) *pipes {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tinyid.New(fewTags{}, tinyid.AnyToken("good")).Run(ctx, p) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

const whole = "POST /tinyid/id/nextIdSimple?token=good&bizType=order HTTP/1.1\r\nHost: " +
	"march\r\nContent-Length: 0\r\n\r\n"

// takes sends a request and reads the answer.
func takes(conn net.Conn) error {
	if _, err := io.WriteString(conn, whole); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || string(body) != "7" {
		return fmt.Errorf("%d %s, %w", answer.StatusCode, body, err)
	}
	return answer.Body.Close()
}

// 10,000 connections that were served and stay open cost little memory each, and each is
// served again.
func TestManyConnections(t *testing.T) {
	const clients, most = 10_000, 64 << 10 // bytes
	p := open(t)
	conns := make([]net.Conn, clients)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for k := range conns {
		conns[k] = p.dial()
		if err := takes(conns[k]); err != nil {
			t.Fatalf("client %d: %v", k, err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)
	t.Logf("%d bytes for each connection", used/clients)
	if used/clients > most {
		t.Errorf("%d bytes for each connection; allowed: %d", used/clients, most)
	}
	for k, conn := range conns {
		if err := takes(conn); err != nil {
			t.Fatalf("client %d, again: %v", k, err)
		}
		_ = conn.Close()
	}
}

// A client that sends a part of a request and then nothing is cut off: after 5 s in the
// middle of the headers, after 10 s in the middle of a body, and after a minute between two
// requests. Others are served meanwhile.
func TestHalfARequest(t *testing.T) {
	for name, test := range map[string]struct {
		sends string
		after time.Duration
		says  string // what the door answers first
	}{
		"nothing":            {"", 5 * time.Second, ""},
		"a part of the line": {"POST /tinyid/id/nex", 5 * time.Second, ""},
		"a part of the headers": {
			"POST /tinyid/id/nextIdSimple HTTP/1.1\r\nHost: march\r\nContent-Le", 5 * time.Second, "",
		},
		"a part of the form": {
			"POST /tinyid/id/nextIdSimple HTTP/1.1\r\nHost: march\r\nContent-Type: " +
				"application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ntoken=g",
			10 * time.Second, "", // the time for the answer is over, too
		},
		"one request": {whole, time.Minute, "HTTP/1.1 200 "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := open(t)
				began := time.Now()
				const clients = 100
				var halves sync.WaitGroup
				for range clients {
					conn := p.dial()
					halves.Go(func() {
						defer func() { _ = conn.Close() }()
						if _, err := io.WriteString(conn, test.sends); err != nil {
							t.Error(err)
						}
						answer, err := io.ReadAll(conn)
						if took := time.Since(began); err != nil || took < test.after ||
							took > test.after+2*time.Second {
							t.Errorf("cut off after %v, %v; want %v", took, err, test.after)
						}
						if !strings.HasPrefix(string(answer), test.says) {
							t.Errorf("answer %q; want %q", answer, test.says)
						}
					})
				}
				whole := p.dial()
				if err := takes(whole); err != nil {
					t.Error(err)
				}
				_ = whole.Close()
				halves.Wait()
			})
		})
	}
}

// A door takes no more than 16 KiB of headers and 64 KiB of a form.
func TestTooLargeRequests(t *testing.T) {
	p := open(t)
	for _, large := range []struct{ sends, says string }{
		{"GET / HTTP/1.1\r\nHost: march\r\nX: " + strings.Repeat("x", 64<<10), "HTTP/1.1 431 "},
		{"POST /tinyid/id/nextIdSimple HTTP/1.1\r\nHost: march\r\nContent-Type: " +
			"application/x-www-form-urlencoded\r\nContent-Length: 1000000\r\n\r\ntoken=" + strings.Repeat("g", 65<<10),
			"HTTP/1.1 400 "},
	} {
		conn := p.dial()
		go func() { _, _ = io.WriteString(conn, large.sends) }() // it ends where the door reads no more
		answer, _ := io.ReadAll(conn)
		if !strings.HasPrefix(string(answer), large.says) {
			t.Errorf("answer %.200q; want %q", answer, large.says)
		}
		_ = conn.Close()
	}
}
