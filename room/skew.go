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

// skewed are the tags to look at: all that are in memory and have a max_skew, and perhaps others.
type skewed struct {
	mu   sync.Mutex
	tags []allocator.Tag
}

// add has the next look consider a tag. It is called after the tag's counter was put into memory, or was changed there.
func (s *skewed) add(tag allocator.Tag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tags = append(s.tags, tag)
}

// take empties the set, and returns what was there. Tags that a look finds in memory with a max_skew are added again.
func (s *skewed) take() []allocator.Tag {
	s.mu.Lock()
	defer s.mu.Unlock()
	tags := s.tags
	s.tags = nil
	slices.Sort(tags)
	return slices.Compact(tags)
}

// noteSkew notes a counter's max_skew.
func (m *tags) noteSkew(c *counter, has bool) {
	if has {
		m.skewed.add(c.Tag())
	} else {
		c.Behind(0, 0, 0)
	}
}

// lookAtSkews looks which chains are too far behind by their tags' max_skew, until ctx ends. It leases nothing.
func (m *tags) lookAtSkews(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAtSkew):
		}
		names := slices.DeleteFunc(m.skewed.take(), func(name allocator.Tag) bool {
			return m.counter(string(name)) == nil
		})
		for page := range slices.Chunk(names, ledger.SkewsAtOnce(m.instance)) {
			m.lookAt(ctx, page)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Duration(len(page)) * time.Second / skewRate):
			}
		}
	}
}

// lookAt looks at some tags. A tag that could not be read is looked at again.
func (m *tags) lookAt(ctx context.Context, names []allocator.Tag) {
	skews, err := ledger.Skews(ctx, m.instance, names)
	for _, name := range names {
		c := m.counter(string(name))
		skew, found := skews[name]
		if c == nil {
			continue
		}
		if err != nil || found {
			m.skewed.add(name)
		}
		if err != nil {
			continue
		}
		if least := c.Behind(skew.Least, skew.Mark, skew.Max); least > 0 {
			m.log.Debug("tag is behind", "room", m.cfg.Room, "instance", m.cfg.Name, "tag", name, "least", least)
		}
	}
}
