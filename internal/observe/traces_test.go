package observe_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/march-id/march/internal/observe"
)

// The span of a request has the name of its route, and belongs to the trace that the caller
// named. A request that gets no span still belongs to that trace.
func TestHTTP(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	const named = "0af7651916cd43dd8448eb211c80319c"
	mux := http.NewServeMux()
	for _, pattern := range []string{"GET /tags/{tag}", "POST /next"} {
		mux.HandleFunc(pattern, func(_ http.ResponseWriter, r *http.Request) {
			if got := trace.SpanContextFromContext(r.Context()).TraceID().String(); got != named {
				t.Errorf("%s: in trace %s", pattern, got)
			}
		})
	}
	m := observe.New("test", nil)
	h := observe.HTTP(tracer, observe.NewRequests(m).HTTP(mux), func(path string) bool { return path == "/next" })
	for _, request := range [][2]string{{"GET", "/tags/order"}, {"POST", "/next"}} {
		r := httptest.NewRequestWithContext(t.Context(), request[0], request[1], nil)
		r.Header.Set("traceparent", "00-"+named+"-b7ad6b7169203331-01")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	ended := spans.Ended()
	if len(ended) != 1 || ended[0].Name() != "GET /tags/{tag}" || ended[0].SpanContext().TraceID().String() != named {
		t.Errorf("got %v", ended)
	}
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	times := families[slices.IndexFunc(families, func(f *dto.MetricFamily) bool {
		return f.GetName() == "march_http_request_seconds"
	})]
	for _, m := range times.GetMetric() { // each time has the caller's trace as its exemplar
		if !slices.ContainsFunc(m.GetHistogram().GetBucket(), func(b *dto.Bucket) bool {
			return len(b.GetExemplar().GetLabel()) == 1 && b.GetExemplar().GetLabel()[0].GetValue() == named
		}) {
			t.Errorf("no exemplar of trace %s in %v", named, m)
		}
	}
}
