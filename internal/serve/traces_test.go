package serve_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

// TestSpans: requests for IDs have no span, over gRPC and HTTP. Checks of the server's state have
// none either. Requests of operators have one.
func TestSpans(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	g, h := testcluster.Listen(t, ""), testcluster.Listen(t, "")
	stop := testcluster.Run(t, func(ctx context.Context) error {
		return serve.Run(ctx, serve.Config{
			GRPC: g, HTTP: h, Health: health.NewServer(), MaxRequest: 1 << 10, Drain: time.Second,
			Register: func(grpc.ServiceRegistrar) {},
			Ready:    func(context.Context) []serve.Check { return nil },
			Tracer:   sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)),
			Routes: func(mux *http.ServeMux) {
				mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) { r.Pattern = r.URL.Path })
			},
		})
	})
	r := &running{http: h.Addr().String()}
	for _, path := range []string{"/livez", "/readyz", "/v1/tags/order/next", "/v1/tags/order/lease",
		"/v1/tags/order", "/v1/tags/order:skip"} {
		if code := r.get(t, path); code != http.StatusOK {
			t.Errorf("%s: %d", path, code)
		}
	}
	stop()
	var names []string
	for _, s := range spans.GetSpans() {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	if want := []string{"/v1/tags/order", "/v1/tags/order:skip"}; !slices.Equal(names, want) {
		t.Errorf("spans of %q, want %q", names, want)
	}
}
