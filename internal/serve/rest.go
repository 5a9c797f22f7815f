package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"runtime/debug"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	gateway "github.com/march-id/march/api/gateway"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/throttle"
)

// RoomRoutes returns a function that adds a room's routes to a mux. A service that is nil has none: it is
// served elsewhere. hot is the issuer of ids without a client's copies. maxBody bounds a request's body, in bytes.
// Only panics and unforeseen errors (api.Unforeseen) are logged.
func RoomRoutes(ids marchv1.IDServiceClient, hot access.Issuer, room marchv1.RoomServiceClient, maxBody int64,
	log hclog.Logger) (func(*http.ServeMux), error) {
	h, err := newRest(gateway.RoomDocument, maxBody, log)
	if err == nil && ids != nil {
		err = gateway.RegisterIDServiceHandlerClient(context.Background(), h.gateway, ids)
	}
	if err == nil && room != nil {
		err = gateway.RegisterRoomServiceHandlerClient(context.Background(), h.gateway, room)
	}
	if err != nil {
		return nil, err
	}
	h.routes["/v1/tags/{tag}/lease"].methods[http.MethodPost].takeQuery(map[string]string{"count": "int64",
		"window.nonce": "", "window.held.worker": "int64", "window.held.nonce": "", "window.age": ""})
	h.routes[nextPath].methods[http.MethodPost].takeQuery(map[string]string{"count": "int64", "contiguous": "boolean",
		"texts": "boolean"})
	return func(mux *http.ServeMux) {
		h.mount(mux)
		if hot.Next != nil { // this pattern takes precedence over "/v1/" for POST; other methods go there
			mux.Handle("POST "+nextPath, h.guard(h.next(hot)))
		}
	}, nil
}

// ConsoleRoutes returns a function that adds a console's routes to a mux.
func ConsoleRoutes(console *access.Conn, maxBody int64, log hclog.Logger) (func(*http.ServeMux), error) {
	h, err := newRest(gateway.ConsoleDocument, maxBody, log)
	if err == nil {
		err = gateway.RegisterConsoleServiceHandlerClient(context.Background(), h.gateway,
			marchv1.NewConsoleServiceClient(console))
	}
	if err != nil {
		return nil, err
	}
	for _, path := range []string{"/v1/migrations/{id}:watch", "/v1/migrations:watch"} {
		h.routes[path].methods[http.MethodGet].byHand = h.watch(console)
	}
	return h.mount, nil
}

// rest serves the routes of one OpenAPI document.
type rest struct {
	maxBody  int64
	log      hclog.Logger
	document []byte
	routes   map[string]*route // by path, as the document has it
	gateway  *runtime.ServeMux
	origins  *http.CrossOriginProtection
	failed   throttle.Log
	inQuery  throttle.Log // fields that belong into a body
}

func newRest(generated []byte, maxBody int64, log hclog.Logger) (*rest, error) {
	routes, err := parseDocument(generated)
	if err != nil {
		return nil, err
	}
	h := &rest{maxBody: maxBody, log: log, document: generated, routes: routes,
		origins: http.NewCrossOriginProtection()}
	h.gateway = runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, newCodec(true)),
		runtime.WithErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler,
			w http.ResponseWriter, r *http.Request, err error) {
			h.refuse(w, r, err)
		}),
		runtime.WithIncomingHeaderMatcher(actorHeader),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptReserved),
		runtime.WithDisablePathLengthFallback(), // no POST of a form for a GET
		runtime.WithDisableHTTPMethodOverride(), // no header may change the method
		runtime.WithWriteContentLength(),
	)
	return h, nil
}

func (h *rest) mount(mux *http.ServeMux) {
	mux.Handle("/v1/", h.guard(http.HandlerFunc(h.serve)))
	mux.Handle("GET /v1/openapi.json", h.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = contentJSON
		_, _ = w.Write(h.document)
	})))
}

// callTimeout bounds a call, so that there is time to send its error: the server
// gives an answer 10 s.
const callTimeout = 8 * time.Second

// actor is the header with which a client names the actor of a call.
var actor = textproto.CanonicalMIMEHeaderKey(api.ActorHeader)

// actorHeader lets that header, and no other, become gRPC metadata.
func actorHeader(name string) (string, bool) { return api.ActorHeader, name == actor }

var noStore = []string{"no-store"}

// guard does the work that all routes share. It is on the hot path.
func (h *rest) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Cache-Control"] = noStore
		defer h.recovered(w, r)
		if err := h.origins.Check(r); err != nil {
			WriteError(w, &refusal{http.StatusForbidden, codes.PermissionDenied,
				"a browser sent this for a page of another origin: such pages may not issue IDs or change anything"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// recovered is deferred: it logs a panic, which is a defect of March, and answers
// with an error.
func (h *rest) recovered(w http.ResponseWriter, r *http.Request) {
	reason := recover()
	switch reason {
	case nil:
		return
	case http.ErrAbortHandler: // with this panic a handler drops a connection
		panic(reason)
	}
	h.log.Error("panic", "method", r.Method, "path", r.URL.Path, "panic", reason, "stack", string(debug.Stack()))
	WriteError(w, allocator.Errorf(allocator.Internal, "a defect in March; the server's log has the details"))
}

// serve answers a request for any route but the hot one.
func (h *rest) serve(w http.ResponseWriter, r *http.Request) {
	c, err := h.check(w, r)
	if c.route != nil && c.route.methods[c.method] != nil {
		r.Pattern = c.method + " " + c.route.path // for metrics and traces: the mux knows only /v1/
	}
	if err != nil {
		if refused, ok := errors.AsType[*refusal](err); ok && refused.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", c.route.allowed())
		}
		h.refuse(w, r, err)
		return
	}
	ctx, byHand := r.Context(), c.route.methods[c.method].byHand
	if byHand == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	r = r.WithContext(ctx)
	r.Method, r.Body = c.method, io.NopCloser(bytes.NewReader(c.body))
	// The gateway unescapes RawPath, or, if that is empty, Path, which is unescaped
	// already.
	url := *r.URL
	url.RawPath = url.EscapedPath()
	if c.query != nil {
		url.RawQuery = c.query.Encode()
	}
	r.URL = &url
	if byHand != nil {
		r.SetPathValue("id", c.values["id"])
		byHand(w, r)
		return
	}
	h.gateway.ServeHTTP(w, r)
}
