package console_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// send sends "POST /path body" as ann, and returns the answer's status and body.
func (c *consoleOf) send(line string) (code int, body string) {
	c.Helper()
	method, rest, _ := strings.Cut(line, " ")
	path, sent, _ := strings.Cut(rest, " ")
	r, err := http.NewRequestWithContext(c.Context(), method, "http://"+c.HTTP+path, strings.NewReader(sent))
	if err != nil {
		c.Fatal(err)
	}
	r.Header.Set("March-Actor", "ann")
	answer, err := testcluster.Client().Do(r)
	if err != nil {
		c.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err != nil {
		c.Errorf("%s: %v", line, err)
	}
	return answer.StatusCode, string(got)
}

// wants sends a request, and fails the test unless the answer has the status code and
// contains says.
func (c *consoleOf) wants(line string, code int, says string) string {
	c.Helper()
	got, body := c.send(line)
	if got != code || !strings.Contains(body, says) {
		c.Errorf("%s: got %d %s, want %d %s", line, got, body, code, says)
	}
	return body
}

// TestHTTP creates a cluster over HTTP alone, and changes it.
func TestHTTP(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := start(t)
		const layout = `{"boundary":"100","rooms":{"a":{"upper":"50"},"b":{"lower":"50","upper":"100"}}}`
		c.wants("POST /v1/layout:validate "+layout, 200, `{"problems":[],"details":[]}`)
		c.wants(`POST /v1/layout:validate {"boundary":"-1"}`, 200, `{"problems":["boundary -1`)
		c.wants("POST /v1/layout:init "+layout, 200, `"actor":"ann from 127.0.0.1"`)
		c.wants("POST /v1/layout:init "+layout, 409, `{"code":"ALREADY_EXISTS","reason":"exists"`)
		c.wants("GET /v1/layout", 200, `"version":"1"`)
		c.wants("GET /v1/layouts/1", 200, `"version":"1"`)
		c.wants("GET /v1/layouts/2", 404, `{"code":"NOT_FOUND","reason":"not_found"`)
		c.wants("GET /v1/layouts", 200, `{"layouts":[{"layout":`)

		c.wants(`POST /v1/tags {"name":"order","start":"10"}`, 200, `"start":"10"`)
		c.wants(`POST /v1/tags {"name":"Order"}`, 400, `"reason":"invalid"`)
		c.wants(`PATCH /v1/tags/order {"maxSkew":"5"}`, 200, `"maxSkew":"5"`)
		c.wants(`PATCH /v1/tags/order {"limit":"5"}`, 400, "limit: 5")
		c.wants(`POST /v1/tags/order:skip {"to":"60","rooms":["b"]}`, 200, `"skips":{"b":"60"}`)
		c.wants(`POST /v1/tags/order:prescale {"step":"2000","duration":"3600s"}`, 200, `"prescale":"2000"`)
		c.wants("GET /v1/tags/order", 200, `"marks":`)
		c.wants("GET /v1/tags?prefix=or&pageSize=1", 200, `{"tags":[{"name":"order"`)
		c.wants("DELETE /v1/tags/order", 200, "{}")
		c.wants("DELETE /v1/tags/order", 404, "order")

		c.wants("GET /v1/rooms", 200, `{"rooms":[{"name":"a","range":{"lower":"0","upper":"50"},`)
		c.wants("GET /v1/instances", 200, `{"instances":[],"halt":null,"problem":"","unreadable":[],"problems":[]}`)
		c.wants("GET /v1/rooms/a/instances", 200,
			`{"instances":[],"halt":null,"problem":"","unreadable":[],"problems":[]}`)
		c.wants("GET /v1/rooms/A/instances", 400, `"reason":"invalid"`)
		c.wants("DELETE /v1/rooms/a/instances/gone", 404, "gone")

		audit := c.wants("GET /v1/audit", 200, `"action":"delete tag"`)
		if strings.Contains(audit, "unknown from") {
			t.Errorf("the audit lacks the actor: %s", audit)
		}
		c.wants("GET /v1/openapi.json", 200, `"/v1/migrations/{id}:watch"`)
	})
}

// TestHTTPMigration plans, starts, steers and watches migrations over HTTP.
func TestHTTPMigration(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.wants("GET /v1/migrations:latest", 404, "no migration yet")
		plan := c.wants(`POST /v1/migrations:plan {"move":["a:25-50=b"]}`, 200, `"kind":"MOVE_KIND_RETRACT"`)
		c.wants(`POST /v1/migrations:cost {"wait":"5s",`+plan[1:], 200, `"cost":{"tags":"0","skipped":"0",`)
		c.wants("POST /v1/migrations "+plan, 200, `"actor":"ann from 127.0.0.1"`) // the plan is sent back as it came
		id, last := "", ""
		for text := range strings.Lines(c.wants("GET /v1/migrations:watch", 200, "\n")) {
			var line struct {
				Result struct{ Migration struct{ ID, State string } }
			}
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Fatal(err)
			}
			id, last = line.Result.Migration.ID, line.Result.Migration.State
		}
		if last != "MIGRATION_STATE_DONE" {
			t.Errorf("the last line says %q", last)
		}
		c.wants("GET /v1/migrations/"+id, 200, `"state":"MIGRATION_STATE_DONE"`)
		c.wants("GET /v1/migrations", 200, id)

		// This migration waits for an instance that never reports, so it can be steered.
		if _, err := c.Ledger().Join(bg, ledger.Registration{Room: "b", Name: "b1", Address: "127.0.0.1:1",
			Hold: 10 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		plan = c.wants(`POST /v1/migrations:plan {"move":["b:25-50=a"]}`, 200, `"instances":["b/b1"]`)
		started := c.wants("POST /v1/migrations "+plan, 200, `"state":"MIGRATION_STATE_RUNNING"`)
		_, rest, _ := strings.Cut(started, `"id":"`)
		id, _, _ = strings.Cut(rest, `"`)
		testcluster.Await(t, "it waits", func() bool {
			_, body := c.send("GET /v1/migrations:latest")
			return strings.Contains(body, `"reached":1`) && strings.Contains(body, `"waiting":[{"instance":"b/b1"`)
		})
		c.wants("POST /v1/migrations/"+id+":pause", 200, `"state":"MIGRATION_STATE_PAUSED"`)
		c.wants("POST /v1/migrations/"+id+":pause {}", 400, `"code":"FAILED_PRECONDITION","reason":"refused"`)
		c.wants("POST /v1/migrations/"+id+":resume", 200, `"state":"MIGRATION_STATE_RUNNING"`)
		c.wants("POST /v1/migrations/"+id+`:continue {"without":["b/nobody"]}`, 404, "b/nobody")
		c.wants("POST /v1/migrations/"+id+`:continue {"without":["b/b1"]}`, 200, `"without":["b/b1"]`)
		testcluster.Await(t, "it is done", func() bool {
			_, body := c.send("GET /v1/migrations/" + id)
			return strings.Contains(body, `"state":"MIGRATION_STATE_DONE"`)
		})
		c.wants("POST /v1/migrations/"+id+":abort", 400, `"reason":"refused"`)

		plan = c.wants(`POST /v1/migrations:plan {"move":["b:50-60=a"]}`, 200, `"kind":"MOVE_KIND_RETRACT"`)
		started = c.wants(`POST /v1/migrations {"hold":"60s",`+plan[1:], 200, `"hold":"60s"`)
		_, rest, _ = strings.Cut(started, `"id":"`)
		id, _, _ = strings.Cut(rest, `"`)
		c.wants("POST /v1/migrations/"+id+":abort", 200, `"abort":true`)
	})
}

// TestHealthWithoutEtcd: a console is as healthy as its etcd, over HTTP and gRPC.
func TestHealthWithoutEtcd(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		health := func(want healthpb.HealthCheckResponse_ServingStatus) func() bool {
			return func() bool {
				for _, service := range []string{"", marchv1.ConsoleService_ServiceDesc.ServiceName} {
					r, err := healthpb.NewHealthClient(c.Conn).Check(bg, &healthpb.HealthCheckRequest{Service: service})
					if err != nil || r.GetStatus() != want {
						return false
					}
				}
				return true
			}
		}
		testcluster.Await(t, "serving", health(healthpb.HealthCheckResponse_SERVING))
		c.wants("GET /readyz?verbose", 200,
			"[+]etcd ok\n[+]leasing ok\n[!]room a has a range, and no instance of it is alive. Since 2")
		c.wants("GET /readyz?verbose", 200, "\nreadyz check passed\n")
		c.Mem.Stop()
		c.wants("GET /readyz", 503, "[-]etcd failed: ")
		testcluster.Await(t, "not serving", health(healthpb.HealthCheckResponse_NOT_SERVING))
		c.wants("GET /livez", 200, "ok")
		began := time.Now()
		c.wants("GET /v1/layout", 503, `{"code":"UNAVAILABLE","reason":"unavailable"`)
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("the error took %v", took)
		}
		c.Mem.Start()
		testcluster.Await(t, "serving again", health(healthpb.HealthCheckResponse_SERVING))
	})
}
