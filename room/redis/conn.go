package redis

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc/peer"
)

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
	out  []byte

	key string // of the last command, and its tag; kept because the next command often has the same key
	tag string

	// When the deadlines were set, and how long a read may take since then. They are
	// not set for each command, because that would cost as much as the command.
	readSet, writeSet time.Time
	patience          time.Duration
	moved             bool // a command was answered since then

	id       int64
	name     string
	protocol int // 2 or 3
	quits    bool
	queue    *queue // of a transaction, nil outside
	ok, bad  int    // commands since the last flush

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
		in: make([]byte, 0, firstBuffer), id: d.ids.Add(1), protocol: 2,
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

// The forms of answers.

func (c *conn) simple(text string) { c.out = append(append(append(c.out, '+'), text...), "\r\n"...) }

func (c *conn) number(n int64) { c.line(':', n) }

func (c *conn) line(kind byte, n int64) {
	c.out = append(strconv.AppendInt(append(c.out, kind), n, 10), "\r\n"...)
}

func (c *conn) bulk(text string) {
	c.line('$', int64(len(text)))
	c.out = append(append(c.out, text...), "\r\n"...)
}

func (c *conn) array(n int) { c.line('*', int64(n)) }

func (c *conn) null() {
	if c.protocol == 3 {
		c.out = append(c.out, "_\r\n"...)
	} else {
		c.out = append(c.out, "$-1\r\n"...)
	}
}

// pairs begins a map of n.
func (c *conn) pairs(n int) {
	if c.protocol == 3 {
		c.line('%', int64(n))
	} else {
		c.array(2 * n)
	}
}

// fail answers an error. The first word of its text is the code that clients check.
func (c *conn) fail(text string) {
	c.bad++
	c.out = append(c.out, '-')
	for i := range len(text) {
		if b := text[i]; b >= ' ' { // the error is one line
			c.out = append(c.out, b)
		} else {
			c.out = append(c.out, ' ')
		}
	}
	c.out = append(c.out, "\r\n"...)
}
