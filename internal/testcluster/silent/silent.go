// Package silent has a listener without connections, for tests that call a server's methods
// directly.
package silent

import (
	"net"
	"sync"
)

// Listener is a net.Listener to which no connection comes.
type Listener struct {
	closed, serving chan struct{}
	close, serve    sync.Once
}

// Listen returns a Listener.
func Listen() *Listener { return &Listener{closed: make(chan struct{}), serving: make(chan struct{})} }

// Serving returns a channel that is closed by the first Accept: from then on the server's
// methods may be called.
func (l *Listener) Serving() <-chan struct{} { return l.serving }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	l.serve.Do(func() { close(l.serving) })
	<-l.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }
