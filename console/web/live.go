package web

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/serve"
)

// The names of the limits on live pages, as flags and metrics have them.
const (
	MaxPages       = "live-pages"
	MaxCallerPages = "caller-live-pages"
)

const (
	// heartbeat is how often a stream sends something, so that proxies do not close
	// it.
	heartbeat = 15 * time.Second
	// sendWithin bounds one write to a stream: a browser that reads nothing for so
	// long is gone.
	sendWithin = 30 * time.Second
	// retryAfter is how soon a browser comes back after a stream ended, in
	// milliseconds.
	retryAfter = 500
)

// live counts the streams of pages that are open: each reads etcd every second
// or so.
type live struct {
	all, callers *observe.Limit
	mu           struct {
		sync.Mutex
		open int64
		by   map[netip.Addr]int64 // open, of each caller that has any
	}
}

func (l *live) init(cfg Config) {
	l.all, l.callers = cfg.Pages, cfg.CallerPages
	l.mu.by = make(map[netip.Addr]int64)
}

// enter counts a stream of a caller. Its error is TooMany.
func (l *live) enter(caller netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.mu.open >= l.all.Most():
		return l.all.Refuse("live pages")
	case l.mu.by[caller] >= l.callers.Most():
		return l.callers.Refuse("live pages of one caller")
	}
	l.mu.open++
	l.mu.by[caller]++
	return nil
}

func (l *live) leave(caller netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.open--
	if l.mu.by[caller]--; l.mu.by[caller] == 0 {
		delete(l.mu.by, caller)
	}
}

// keep sends a page's live part whenever it changed, until the browser disconnects
// or the server stops.
func (h *Handler) keep(w http.ResponseWriter, r *http.Request, p *page) {
	caller := serve.Caller(r.Context())
	if err := h.live.enter(caller); err != nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer h.live.leave(caller)
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the server's deadline would end the request's context
	send := func(format string, args ...any) error {
		if err := control.SetWriteDeadline(time.Now().Add(sendWithin)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, format, args...); err != nil {
			return err
		}
		return control.Flush()
	}
	sent, last := r.Header.Get("Last-Event-ID"), time.Now()
	if send("retry: %d\n\n", retryAfter) != nil {
		return
	}
	ticker := time.NewTicker(p.every)
	defer ticker.Stop()
	for {
		event, id := h.event(p, r)
		var err error
		switch {
		case id != sent:
			err, last = send("id: %s\n%s\n", id, event), time.Now()
			sent = id
		case time.Since(last) >= heartbeat:
			err, last = send(": still here\n\n"), time.Now()
		}
		if err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-h.stopping:
			return
		case <-ticker.C:
		}
	}
}

// event returns the next event of a page's stream, and its id. If the page could
// not be made, that is an event called trouble: the page keeps its present content.
func (h *Handler) event(p *page, r *http.Request) (event, id string) {
	name := ""
	var text bytes.Buffer
	f, err := h.frame(p, &call{Request: r, live: true})
	if err == nil {
		err = p.text.ExecuteTemplate(&text, "live", f.Body)
	}
	if err != nil {
		name = "event: trouble\n"
		text.Reset()
		text.WriteString(err.Error())
	}
	sum := sha256.Sum256(append([]byte(name), text.Bytes()...))
	var out bytes.Buffer
	out.WriteString(name)
	for line := range bytes.Lines(text.Bytes()) {
		if line = bytes.TrimSpace(line); len(line) > 0 { // in HTML one space equals many
			out.WriteString("data: ")
			out.Write(line)
			out.WriteByte('\n')
		}
	}
	return out.String(), hex.EncodeToString(sum[:8])
}
