package serve

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/frame"
)

// gRPC bounds the streams of one connection, but not those of one caller, and it does
// not report streams that a client resets. Frames of HTTP/2 tell both: a
// stream opens with the client's HEADERS, and closes with the server's
// END_STREAM or with either side's RST_STREAM.

// watched are gRPC's credentials with the connection's frames counted, after
// what they do themselves: it sees plain frames under TLS, too.
type watched struct {
	credentials.TransportCredentials
}

func newWatched() watched { return watched{insecure.NewCredentials()} }

// ServerHandshake implements credentials.TransportCredentials.
func (w watched) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ServerHandshake(raw)
	from, ok := raw.(*connection)
	if err != nil || !ok {
		return conn, info, err
	}
	f := &frames{Conn: conn, from: from}
	f.in = frame.FromClient()
	f.mu.open, f.mu.window = make(map[uint32]struct{}), time.Now()
	return f, counted{info, from}, nil
}

// Clone implements credentials.TransportCredentials.
func (w watched) Clone() credentials.TransportCredentials {
	return watched{w.TransportCredentials.Clone()}
}

// counted is what a call knows of its connection.
type counted struct {
	credentials.AuthInfo
	from *connection
}

// admit is gRPC's tap: it refuses calls of a caller that has too many under way,
// before anything is made for them. The call itself is among those that are
// counted, and so are those that were read with it.
func admit(ctx context.Context, _ *tap.Info) (context.Context, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ctx, nil
	}
	info, ok := p.AuthInfo.(counted)
	if !ok {
		return ctx, nil
	}
	limit := info.from.callers.limits.callerStreams
	if info.from.who.streams.Load() > limit.Most() {
		return ctx, api.ToStatus(limit.Refuse("calls and streams under way of one caller"))
	}
	return ctx, nil
}

// resetWindow is the time over which a connection's resets are counted.
const resetWindow = 10 * time.Second

var errResets = errors.New("the connection reset more calls and streams than it may")

// frames is a connection with its streams counted. One goroutine reads from it
// and one writes.
type frames struct {
	net.Conn
	from    *connection
	in, out frame.Parser
	mu      struct {
		sync.Mutex
		open             map[uint32]struct{} // streams
		largest          uint32              // that the client opened
		window           time.Time           // when the present one began
		resets, finished int64               // in it
		closed           bool
	}
	closing sync.Once
}

// Read implements net.Conn.
func (f *frames) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if n > 0 && !f.in.Parse(b[:n], f.received) {
		f.from.callers.bar(f.from.at, f.from.who, time.Now())
		_ = f.Close()
		return 0, errResets
	}
	return n, err
}

// Write implements net.Conn.
func (f *frames) Write(b []byte) (int, error) {
	f.out.Parse(b, f.sent) // before the peer can answer to it
	return f.Conn.Write(b)
}

// Close implements net.Conn.
func (f *frames) Close() error {
	f.closing.Do(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.mu.closed = true
		f.from.who.streams.Add(-int64(len(f.mu.open)))
		f.mu.open = nil
	})
	return f.Conn.Close()
}

// received takes note of a frame from the client. It returns false where the
// connection is to be closed.
func (f *frames) received(h frame.Header) bool {
	switch h.Kind {
	case http2.FrameHeaders:
		f.mu.Lock()
		defer f.mu.Unlock()
		if h.Stream <= f.mu.largest || f.mu.closed { // trailers, or a mistake that gRPC sees to
			return true
		}
		f.mu.largest = h.Stream
		f.mu.open[h.Stream] = struct{}{}
		f.from.who.streams.Add(1)
		if limit := f.from.callers.limits.connectionStreams; int64(len(f.mu.open)) > limit.Most() {
			limit.Count() // gRPC refuses it
		}
	case http2.FrameRSTStream:
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.ended(h.Stream) {
			return true // it was finished before
		}
		f.turn(time.Now())
		f.mu.resets++
		return f.mu.resets <= f.from.callers.limits.resets.Most() || f.mu.resets <= f.mu.finished
	}
	return true
}

// sent takes note of a frame to the client.
func (f *frames) sent(h frame.Header) bool {
	if h.Kind == http2.FrameRSTStream || h.Ends() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.ended(h.Stream) && h.Ends() {
			f.mu.finished++
		}
	}
	return true
}

// turn begins a new window where the present one is over.
func (f *frames) turn(now time.Time) {
	if now.Sub(f.mu.window) >= resetWindow {
		f.mu.window, f.mu.resets, f.mu.finished = now, 0, 0
	}
}

// ended takes note of a stream's end, and reports whether it was open.
func (f *frames) ended(stream uint32) bool {
	if _, ok := f.mu.open[stream]; !ok {
		return false
	}
	delete(f.mu.open, stream)
	f.from.who.streams.Add(-1)
	return true
}
