//go:build !linux

package redis

import (
	"net"
	"syscall"
)

// rawOf returns nil: serveReady relies on epoll.
func rawOf(net.Conn) syscall.RawConn { return nil }

func (c *conn) serveReady() error { return nil }
