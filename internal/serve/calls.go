package serve

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/throttle"
)

// calls has the outermost interceptors of a server. They count and time calls, turn the errors of handlers into
// statuses, and log unforeseen ones (api.Unforeseen). All others are only in the metrics.
type calls struct {
	log      hclog.Logger
	failed   throttle.Log
	requests *requests // nil without metrics
}

func (c *calls) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	callOf(ctx).ask()
	start := time.Now()
	resp, err := api.UnaryServerInterceptor(ctx, req, info, handler)
	c.ended(ctx, info.FullMethod, start, err)
	return resp, err
}

func (c *calls) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	start := time.Now()
	err := api.StreamServerInterceptor(srv, stream, info, handler)
	if stream.Context().Err() == nil { // the server refused or ended it: its client did not give it up
		callOf(stream.Context()).ask()
	}
	c.ended(stream.Context(), info.FullMethod, start, err)
	return err
}

func (c *calls) ended(ctx context.Context, method string, start time.Time, err error) {
	if c.requests != nil {
		c.requests.ended(ctx, method, start, status.Code(err))
	}
	if api.Unforeseen(err) {
		c.failed.Log(time.Now(), c.log.Error, "call failed",
			append(traceID(Incoming(ctx)), "method", method, "error", err)...)
	}
}

// requests counts and times the calls that a server answers, under the names that the gRPC ecosystem's and Prometheus'
// own libraries have for it. It is written by hand instead of with their middlewares, because every Next passes
// through it: two readings of the clock, a map, a counter and a histogram.
type requests struct {
	handled, httpHandled *prometheus.CounterVec
	seconds, httpSeconds *prometheus.HistogramVec
	methods              map[string]counts // by full name; not changed once calls arrive
	routes               sync.Map          // of counts, by route; there are as many as patterns
}

// counts has the metrics of a method or a route. They are kept, because a lookup by labels for each call would cost
// more than counting.
type counts struct {
	labels  []string // but for the code
	ok      prometheus.Counter
	seconds prometheus.Observer // nil for calls that stream
}

func newRequests(m *Metrics) *requests {
	method, route := []string{"grpc_type", "grpc_service", "grpc_method"}, []string{"handler"}
	r := &requests{methods: make(map[string]counts),
		handled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grpc_server_handled_total", Help: "Calls over gRPC that ended, by method and code. A stream is one.",
		}, append(method, "grpc_code")),
		seconds: prometheus.NewHistogramVec(seconds("grpc_server_handling_seconds",
			"How long calls over gRPC took in the server, by method; not those that stream."), method),
		httpHandled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_requests_total", Help: "Requests over HTTP that were answered, by route and status.",
		}, append(route, "code")),
		httpSeconds: prometheus.NewHistogramVec(seconds("http_request_duration_seconds",
			"How long requests over HTTP took in the server, by route."), route),
	}
	m.Register(r.handled, r.seconds, r.httpHandled, r.httpSeconds)
	return r
}

// serves adds the methods of a server before any call arrives. All are shown from the start, at 0, because a rate needs
// a first value.
func (r *requests) serves(services map[string]grpc.ServiceInfo) {
	for service, info := range services {
		for _, m := range info.Methods {
			kind := "unary"
			switch {
			case m.IsClientStream && m.IsServerStream:
				kind = "bidi_stream"
			case m.IsClientStream:
				kind = "client_stream"
			case m.IsServerStream:
				kind = "server_stream"
			}
			c := counts{labels: []string{kind, service, m.Name}}
			c.ok = r.handled.WithLabelValues(append(c.labels, codes.OK.String())...)
			if kind == "unary" {
				c.seconds = r.seconds.WithLabelValues(c.labels...)
			}
			r.methods["/"+service+"/"+m.Name] = c
		}
	}
}

func (r *requests) ended(ctx context.Context, method string, start time.Time, code codes.Code) {
	c := r.methods[method]
	c.observe(ctx, time.Since(start))
	if code == codes.OK {
		c.ok.Inc()
		return
	}
	if code > codes.Unauthenticated { // labels are from a closed set
		code = codes.Unknown
	}
	r.handled.WithLabelValues(append(c.labels, code.String())...).Inc()
}

// http counts and times what next answers, by the pattern that a mux in it found.
func (r *requests) http(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		start, noted := time.Now(), &Noted{ResponseWriter: w}
		next.ServeHTTP(noted, request)
		c := r.route(cmp.Or(request.Pattern, "none"))
		c.observe(request.Context(), time.Since(start))
		if noted.Status() == http.StatusOK {
			c.ok.Inc()
			return
		}
		r.httpHandled.WithLabelValues(append(c.labels, strconv.Itoa(noted.Status()))...).Inc()
	})
}

// Noted notes the status of an answer. A general wrapper, which keeps what the writer below can do besides, costs a
// call to issue an ID a twelfth; http.ResponseController finds that by Unwrap.
type Noted struct {
	http.ResponseWriter
	status int // the first that is final
}

// WriteHeader implements http.ResponseWriter.
func (n *Noted) WriteHeader(status int) {
	if n.status < http.StatusOK {
		n.status = status
	}
	n.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the writer below.
func (n *Noted) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// Status returns the status of the answer.
func (n *Noted) Status() int { return max(n.status, http.StatusOK) }

func (r *requests) route(name string) counts {
	found, ok := r.routes.Load(name)
	if !ok {
		found, _ = r.routes.LoadOrStore(name, counts{labels: []string{name},
			ok: r.httpHandled.WithLabelValues(name, "200"), seconds: r.httpSeconds.WithLabelValues(name)})
	}
	c, _ := found.(counts)
	return c
}

// observe adds how long a call took, with the call's trace if that is sampled.
func (c counts) observe(ctx context.Context, took time.Duration) {
	if c.seconds == nil {
		return
	}
	if span := trace.SpanContextFromContext(ctx); span.IsSampled() {
		if o, ok := c.seconds.(prometheus.ExemplarObserver); ok {
			o.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": span.TraceID().String()})
			return
		}
	}
	c.seconds.Observe(took.Seconds())
}
