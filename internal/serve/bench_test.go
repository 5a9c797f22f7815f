package serve_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/hashicorp/go-hclog"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
)

type one struct {
	marchv1.UnimplementedIDServiceServer
}

func (one) Next(context.Context, *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	return &marchv1.NextResponse{Id: 1}, nil
}

type discard struct{ h http.Header }

func (d *discard) Header() http.Header       { return d.h }
func (*discard) Write(b []byte) (int, error) { return len(b), nil }
func (*discard) WriteHeader(int)             {}

// BenchmarkNext measures the cost of the hot route beyond net/http's own.
func BenchmarkNext(b *testing.B) {
	routes := must(serve.RoomRoutes(nil, (*access.Gate)(nil).IDs(one{}), nil, 1000, hclog.NewNullLogger()))(b)
	mux := http.NewServeMux()
	routes(mux)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/tags/order/next", http.NoBody)
	w := &discard{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.h)
		mux.ServeHTTP(w, r)
	}
}

// BenchmarkHTTP measures the cost of counting and timing a request, beyond the mux.
func BenchmarkHTTP(b *testing.B) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/tags/{tag}/next", func(http.ResponseWriter, *http.Request) {})
	_, _, count := serve.Counted(serve.NewMetrics("test", nil), nil)
	r := must(http.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/tags/order/next", http.NoBody))(b)
	w := &discard{http.Header{}}
	for name, h := range map[string]http.Handler{"mux": mux, "counted": count(mux)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}
