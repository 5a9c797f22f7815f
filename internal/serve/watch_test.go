package serve_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"

	"github.com/march-id/march/internal/testcluster"
)

// migrations has migrations that can be watched by their IDs: "ends" ends, "fails" fails after
// its first line, and "stays" lasts until the client goes.
type migrations struct {
	marchv1.UnimplementedConsoleServiceServer
	pause time.Duration // between two lines
	gone  chan struct{}
}

func (m *migrations) WatchMigration(r *marchv1.WatchMigrationRequest,
	stream marchv1.ConsoleService_WatchMigrationServer) error {
	if r.GetId() == "unknown" {
		return allocator.Errorf(allocator.NotFound, "migration unknown does not exist")
	}
	if r.GetId() == "stays" {
		defer close(m.gone)
	}
	for reached := range int32(3) {
		if err := stream.Send(&marchv1.WatchMigrationResponse{Migration: &marchv1.Migration{Id: r.GetId(),
			Reached: reached}}); err != nil {
			return err
		}
		if r.GetId() == "fails" {
			return allocator.Errorf(allocator.Unavailable, "this console is stopping")
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-time.After(m.pause):
		}
	}
	if r.GetId() == "stays" {
		<-stream.Context().Done()
	}
	return nil
}

const limit = 100 * time.Millisecond

// serveMigrations serves a console. A request may take limit to arrive, and its answer write: a
// watch outlasts limit.
func serveMigrations(t *testing.T, write time.Duration) (*migrations, *httptest.Server) {
	t.Helper()
	m := &migrations{pause: 2 * limit, gone: make(chan struct{})}
	conn := inProcess(marchv1.UnimplementedIDServiceServer{}, marchv1.UnimplementedRoomServiceServer{}, m)
	routes := must(serve.ConsoleRoutes(conn, maxBody, hclog.NewNullLogger()))(t)
	mux := http.NewServeMux()
	routes(mux)
	server := httptest.NewUnstartedServer(mux)
	server.Config.ReadTimeout, server.Config.WriteTimeout = limit, write
	_ = server.Listener.Close()
	server.Listener = testcluster.Listen(t, "")
	server.Start()
	t.Cleanup(server.Close)
	return m, server
}

func TestWatch(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		_, server := serveMigrations(t, limit)
		for path, want := range map[string][]string{
			"/v1/migrations/ends:watch":   {`"id":"ends"`, `"reached":1`, `"reached":2`},
			"/v1/migrations:watch":        {`"id":""`, `"reached":1`, `"reached":2`},
			"/v1/migrations:watch?id=one": {`"id":"one"`, `"reached":1`, `"reached":2`},
			"/v1/migrations/fails:watch": {`"id":"fails"`,
				`{"error":{"code":"UNAVAILABLE","reason":"unavailable","message":"this console is stopping"}}`},
		} {
			r, err := testcluster.Client().Get(server.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Header; r.StatusCode != http.StatusOK || got.Get("Content-Type") != "application/x-ndjson" ||
				got.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: %s %v", path, r.Status, got)
			}
			n := 0
			for lines := bufio.NewScanner(r.Body); lines.Scan(); n++ {
				if n >= len(want) || !strings.Contains(lines.Text(), want[n]) || !json.Valid(lines.Bytes()) {
					t.Errorf("%s: line %d: %s", path, n, lines.Text())
				}
			}
			if n != len(want) {
				t.Errorf("%s: %d lines, want %d", path, n, len(want))
			}
			_ = r.Body.Close()
		}
		for request, want := range map[string]string{
			"GET /v1/migrations/unknown:watch":     "404 not_found",
			"HEAD /v1/migrations/unknown:watch":    "405 ",
			"POST /v1/migrations/unknown:watch":    "405 ",
			"GET /v1/migrations/unknown:watch?a=b": "400 invalid",
		} {
			method, path, _ := strings.Cut(request, " ")
			r := must(http.NewRequestWithContext(t.Context(), method, server.URL+path, nil))(t)
			w, err := testcluster.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			var got answer
			_ = json.NewDecoder(w.Body).Decode(&got)
			_ = w.Body.Close()
			if fmt.Sprint(w.StatusCode, " ", got.Reason) != want {
				t.Errorf("%s: got %d %q, want %s", request, w.StatusCode, got, want)
			}
		}
	})
}

// TestWatchEnds: a client that goes away ends its watch.
func TestWatchEnds(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		m, server := serveMigrations(t, limit)
		r, err := testcluster.Client().Get(server.URL + "/v1/migrations/stays:watch")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(r.Body).ReadString('\n'); err != nil {
			t.Error(err)
		}
		_ = r.Body.Close()
		select {
		case <-m.gone:
		case <-time.After(time.Minute):
			t.Error("the watch goes on")
		}
	})
}

// TestSlowBody: the server answers a request whose body does not come, and does not wait for it.
func TestSlowBody(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		_, server := serveMigrations(t, 10*time.Second)
		conn := must(testcluster.DialContext(t.Context(), server.Listener.Addr().String()))(t)
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprint(conn, "POST /v1/tags HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var got answer
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil || r.StatusCode != http.StatusRequestTimeout ||
			got.Code != "DEADLINE_EXCEEDED" {
			t.Errorf("got %s %v %v", r.Status, got, err)
		}
	})
}
