// Package redis is the door for clients of Redis. It speaks RESP3 and RESP2, and answers
// INCR, INCRBY and the commands that clients send when they connect. So a service that
// counts in Redis can take its IDs from a room without a change.
//
// Invariants: an ID that was taken is answered once, or lost with its connection, which
// leaves a gap; INCRBY takes as many consecutive IDs as it asks for and answers the last
// one, or an error, never fewer; a client's input is bounded before it is stored;
// commands that arrive together are answered together, in their order; a connection has one
// owner at a time, its goroutine or, on Linux while its client counts, a loop.
//
// The texts of errors are those of Redis 7.0 where Redis has such an error: clients compare
// them.
package redis

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/throttle"
	"github.com/march-id/march/room/door"
)

// Config says what a door calls.
type Config struct {
	door.Room
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

// errorText returns an error in Redis' form: the first word says whether to try again, and the last one when, if the
// error does.
func errorText(err error) string {
	switch allocator.KindOf(err) {
	case allocator.Unauthenticated:
		return notLoggedIn
	case allocator.Denied:
		return "NOPERM march: " + err.Error()
	}
	if wait, is := errors.AsType[*allocator.WaitError](err); is {
		after := max(wait.After.Round(time.Second), time.Second)
		return fmt.Sprintf("TRYAGAIN march: %v; try again after %v", err, after)
	}
	if api.Again(err) {
		return "TRYAGAIN march: " + err.Error()
	}
	return "ERR march: " + err.Error()
}

// The buffers of a connection begin small: with a thousand idle connections most
// stay small.
const (
	firstBuffer = 4 << 10
	mostAnswers = 64 << 10 // bytes of answers that wait for a flush
)

// conn is one client's connection. One goroutine owns it, or a loop.
type conn struct {
	door     *Door
	accepted net.Conn        // as the listener returned it; it is closed last
	net      net.Conn        // nil while a loop owns the connection
	ctx      context.Context // of the subject that AUTH proved

	anonymous context.Context // as ctx is before AUTH

	in   []byte   // the bytes that were read; parsing begins at the front
	args [][]byte // of the current command; they point into in
	output

	key string // of the last command, and its tag; kept because the next command often has the same key
	tag string

	// When the deadlines were set, and how long a read may take since then. They are
	// not set for each command, because that would cost as much as the command.
	readSet, writeSet time.Time
	patience          time.Duration
	moved             bool // a command was answered since then

	id    int64
	name  string
	quits bool
	queue *queue // of a transaction, nil outside
	ok    int    // commands since the last flush

	// loop serves the connection while the client counts; nil if there is none that can.
	loop   *loop
	counts bool      // the last command was INCR, and got its ID
	fd     int       // the loop's descriptor
	heard  time.Time // when the loop read something
	turns  int       // of the loop since it took the connection
	alone  time.Time // until then the loop does not take it again
	pause  time.Duration
}

// A connection that left its loop keeps its goroutine for a pause. One that left after many
// turns met the end of a segment, and soon returns. One that left after few turns would do so
// again: for a strict tag with each command. Its pauses double.
const (
	manyTurns = 100
	leastRest = 10 * time.Millisecond
	mostRest  = time.Second
)

// rest begins the pause of a connection that leaves its loop.
func (c *conn) rest(now time.Time) {
	if c.pause = min(max(2*c.pause, leastRest), mostRest); c.turns >= manyTurns {
		c.pause = leastRest
	}
	c.turns, c.alone = 0, now.Add(c.pause)
}

// errCounts is returned by run when a loop may take the connection.
var errCounts = errors.New("the client counts")

// newConn returns the connection of a client that has connected.
func (d *Door) newConn(ctx context.Context, nc net.Conn, loops func() []*loop) *conn {
	anonymous := peer.NewContext(ctx, peerOf(ctx, nc))
	c := &conn{
		door: d, accepted: nc, ctx: anonymous, anonymous: anonymous,
		in: make([]byte, 0, firstBuffer), id: d.ids.Add(1), output: output{protocol: 2},
	}
	if tcpOf(nc) != nil {
		if all := loops(); len(all) > 0 {
			c.loop = all[c.id%int64(len(all))]
		}
	}
	return c
}

// serve serves a connection through nc until its client disconnects, ctx ends, or a loop takes
// it.
func (c *conn) serve(ctx context.Context, nc net.Conn) {
	c.net, c.readSet, c.writeSet = nc, time.Time{}, time.Time{}
	// A waiting read ends when ctx does; commands that were read are answered
	// before.
	stop := context.AfterFunc(ctx, func() { _ = nc.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err := c.run()
	for errors.Is(err, errCounts) {
		if c.loop.take(c) {
			return
		}
		c.loop = nil
		err = c.run()
	}
	_ = nc.Close()
	_ = c.accepted.Close()
	if err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.door.log.Debug("redis: connection ended", "peer", nc.RemoteAddr(), "error", err)
	}
}

func (c *conn) run() error {
	for {
		if err := c.answerAll(); err != nil {
			return err
		}
		if err := c.flush(); err != nil || c.quits {
			return err
		}
		if c.counts && c.loop != nil && c.between() && time.Now().After(c.alone) {
			return errCounts
		}
		if err := c.read(); err != nil {
			return err
		}
	}
}

// answerAll answers every complete command that was read, and keeps the rest.
func (c *conn) answerAll() error {
	rest := c.in
	for !c.quits {
		var n int
		var err error
		c.args, n, err = parse(rest, c.args[:0])
		if err != nil {
			c.fail("ERR " + err.Error())
			c.quits = true
			break
		}
		if n == 0 {
			break
		}
		rest, c.moved = rest[n:], true
		if len(c.args) > 0 {
			c.command(c.args)
		}
		if len(c.out) >= mostAnswers {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
	c.in = append(c.in[:0], rest...)
	return nil
}

// countOnly answers the commands that were read, as long as they are INCR and need not wait. It
// keeps the rest.
func (c *conn) countOnly() {
	rest := c.in
	for len(rest) > 0 && len(c.out) < mostAnswers {
		args, n, err := parse(rest, c.args[:0])
		if c.args = args; err != nil || n == 0 || !c.tryIncr(args) {
			break
		}
		same := rest[:n]
		rest = rest[n:]
		// A pipeline often has one command many times: it is parsed once.
		for bytes.HasPrefix(rest, same) && len(c.out) < mostAnswers && c.tryIncr(args) {
			rest = rest[n:]
		}
	}
	c.in = append(c.in[:0], rest...)
}

// between reports whether the client is between two commands and in no transaction.
func (c *conn) between() bool { return len(c.in) == 0 && c.queue == nil }

// await sets how long the next bytes may take; the rest of half a command may take so long in all. It returns an error
// if ctx has ended.
func (c *conn) await(patience time.Duration) error {
	now := time.Now()
	halfStill := patience == halfway && !c.moved && !c.readSet.IsZero()
	if patience == c.patience && (halfStill || now.Sub(c.readSet) <= slack) {
		return nil
	}
	c.patience, c.readSet, c.moved = patience, now, false
	if err := c.net.SetReadDeadline(now.Add(patience)); err != nil {
		return err
	}
	return c.ctx.Err() // it may have ended before the deadline was set
}

// makeRoom lets the buffer grow if it is full. It is bounded: parse refuses long commands.
func (c *conn) makeRoom() {
	if len(c.in) == cap(c.in) {
		c.in = append(make([]byte, 0, 2*cap(c.in)), c.in...)
	}
}

// read reads some more.
func (c *conn) read() error {
	patience := idle
	if !c.between() {
		patience = halfway
	}
	if err := c.await(patience); err != nil {
		return err
	}
	c.makeRoom()
	n, err := c.net.Read(c.in[len(c.in):cap(c.in)])
	c.in = c.in[:len(c.in)+n]
	if n > 0 {
		return nil
	}
	return err
}

// count counts the commands that are answered now.
func (c *conn) count() {
	if c.ok > 0 {
		c.door.calls.ok.Add(float64(c.ok))
	}
	if c.bad > 0 {
		c.door.calls.failed.Add(float64(c.bad))
	}
	c.ok, c.bad = 0, 0
}

// flush sends the answers.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	c.count()
	if now := time.Now(); now.Sub(c.writeSet) > slack {
		c.writeSet = now
		if err := c.net.SetWriteDeadline(now.Add(unread)); err != nil {
			return err
		}
	}
	_, err := c.net.Write(c.out)
	if c.out = c.out[:0]; cap(c.out) > 2*mostAnswers {
		c.out = nil
	}
	return err
}

// shake is how long a client's TLS handshake may take.
const shake = 10 * time.Second

// peerOf returns the peer of a connection: its address, and over TLS what its handshake proved,
// as gRPC has it. A handshake that fails proves nothing; the next read then has its error.
func peerOf(ctx context.Context, nc net.Conn) *peer.Peer {
	p := &peer.Peer{Addr: nc.RemoteAddr()}
	conn, ok := nc.(*tls.Conn)
	if !ok {
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, shake)
	defer cancel()
	if conn.HandshakeContext(ctx) == nil {
		p.AuthInfo = credentials.TLSInfo{State: conn.ConnectionState()}
	}
	return p
}

// output has the answers that a client has not been sent yet, in the form of its protocol.
type output struct {
	protocol int // 2 or 3
	out      []byte
	bad      int // commands that failed since the last flush
}

func (o *output) simple(text string) { o.out = append(append(append(o.out, '+'), text...), "\r\n"...) }

func (o *output) number(n int64) { o.line(':', n) }

func (o *output) line(kind byte, n int64) {
	o.out = append(strconv.AppendInt(append(o.out, kind), n, 10), "\r\n"...)
}

func (o *output) bulk(text string) {
	o.line('$', int64(len(text)))
	o.out = append(append(o.out, text...), "\r\n"...)
}

func (o *output) array(n int) { o.line('*', int64(n)) }

func (o *output) null() {
	if o.protocol == 3 {
		o.out = append(o.out, "_\r\n"...)
	} else {
		o.out = append(o.out, "$-1\r\n"...)
	}
}

// pairs begins a map of n.
func (o *output) pairs(n int) {
	if o.protocol == 3 {
		o.line('%', int64(n))
	} else {
		o.array(2 * n)
	}
}

// fail answers an error. The first word of its text is the code that clients check.
func (o *output) fail(text string) {
	o.bad++
	o.out = append(o.out, '-')
	for i := range len(text) {
		if b := text[i]; b >= ' ' { // the error is one line
			o.out = append(o.out, b)
		} else {
			o.out = append(o.out, ' ')
		}
	}
	o.out = append(o.out, "\r\n"...)
}
