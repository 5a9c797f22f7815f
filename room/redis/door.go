package redis

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/throttle"
	"github.com/march-id/march/room/door"
)

// Config says what a door calls.
type Config struct {
	door.Calls
	// Version is the program's, for INFO.
	Version string
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

// How long a client may send nothing, between commands and within one, and how long it
// may leave answers unread.
const (
	idle    = 30 * time.Minute
	halfway = 10 * time.Second
	unread  = 10 * time.Second
	slack   = time.Second // each of these may be this much shorter
)

// Door serves clients of Redis.
type Door struct {
	ofHTTP   throttle.Log // requests of browsers
	cfg      Config
	log      hclog.Logger
	commands map[string]command
	calls    calls
	ids      atomic.Int64 // of connections
}

// New returns a door.
func New(cfg Config) *Door {
	d := &Door{cfg: cfg, log: cfg.Logger, commands: newCommands(), calls: newCalls()}
	if d.log == nil {
		d.log = hclog.NewNullLogger()
	}
	return d
}

// Metrics returns the door's counters.
func (d *Door) Metrics() prometheus.Collector { return d.calls.vec }

// calls counts commands. It counts once for each flush and not for each command, to
// save time.
type calls struct {
	vec        *prometheus.CounterVec
	ok, failed prometheus.Counter
}

func newCalls() calls {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "march_redis_commands_total", Help: "Commands of Redis clients, by result: ok, or error.",
	}, []string{"result"})
	return calls{vec, vec.WithLabelValues("ok"), vec.WithLabelValues("error")}
}

// acceptPause is how long the door waits after a connection could not be accepted.
const acceptPause = 50 * time.Millisecond

// Run serves the connections of l until ctx ends, then answers what it has read and
// returns nil. It closes l.
func (d *Door) Run(ctx context.Context, l net.Listener) error {
	var open sync.WaitGroup
	defer open.Wait()
	begin := sync.OnceValue(func() []*loop { // with the first client that a loop can serve
		loops := d.newLoops(&open)
		for _, loop := range loops {
			open.Go(func() { loop.run(ctx) })
		}
		return loops
	})
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // for example too many open files
			d.log.Warn("redis: a connection could not be accepted", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
		default:
			open.Go(func() { d.newConn(ctx, conn, begin).serve(ctx, conn) })
		}
	}
}

// errorText returns an error in Redis' form: the first word says whether to try again.
func errorText(err error) string {
	switch allocator.KindOf(err) {
	case allocator.Unauthenticated:
		return notLoggedIn
	case allocator.Denied:
		return "NOPERM march: " + err.Error()
	}
	if api.Again(err) {
		return "TRYAGAIN march: " + err.Error()
	}
	return "ERR march: " + err.Error()
}
