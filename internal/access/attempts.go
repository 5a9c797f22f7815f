package access

import (
	"cmp"
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

// attempts bounds wrong tokens by address, of IPv6 by network: a caller has all addresses of one.
type attempts struct {
	mu struct {
		sync.Mutex
		by    map[string]*rate.Limiter
		swept time.Time
	}
}

// of returns by which address a caller's attempts are counted: empty for the one bound that those share who come when
// all others are in use. The lock is held.
func (a *attempts) of(address string) string {
	if address = network(address); a.mu.by[address] == nil && len(a.mu.by) >= maxAddresses {
		return ""
	}
	return address
}

// admit returns an error, which is TooMany, if an address gave too many wrong tokens.
func (a *attempts) admit(address string, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.of(address)
	l := a.mu.by[of]
	if l == nil || l.TokensAt(now) >= 1 {
		return nil
	}
	return &allocator.WaitError{After: failEvery, Err: allocator.Errorf(allocator.TooMany,
		"too many wrong tokens from %s; allowed: %d, then one every %v", cmp.Or(of, "very many addresses"), failBurst,
		failEvery)}
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
	of := a.of(address)
	l := a.mu.by[of]
	if l == nil {
		l = rate.NewLimiter(rate.Every(failEvery), failBurst)
		a.mu.by[of] = l
	}
	l.AllowN(now, 1)
}
