package room

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

// How often an instance looks how far the tags with a max_skew are behind the furthest room, and how many it looks at
// in a second at most.
const (
	lookAtSkew = 5 * time.Second
	skewRate   = 1000
)

// skewed are the tags in memory that have a max_skew, and how many IDs each had issued at the last look, -1 before one.
type skewed struct {
	mu   sync.Mutex
	tags map[allocator.Tag]int64
}

// add has the next look consider a tag. It is called after the tag's counter was put into memory, or was changed there.
func (s *skewed) add(tag allocator.Tag, issued int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tags == nil {
		s.tags = make(map[allocator.Tag]int64)
	}
	s.tags[tag] = issued
}

// take empties the set. Tags that a look finds in memory with a max_skew are added again.
func (s *skewed) take() map[allocator.Tag]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.tags
	s.tags = nil
	return taken
}

// noteSkew adds a counter that is in memory, if its tag has a max_skew. An ordered tag has one holder, and no skew.
func (m *tags) noteSkew(c *counter, has bool) {
	if has && c.tenure == nil {
		m.skewed.add(c.Tag(), -1)
	}
}

// boundSkew renews what chains hold too far behind by their tags' max_skew, until ctx ends.
func (m *tags) boundSkew(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAtSkew):
		}
		before := m.skewed.take()
		var names []allocator.Tag
		for name := range before {
			if m.counter(string(name)) != nil {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for len(names) > 0 {
			n := min(len(names), ledger.SkewsAtOnce(m.instance))
			m.lookAt(ctx, names[:n], before)
			names = names[n:]
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Duration(n) * time.Second / skewRate):
			}
		}
	}
}

// lookAt looks at some tags. A tag that could not be read is looked at again.
func (m *tags) lookAt(ctx context.Context, names []allocator.Tag, before map[allocator.Tag]int64) {
	skews, err := ledger.Skews(ctx, m.instance, names)
	for _, name := range names {
		c := m.counter(string(name))
		skew, found := skews[name]
		switch {
		case c == nil, err == nil && !found:
			continue
		case err != nil:
			m.skewed.add(name, before[name])
			continue
		}
		issued := c.Status().Issued
		m.skewed.add(name, issued)
		held := c.Segments()
		if len(held) == 0 || held[0].First >= skew.Renew {
			continue
		}
		few := int64(0)
		if issued == before[name] { // without callers
			set := c.Settings()
			if few = skew.Few; few == 0 || set.Prescale > 0 && time.Now().Before(set.PrescaleUntil) {
				continue
			}
		}
		c.Rise(skew.Least, few)
	}
}
