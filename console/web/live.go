package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
)

// The names of the limits on live pages, as flags and metrics have them.
const (
	MaxPages       = "live-pages"
	MaxCallerPages = "caller-live-pages"
)

const (
	// tickEvery is how often a stream says that it is alive, and how old its data is. A
	// page without a tick for longer (march.js) says that its data is old. Ticks also
	// keep proxies from closing a stream.
	tickEvery = 2 * time.Second
	// sendWithin bounds one write to a stream: a browser that reads nothing for so
	// long is gone.
	sendWithin = 30 * time.Second
	// pagesEnd is after how long a browser with one page too many may try again.
	pagesEnd = 10 * time.Second
	// retryAfter is how soon a browser comes back after a stream ended, in
	// milliseconds.
	retryAfter = 500
	// linesHeader is the header with which march.js says that it takes lines that changed. The march.js of the version
	// before is in pages that stay open over an upgrade: it would not show them, and say that the page is live.
	linesHeader = "March-Lines"
)

// live counts the streams of pages that are open: each reads etcd every second
// or so.
type live struct {
	all, callers *serve.Limit
	mu           struct {
		sync.Mutex
		open int64
		by   map[netip.Addr]int64 // open, of each caller that has any
		made map[*page]freshness
	}
}

// freshness is the age of a page's data.
type freshness struct {
	at   time.Time // when the page was last made; zero if it never was
	told time.Time // at, as the ticks of the time slot tell it
	slot int64     // number of the slot, in units of tickEvery
}

// made notes that a page could be made now.
func (l *live) made(p *page, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.mu.made[p]
	f.at = now
	l.mu.made[p] = f
}

// tick returns the tick of a page, and how long to wait for the next. All browsers get
// the ticks of a page at the same times, with the same data: so all say the same when
// the console falls silent. problems is the number that the page shows.
func (l *live) tick(p *page, problems int, now time.Time) (event string, next time.Duration) {
	slot := now.UnixNano() / int64(tickEvery)
	next = time.Unix(0, (slot+1)*int64(tickEvery)).Sub(now)
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.mu.made[p]
	if f.slot != slot || f.told.IsZero() {
		f.slot, f.told = slot, f.at
		l.mu.made[p] = f
	}
	asOf := ""
	if !f.told.IsZero() {
		asOf = stamp(timestamppb.New(f.told))
	}
	return fmt.Sprintf("event: tick\ndata: {\"now\": %q, \"as_of\": %q, \"problems\": %d}\n",
		stamp(timestamppb.New(now)), asOf, problems), next
}

func (l *live) init(cfg Config) {
	l.all, l.callers = cfg.Pages, cfg.CallerPages
	l.mu.by, l.mu.made = make(map[netip.Addr]int64), make(map[*page]freshness)
}

// enter counts a stream of a caller. Its error is TooMany.
func (l *live) enter(caller netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.mu.open >= l.all.Most():
		return l.all.Refuse("live pages", pagesEnd)
	case l.mu.by[caller] >= l.callers.Most():
		return l.callers.Refuse("live pages of one caller", pagesEnd)
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
		serve.RetryAfter(w, err)
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
	if send("retry: %d\n\n", retryAfter) != nil {
		return
	}
	// Making a page takes seconds while etcd does not answer; ticks go on meanwhile.
	parts := make(chan part)
	ctx, stop := context.WithCancel(r.Context())
	var work sync.WaitGroup
	work.Go(func() {
		ticker := time.NewTicker(p.every)
		defer ticker.Stop()
		for {
			made := h.part(p, r.WithContext(ctx))
			select {
			case parts <- made:
			case <-ctx.Done():
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	})
	defer work.Wait()
	defer stop()
	sent := r.Header.Get("Last-Event-ID")
	byLine := r.Header.Get(linesHeader) != ""
	var has []string // the lines that the browser has; nil if that is not known
	ticks := time.NewTimer(0)
	defer ticks.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-h.stopping:
			return
		case e := <-parts:
			if e.id != sent {
				err = send("id: %s\n%s\n", e.id, e.event(has))
				sent = e.id
			}
			if e.name == "" && byLine {
				has = e.lines
			}
		case <-ticks.C:
			problems := 0
			if may(ctx, marchv1.ConsoleService_GetOverview_FullMethodName, "") {
				problems = h.problems.known()
			}
			event, next := h.live.tick(p, problems, time.Now())
			err = send("%s\n", event)
			ticks.Reset(next)
		}
		if err != nil {
			return
		}
	}
}

// part is a page's live part, or why it could not be made.
type part struct {
	name  string // of the event: trouble, or empty
	lines []string
	id    string
}

// part makes a page's live part. If it cannot be made, the event is called trouble: the page keeps its present content.
func (h *Handler) part(p *page, r *http.Request) (made part) {
	var text bytes.Buffer
	f, err := h.frame(p, &call{Request: r, live: true})
	if err == nil {
		err = p.text.ExecuteTemplate(&text, "live", f.Body)
	}
	if err != nil {
		made.name = "trouble"
		text.Reset()
		text.WriteString(sentence(err.Error()))
	}
	for line := range strings.Lines(text.String()) {
		if line = strings.TrimSpace(line); line != "" { // in HTML one space equals many
			made.lines = append(made.lines, line)
		}
	}
	sum := sha256.Sum256([]byte(made.name + strings.Join(made.lines, "\n")))
	made.id = hex.EncodeToString(sum[:8])
	return made
}

// event returns what a browser is sent that has lines: if the part has as many, those that differ, each with its
// number.
func (e part) event(has []string) string {
	var b strings.Builder
	some := e.name == "" && len(has) == len(e.lines)
	switch {
	case some:
		b.WriteString("event: changed\n")
	case e.name != "":
		b.WriteString("event: " + e.name + "\n")
	}
	for i, line := range e.lines {
		switch {
		case !some:
			b.WriteString("data: " + line + "\n")
		case line != has[i]:
			fmt.Fprintf(&b, "data: %d %s\n", i, line)
		}
	}
	return b.String()
}
