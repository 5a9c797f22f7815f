package testcluster

import (
	"net"
	"sync"
)

// Silent is a net.Listener to which no connection comes, for tests that call a server's methods
// directly.
type Silent struct {
	closed, serving chan struct{}
	close, serve    sync.Once
}

// NewSilent returns a Silent.
func NewSilent() *Silent { return &Silent{closed: make(chan struct{}), serving: make(chan struct{})} }

// Serving returns a channel that is closed by the first Accept: from then on the server's
// methods may be called.
func (l *Silent) Serving() <-chan struct{} { return l.serving }

// Accept implements net.Listener.
func (l *Silent) Accept() (net.Conn, error) {
	l.serve.Do(func() { close(l.serving) })
	<-l.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *Silent) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *Silent) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }
