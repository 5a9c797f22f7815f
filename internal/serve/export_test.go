package serve

import (
	"net/netip"
	"time"

	"github.com/hashicorp/go-hclog"
)

// CallerAt returns the caller at an address.
var CallerAt = callerAt

// BarTwice has a caller enter with two connections, bars it for each, a second apart,
// and has both leave. It returns how many callers are remembered.
func BarTwice(at netip.Addr) (remembered func() int) {
	c := newCallers(newLimits(DefaultLimits(), nil), hclog.NewNullLogger())
	one, two := c.enter(at, time.Now()), c.enter(at, time.Now())
	for _, who := range []*caller{one, two} {
		c.bar(at, who, time.Now())
		c.leave(at, who, time.Now())
		time.Sleep(time.Second)
	}
	return func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.mu.by)
	}
}
