package serve_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/internal/serve"
)

// Classic and native buckets distinguish latencies from 50 us on.
func TestHistograms(t *testing.T) {
	m := serve.NewMetrics("test", nil)
	m.Transaction(60_000, nil) // ns
	m.Transaction(60_000, errors.New("unclassified"))
	families := must(m.Gatherer().Gather())(t)
	var h *dto.Histogram
	for _, f := range families {
		if f.GetName() == "march_etcd_transaction_seconds" {
			h = f.GetMetric()[0].GetHistogram()
		}
	}
	if h.GetSampleCount() != 2 || len(h.GetPositiveSpan()) == 0 {
		t.Fatalf("got %v, want two samples, natively too", h)
	}
	if b := h.GetBucket(); b[0].GetUpperBound() != 50e-6 || b[0].GetCumulativeCount() != 0 ||
		b[1].GetCumulativeCount() != 2 {
		t.Errorf("buckets %v", b)
	}
	if err := testutil.GatherAndCompare(m.Gatherer(), strings.NewReader(`
# HELP march_etcd_failures_total Transactions that failed, by the kind of error.
# TYPE march_etcd_failures_total counter
march_etcd_failures_total{kind="internal"} 1
march_etcd_failures_total{kind="unavailable"} 0
`), "march_etcd_failures_total"); err != nil {
		t.Error(err)
	}
}

// Labels are from closed sets, for any callers and handlers. The names of the version before are shown, too.
func TestRequests(t *testing.T) {
	m := serve.NewMetrics("test", prometheus.Labels{"room": "a"})
	unary, stream, counted := serve.Counted(m, map[string]grpc.ServiceInfo{"s": {Methods: []grpc.MethodInfo{
		{Name: "Unary"}, {Name: "Many", IsServerStream: true}}}})
	for _, err := range []error{nil, nil, status.Error(codes.NotFound, "x"), status.Error(99, "x"), errors.New("x")} {
		_, _ = unary(bg, nil, &grpc.UnaryServerInfo{FullMethod: "/s/Unary"},
			func(context.Context, any) (any, error) { return nil, err })
		_ = stream(nil, noStream{}, &grpc.StreamServerInfo{FullMethod: "/s/Many"},
			func(any, grpc.ServerStream) error { return err })
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/{tag}", func(w http.ResponseWriter, r *http.Request) {
		if code, err := strconv.Atoi(r.PathValue("tag")); err == nil {
			w.WriteHeader(code)
			return
		}
		_, _ = w.Write([]byte("ok"))
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("flush: %v", err)
		}
	})
	handler := counted(mux)
	for _, target := range []string{"/v1/a", "/v1/b", "/v1/404", "/v1/410", "/elsewhere", "/also/elsewhere"} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, target, nil))
	}
	if err := testutil.GatherAndCompare(m.Gatherer(), strings.NewReader(`
# HELP grpc_server_handled_total Calls over gRPC that ended, by method and code. A stream is one.
# TYPE grpc_server_handled_total counter
grpc_server_handled_total{grpc_code="Internal",grpc_method="Many",grpc_service="s",grpc_type="server_stream",room="a"} 1
grpc_server_handled_total{grpc_code="Internal",grpc_method="Unary",grpc_service="s",grpc_type="unary",room="a"} 1
grpc_server_handled_total{grpc_code="NotFound",grpc_method="Many",grpc_service="s",grpc_type="server_stream",room="a"} 1
grpc_server_handled_total{grpc_code="NotFound",grpc_method="Unary",grpc_service="s",grpc_type="unary",room="a"} 1
grpc_server_handled_total{grpc_code="OK",grpc_method="Many",grpc_service="s",grpc_type="server_stream",room="a"} 2
grpc_server_handled_total{grpc_code="OK",grpc_method="Unary",grpc_service="s",grpc_type="unary",room="a"} 2
grpc_server_handled_total{grpc_code="Unknown",grpc_method="Many",grpc_service="s",grpc_type="server_stream",room="a"} 1
grpc_server_handled_total{grpc_code="Unknown",grpc_method="Unary",grpc_service="s",grpc_type="unary",room="a"} 1
# HELP http_requests_total Requests over HTTP that were answered, by route and status.
# TYPE http_requests_total counter
http_requests_total{code="200",handler="GET /v1/{tag}",room="a"} 2
http_requests_total{code="200",handler="none",room="a"} 0
http_requests_total{code="404",handler="GET /v1/{tag}",room="a"} 1
http_requests_total{code="404",handler="none",room="a"} 2
http_requests_total{code="410",handler="GET /v1/{tag}",room="a"} 1
# HELP march_http_requests_total Requests over HTTP that were answered, by route and status.
# TYPE march_http_requests_total counter
march_http_requests_total{class="2xx",room="a",route="GET /v1/{tag}"} 2
march_http_requests_total{class="2xx",room="a",route="none"} 0
march_http_requests_total{class="4xx",room="a",route="GET /v1/{tag}"} 2
march_http_requests_total{class="4xx",room="a",route="none"} 2
# HELP march_requests_total Calls over gRPC that ended, by method and code. A stream is one.
# TYPE march_requests_total counter
march_requests_total{code="Internal",method="s/Many",room="a"} 1
march_requests_total{code="Internal",method="s/Unary",room="a"} 1
march_requests_total{code="NotFound",method="s/Many",room="a"} 1
march_requests_total{code="NotFound",method="s/Unary",room="a"} 1
march_requests_total{code="OK",method="s/Many",room="a"} 2
march_requests_total{code="OK",method="s/Unary",room="a"} 2
march_requests_total{code="Unknown",method="s/Many",room="a"} 1
march_requests_total{code="Unknown",method="s/Unary",room="a"} 1
`), "grpc_server_handled_total", "http_requests_total", "march_requests_total", "march_http_requests_total"); err != nil {
		t.Error(err)
	}
}

// noStream is a stream without messages.
type noStream struct{ grpc.ServerStream }

func (noStream) Context() context.Context { return bg }

// Two servers in one process have separate metrics: nothing is global.
func TestTwice(t *testing.T) {
	for range 2 {
		serve.Counted(serve.NewMetrics("test", prometheus.Labels{"room": "a"}), nil)
	}
}
