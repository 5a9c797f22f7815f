// Package proxy is a TCP link that can be hurt: held in one direction or both, slowed down,
// made narrow, and cut. Every connection that a chaos run or a measurement hurts uses such a link, so that no
// fault needs a privilege: those of rooms and consoles to etcd, of etcd's members to each
// other, and of callers to rooms.
//
// A held link loses no bytes, as TCP loses none: they arrive late, after the link is released.
// So answers come after their callers gave up, and requests take effect although no caller
// waits any longer. After Cut they never arrive.
package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"time"
)

// Fault is the fault of a link. The zero value is no fault.
type Fault struct {
	// HoldUp and HoldDown let nothing pass: from the connecting side, and to it.
	HoldUp, HoldDown bool
	// Refuse ends new connections at once.
	Refuse bool
	// Delay is added in each direction.
	Delay time.Duration
	// Rate is how many bytes pass per second, in each direction; 0 is no limit.
	Rate int
}

// Link is a link to one address. Its methods are safe for concurrent use.
type Link struct {
	target string
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu struct {
		sync.Mutex
		fault   Fault
		changed chan struct{} // closed when fault changes
		conns   map[net.Conn]struct{}
	}
}

// New returns a link to target, which is HOST:PORT or the path of a socket. Connections come from a listener, see
// Listen, or from a Dialer.
func New(target string) *Link {
	l := &Link{target: target}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.mu.changed = make(chan struct{})
	l.mu.conns = make(map[net.Conn]struct{})
	return l
}

// Set sets the link's fault.
func (l *Link) Set(f Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.fault = f
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

// Fault returns the link's fault.
func (l *Link) Fault() Fault {
	f, _ := l.fault()
	return f
}

func (l *Link) fault() (Fault, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.fault, l.mu.changed
}

// Cut resets all connections: bytes that were under way are lost. It returns the number of
// connections.
func (l *Link) Cut() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.mu.conns {
		reset(c)
	}
	return len(l.mu.conns) / 2
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// Close cuts all connections, accepts no more, and waits for the link's goroutines.
func (l *Link) Close() {
	l.cancel()
	l.Cut()
	l.work.Wait()
}

// Carry carries a connection to the link's target, until either side ends. It
// returns at once.
func (l *Link) Carry(from net.Conn) {
	l.work.Go(func() { l.carry(from) })
}

func (l *Link) carry(from net.Conn) {
	if !l.take(from) {
		return
	}
	defer l.drop(from)
	if f, _ := l.fault(); f.Refuse || !l.pass(func(f Fault) bool { return !f.HoldUp && !f.HoldDown }) {
		reset(from)
		return
	}
	dialer := net.Dialer{Timeout: 5 * time.Second}
	network := "tcp"
	if filepath.IsAbs(l.target) {
		network = "unix"
	}
	to, err := dialer.DialContext(l.ctx, network, l.target)
	if err != nil {
		reset(from) // as the target's machine would answer
		return
	}
	if !l.take(to) {
		return
	}
	defer l.drop(to)
	var both sync.WaitGroup
	both.Go(func() { l.pump(to, from, func(f Fault) bool { return !f.HoldUp }) })
	both.Go(func() { l.pump(from, to, func(f Fault) bool { return !f.HoldDown }) })
	both.Wait()
}

// take stores a connection, unless the link is closed.
func (l *Link) take(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		reset(c)
		return false
	}
	l.mu.conns[c] = struct{}{}
	return true
}

func (l *Link) drop(c net.Conn) {
	l.mu.Lock()
	delete(l.mu.conns, c)
	l.mu.Unlock()
	_ = c.Close()
}

// pass waits until the fault lets data pass; it returns false if the link closed.
func (l *Link) pass(open func(Fault) bool) bool {
	for {
		f, changed := l.fault()
		if open(f) {
			return l.ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return false
		}
	}
}

// part is the data of one read, and the time from which it may pass.
type part struct {
	b   []byte
	due time.Time
}

// window bounds the parts under way in a direction, chunk the bytes of each.
const (
	window = 64
	chunk  = 16 << 10
)

// pump copies from one connection to the other, and ends both at the end: a half-closed
// connection is useless for gRPC and HTTP.
func (l *Link) pump(to io.Writer, from io.Reader, open func(Fault) bool) {
	ended := make(chan struct{})
	parts := make(chan part, window)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(parts)
		for {
			b := make([]byte, chunk)
			n, err := from.Read(b)
			if n > 0 {
				f, _ := l.fault()
				select {
				case parts <- part{b[:n], time.Now().Add(f.Delay)}:
				case <-ended:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	l.write(to, parts, open)
	close(ended)
	for _, c := range []any{to, from} {
		if c, ok := c.(net.Conn); ok {
			_ = c.Close() // ends the other direction, and the reader
		}
	}
	reader.Wait()
}

func (l *Link) write(to io.Writer, parts <-chan part, open func(Fault) bool) {
	for p := range parts {
		if !l.sleep(time.Until(p.due)) || !l.pass(open) {
			return
		}
		if f, _ := l.fault(); f.Rate > 0 && !l.sleep(time.Duration(len(p.b))*time.Second/time.Duration(f.Rate)) {
			return
		}
		if _, err := to.Write(p.b); err != nil {
			return
		}
	}
	l.pass(open) // the end passes no sooner than the data before it
}

// sleep returns false if the link closed.
func (l *Link) sleep(d time.Duration) bool {
	if d <= 0 {
		return l.ctx.Err() == nil
	}
	select {
	case <-l.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Listener hands connections to links.
type Listener struct {
	listener net.Listener
	work     sync.WaitGroup
}

// Listen accepts connections for a link, on a free port of the loopback.
func Listen(l *Link) (*Listener, error) { return serve(l.Carry) }

// serve calls take with each connection, in a goroutine of its own. Its listener must be closed
// before the links that take uses.
func serve(take func(net.Conn)) (*Listener, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Listener{listener: listener}
	s.work.Go(func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // out of descriptors, say
				time.Sleep(10 * time.Millisecond)
				continue
			}
			s.work.Go(func() { take(conn) })
		}
	})
	return s, nil
}

// Address returns its address.
func (s *Listener) Address() string { return s.listener.Addr().String() }

// Close accepts no more connections.
func (s *Listener) Close() error {
	err := s.listener.Close()
	s.work.Wait()
	return err
}
