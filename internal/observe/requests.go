package observe

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Requests counts and times the calls that a server answers. It is written by hand
// instead of with a middleware, because every Next passes through it: two readings
// of the clock, a map, a counter and a histogram.
type Requests struct {
	count   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	methods map[string]method // by full name; not changed once calls arrive

	httpCount   *prometheus.CounterVec
	httpSeconds *prometheus.HistogramVec
	answers     sync.Map // of answered, by route; there are as many as patterns
}

// answered has the metrics of a route. It is kept, because a lookup by labels for
// each request would cost more than counting.
type answered struct {
	seconds prometheus.Observer
	classes [classes]atomic.Pointer[prometheus.Counter] // nil before the first answer of that class
}

// method has the metrics of the unary calls of a method.
type method struct {
	ok      prometheus.Counter
	seconds prometheus.Observer
}

// NewRequests returns the metrics of a server's calls. Serves must be called
// before any arrives.
func NewRequests(m *Metrics) *Requests {
	r := &Requests{
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "march_requests_total", Help: "Calls over gRPC that ended, by method and code. A stream is one.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(
			seconds("march_request_seconds",
				"How long calls over gRPC took in the server, by method; not those that stream."),
			[]string{"method"}),
		httpCount: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "march_http_requests_total",
			Help: "Requests over HTTP that were answered, by route and status class.",
		}, []string{"route", "class"}),
		httpSeconds: prometheus.NewHistogramVec(
			seconds("march_http_request_seconds", "How long requests over HTTP took in the server, by route."),
			[]string{"route"}),
	}
	m.Register(r.count, r.seconds, r.httpCount, r.httpSeconds)
	return r
}

// Serves adds the methods of a server. All are shown from the start, at 0, because a rate needs
// a first value.
func (r *Requests) Serves(services map[string]grpc.ServiceInfo) {
	if r.methods == nil {
		r.methods = make(map[string]method)
	}
	for service, info := range services {
		for _, m := range info.Methods {
			name := service + "/" + m.Name
			counts := method{ok: r.count.WithLabelValues(name, codes.OK.String())}
			if !m.IsClientStream && !m.IsServerStream {
				counts.seconds = r.seconds.WithLabelValues(name)
			}
			r.methods["/"+name] = counts
		}
	}
}

// Unary is an interceptor. It must be outside the one that turns errors into
// statuses.
func (r *Requests) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	start := time.Now()
	resp, err := handler(ctx, req)
	counts := r.methods[info.FullMethod]
	observe(ctx, counts.seconds, time.Since(start))
	if err == nil {
		counts.ok.Inc()
	} else {
		r.failed(info.FullMethod, err)
	}
	return resp, err
}

// Stream is an interceptor, as Unary is.
func (r *Requests) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	err := handler(srv, stream)
	if err == nil {
		r.methods[info.FullMethod].ok.Inc()
	} else {
		r.failed(info.FullMethod, err)
	}
	return err
}

func (r *Requests) failed(fullMethod string, err error) {
	code := status.Code(err)
	if code > codes.Unauthenticated { // an unknown code: labels are from a closed set
		code = codes.Unknown
	}
	r.count.WithLabelValues(fullMethod[1:], code.String()).Inc()
}

// HTTP counts and times what next answers, by the pattern that a mux in it found.
func (r *Requests) HTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		start := time.Now()
		answer := &answer{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, request)
		r.answered(request, answer.status, time.Since(start))
	})
}

func (r *Requests) answered(request *http.Request, status int, took time.Duration) {
	route := cmp.Or(request.Pattern, "none")
	found, ok := r.answers.Load(route)
	if !ok {
		found, _ = r.answers.LoadOrStore(route, &answered{seconds: r.httpSeconds.WithLabelValues(route)})
	}
	counts, _ := found.(*answered)
	observe(request.Context(), counts.seconds, took)
	class, name := classOf(status)
	counter := counts.classes[class].Load()
	if counter == nil {
		made := r.httpCount.WithLabelValues(route, name) // all concurrent calls get the same one
		counter = &made
		counts.classes[class].Store(counter)
	}
	(*counter).Inc()
}

// observe adds how long a call took to a histogram, with the call's trace if that is sampled.
func observe(ctx context.Context, seconds prometheus.Observer, took time.Duration) {
	if span := trace.SpanContextFromContext(ctx); span.IsSampled() {
		if o, ok := seconds.(prometheus.ExemplarObserver); ok {
			o.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": span.TraceID().String()})
			return
		}
	}
	seconds.Observe(took.Seconds())
}

// classes is how many classes of statuses there are: 1xx to 5xx, and other.
const classes = 6

// classOf returns the class of a status, and its name, such as 2xx.
func classOf(status int) (int, string) {
	if status < 100 || status > 599 {
		return 0, "other"
	}
	return status / 100, string(rune('0'+status/100)) + "xx"
}

// answer remembers the status of an answer.
type answer struct {
	http.ResponseWriter
	status int
	begun  bool
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if !a.begun && status >= 200 { // informational statuses may come before it
		a.status, a.begun = status, true
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(b)
}

// Unwrap gives http.ResponseController access to the writer's other methods.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Flush implements http.Flusher, for handlers that need it.
func (a *answer) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }
