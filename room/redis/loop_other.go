//go:build !linux

package redis

import (
	"context"
	"net"
	"sync"
)

// loop is what serves clients that count on Linux, with epoll. Here there is none.
type loop struct{}

func (*Door) newLoops(*sync.WaitGroup) []*loop { return nil }

func (*loop) run(context.Context) {}

func (*loop) take(*conn) bool { return false }

func tcpOf(net.Conn) *net.TCPConn { return nil }
