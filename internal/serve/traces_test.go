package serve_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/march-id/march/internal/serve"
)

// TestSpans: requests for IDs have no span, over gRPC and HTTP. Checks of the server's state have
// none either. Requests of operators have one.
func TestSpans(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	r := startWith(t, func(cfg *serve.Config) {
		cfg.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		cfg.Routes = func(mux *http.ServeMux) {
			mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) { r.Pattern = r.URL.Path })
		}
	})
	for _, path := range []string{"/livez", "/readyz", "/v1/tags/order/next", "/v1/tags/order/lease",
		"/v1/tags/order", "/v1/tags/order:skip"} {
		if code := r.get(t, path); code != http.StatusOK {
			t.Errorf("%s: %d", path, code)
		}
	}
	r.stop()
	r.end(t)
	var names []string
	for _, s := range spans.GetSpans() {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	if want := []string{"/v1/tags/order", "/v1/tags/order:skip"}; !slices.Equal(names, want) {
		t.Errorf("spans of %q, want %q", names, want)
	}
}

// The span of a request has the name of its route, and belongs to the trace that the caller
// named. A request that gets no span still belongs to that trace.
func TestSpansOfRoutes(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	const named = "0af7651916cd43dd8448eb211c80319c"
	mux := http.NewServeMux()
	for _, pattern := range []string{"GET /tags/{tag}", "POST /v1/tags/{tag}/next"} {
		mux.HandleFunc(pattern, func(_ http.ResponseWriter, r *http.Request) {
			if got := trace.SpanContextFromContext(r.Context()).TraceID().String(); got != named {
				t.Errorf("%s: in trace %s", pattern, got)
			}
		})
	}
	m := serve.NewMetrics("test", nil)
	_, _, counted := serve.Counted(m, nil)
	h := serve.Traced(tracer, counted(mux))
	for _, request := range [][2]string{{"GET", "/tags/order"}, {"POST", "/v1/tags/order/next"}} {
		r := httptest.NewRequestWithContext(t.Context(), request[0], request[1], nil)
		r.Header.Set("traceparent", "00-"+named+"-b7ad6b7169203331-01")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	ended := spans.Ended()
	if len(ended) != 1 || ended[0].Name() != "GET /tags/{tag}" || ended[0].SpanContext().TraceID().String() != named {
		t.Errorf("got %v", ended)
	}
	families := must(m.Gatherer().Gather())(t)
	times := families[slices.IndexFunc(families, func(f *dto.MetricFamily) bool {
		return f.GetName() == "http_request_duration_seconds"
	})]
	for _, m := range times.GetMetric() { // each time has the caller's trace as its exemplar
		if !slices.ContainsFunc(m.GetHistogram().GetBucket(), func(b *dto.Bucket) bool {
			return len(b.GetExemplar().GetLabel()) == 1 && b.GetExemplar().GetLabel()[0].GetValue() == named
		}) {
			t.Errorf("no exemplar of trace %s in %v", named, m)
		}
	}
}
