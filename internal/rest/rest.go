package rest

import (
	"context"
	"errors"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/hashicorp/go-hclog"

	gateway "github.com/march-id/march/api/gateway"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/throttle"
)

// Config are the settings of a handler.
type Config struct {
	// MaxBody bounds a request's body, in bytes.
	MaxBody int64
	// Logger; it must be set. Only panics and unforeseen errors (api.Unforeseen) are
	// logged.
	Logger hclog.Logger
}

// Issuer issues IDs for the hot route.
type Issuer interface {
	Next(context.Context, *marchv1.NextRequest) (*marchv1.NextResponse, error)
	NextBatch(context.Context, *marchv1.NextBatchRequest) (*marchv1.NextBatchResponse, error)
}

// Room returns a function that adds a room's routes to a mux. A service that is nil has none: it is
// served elsewhere. hot is the issuer of ids without a client's copies.
func Room(ids marchv1.IDServiceClient, hot Issuer, room marchv1.RoomServiceClient,
	cfg Config) (func(*http.ServeMux), error) {
	h, err := newHandler(gateway.RoomDocument, cfg)
	if err != nil {
		return nil, err
	}
	if ids != nil {
		err = gateway.RegisterIDServiceHandlerClient(context.Background(), h.gateway, ids)
	}
	if room != nil {
		err = errors.Join(err, gateway.RegisterRoomServiceHandlerClient(context.Background(), h.gateway, room))
	}
	if err != nil {
		return nil, err
	}
	h.routes["/v1/tags/{tag}/lease"].methods[http.MethodPost].takeQuery(map[string]string{"count": "int64",
		"window.nonce": "", "window.held.worker": "int64", "window.held.nonce": "", "window.age": ""})
	return func(mux *http.ServeMux) {
		h.mount(mux)
		if hot == nil {
			return
		}
		// This pattern takes precedence over "/v1/" for POST; other methods go
		// there.
		mux.Handle("POST /v1/tags/{tag}/next", h.guard(h.next(hot)))
	}, nil
}

// Console returns a function that adds a console's routes to a mux.
func Console(console marchv1.ConsoleServiceClient, cfg Config) (func(*http.ServeMux), error) {
	h, err := newHandler(gateway.ConsoleDocument, cfg)
	if err != nil {
		return nil, err
	}
	if err := gateway.RegisterConsoleServiceHandlerClient(context.Background(), h.gateway, console); err != nil {
		return nil, err
	}
	for _, path := range []string{"/v1/migrations/{id}:watch", "/v1/migrations:watch"} {
		h.routes[path].methods[http.MethodGet].byHand = h.watch(console)
	}
	return h.mount, nil
}

// handler serves the routes of one OpenAPI document.
type handler struct {
	cfg      Config
	document []byte
	routes   map[string]*route // by path, as the document has it
	gateway  *runtime.ServeMux
	origins  *http.CrossOriginProtection
	failed   throttle.Log
	inQuery  throttle.Log // fields that belong into a body
}

func newHandler(generated []byte, cfg Config) (*handler, error) {
	routes, err := parseDocument(generated)
	if err != nil {
		return nil, err
	}
	h := &handler{cfg: cfg, document: generated, routes: routes, origins: http.NewCrossOriginProtection()}
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

func (h *handler) mount(mux *http.ServeMux) {
	mux.Handle("/v1/", h.guard(http.HandlerFunc(h.serve)))
	mux.Handle("GET /v1/openapi.json", h.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = contentJSON
		_, _ = w.Write(h.document)
	})))
}
