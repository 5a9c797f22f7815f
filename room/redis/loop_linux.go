package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A loop serves many clients that count, with one goroutine, as Redis does: it waits until some
// of them have sent a command, and reads, answers and writes for one after another. With a
// goroutine for each client, each command wakes a goroutine, and often a thread, which costs as
// much as the command.
//
// A loop waits for no client and for no ID. It answers INCR while the room has IDs in memory.
// If a client sends anything else, the connection is given back to a goroutine of its own, which
// gives it to the loop again once the client counts. So at each time a connection has one owner:
// its goroutine, which reads and writes through net.Conn, or its loop, through the descriptor.
type loop struct {
	door  *Door
	open  *sync.WaitGroup // of the door's goroutines
	epoll int
	event int // an eventfd(2), which wakes the loop

	mu    sync.Mutex
	conns map[int32]*conn // by their descriptors; nil once the loop has ended. Guarded by mu
}

const (
	mostReady = 256              // connections that are served before the loop waits again
	sweep     = 30 * time.Second // between two looks for idle clients
)

// newLoops returns loops for half the processors: the other half serves the room's other
// callers, and on a small machine the clients themselves.
func (d *Door) newLoops(open *sync.WaitGroup) (loops []*loop) {
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		l, err := newLoop(d, open)
		if err != nil {
			d.log.Warn("redis: clients that count are served by goroutines, which is slower", "error", err)
			break
		}
		loops = append(loops, l)
	}
	return loops
}

func newLoop(d *Door, open *sync.WaitGroup) (_ *loop, err error) {
	l := &loop{door: d, open: open, conns: make(map[int32]*conn)}
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if l.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		_ = unix.Close(l.epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	if err = l.watch(l.event); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *loop) watch(fd int) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd,
		&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}))
}

func (l *loop) close() {
	_ = unix.Close(l.event)
	_ = unix.Close(l.epoll)
}

// run serves the loop's clients until ctx ends, and closes their connections.
func (l *loop) run(ctx context.Context) {
	woken := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(woken)
		one := [8]byte{1}
		_, _ = unix.Write(l.event, one[:])
	})
	if err := l.serveAll(ctx); err != nil {
		l.door.log.Error("redis: a loop ended, and the connections of its clients", "error", err)
	}
	l.mu.Lock()
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	for _, c := range conns {
		c.closeLooped()
	}
	<-woken
	l.close()
}

func (l *loop) serveAll(ctx context.Context) error {
	events, ready := make([]unix.EpollEvent, mostReady), make([]*conn, 0, mostReady)
	swept := time.Now()
	for ctx.Err() == nil {
		n, err := unix.EpollWait(l.epoll, events, int(sweep.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("epoll_wait", err)
		}
		now := time.Now()
		ready = l.find(events[:max(n, 0)], ready[:0])
		// All are read before the first is written to, as Redis does: so a program with many
		// connections finds many answers at once, and sends as many commands at once.
		read := ready[:0]
		for _, c := range ready {
			if c.heard = now; l.read(c) {
				read = append(read, c)
			}
		}
		for _, c := range read {
			l.write(ctx, c)
		}
		if now.Sub(swept) >= sweep {
			swept = now
			l.endIdle(now)
		}
	}
	return nil
}

// find appends the connections of events.
func (l *loop) find(events []unix.EpollEvent, ready []*conn) []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		if c := l.conns[e.Fd]; c != nil { // nil for that which wakes the loop
			ready = append(ready, c)
		}
	}
	return ready
}

// read reads what a client has sent, and answers it as far as it counts. It returns false if
// the client sent nothing, or is gone.
func (l *loop) read(c *conn) bool {
	c.makeRoom()
	n, err := unix.Read(c.fd, c.in[len(c.in):cap(c.in)])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return false
	case err != nil, n == 0:
		l.forget(c)
		c.closeLooped()
		return false
	}
	c.in = c.in[:len(c.in)+n]
	c.turns++
	c.countOnly()
	c.count()
	return true
}

// write sends the answers. A client that sent other commands, too, or does not read, leaves the
// loop.
func (l *loop) write(ctx context.Context, c *conn) {
	if len(c.out) > 0 {
		n, err := unix.Write(c.fd, c.out)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			l.forget(c)
			c.closeLooped()
			return
		}
		c.out = append(c.out[:0], c.out[max(n, 0):]...)
	}
	if len(c.in) > 0 || len(c.out) > 0 {
		l.forget(c)
		c.rest(c.heard)
		l.open.Go(func() { c.leaveLoop(ctx) })
	}
}

// endIdle ends the connections of clients that have sent nothing for long.
func (l *loop) endIdle(now time.Time) {
	l.mu.Lock()
	var idlers []*conn
	for _, c := range l.conns {
		if now.Sub(c.heard) >= idle {
			idlers = append(idlers, c)
		}
	}
	l.mu.Unlock()
	for _, c := range idlers {
		l.forget(c)
		c.closeLooped()
	}
}

// forget takes a connection from the loop.
func (l *loop) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, int32(c.fd))
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, c.fd, nil)
}

// take makes the loop the owner of a connection; it returns false if it cannot. Its goroutine
// must not use the connection any more.
func (l *loop) take(c *conn) bool {
	tcp := tcpOf(c.net)
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	fd := -1
	if controlled := raw.Control(func(of uintptr) {
		fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0)
	}); controlled != nil || err != nil {
		return false
	}
	_ = tcp.Close() // the runtime stops watching it; the duplicate stays open
	l.mu.Lock()
	defer l.mu.Unlock()
	c.net, c.fd, c.heard = nil, fd, time.Now()
	if l.conns == nil || l.watch(fd) != nil {
		c.closeLooped()
		return true
	}
	l.conns[int32(fd)] = c
	return true
}

// leaveLoop serves a connection that its loop has forgotten by the goroutine that calls it.
func (c *conn) leaveLoop(ctx context.Context) {
	f := os.NewFile(uintptr(c.fd), "client of Redis")
	nc, err := net.FileConn(f) // which duplicates it
	_ = f.Close()
	if err != nil {
		c.door.log.Debug("redis: connection ended", "error", fmt.Errorf("after it counted: %w", err))
		_ = c.accepted.Close()
		return
	}
	c.serve(ctx, nc)
}

// closeLooped closes a connection that a loop owns.
func (c *conn) closeLooped() {
	_ = unix.Close(c.fd)
	_ = c.accepted.Close()
}

// tcpOf returns what is below a connection that a loop can serve, nil for another one: a pipe,
// or TLS.
func tcpOf(nc net.Conn) *net.TCPConn {
	if _, secure := nc.(*tls.Conn); secure {
		return nil
	}
	if wrapped, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = wrapped.NetConn()
	}
	tcp, _ := nc.(*net.TCPConn)
	return tcp
}
