package rest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
)

// callTimeout bounds a call, so that there is time to send its error: package serve
// gives an answer 10 s.
const callTimeout = 8 * time.Second

// actor is the header with which a client names the actor of a call.
var actor = textproto.CanonicalMIMEHeaderKey(api.ActorHeader)

// actorHeader lets that header, and no other, become gRPC metadata.
func actorHeader(name string) (string, bool) { return api.ActorHeader, name == actor }

var noStore = []string{"no-store"}

// guard does the work that all routes share. It is on the hot path.
func (h *handler) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Cache-Control"] = noStore
		defer h.recovered(w, r)
		if err := h.origins.Check(r); err != nil {
			writeError(w, &refusal{http.StatusForbidden, codes.PermissionDenied,
				"a browser sent this for a page of another origin: such pages may not issue IDs or change anything"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// recovered is deferred: it logs a panic, which is a defect of March, and answers
// with an error.
func (h *handler) recovered(w http.ResponseWriter, r *http.Request) {
	reason := recover()
	switch reason {
	case nil:
		return
	case http.ErrAbortHandler: // with this panic a handler drops a connection
		panic(reason)
	}
	h.cfg.Logger.Error("panic", "method", r.Method, "path", r.URL.Path, "panic", reason, "stack", string(debug.Stack()))
	writeError(w, allocator.Errorf(allocator.Internal, "a defect in March; the server's log has the details"))
}

// serve answers a request for any route but the hot one.
func (h *handler) serve(w http.ResponseWriter, r *http.Request) {
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
	ctx := r.Context()
	if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		ctx = peer.NewContext(ctx, &peer.Peer{Addr: net.TCPAddrFromAddrPort(at)})
	}
	byHand := c.route.methods[c.method].byHand
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
	r.URL = &url
	if byHand != nil {
		r.SetPathValue("id", c.values["id"])
		byHand(w, r)
		return
	}
	h.gateway.ServeHTTP(w, r)
}

// Page sets the headers of a page's answers. sources are where its policy lets more come from than pictures and style
// sheets of its own.
func Page(sources string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", "default-src 'none'; "+sources+
			"style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "same-origin")
		head.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}
