package room

import (
	"cmp"
	"context"
	"hash/crc32"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/internal/observe"
)

// tags has the issuers in memory, by the names of their tags.
type tags struct {
	owner   allocator.Instance // the instance that has these issuers
	loading singleflight.Group // of issuers being made, by tag
	slots   chan struct{}      // one token for each tag that is being read
	unknown unknown
	deleted deletedTimes
	tour    tour
	periods periods
	mu      struct {
		sync.RWMutex
		tags  map[allocator.Tag]issuer
		index index // of the same issuers
		timed int   // how many of them are a TimeTag
	}
}

func (c *tags) init(owner allocator.Instance, unknown *observe.Limit, rand func() float64) {
	c.owner = owner
	c.slots = make(chan struct{}, loadAtOnce)
	c.unknown.init(unknown, rand)
	c.periods.init()
	c.mu.tags = make(map[allocator.Tag]issuer)
}

// get returns a tag's issuer, or nil if it is not in memory.
func (c *tags) get(tag string) issuer {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.tags[allocator.Tag(tag)]
}

// counter returns the issuer of a tag that is a counter, or nil if it is not in memory.
func (c *tags) counter(tag string) *counter {
	found, _ := c.get(tag).(*counter)
	return found
}

// pageOfAll is how many issuers are copied under the lock at once: a writer that
// waits for the lock delays every Next.
const pageOfAll = 1000

// counters returns the first n counters with a tag after the given one, in the order of tags,
// and whether there are more. An empty tag asks for the first of all.
func (c *tags) counters(after allocator.Tag, n int) (list []*counter, more bool) {
	for page := []tagged(nil); ; after = lastTag(page) {
		page = c.page(after, pageOfAll, page[:0])
		for _, t := range page {
			if found, is := t.issuer.(*counter); is {
				if len(list) == n {
					return list, true
				}
				list = append(list, found)
			}
		}
		if len(page) < pageOfAll {
			return list, false
		}
	}
}

// lastTag returns the last tag of a list, or "" for an empty list.
func lastTag(list []tagged) allocator.Tag {
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1].tag
}

// page appends to list the first n issuers with a tag after the given one; an empty tag
// asks for the first of all.
func (c *tags) page(after allocator.Tag, n int, list []tagged) []tagged {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.index.after(after, n, list)
}

// size returns how many counters and how many time-ordered tags there are.
func (c *tags) size() (counters, timed int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.mu.tags) - c.mu.timed, c.mu.timed
}

// sortByPeak sorts counters by their recent peak rate, the highest first. The order
// of equally busy ones differs between instances, so that the instances of a room
// do not all compete for the same mark.
func (c *tags) sortByPeak(list []*counter) {
	type rank struct {
		peak float64
		own  uint32
	}
	ranks := make(map[*counter]rank, len(list))
	for _, of := range list {
		ranks[of] = rank{of.Status().Peak, crc32.ChecksumIEEE([]byte(string(c.owner) + "/" + string(of.Tag())))}
	}
	slices.SortFunc(list, func(a, b *counter) int {
		x, y := ranks[a], ranks[b]
		return cmp.Or(cmp.Compare(y.peak, x.peak), cmp.Compare(x.own, y.own), cmp.Compare(a.Tag(), b.Tag()))
	})
}

// tagged is an issuer with its tag.
type tagged struct {
	tag    allocator.Tag
	issuer issuer
}

// put puts a tag's issuer into memory. The tag has no other one there.
func (c *tags) put(name allocator.Tag, tag issuer) {
	c.unknown.found(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, is := tag.(*TimeTag); is {
		c.mu.timed++
	}
	c.set(name, tag)
}

// set makes tag the issuer of a name. The lock is held.
func (c *tags) set(name allocator.Tag, tag issuer) {
	c.mu.tags[name] = tag
	c.mu.index.put(tagged{name, tag})
}

// remove closes an issuer, and removes it if it still is the tag's.
func (c *tags) remove(name allocator.Tag, tag issuer) {
	tag.Close()
	c.forget(name, tag)
}

// forget removes an issuer that is closed, if it still is the tag's. No ID comes of it any more, so
// the totals that finish adds are its last, and the tag's next issuer begins above its IDs.
func (c *tags) forget(name allocator.Tag, tag issuer) {
	if c.delete(name, tag) {
		c.tour.finish(tag)
	}
}

// delete takes an issuer out of memory, and reports whether it was the tag's.
func (c *tags) delete(name allocator.Tag, tag issuer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.tags[name] != tag {
		return false
	}
	delete(c.mu.tags, name)
	c.mu.index.remove(name)
	c.periods.remove(name) // before the next issuer of the tag is made
	if _, is := tag.(*TimeTag); is {
		c.mu.timed--
	}
	return true
}

// replace puts a counter in the place of another, if that still is the tag's, and closes the other.
func (c *tags) replace(other, fresh *counter) {
	if c.swap(other, fresh) {
		c.tour.finish(other)
	}
}

// swap is replace without the tour's last look at other. It reports whether other was the tag's.
func (c *tags) swap(other, fresh *counter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	other.Close() // a call that finds it closed looks the tag up again, and finds the new one
	if c.mu.tags[other.Tag()] != issuer(other) {
		return false
	}
	c.set(other.Tag(), fresh)
	return true
}

// dropIDs closes every counter and every generator, and returns how many IDs were dropped in all. Time-ordered
// tags stay in memory, for workers that are taken anew.
func (s *Server) dropIDs() int64 {
	list, _ := s.tags.counters("", math.MaxInt)
	for _, c := range list {
		s.tags.remove(c.Tag(), c)
	}
	s.windows.Drop()
	return s.tags.tour.totals().dropped
}

// tagChanged applies a change of a tag that the ledger saw. An issuer in memory gets the new settings, and that
// of a deleted tag is dropped. The issuer of a prescaled tag is made, so that its IDs are there before its first
// caller.
func (s *Server) tagChanged(change ledger.TagChange) {
	s.tags.unknown.changed(change.Name)
	s.noteTag(change.Name, change.Err)
	if change.Settings == nil && change.Err == nil {
		s.tags.deleted.changed()
	}
	tag := s.tags.get(string(change.Name))
	switch {
	case tag != nil && change.Settings == nil:
		s.tags.remove(change.Name, tag)
		s.logDropped(change)
	case tag != nil:
		keeps, err := tag.update(s, *change.Settings)
		if err != nil {
			s.lines.refused.Log(time.Now(), s.log.Error, "tag's settings refused", "tag", change.Name, "error", err)
			return
		}
		if !keeps { // its next caller makes another one
			s.tags.remove(change.Name, tag)
		}
		s.lines.updated.Log(time.Now(), s.log.Info, "tag updated", "tag", change.Name)
	case change.Settings != nil && change.Settings.Prescale > 0 && time.Now().Before(change.Settings.PrescaleUntil):
		select {
		case s.prescaled <- change.Name:
		default: // beyond maxPrescaled, tags are made by their first callers
		}
	}
}

// maxPrescaled is how many tags that no caller has asked for yet may wait for
// their prescale.
const maxPrescaled = 1000

// warmPrescaled makes the issuers of tags that were prescaled, until ctx ends.
func (s *Server) warmPrescaled(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case tag := <-s.prescaled:
			warming, cancel := context.WithTimeout(ctx, ledger.LongestWork)
			if err := s.warmTag(warming, tag); err != nil && ctx.Err() == nil {
				s.lines.unwarmed.Log(time.Now(), s.log.Warn,
					"tag not prescaled yet; its first caller prescales it", "tag", tag, "error", err)
			}
			cancel()
		}
	}
}
