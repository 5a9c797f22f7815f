package room

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// lookAtSkew is how often an instance looks how far the tags with max_skew are behind the furthest room.
const lookAtSkew = 5 * time.Second

// stepsInSkew is how many leases lie in max_skew at least, where min_step would allow fewer: one lease alone then takes
// no instance out of the bound.
const stepsInSkew = 4

// boundSkew leases anew what tags with max_skew hold too far behind, until ctx ends.
func (m *tags) boundSkew(ctx context.Context) error {
	ticker := time.NewTicker(lookAtSkew)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		list, _ := m.counters("", math.MaxInt)
		list = slices.DeleteFunc(list, func(c *counter) bool { return c.skew.Load() == 0 || len(c.Segments()) == 0 })
		names := make([]allocator.Tag, len(list))
		for k, c := range list {
			names[k] = c.Tag()
		}
		least := m.instance.Least(ctx, names)
		for _, c := range list {
			if from, known := least[c.Tag()]; known {
				m.catchUp(c, from)
			}
		}
	}
}

// catchUp has a counter lease anew what it holds below least. It goes from memory if it still holds what lay too far
// behind at the look before, as its lease fails, or if nobody asks for it.
func (m *tags) catchUp(c *counter, least int64) {
	before := c.least.Swap(least)
	switch {
	case c.Behind(before), c.Behind(least) && c.Cold(m.cfg.ColdAfter):
		m.remove(c.Tag(), c)
	case c.Behind(least):
		c.Skip(least)
	}
}

// chainOf returns a tag's settings of chains. With max_skew a step is a part of it.
func (m *tags) chainOf(settings record.TagSettings) allocator.Settings {
	chain := settings.Chain()
	if settings.MaxSkew == 0 {
		return chain
	}
	stored, _ := m.ledger.Layout()
	width := stored.Layout.Ranges[m.cfg.Room].Width()
	most := float64(settings.MaxSkew) / stepsInSkew * float64(width) / float64(stored.Layout.Boundary)
	chain.MaxStep = min(chain.MaxStep, max(int64(most), 1))
	chain.MinStep, chain.Prescale = min(chain.MinStep, chain.MaxStep), min(chain.Prescale, chain.MaxStep)
	return chain
}
