package sim_test

import (
	"net"
	"sync"
)

// silent is a listener without connections. serving is closed by the first Accept.
type silent struct {
	closed, serving chan struct{}
	close, serve    sync.Once
}

func newSilent() *silent { return &silent{closed: make(chan struct{}), serving: make(chan struct{})} }

// Accept implements net.Listener.
func (s *silent) Accept() (net.Conn, error) {
	s.serve.Do(func() { close(s.serving) })
	<-s.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (s *silent) Close() error {
	s.close.Do(func() { close(s.closed) })
	return nil
}

// Addr implements net.Listener.
func (s *silent) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }
