package room

import (
	"cmp"
	"context"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/internal/observe"
)

// chains is the chains in memory, by tag.
type chains struct {
	owner   allocator.Instance // the instance that has these chains
	loading singleflight.Group // of chains being made, by tag
	slots   chan struct{}      // one token for each tag that is being read
	unknown unknown
	deleted deletedTimes
	tour    tour
	periods periods
	mu      struct {
		sync.RWMutex
		chains map[allocator.Tag]*tagChain
		index  index // of the same chains
	}
}

func (c *chains) init(owner allocator.Instance, unknown *observe.Limit, rand func() float64) {
	c.owner = owner
	c.slots = make(chan struct{}, loadAtOnce)
	c.unknown.init(unknown, rand)
	c.periods.init()
	c.mu.chains = make(map[allocator.Tag]*tagChain)
}

// get returns a tag's chain if there is one.
func (c *chains) get(tag string) *tagChain {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.chains[allocator.Tag(tag)]
}

// pageOfAll is how many chains are copied under the lock at once: a writer that
// waits for the lock delays every Next.
const pageOfAll = 1000

// all returns the chains, in the order of tags.
func (c *chains) all() []tagged {
	list := make([]tagged, 0, c.len())
	for {
		page := c.page(lastTag(list), pageOfAll, list)
		if len(page)-len(list) < pageOfAll {
			return page
		}
		list = page
	}
}

// lastTag returns the tag of the last chain of a list, or "" for an empty list.
func lastTag(list []tagged) allocator.Tag {
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1].tag
}

// page appends to list the first n chains with a tag after the given one; an empty tag
// asks for the first of all.
func (c *chains) page(tag allocator.Tag, n int, list []tagged) []tagged {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.index.after(tag, n, list)
}

// len returns how many chains there are.
func (c *chains) len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.mu.chains)
}

// after returns the first n chains with a tag after the given one, in the order of tags,
// and whether there are more. An empty tag asks for the first of all.
func (c *chains) after(tag allocator.Tag, n int) (list []tagged, more bool) {
	if list = c.page(tag, n+1, nil); len(list) > n {
		return list[:n], true
	}
	return list, false
}

// sortByPeak sorts chains by their recent peak rate, the highest first. The order
// of equally busy chains differs between instances, so that the instances of a room
// do not all compete for the same mark.
func (c *chains) sortByPeak(list []tagged) {
	type rank struct {
		peak float64
		own  uint32
	}
	ranks := make(map[allocator.Tag]rank, len(list))
	for _, t := range list {
		ranks[t.tag] = rank{t.chain.Status().Peak, crc32.ChecksumIEEE([]byte(string(c.owner) + "/" + string(t.tag)))}
	}
	slices.SortFunc(list, func(a, b tagged) int {
		x, y := ranks[a.tag], ranks[b.tag]
		return cmp.Or(cmp.Compare(y.peak, x.peak), cmp.Compare(x.own, y.own), cmp.Compare(a.tag, b.tag))
	})
}

// tagged is a chain with its tag.
type tagged struct {
	tag   allocator.Tag
	chain *tagChain
}

func (c *chains) put(tag allocator.Tag, chain *tagChain) {
	c.unknown.found(tag)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(tag, chain)
}

// set makes chain the tag's. The lock is held.
func (c *chains) set(tag allocator.Tag, chain *tagChain) {
	c.mu.chains[tag] = chain
	c.mu.index.put(tagged{tag, chain})
}

// remove removes chain, if it still is the tag's, and closes it. It closes the chain first, so
// that the chain's last totals, which finish adds, are final.
func (c *chains) remove(tag allocator.Tag, chain *tagChain) {
	chain.Close()
	if c.delete(tag, chain) {
		c.tour.finish(chain)
	}
}

// delete takes chain out of memory, and reports whether it was the tag's.
func (c *chains) delete(tag allocator.Tag, chain *tagChain) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.chains[tag] != chain {
		return false
	}
	delete(c.mu.chains, tag)
	c.mu.index.remove(tag)
	c.periods.remove(tag) // before the next chain of the tag is made
	return true
}

// replace puts chain in the place of other, if other still is the tag's, and closes
// other.
func (c *chains) replace(tag allocator.Tag, other, chain *tagChain) {
	if c.swap(tag, other, chain) {
		c.tour.finish(other)
	}
}

// swap is replace without the tour's last look at other. It reports whether other was the tag's.
func (c *chains) swap(tag allocator.Tag, other, chain *tagChain) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	other.Close() // a call that finds it closed looks the tag up again, and finds the new one
	if c.mu.chains[tag] != other {
		return false
	}
	c.set(tag, chain)
	return true
}

// closeAll closes every chain and returns how many IDs were dropped in all.
func (c *chains) closeAll() int64 {
	for _, t := range c.all() {
		c.remove(t.tag, t.chain)
	}
	return c.tour.totals().dropped
}

// tagChanged applies a change of a tag that the ledger saw. A chain in memory gets
// the new settings. The chain of a deleted tag is dropped. The chain of a prescaled
// tag is made, so that its IDs are there before its first caller.
func (s *Server) tagChanged(change ledger.TagChange) {
	s.chains.unknown.changed(change.Name)
	s.noteTag(change.Name, change.Err)
	if change.Settings == nil && change.Err == nil {
		s.chains.deleted.changed()
	}
	if change.Settings == nil || change.Settings.Time != nil {
		s.timeTagChanged(change)
	}
	chain := s.chains.get(string(change.Name))
	switch {
	case change.Settings == nil && chain != nil:
		s.chains.remove(change.Name, chain)
		s.logDropped(change)
	case change.Settings == nil:
	case chain != nil && (!chain.text.Is(change.Settings.Format, change.Settings.KeyCheck) ||
		s.chains.periods.of(change.Name) != change.Settings.Period):
		s.chains.remove(change.Name, chain) // the tag was deleted and made anew
	case chain != nil && chain.Gated() != s.strict(*change.Settings):
		s.chains.remove(change.Name, chain) // a chain keeps its gate for life; the next caller makes a new chain
		s.log.Info("tag updated", "tag", change.Name, "strict_retract", s.strict(*change.Settings))
	case chain != nil:
		if err := chain.Update(change.Settings.Chain()); err != nil {
			s.lines.refused.Log(time.Now(), s.log.Error, "tag's settings refused", "tag", change.Name, "error", err)
			return
		}
		chain.Skip(max(change.Settings.Skip, change.Settings.Skips[s.cfg.Room]))
		chain.Limit(change.Settings.Limit)
		chain.setSpace(s.spaceOf(*change.Settings))
		s.lines.updated.Log(time.Now(), s.log.Info, "tag updated", "tag", change.Name)
	case change.Settings.Prescale > 0 && time.Now().Before(change.Settings.PrescaleUntil):
		select {
		case s.prescaled <- change.Name:
		default: // beyond maxPrescaled, tags are made by their first callers
		}
	}
}

// maxPrescaled is how many tags that no caller has asked for yet may wait for
// their prescale.
const maxPrescaled = 1000

// warmPrescaled makes the chains of tags that were prescaled, until ctx ends.
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
