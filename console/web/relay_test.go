package web_test

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/march-id/march/internal/testcluster"
)

// relay passes connections on to a console. While it is frozen it passes nothing on and
// closes nothing, as for a console with a stopped process.
type relay struct {
	mu     sync.Mutex
	thawed sync.Cond
	frozen bool
}

// newRelay starts a relay to an address. It returns the relay's address.
func newRelay(tb testing.TB, to string) (*relay, string) {
	tb.Helper()
	r := &relay{}
	r.thawed.L = &r.mu
	from := testcluster.Listen(tb, "")
	var work sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	pass := func(to, from net.Conn) {
		defer to.Close()
		buffer := make([]byte, 1<<16)
		for {
			n, err := from.Read(buffer)
			r.wait()
			if _, wrong := to.Write(buffer[:n]); err != nil || wrong != nil {
				return
			}
		}
	}
	work.Go(func() {
		for {
			in, err := from.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(to, "http://"))
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			open = append(open, in, out)
			mu.Unlock()
			work.Go(func() { pass(out, in) })
			work.Go(func() { pass(in, out) })
		}
	})
	tb.Cleanup(func() {
		r.freeze(false)
		from.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return r, "http://" + from.Addr().String()
}

func (r *relay) freeze(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen = on
	r.thawed.Broadcast()
}

func (r *relay) wait() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.frozen {
		r.thawed.Wait()
	}
}
