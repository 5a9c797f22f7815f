package observe_test

import (
	"net/http"
	"testing"

	"github.com/march-id/march/internal/observe"
)

type discard struct{ h http.Header }

func (d *discard) Header() http.Header       { return d.h }
func (*discard) Write(b []byte) (int, error) { return len(b), nil }
func (*discard) WriteHeader(int)             {}

// BenchmarkHTTP measures the cost of counting and timing a request, beyond the mux.
func BenchmarkHTTP(b *testing.B) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/tags/{tag}/next", func(http.ResponseWriter, *http.Request) {})
	counted := observe.NewRequests(observe.New("test", nil)).HTTP(mux)
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/tags/order/next", http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	w := &discard{http.Header{}}
	for name, h := range map[string]http.Handler{"mux": mux, "counted": counted} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}
