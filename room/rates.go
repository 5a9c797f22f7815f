package room

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/api"
)

// rateEvery is how often the rate of all chains together is measured. The room
// remembers api.RatesKept rates, so that every console sees the rates of the last
// minutes, and all consoles see the same.
const rateEvery = time.Second

// rates remembers how many IDs were issued per second in the last minutes.
type rates struct {
	mu struct {
		sync.Mutex
		list   []float64 // the oldest first
		issued int64     // in total, at the last note
		at     time.Time // the time of the last note
	}
}

// start begins at a time before which nothing was issued.
func (r *rates) start(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.at = now
}

// note adds a rate from issued, the number of IDs issued until now. If a call comes
// late, its rate counts for all seconds since the last one.
func (r *rates) note(now time.Time, issued int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	passed := now.Sub(r.mu.at)
	if passed <= 0 {
		return
	}
	rate := float64(issued-r.mu.issued) / passed.Seconds()
	seconds := min(max(int((passed+rateEvery/2)/rateEvery), 1), api.RatesKept)
	r.mu.list = append(r.mu.list, slices.Repeat([]float64{rate}, seconds)...)
	r.mu.list = slices.Delete(r.mu.list, 0, max(len(r.mu.list)-api.RatesKept, 0))
	r.mu.issued, r.mu.at = issued, now
}

// get returns the rates, the oldest first.
func (r *rates) get() []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.list)
}

// measure measures the rate until ctx ends.
func (s *Server) measure(ctx context.Context) error {
	ticker := time.NewTicker(rateEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			s.rates.note(time.Now(), s.issued.Load())
		}
	}
}
