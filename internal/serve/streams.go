package serve

import (
	"context"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/access"
)

// gRPC bounds the calls of one connection. Five things that it does not do stand here:
//
//   - A caller has a bound on its calls over all its connections, and one on its streams. An eager stream can
//     always run, and keeps up to 64 KiB of requests and as much of answers in the server.
//   - Many eager streams take turns. Go's scheduler gives each goroutine that can run its turn, and a unary
//     call needs several: beside 500 eager streams it took 2 s.
//   - A read that filled its buffer yields. gRPC reads on for as long as there is something to read.
//   - A stream takes no request while many answers of its connection wait to be written. gRPC lets 64 KiB of each
//     stream wait, which are 5,000 answers and a megabyte of memory.
//   - A connection is closed if its address gives up more calls than it asks: it cancels them before the server
//     has their requests. Each costs the server a goroutine and the client nothing.

// watched wraps gRPC's credentials. Each call can then find its connection.
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
	if !ok {
		return conn, info, err
	}
	if err != nil {
		from.callers.handshake(from.RemoteAddr().String(), err)
		return nil, nil, err
	}
	return &yielding{Conn: conn, from: from}, over{info, from}, nil
}

// Clone implements credentials.TransportCredentials.
func (w watched) Clone() credentials.TransportCredentials {
	return watched{w.TransportCredentials.Clone()}
}

// over is the AuthInfo of a call, and the connection over which the call came.
type over struct {
	credentials.AuthInfo
	conn *connection
}

// Unwrap returns the AuthInfo of the connection's own credentials: package access asks it for
// the client's certificate.
func (o over) Unwrap() credentials.AuthInfo { return o.AuthInfo }

// proven reports whether the client has a certificate that TLS verified.
func (o over) proven() bool {
	t, ok := o.AuthInfo.(credentials.TLSInfo)
	return ok && len(t.State.VerifiedChains) > 0
}

// mostRead bounds one read from a connection, in bytes. gRPC would read 32 KiB, and look at
// 1,400 requests before another goroutine gets its processor.
const mostRead = 2 << 10

// yielding lets other goroutines run before a read if the last read left bytes in the connection. It counts what is
// written.
type yielding struct {
	net.Conn
	from *connection
	more bool
}

// Read implements net.Conn.
func (y *yielding) Read(b []byte) (int, error) {
	if y.more {
		runtime.Gosched()
	}
	n, err := y.Conn.Read(b)
	y.more = n == len(b)
	return n, err
}

// Write implements net.Conn.
func (y *yielding) Write(b []byte) (int, error) {
	n, err := y.Conn.Write(b)
	y.from.unsent.wrote(n)
	return n, err
}

// unsent is about how many bytes of streams' answers wait to be written to a connection.
type unsent struct {
	bytes   atomic.Int64
	written chan struct{} // of size one: a stream that waits has the next one look
}

const (
	// mostUnsent bounds them. An answer of 24 bytes takes some 200 in memory.
	mostUnsent = 32 << 10
	// frames are the bytes of a message in HTTP/2 and gRPC besides its own.
	frames = 9 + 5
	// unsentFor is how long a stream waits at most, as the count is not exact, and streams of several callers may share
	// a connection. A client that reads nothing for so long may have more answers wait: up to a window of each stream.
	unsentFor = time.Second
	// window is how many bytes of a stream's answers can wait at most: HTTP/2's, unless the client gave it another one.
	window = 64 << 10
)

// wrote notes that bytes were written.
func (u *unsent) wrote(n int) {
	if u.bytes.Add(-int64(n)) < 0 {
		u.bytes.Store(0) // some were not of streams' answers
	}
	allocator.Wake(u.written)
}

// wait waits until no more than mostUnsent wait.
func (u *unsent) wait(ctx context.Context) {
	if u.bytes.Load() <= mostUnsent {
		return
	}
	late := time.NewTimer(unsentFor)
	defer late.Stop()
	for u.bytes.Load() > mostUnsent {
		select {
		case <-u.written:
		case <-late.C:
			u.bytes.Store(mostUnsent) // for one answer
			late.Reset(unsentFor)
		case <-ctx.Done():
			return
		}
	}
	allocator.Wake(u.written)
}

// call is a call or a stream that is under way.
type call struct {
	conn  *connection
	asked atomic.Bool // the server has its request
}

// callKey is the key of a call in its context.
type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// admit is gRPC's tap. It refuses a call before it costs anything, if its caller has too many under way or gave
// up too many lately.
func admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ctx, nil
	}
	o, ok := p.AuthInfo.(over)
	if !ok {
		return ctx, nil
	}
	conn := o.conn
	if !o.proven() && len(info.Header.Get("authorization")) == 0 &&
		info.FullMethodName != healthpb.Health_Check_FullMethodName {
		if conn.late(time.Now()) {
			return ctx, api.ToStatus(conn.refuse())
		}
		if info.FullMethodName == marchv1.IDService_Stream_FullMethodName {
			if err := conn.callers.mayOpen(conn.at.String()); err != nil {
				return ctx, api.ToStatus(err)
			}
		}
	}
	limit := conn.callers.limits.callerStreams
	if conn.who.streams.Add(1) > limit.Most() {
		conn.who.streams.Add(-1)
		return ctx, api.ToStatus(limit.Refuse("calls and streams under way of one caller", soon))
	}
	c := &call{conn: conn}
	context.AfterFunc(ctx, c.end) // gRPC cancels the context of each call that ended
	return context.WithValue(ctx, callKey{}, c), nil
}

// end stops counting a call. It closes the connection if its client, at whatever connections, gave up too many.
func (c *call) end() {
	who := c.conn.who
	who.streams.Add(-1)
	switch {
	case c.asked.Load():
	case c.conn.late(time.Now()): // health checks, and callers that say they can prove who they are
		_ = c.conn.refuse()
	case who.givenUp.Add(1) > who.asked.Load()+c.conn.callers.limits.resets.Most():
		c.conn.callers.bar(c.conn, time.Now())
	}
}

// ask notes that the server has the request of a call.
func (c *call) ask() {
	if c != nil && !c.asked.Swap(true) {
		c.conn.who.asked.Add(1)
	}
}

// bound bounds the streams of each caller, and has streams take turns. It comes after the gate: a subject that
// has proven its identity is a caller wherever it is, and any other caller is an address. Health checks are as
// many as connections, and idle.
func (c *callers) bound(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	taking := &turn{ServerStream: stream, call: callOf(stream.Context()), turns: c.turns}
	if taking.watch = info.FullMethod == healthpb.Health_Watch_FullMethodName; taking.watch {
		return handler(server, taking)
	}
	caller := Caller(stream.Context()).String()
	if s := access.From(stream.Context()); s != nil && len(s.Names) > 0 {
		caller = s.Name()
	}
	if err := c.open(caller); err != nil {
		return err
	}
	defer c.close(caller)
	defer taking.end()
	err := handler(server, taking)
	if stream.Context().Err() != nil && taking.call != nil { // the answers that wait are never written
		taking.call.conn.unsent.wrote(int(min(taking.sent.Load(), window)))
	}
	return err
}

// mayOpen refuses a stream of a caller that has as many as it may have. A refusal by the tap costs a fraction of one
// in the stream's own goroutine.
func (c *callers) mayOpen(caller string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.full(caller)
}

func (c *callers) full(caller string) error {
	if limit := c.limits.openStreams; c.mu.streams[caller] >= limit.Most() {
		return limit.Refuse("open streams of one caller", soon)
	}
	return nil
}

// open counts a stream of a caller, or refuses it.
func (c *callers) open(caller string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.full(caller); err != nil {
		return err
	}
	c.mu.streams[caller]++
	c.turns.streams.Add(1)
	return nil
}

// close stops counting a stream.
func (c *callers) close(caller string) {
	c.turns.streams.Add(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.streams[caller]--; c.mu.streams[caller] == 0 {
		delete(c.mu.streams, caller)
	}
}

// turns bounds how many streams are answered at the same moment while many are open.
type turns struct {
	streams atomic.Int64  // open
	busy    chan struct{} // as many as may be answered
}

// manyStreams is how many streams are open for each turn before they take turns.
const manyStreams = 16

// longTurn is when a turn ends although its request is not answered: the stream waits for a lease, or for its
// client to read.
const longTurn = time.Millisecond

// newTurns leaves half of the processors to calls.
func newTurns() *turns { return &turns{busy: make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1))} }

// many reports whether so many streams are open that they take turns.
func (t *turns) many() bool { return t.streams.Load() > int64(manyStreams*cap(t.busy)) }

// turn is a stream that takes turns: one begins when its handler has a request, and ends when the handler wants
// the next one.
type turn struct {
	grpc.ServerStream
	call  *call
	turns *turns
	watch bool         // it watches the server's health, and waits for nothing
	sent  atomic.Int64 // bytes of answers
	has   atomic.Bool
	timer *time.Timer // ends a long turn; nil before the first
}

// RecvMsg implements grpc.ServerStream.
func (t *turn) RecvMsg(m any) error {
	t.end()
	if t.turns.many() {
		runtime.Gosched() // a stream whose requests wait would answer them all, one after the other
	}
	if t.call != nil && !t.watch {
		t.call.conn.unsent.wait(t.Context())
	}
	if err := t.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	t.call.ask()
	if !t.turns.many() {
		return nil
	}
	select {
	case t.turns.busy <- struct{}{}:
	case <-t.Context().Done():
		return t.Context().Err()
	}
	t.has.Store(true)
	if t.timer == nil {
		t.timer = time.AfterFunc(longTurn, t.end)
	} else {
		t.timer.Reset(longTurn)
	}
	return nil
}

// SendMsg implements grpc.ServerStream.
func (t *turn) SendMsg(m any) error {
	if of, ok := m.(proto.Message); ok && t.call != nil {
		n := int64(proto.Size(of) + frames)
		t.sent.Add(n)
		t.call.conn.unsent.bytes.Add(n)
	}
	return t.ServerStream.SendMsg(m)
}

// end ends the turn, if the stream has one.
func (t *turn) end() {
	if t.has.Swap(false) {
		<-t.turns.busy
	}
}
