package access_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/rest"
	"github.com/march-id/march/internal/serve"
)

// issuing issues the same ID again and again.
type issuing struct {
	marchv1.UnimplementedIDServiceServer
}

func (issuing) Next(context.Context, *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	return &marchv1.NextResponse{Id: 1}, nil
}

// repeating is a connection on which a client sends the same request n times, without a network.
type repeating struct {
	request []byte
	n       int
	rest    []byte // of the request under way
	ended   chan struct{}
	once    sync.Once
}

func (c *repeating) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		if c.n == 0 {
			return 0, io.EOF
		}
		c.n, c.rest = c.n-1, c.request
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *repeating) Write(b []byte) (int, error) {
	if !bytes.HasPrefix(b, []byte("HTTP/1.1 200 OK\r\n")) {
		return 0, errors.New(string(b))
	}
	return len(b), nil
}
func (c *repeating) Close() error                   { c.once.Do(func() { close(c.ended) }); return nil }
func (*repeating) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (*repeating) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }
func (*repeating) SetDeadline(time.Time) error      { return nil }
func (*repeating) SetReadDeadline(time.Time) error  { return nil }
func (*repeating) SetWriteDeadline(time.Time) error { return nil }
func (c *repeating) Addr() net.Addr                 { return c.LocalAddr() }

// single is a listener with one connection.
type single struct {
	*repeating
	given bool
}

func (s *single) Accept() (net.Conn, error) {
	if s.given {
		<-s.ended
		return nil, net.ErrClosed
	}
	s.given = true
	return s.repeating, nil
}

// BenchmarkHTTPNext measures a request for an ID over net/http, with the header of a token and
// the checks of a gate, with such a header alone, and without either.
func BenchmarkHTTPNext(b *testing.B) {
	token, line, err := access.NewToken("issuer", time.Time{})
	if err != nil {
		b.Fatal(err)
	}
	w := &world{dir: b.TempDir()}
	files := map[string]string{"tokens": line, "policy": `grants:
  - {subjects: ["token:other"], roles: viewer}
  - {subjects: ["token:issuer"], roles: issuer, tags: ["a*", "b*", "order*", "*"],
     quotas: {ids_per_second: 1000000000, tags: 10}}
`}
	for name, content := range files {
		if err := os.WriteFile(w.path(name), []byte(content), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	gate, err := access.New(access.Config{Policy: w.path("policy"), Tokens: w.path("tokens"), Room: "a"})
	if err != nil {
		b.Fatal(err)
	}
	header := "Authorization: Bearer " + token + "\r\n"
	for _, m := range []struct {
		name, header string
		gate         *access.Gate
	}{
		{"plain", "", nil},
		{"header", strings.ReplaceAll(header, "Authorization", "X-Something-E"), nil},
		{"ignored token", header, nil},
		{"policy", header, gate},
	} {
		routes, err := rest.Room(nil, m.gate.IDs(issuing{}), nil,
			rest.Config{MaxBody: 1000, Logger: hclog.NewNullLogger()})
		if err != nil {
			b.Fatal(err)
		}
		mux := http.NewServeMux()
		routes(mux)
		b.Run(m.name, func(b *testing.B) {
			b.ReportAllocs()
			server := serve.NewHTTP(m.gate.HTTP(mux, nil))
			request := []byte("POST /v1/tags/order/next HTTP/1.1\r\nHost: " +
				"127.0.0.1:7020\r\nContent-Length: 0\r\n" + m.header + "\r\n")
			l := &single{repeating: &repeating{request: request, n: b.N, ended: make(chan struct{})}}
			b.ResetTimer()
			if err := server.Serve(l); !errors.Is(err, net.ErrClosed) {
				b.Fatal(err)
			}
			if l.n > 0 {
				b.Fatalf("%d requests were not answered", l.n)
			}
		})
	}
}
