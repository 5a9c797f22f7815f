package main

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// timedListener measures how long calls of one caller are in the server: from reading the last
// frame of a request to writing the last frame of the answer. That caller has one call at a
// time on a connection.
type timedListener struct {
	net.Listener
	caller string // its IP address

	mu    sync.Mutex
	times []time.Duration
}

// Accept implements net.Listener.
func (l *timedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || tcp.IP.String() != l.caller {
		return conn, nil
	}
	return &timed{Conn: conn, listener: l, in: fromClient()}, nil
}

// take returns, sorted, the times measured since its last call.
func (l *timedListener) take() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	times := l.times
	l.times = nil
	slices.Sort(times)
	return times
}

// timed is a connection of the measured caller.
type timed struct {
	net.Conn
	listener *timedListener
	in, out  frameParser

	mu    sync.Mutex
	began time.Time
}

// Read implements net.Conn.
func (c *timed) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if ends(&c.in, b[:n]) {
		c.mu.Lock()
		c.began = time.Now()
		c.mu.Unlock()
	}
	return n, err
}

// Write implements net.Conn.
func (c *timed) Write(b []byte) (int, error) {
	if ends(&c.out, b) {
		c.mu.Lock()
		took := time.Since(c.began)
		c.mu.Unlock()
		c.listener.mu.Lock()
		c.listener.times = append(c.listener.times, took)
		c.listener.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// ends reports whether a stream ends in b. p parses b.
func ends(p *frameParser, b []byte) (ends bool) {
	p.parse(b, func(h http2.FrameHeader) { ends = ends || endsStream(h) })
	return ends
}

// percentile returns the p-th part of sorted times, 0 if there are none.
func percentile(times []time.Duration, p float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return times[min(int(p*float64(len(times))), len(times)-1)]
}

// headerSize is the size of a frame's header, in bytes.
const headerSize = 9

// endsStream reports whether the sender of a frame ends the stream with it.
func endsStream(h http2.FrameHeader) bool {
	return (h.Type == http2.FrameData || h.Type == http2.FrameHeaders) && h.Flags.Has(http2.FlagDataEndStream)
}

// frameParser finds the frames of HTTP/2 in the bytes that one side of a connection sends, however they are split
// into pieces. The zero value is for the server's side, which begins with a frame. It is not for concurrent use.
type frameParser struct {
	header [headerSize]byte
	have   int // bytes of it
	skip   int // bytes before the next header
}

// fromClient returns a parser for the client's side, which begins with the preface.
func fromClient() frameParser { return frameParser{skip: len(http2.ClientPreface)} }

// parse calls see with each header that ends in b.
func (p *frameParser) parse(b []byte, see func(http2.FrameHeader)) {
	for len(b) > 0 {
		if p.skip > 0 {
			k := min(p.skip, len(b))
			p.skip, b = p.skip-k, b[k:]
			continue
		}
		k := copy(p.header[p.have:], b)
		p.have, b = p.have+k, b[k:]
		if p.have == headerSize {
			h, _ := http2.ReadFrameHeader(bytes.NewReader(p.header[:])) // fails only if there are too few bytes
			p.have, p.skip = 0, int(h.Length)
			see(h)
		}
	}
}
