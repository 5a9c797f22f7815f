package room

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/throttle"
)

// A tag's max_skew bounds how far its IDs lie below the furthest room's mark. Every skewEvery an instance reads the
// marks of the tags in memory that have one. It drops what it holds below the bound, and leases anew: a chain that no
// caller uses does so with its next caller.

// skewEvery is how often an instance looks at the marks of tags with a max_skew.
const skewEvery = 5 * time.Second

// skewParts is in how many parts a max_skew is divided, of which an instance aims to hold one: a chain that was just
// refilled holds two, and other instances lease meanwhile.
const skewParts = 4

// chainOf returns the settings that a tag's chain follows in this room: with a max_skew it holds few IDs, as others
// would soon be below the bound.
func (m *tags) chainOf(settings record.TagSettings) allocator.Settings {
	of := settings.Chain()
	if settings.MaxSkew == 0 {
		return of
	}
	stored, _ := m.ledger.Layout()
	share := float64(stored.Layout.Ranges[m.cfg.Room].Width()) / float64(max(stored.Layout.Boundary, 1))
	most := max(1, int64(min(float64(settings.MaxSkew)*share/skewParts, allocator.LargestStep)))
	of.MinStep, of.MaxStep, of.Prescale = min(of.MinStep, most), min(of.MaxStep, most), min(of.Prescale, most)
	return of
}

// setSkew notes whether the tag of a counter in memory has a max_skew.
func (m *tags) setSkew(c *counter, settings record.TagSettings) {
	if skewed := settings.MaxSkew > 0; c.skewed.Swap(skewed) != skewed && skewed {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.mu.skewed[c.Tag()] = struct{}{}
	}
}

// followSkew looks at the marks of tags with a max_skew until ctx ends.
func (m *tags) followSkew(ctx context.Context) error {
	var failed throttle.Log
	return every(ctx, skewEvery, func() {
		if err := m.lookAtSkew(ctx); err != nil && ctx.Err() == nil {
			failed.Log(time.Now(), m.log.Debug, "the marks of tags with a max_skew were not read", "error", err)
		}
	})
}

func (m *tags) lookAtSkew(ctx context.Context) error {
	m.mu.Lock()
	for tag := range m.mu.skewed {
		if c, is := m.mu.tags[tag].(*counter); !is || !c.skewed.Load() {
			delete(m.mu.skewed, tag)
		}
	}
	tags := slices.Sorted(maps.Keys(m.mu.skewed))
	m.mu.Unlock()
	if len(tags) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ledger.LongestWork)
	defer cancel()
	skews, err := m.instance.Skews(ctx, tags)
	for tag, skew := range skews {
		if c := m.counter(string(tag)); c != nil {
			c.Rise(skew.Least)
			_ = c.Update(m.chainOf(skew.Settings)) // the room's share may have changed; valid, as what was stored is
		}
	}
	return err
}
