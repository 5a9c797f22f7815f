package serve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"
)

// Wait runs until, and returns its error, or that of the listener. Meanwhile it answers
// /livez, /readyz and /metrics over cfg.HTTP, which may be nil, and 503 under all other
// paths. Then cfg.HTTP is open still, for Run: the address is never free for another
// process, and connections that come in between are answered by Run.
func Wait(ctx context.Context, cfg Config, until func(context.Context) error) error {
	if cfg.HTTP == nil {
		return until(ctx)
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	cfg.Routes = func(mux *http.ServeMux) {
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "not ready: "+oneLine(Failed(cfg.Ready(r.Context())).Error()), http.StatusServiceUnavailable)
		})
	}
	kept := &keptListener{Listener: cfg.HTTP}
	waiting := &side{at: Admin{HTTP: kept, Routes: cfg.Routes}, operators: true}
	callers := newCallers(newLimits(DefaultLimits(), nil), cfg.Logger)
	h := newHTTP(waiting.handler(cfg, nil), callers)
	waiting.http = h
	work, working := errgroup.WithContext(ctx)
	work.Go(func() error { return waiting.serveHTTP(callers, cfg) })
	work.Go(func() error {
		err := until(working)
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if h.Shutdown(ending) != nil {
			_ = h.Close()
		}
		return err
	})
	return errors.Join(work.Wait(), kept.reopen())
}

// keptListener is a listener whose Close only ends Accept.
type keptListener struct{ net.Listener }

// Close implements net.Listener.
func (l *keptListener) Close() error { return l.deadline(time.Unix(1, 0)) }

// reopen lets the listener accept again.
func (l *keptListener) reopen() error { return l.deadline(time.Time{}) }

func (l *keptListener) deadline(at time.Time) error {
	if tcp, ok := l.Listener.(interface{ SetDeadline(t time.Time) error }); ok {
		return tcp.SetDeadline(at)
	}
	return errors.ErrUnsupported
}
