package access

import (
	"context"
	"crypto/subtle"
	"net/http"
	"strings"
	"sync/atomic"
)

// connection is the context of a connection over HTTP/1.1, which serves one request after the
// other. It remembers the caller of the last request, because the next one mostly gives the
// same token. The caller counts again only while the files of its state are in force and its
// proof has not ended.
type connection struct {
	context.Context
	last    atomic.Pointer[remembered]
	serving atomic.Pointer[proven] // the caller of the request under way, if that issues IDs
}

// remembered is a caller with the header that proved it.
type remembered struct {
	proven
	header string // empty for none: the certificate proved it
}

// Connection returns a connection's context in which a gate may remember its caller. It is for
// http.Server.ConnContext.
func Connection(ctx context.Context) context.Context { return &connection{Context: ctx} }

// connectionKey is the key of a context's *connection.
type connectionKey struct{}

// Value implements context.Context.
func (c *connection) Value(key any) any {
	switch key.(type) {
	case connectionKey:
		return c
	case provenKey:
		if p := c.serving.Load(); p != nil {
			return p
		}
	}
	return c.Context.Value(key)
}

// connectionOf returns the connection of a request; nil where there is none that serves one
// request after the other.
func connectionOf(r *http.Request) *connection {
	if r.ProtoMajor != 1 {
		return nil
	}
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}

// remembered returns the caller of a request if the connection knows it already, and nil
// otherwise.
func (c *connection) remembered(g *Gate, r *http.Request) *proven {
	if c == nil {
		return nil
	}
	last := c.last.Load()
	if last == nil || !last.subject.current(g.current.Load()) {
		return nil
	}
	given := r.Header["Authorization"]
	if len(given) == 0 && last.header == "" || len(given) == 1 && last.header != "" && equal(given[0], last.header) {
		return &last.proven
	}
	return nil
}

// remember remembers the caller of a request that gave a token or a certificate; nil is none.
func (c *connection) remember(r *http.Request, p *proven) {
	if c == nil || p == nil || p.credentials.Token == "" && p.credentials.Certificate == nil {
		return
	}
	header := ""
	if p.credentials.Token != "" {
		header = r.Header["Authorization"][0]
	}
	c.last.Store(&remembered{*p, header})
}

// equal compares secrets in a time that tells nothing about their contents.
func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// issues reports whether a request is for the route that issues IDs. Its handler ends all work
// for the request before it returns. So the connection can tell it the caller, which saves a
// copy of the request.
func issues(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/tags/") &&
		strings.HasSuffix(r.URL.Path, "/next")
}
