// Package door has what the doors for clients of other systems share: the calls to the
// room, and the HTTP server of those that speak HTTP.
//
// A door hands out IDs as IDService does, under the room's limits, and says what it refuses
// as its own system words it. It knows no more of a room than Room.
package door

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
)

// Room is what a door takes IDs from. Its methods get the tag's name, are safe for concurrent use and
// return errors with a Kind. The context names the caller, as gRPC's peer.
type Room interface {
	// Next returns an ID.
	Next(ctx context.Context, tag string) (int64, error)
	// TryNext returns an ID as Next does if it need not wait for anything, and otherwise false.
	TryNext(ctx context.Context, tag string) (id int64, ok bool, err error)
	// NextTime is Next of a tag that must exist and have time-ordered IDs. Otherwise it is Refused.
	NextTime(ctx context.Context, tag string) (int64, error)
	// NextN returns n IDs, which need not be consecutive.
	NextN(ctx context.Context, tag string, n int64) ([]allocator.Run, error)
	// NextRun returns the first of n consecutive IDs.
	NextRun(ctx context.Context, tag string, n int64) (int64, error)
	// NextKept returns n consecutive IDs for a caller that keeps them for as long as it
	// likes; for an n of 0 as many as the tag's min_step, as far as the room's range allows.
	// It is Refused for a strict tag: nothing takes such IDs back when their range goes to
	// another room.
	NextKept(ctx context.Context, tag string, n int64) (allocator.Run, error)
	// Peek returns the ID that Next would probably return. Its error is NotFound if the tag
	// does not exist.
	Peek(ctx context.Context, tag string) (int64, error)
	// Create creates a tag whose first ID is start or more. It returns false if the tag
	// exists.
	Create(ctx context.Context, tag string, start int64) (made bool, err error)
	// Open reports whether the room has no policy: then nobody logs in, and everybody may do everything.
	Open() bool
	// Login returns a context under which the other methods count as called by a token's subject.
	// Its errors are Unauthenticated, TooMany and Unavailable.
	Login(ctx context.Context, token string) (context.Context, error)
	// Barred reports whether a caller may do nothing at all before Login.
	Barred(ctx context.Context) bool
}

// Bounds of an HTTP door: clients of these systems send small requests, and give up after
// some seconds.
const (
	patience = 4 * time.Second // of a call, which ends before TinyId's client does, at 5 s
	maxBody  = 64 << 10
)

// HTTP serves a handler to clients of another system.
type HTTP struct {
	handler http.Handler
	hosts   []string // by which it may be called on a loopback address
	origins *http.CrossOriginProtection
	calls   *prometheus.CounterVec
}

// NewHTTP returns a door for the clients of a system. The metric has the system's name.
func NewHTTP(system string, handler http.Handler) *HTTP {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "march_door_requests_total", Help: "Requests of other systems' clients over HTTP, " +
			"by door and the status of the answer.",
		ConstLabels: prometheus.Labels{"door": system},
	}, []string{"status"})
	return &HTTP{handler: handler, origins: http.NewCrossOriginProtection(), calls: calls}
}

// Guard has a gate find out the subject of each request: a client that can send headers
// gives a token as it would to the room, and another one is anonymous. It must be called
// before Run; a nil gate changes nothing. hosts are the names, besides localhost, by which a door on a loopback
// address may be called.
func (d *HTTP) Guard(gate *access.Gate, hosts []string) {
	d.handler, d.hosts = gate.HTTP(d.handler, nil, serve.WriteError), hosts
}

// Metrics returns what the door counts.
func (d *HTTP) Metrics() prometheus.Collector { return d.calls }

// ServeHTTP bounds a request and has it answered.
func (d *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	r = r.WithContext(ctx)
	if r.ContentLength != 0 {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	}
	w.Header().Set("Cache-Control", "no-store")
	counted := &serve.Noted{ResponseWriter: w}
	if d.elsewhere(r) {
		http.Error(counted, "a browser sent this for a page of another origin: such pages may not take IDs",
			http.StatusForbidden)
	} else {
		d.handler.ServeHTTP(counted, r)
	}
	d.calls.WithLabelValues(strconv.Itoa(counted.Status())).Inc()
}

// elsewhere reports whether a browser sent a request for a page of another origin. A GET takes IDs here, so it is
// checked as a POST is.
func (d *HTTP) elsewhere(r *http.Request) bool {
	if len(r.Header["Sec-Fetch-Site"]) == 0 && len(r.Header["Origin"]) == 0 { // no browser
		return false
	}
	posted := *r
	posted.Method = http.MethodPost
	return d.origins.Check(&posted) != nil
}

// Run serves the connections of l until ctx ends, then lets the calls under way finish and
// returns nil. It closes l.
func (d *HTTP) Run(ctx context.Context, l net.Listener) error {
	server := serve.NewHTTP(serve.GuardHosts(l.Addr(), d.hosts, d))
	ended := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*patience)
		defer cancel()
		ended <- server.Shutdown(draining)
	})
	if err := server.Serve(l); stop() || !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// StatusOf returns the status of the answer to an error, which is own where the caller may not try again. It sets
// Retry-After where the caller may: proxies go by both.
func StatusOf(w http.ResponseWriter, err error, own int) int {
	switch {
	case !serve.RetryAfter(w, err):
		return own
	case allocator.KindOf(err) == allocator.TooMany:
		return http.StatusTooManyRequests
	}
	return http.StatusServiceUnavailable
}

// ContentType is the type of an answer. Answers share it, so nothing may change it.
type ContentType []string

// The types of answers.
var (
	Text     = ContentType{"text/plain;charset=UTF-8"}
	JSONText = ContentType{"application/json;charset=UTF-8"}
	BareJSON = ContentType{"application/json"}
)

// Body answers a body.
func Body(w http.ResponseWriter, t ContentType, body []byte) {
	w.Header()["Content-Type"] = t // Set would make a slice
	_, _ = w.Write(body)
}

// JSON answers a value with a status.
func JSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // of no value that a door answers
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header()["Content-Type"] = JSONText
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// Number answers a number as text, without a line's end: callers parse the whole body.
func Number(w http.ResponseWriter, t ContentType, n int64) {
	var digits [20]byte
	Body(w, t, strconv.AppendInt(digits[:0], n, 10))
}

// SpringError answers an error as Spring Boot 1.5 does, which Leaf and TinyId run on.
// exception is the name of a Java class, empty for none.
func SpringError(w http.ResponseWriter, r *http.Request, status int, exception, message string) {
	JSON(w, status, struct {
		Timestamp int64  `json:"timestamp"` // Unix ms
		Status    int    `json:"status"`
		Error     string `json:"error"`
		Exception string `json:"exception,omitempty"`
		Message   string `json:"message"`
		Path      string `json:"path"`
	}{time.Now().UnixMilli(), status, http.StatusText(status), exception, message, r.URL.Path})
}

// SpringNotFound answers a path that nothing serves.
func SpringNotFound(w http.ResponseWriter, r *http.Request) {
	SpringError(w, r, http.StatusNotFound, "", "No message available")
}

// Query is the query of a URL, or a form of the same syntax. It is read as url.ParseQuery
// reads it, without a map: most requests have few parameters, and each is asked for once.
type Query string

// Get returns the first value of a parameter, and whether there is one. It ignores
// what url.ParseQuery refuses.
func (q Query) Get(name string) (value string, ok bool) {
	for rest := string(q); rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		if pair == "" || strings.Contains(pair, ";") {
			continue
		}
		key, text, _ := strings.Cut(pair, "=")
		if key, err := url.QueryUnescape(key); err != nil || key != name {
			continue
		}
		if value, err := url.QueryUnescape(text); err == nil {
			return value, true
		}
	}
	return "", false
}

// Check returns url.ParseQuery's error.
func (q Query) Check() error {
	if !strings.ContainsAny(string(q), "%;") { // in which alone it can find a fault
		return nil
	}
	_, err := url.ParseQuery(string(q))
	return err
}
