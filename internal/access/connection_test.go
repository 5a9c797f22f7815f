package access_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/rest"
)

// naming issues IDs to tags that have the name of the caller, and refuses others.
type naming struct {
	marchv1.UnimplementedIDServiceServer
}

func (naming) Next(ctx context.Context, r *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	s := access.From(ctx)
	if s == nil {
		return nil, fmt.Errorf("no caller")
	}
	return &marchv1.NextResponse{Id: 1, Text: s.Name()}, nil
}

// oneConnection is a connection to an HTTP server behind a gate.
type oneConnection struct {
	t    *testing.T
	conn net.Conn
	from *bufio.Reader
}

func (w *world) connection() *oneConnection {
	w.t.Helper()
	routes, err := rest.Room(nil, w.gate.IDs(naming{}), nil, rest.Config{MaxBody: 1000, Logger: hclog.NewNullLogger()})
	if err != nil {
		w.t.Fatal(err)
	}
	mux := http.NewServeMux()
	routes(mux)
	mux.HandleFunc("/who", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, access.From(r.Context()).Name())
	})
	mux.HandleFunc("/livez", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(rw, access.From(r.Context()))
	})
	server := httptest.NewUnstartedServer(w.gate.HTTP(mux, nil))
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return access.Connection(ctx) }
	server.Start()
	w.t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return &oneConnection{w.t, conn, bufio.NewReader(conn)}
}

// ask sends a request with these headers, and wants a status and a text in the answer.
func (c *oneConnection) ask(request string, status int, want string, headers ...string) {
	c.t.Helper()
	if got, body := c.send(request, headers...); got != status || !strings.Contains(body, want) {
		c.t.Errorf("%s with %q: %d %s; want %d %s", request, headers, got, body, status, want)
	}
}

// send sends a request with these headers, and returns the answer.
func (c *oneConnection) send(request string, headers ...string) (status int, body string) {
	c.t.Helper()
	method, path, _ := strings.Cut(request, " ")
	lines := slices.Concat(headers, []string{"Host: localhost", "Content-Length: 0"})
	if _, err := fmt.Fprintf(c.conn, "%s %s HTTP/1.1\r\n%s\r\n\r\n", method, path,
		strings.Join(lines, "\r\n")); err != nil {
		c.t.Fatal(err)
	}
	answer, err := http.ReadResponse(c.from, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil {
		c.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// A connection remembers its caller for the same header alone, and while the files and the
// proof are in force.
func TestConnectionRemembers(t *testing.T) {
	w := newWorld(t)
	c := w.connection()
	token := func(name string) string { return "Authorization: Bearer " + w.tokens[name] }
	const next = "POST /v1/tags/order/next"
	for range 3 {
		c.ask(next, 200, "token:issuer", token("issuer"))
	}
	c.ask("GET /livez", 200, "<nil>", token("issuer"))
	c.ask("GET /who", 200, "token:issuer", token("issuer"))
	c.ask(next, 401, "no identity was given")
	c.ask("GET /who", 200, "anonymous")
	c.ask(next, 200, "token:issuer", token("issuer"))
	c.ask(next, 403, "token:viewer may not", token("viewer"))
	c.ask("GET /who", 200, "token:viewer", token("viewer"))
	c.ask(next, 403, "token:viewer may not", token("viewer"))
	c.ask(next, 200, "token:root", token("root"))
	c.ask(next, 401, "the token is not known", token("root")+"x")
	c.ask(next, 401, "not Bearer", "Authorization: ")
	c.ask(next, 401, "given 2 times", token("root"), token("root"))
	c.ask(next, 200, "token:root", token("root"))
	c.ask("POST /v1/tags/other/next", 403, "for tag", token("issuer"))

	alice := "Authorization: Bearer " + w.issuer.token(w.issuer.claims("alice"))
	c.ask(next, 200, "jwt:alice", alice)
	brief, ends := w.shortLived(func(token string) bool {
		status, _ := c.send(next, "Authorization: Bearer "+token)
		return status == 200
	})
	short := "Authorization: Bearer " + brief
	time.Sleep(time.Until(ends))
	c.ask(next, 401, "expired", short)
	c.ask(next, 200, "jwt:alice", alice)

	c.ask(next, 200, "token:issuer", token("issuer"))
	w.write("policy.yaml", strings.ReplaceAll(rules, "order, ", ""))
	w.reload()
	c.ask(next, 403, "may not", token("issuer"))
	w.write("tokens", "# none")
	w.write("policy.yaml", rules)
	w.reload()
	c.ask(next, 401, "the token is not known", token("issuer"))
}
