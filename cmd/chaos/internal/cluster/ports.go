package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// ports gives out free ports of the loopback, each once. They are below the range that systems
// give to clients, so that they are still free when a process is started again.
type ports struct {
	mu   sync.Mutex
	next int
}

const firstPort, lastPort = 10_000, 31_999

func newPorts() *ports { return &ports{next: firstPort + rand.IntN(lastPort-firstPort)} }

func (p *ports) free() (address string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range lastPort - firstPort {
		if p.next++; p.next > lastPort {
			p.next = firstPort
		}
		address = fmt.Sprintf("127.0.0.1:%d", p.next)
		if l, err := net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", errors.New("no port of the loopback is free")
}
