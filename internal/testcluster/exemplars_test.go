package testcluster_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// Asked for OpenMetrics, as Prometheus asks where exemplars are turned on, /metrics of a room and of a console has
// the trace of a request beside its time. Other readers get Prometheus' own text, which has none.
func TestExemplars(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := testcluster.New(t)
		c.Init(testcluster.Halves(), "test")
		c.Tag(nil, "test", "order")
		in := c.Room("a", "a1", func(cfg *room.Config) {
			cfg.HTTP, cfg.Metrics = testcluster.Listen(c, ""), serve.NewMetrics("test", nil)
			cfg.Tracer = sdktrace.NewTracerProvider()
		})
		over := c.Console(func(cfg *console.Config) {
			cfg.Metrics, cfg.Tracer = serve.NewMetrics("test", nil), sdktrace.NewTracerProvider()
		})
		for _, request := range []struct{ server, method, path, route string }{
			{in.HTTP, http.MethodPost, "/v1/tags/order/next", "POST /v1/tags/{tag}/next"},
			{over.HTTP, http.MethodGet, "/v1/layout", "GET /v1/layout"},
		} {
			const trace = "0af7651916cd43dd8448eb211c80319c"
			asks := func(method, path, header, value string) (kind, body string) {
				r, err := http.NewRequestWithContext(t.Context(), method, "http://"+request.server+path, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set(header, value)
				answer, err := testcluster.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = answer.Body.Close() }()
				text, err := io.ReadAll(answer.Body)
				if err != nil || answer.StatusCode != http.StatusOK {
					t.Fatalf("%s: %s %s, %v", path, answer.Status, text, err)
				}
				return answer.Header.Get("Content-Type"), string(text)
			}
			asks(request.method, request.path, "traceparent", "00-"+trace+"-b7ad6b7169203331-01")
			exemplar := regexp.MustCompile(`(?m)^http_request_duration_seconds_bucket{.*handler="` +
				regexp.QuoteMeta(request.route) + `".*} [0-9]+ # {trace_id="` + trace + `"} `)
			// The answer comes before its time is noted.
			testcluster.Await(t, "the exemplar of "+request.route, func() bool {
				kind, body := asks(http.MethodGet, "/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
				return strings.HasPrefix(kind, "application/openmetrics-text") && strings.HasSuffix(body, "# EOF\n") &&
					exemplar.MatchString(body)
			})
			if kind, body := asks(http.MethodGet, "/metrics", "Accept", "text/plain"); !strings.HasPrefix(kind,
				"text/plain") || strings.Contains(body, "trace_id") {
				t.Errorf("%s: %s with exemplars", request.route, kind)
			}
		}
	})
}
