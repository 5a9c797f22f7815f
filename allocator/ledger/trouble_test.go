package ledger_test

import (
	"bytes"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator/ledger"
)

// A Logger that blocks, as standard error does if it is a full pipe, stops no lease but the
// one that logs. A journal's own lines are not covered: its writer waits for the Logger.
func TestBlockedLoggerStopsNoLease(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	blocked, open := make(chan struct{}), make(chan struct{})
	p := c.start("a", func(cfg *ledger.Config) {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: writerFunc(func(b []byte) {
			if bytes.Contains(b, []byte("layout adopted")) && bytes.Contains(b, []byte("version=2")) {
				close(blocked)
				<-open
			}
		})})
	})
	p.Lease(10)
	c.Move("100 a=0-40 b=50-100")
	refreshed := make(chan struct{})
	go func() {
		defer close(refreshed)
		_, _ = p.Ledger.Refresh(bg)
	}()
	<-blocked
	p.Lease(10)
	close(open)
	<-refreshed
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}
