package serve

import (
	"context"
	"errors"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/march-id/march/api"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/frame"
)

// gRPC bounds the streams of one connection, but not those of one caller, and it does
// not report streams that a client resets. HTTP/2's frames show both: a stream opens
// with the client's HEADERS, and closes with the server's END_STREAM or with either
// side's RST_STREAM. They also show how many answers of a stream were written
// (answers.go).

// watched wraps gRPC's credentials and counts the connection's frames after their
// handshake. So it sees plain frames under TLS, too.
type watched struct {
	credentials.TransportCredentials
}

func newWatched(files *tlsfiles.Files) watched {
	if !files.Serves() {
		return watched{insecure.NewCredentials()}
	}
	return watched{credentials.NewTLS(files.Server("h2"))}
}

// ServerHandshake implements credentials.TransportCredentials.
func (w watched) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ServerHandshake(raw)
	from, ok := raw.(*connection)
	if err != nil && ok {
		from.callers.handshake(from.RemoteAddr().String(), err)
	}
	if err != nil || !ok {
		return conn, info, err
	}
	f := &frames{Conn: conn, from: from}
	f.in, f.in.Data, f.out.Data = frame.FromClient(), f.asked, f.answered
	f.held.skip = len(http2.ClientPreface)
	f.mu.open, f.mu.holding, f.mu.window = make(map[uint32]*answers), make(map[uint32]*answers), time.Now()
	return f, counted{info, f}, nil
}

// Clone implements credentials.TransportCredentials.
func (w watched) Clone() credentials.TransportCredentials {
	return watched{w.TransportCredentials.Clone()}
}

// counted is a call's access to the counts of its connection.
type counted struct {
	credentials.AuthInfo
	frames *frames
}

// Unwrap returns the AuthInfo of the connection's own credentials: package access asks it for
// the client's certificate.
func (c counted) Unwrap() credentials.AuthInfo { return c.AuthInfo }

// admit is gRPC's tap: it refuses calls of a caller that has too many under way,
// before they cost anything. The count includes the call itself. The context of a call
// that it lets pass has the call's answers.
func admit(ctx context.Context, _ *tap.Info) (context.Context, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ctx, nil
	}
	info, ok := p.AuthInfo.(counted)
	if !ok {
		return ctx, nil
	}
	f := info.frames
	limit := f.from.callers.limits.callerStreams
	if f.from.who.streams.Load() > limit.Most() {
		return ctx, api.ToStatus(limit.Refuse("calls and streams under way of one caller"))
	}
	return context.WithValue(ctx, answersKey{}, f.newest), nil
}

// resetWindow is the time over which a connection's resets are counted.
const resetWindow = 10 * time.Second

var errResets = errors.New("the connection reset more calls and streams than it may")

// mostRead bounds one read from a connection, in bytes. gRPC would read 32 KiB, and look at
// 1,400 requests before another goroutine gets its processor.
const mostRead = 2 << 10

// mostWritten is how many bytes gRPC gathers before it writes them. It does not let
// another goroutine run before it has written all that there is to write.
const mostWritten = 2 << 10

// frames is a connection with its streams counted. One goroutine reads from it
// and one writes.
//
// A read ends before HEADERS that do not begin it. So gRPC has seen to every stream before,
// and its tap is called for the newest: it is told of no stream's number.
type frames struct {
	net.Conn
	from    *connection
	in, out frame.Parser
	// The reader's:
	buf    [mostRead]byte
	next   []byte   // what gRPC reads next
	more   bool     // the last read may have left bytes in the connection
	newest *answers // of the stream that the client opened last
	held   holder

	mu struct {
		sync.Mutex
		open             map[uint32]*answers // open streams
		holding          map[uint32]*answers // streams of which DATA is held
		ready            []*answers          // those of them that may be given more
		blocked          bool                // the reader waits for the connection, and is to be told of ready
		ended            []*answers          // streams that ended, whose turns unlock ends
		woken            bool                // it was told, by a deadline of the connection
		largest          uint32              // stream that the client opened
		window           time.Time           // when the current window began
		resets, finished int64               // in the window
		closed           bool
	}
	closing sync.Once
}

// Read implements net.Conn.
func (f *frames) Read(b []byte) (int, error) {
	for len(f.next) == 0 {
		if err := f.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(b, f.next)
	n = f.in.Before(http2.FrameHeaders, b[:n])
	f.next = f.next[n:]
	if !f.in.Parse(b[:n], f.received) {
		f.from.callers.bar(f.from.at, f.from.who, time.Now())
		_ = f.Close()
		return 0, errResets
	}
	return n, nil
}

// fill gets what gRPC reads next, from what was held or from the connection.
func (f *frames) fill() (err error) {
	if f.next = f.release(); len(f.next) > 0 {
		return nil
	}
	if f.more {
		runtime.Gosched() // an eager client always has more; other goroutines come first
	}
	n, err := f.await(f.buf[:])
	f.more = n == len(f.buf)
	if n > 0 {
		var wrong error
		if f.next, wrong = f.sort(f.buf[:n]); wrong != nil {
			_ = f.Close()
			return wrong
		}
		return nil // the next read has the error
	}
	return err
}

// Write implements net.Conn.
func (f *frames) Write(b []byte) (int, error) {
	if len(b) > mostWritten/2 {
		runtime.Gosched() // one of many such writes, perhaps
	}
	f.out.Parse(b, f.sent) // before the peer can answer to it
	return f.Conn.Write(b)
}

// Close implements net.Conn.
func (f *frames) Close() error {
	f.closing.Do(func() {
		f.mu.Lock()
		defer f.unlock()
		f.mu.closed = true
		f.from.who.streams.Add(-int64(len(f.mu.open)))
		f.mu.ended = slices.Collect(maps.Values(f.mu.open))
		f.mu.open = nil
	})
	return f.Conn.Close()
}

// received notes a frame from the client. It returns false if the connection must
// be closed.
func (f *frames) received(h frame.Header) bool {
	switch h.Kind {
	case http2.FrameHeaders:
		f.mu.Lock()
		defer f.unlock()
		if h.Stream <= f.mu.largest || f.mu.closed { // trailers, or an error that gRPC handles
			return true
		}
		f.newest = &answers{frames: f, stream: h.Stream}
		f.mu.largest = h.Stream
		f.mu.open[h.Stream] = f.newest
		f.from.who.streams.Add(1)
		if limit := f.from.callers.limits.connectionStreams; int64(len(f.mu.open)) > limit.Most() {
			limit.Count() // gRPC refuses it
		}
	case http2.FrameRSTStream:
		f.mu.Lock()
		defer f.unlock()
		if !f.ended(h.Stream) {
			return true // it was finished before
		}
		f.turn(time.Now())
		f.mu.resets++
		return f.mu.resets <= f.from.callers.limits.resets.Most() || f.mu.resets <= f.mu.finished
	}
	return true
}

// sent notes a frame to the client.
func (f *frames) sent(h frame.Header) bool {
	if h.Kind == http2.FrameRSTStream || h.Ends() {
		f.mu.Lock()
		defer f.unlock()
		if f.ended(h.Stream) && h.Ends() {
			f.mu.finished++
		}
	}
	return true
}

// turn begins a new window if the current one has ended.
func (f *frames) turn(now time.Time) {
	if now.Sub(f.mu.window) >= resetWindow {
		f.mu.window, f.mu.resets, f.mu.finished = now, 0, 0
	}
}

// ended notes a stream's end, and reports whether it was open.
func (f *frames) ended(stream uint32) bool {
	a, ok := f.mu.open[stream]
	if !ok {
		return false
	}
	delete(f.mu.open, stream)
	a.unread.Add(-1 << 40)
	f.mu.ended = append(f.mu.ended, a)
	if f.mu.holding[stream] != nil {
		f.ready(a) // gRPC gives back what it takes of the connection's window
	}
	f.from.who.streams.Add(-1)
	return true
}
