package redis

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// rawOf returns the connection's descriptor, nil if it has none: a pipe, or TLS.
func rawOf(nc net.Conn) syscall.RawConn {
	s, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// serveReady serves commands as long as each comes soon after the one before, and comes
// whole. It returns nil when the next bytes are to be read in the ordinary way.
//
// net.Conn's Read reads first, and waits if there is nothing. So for a client that sends
// its next command after the answer each command costs two reads, of which one fails.
// serveReady waits first, unless the last read filled the buffer: a shorter one has emptied
// the socket (epoll(7)), and the runtime notes what comes after it. Only the end of a
// stream that came together with the last bytes is not seen like that. Therefore serveReady
// gives up soon, and the ordinary read finds the end.
func (c *conn) serveReady() error {
	var failed error
	waited := c.raw.Read(func(fd uintptr) (done bool) {
		for {
			c.makeRoom()
			free := c.in[len(c.in):cap(c.in)]
			n, err := syscall.Read(int(fd), free)
			switch {
			case errors.Is(err, syscall.EINTR):
				continue
			case errors.Is(err, syscall.EAGAIN):
				return false
			case err != nil:
				failed = os.NewSyscallError("read", err)
				return true
			case n == 0:
				failed = io.EOF
				return true
			}
			c.in = c.in[:len(c.in)+n]
			if failed = c.answerAll(); failed == nil {
				failed = c.flush()
			}
			if failed == nil {
				failed = c.await(soon)
			}
			if failed != nil || c.quits || !c.between() {
				return true
			}
			if n < len(free) {
				return false
			}
		}
	})
	if failed == nil && c.ctx.Err() == nil && !errors.Is(waited, os.ErrDeadlineExceeded) {
		failed = waited
	}
	return failed
}
