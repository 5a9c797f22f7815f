package access

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/march-id/march/allocator"
)

// A wrong token costs a lookup, or the verification of a signature. Each address may give
// some wrong tokens, then as many as failEvery lets pass. Callers whose tokens are known do
// not come here.
const (
	failBurst = 20
	failEvery = time.Second
	// maxAddresses bounds the addresses that are told apart; the others share one bound.
	maxAddresses = 10_000
)

// attempts bounds wrong tokens by address.
type attempts struct {
	mu struct {
		sync.Mutex
		by    map[string]*rate.Limiter
		swept time.Time
	}
}

// admit returns an error, which is TooMany, if an address gave too many wrong tokens.
func (a *attempts) admit(address string, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.mu.by[address]
	if l == nil || l.TokensAt(now) >= 1 {
		return nil
	}
	return &allocator.WaitError{After: failEvery, Err: allocator.Errorf(allocator.TooMany,
		"too many wrong tokens from %s; allowed: %d, then one every %v", address, failBurst, failEvery)}
}

// failed counts a wrong token.
func (a *attempts) failed(address string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.by == nil {
		a.mu.by = make(map[string]*rate.Limiter)
	}
	if len(a.mu.by) >= maxAddresses && now.Sub(a.mu.swept) >= failEvery {
		a.mu.swept = now
		for other, l := range a.mu.by {
			if l.TokensAt(now) >= failBurst {
				delete(a.mu.by, other)
			}
		}
	}
	l := a.mu.by[address]
	if l == nil {
		if len(a.mu.by) >= maxAddresses {
			address = ""
		}
		if l = a.mu.by[address]; l == nil {
			l = rate.NewLimiter(rate.Every(failEvery), failBurst)
			a.mu.by[address] = l
		}
	}
	l.AllowN(now, 1)
}
