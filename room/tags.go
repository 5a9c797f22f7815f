package room

import (
	"cmp"
	"context"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/texts"
)

// tags has the issuers in memory, by the names of their tags.
type tags struct {
	*process
	refiller  *allocator.Refiller
	texts     *texts.Cache
	loads     loads              // the work that makes issuers
	loading   singleflight.Group // of issuers being made, by tag
	slots     chan struct{}      // one token for each tag that is being read
	prescaled chan allocator.Tag // tags whose issuers to make before their first caller
	stale     chan struct{}      // a strict tag found its layout not confirmed
	unknown   unknown
	deleted   deletedTimes
	damaged   damaged
	tour      tour
	periods   periods
	mu        struct {
		sync.RWMutex
		tags    map[allocator.Tag]issuer
		index   index                          // of the same issuers
		timed   int                            // how many of them are a TimeTag
		reading map[allocator.Tag]*atomic.Bool // tags that are being read: whether they changed meanwhile
	}
}

func (m *tags) init(p *process, refiller *allocator.Refiller) {
	m.process, m.refiller, m.texts = p, refiller, texts.NewCache(p.cfg.OpaqueKeys)
	m.slots = make(chan struct{}, loadAtOnce)
	m.prescaled, m.stale = make(chan allocator.Tag, maxPrescaled), make(chan struct{}, 1)
	m.unknown.init(p.cfg.Metrics.Limit(maxUnknownTags, int64(p.cfg.MaxUnknownTags)), p.cfg.Rand)
	m.periods.init()
	m.mu.tags, m.mu.reading = make(map[allocator.Tag]issuer), make(map[allocator.Tag]*atomic.Bool)
}

// inMemory returns a tag's issuer, or nil if it is not in memory.
func (m *tags) inMemory(tag string) issuer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.tags[allocator.Tag(tag)]
}

// counter returns the issuer of a tag that is a counter, or nil if it is not in memory.
func (m *tags) counter(tag string) *counter {
	found, _ := m.inMemory(tag).(*counter)
	return found
}

// pageOfAll is how many issuers are copied under the lock at once: a writer that
// waits for the lock delays every Next.
const pageOfAll = 1000

// counters returns the first n counters with a tag after the given one, in the order of tags,
// and whether there are more. An empty tag asks for the first of all.
func (m *tags) counters(after allocator.Tag, n int) (list []*counter, more bool) {
	return issuersOf[*counter](m, after, n)
}

// unleased returns the time-ordered tags in memory, and the tags that are being read.
func (m *tags) unleased() (names []allocator.Tag) {
	list, _ := issuersOf[*TimeTag](m, "", math.MaxInt)
	for _, t := range list {
		names = append(names, t.name)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.AppendSeq(names, maps.Keys(m.mu.reading))
}

// issuersOf is counters for a kind of issuer.
func issuersOf[T issuer](m *tags, after allocator.Tag, n int) (list []T, more bool) {
	for page := []tagged(nil); ; after = lastTag(page) {
		page = m.page(after, pageOfAll, page[:0])
		for _, t := range page {
			if found, is := t.issuer.(T); is {
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
func (m *tags) page(after allocator.Tag, n int, list []tagged) []tagged {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.index.after(after, n, list)
}

// size returns how many counters and how many time-ordered tags there are.
func (m *tags) size() (counters, timed int) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.mu.tags) - m.mu.timed, m.mu.timed
}

// sortByPeak sorts counters by their recent peak rate, the highest first. The order
// of equally busy ones differs between instances, so that the instances of a room
// do not all compete for the same mark.
func (m *tags) sortByPeak(list []*counter) {
	type rank struct {
		peak float64
		own  uint32
	}
	ranks := make(map[*counter]rank, len(list))
	for _, of := range list {
		ranks[of] = rank{of.Status().Peak, crc32.ChecksumIEEE([]byte(string(m.cfg.Name) + "/" + string(of.Tag())))}
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

// begin notes that a tag is being read, until end. The tag has no issuer in memory.
func (m *tags) begin(name allocator.Tag) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.reading[name] = new(atomic.Bool)
}

// end puts the issuer that was made of a tag as it was read into memory, if there is one. It returns false, and puts
// nothing there, if the tag changed since begin: no one would tell the issuer.
func (m *tags) end(name allocator.Tag, tag issuer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := m.mu.reading[name].Load()
	delete(m.mu.reading, name)
	switch {
	case changed:
		m.periods.remove(name)
		return false
	case tag == nil:
		return true
	}
	m.unknown.found(name)
	if _, is := tag.(*TimeTag); is {
		m.mu.timed++
	}
	m.set(name, tag)
	return true
}

// changed returns a tag's issuer, as inMemory does. A read of the tag that is under way notes the change.
func (m *tags) changed(name allocator.Tag) issuer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if read := m.mu.reading[name]; read != nil {
		read.Store(true)
	}
	return m.mu.tags[name]
}

// set makes tag the issuer of a name. The lock is held.
func (m *tags) set(name allocator.Tag, tag issuer) {
	m.mu.tags[name] = tag
	m.mu.index.put(tagged{name, tag})
}

// remove closes an issuer, and removes it if it still is the tag's.
func (m *tags) remove(name allocator.Tag, tag issuer) {
	tag.Close()
	m.forget(name, tag)
}

// forget removes an issuer that is closed, if it still is the tag's. No ID comes of it any more, so
// the totals that finish adds are its last, and the tag's next issuer begins above its IDs.
func (m *tags) forget(name allocator.Tag, tag issuer) {
	if m.delete(name, tag) {
		m.tour.finish(tag)
	}
}

// delete takes an issuer out of memory, and reports whether it was the tag's.
func (m *tags) delete(name allocator.Tag, tag issuer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.tags[name] != tag {
		return false
	}
	delete(m.mu.tags, name)
	m.mu.index.remove(name)
	m.periods.remove(name) // before the next issuer of the tag is made
	if _, is := tag.(*TimeTag); is {
		m.mu.timed--
	}
	return true
}

// replace puts a counter in the place of another, if that still is the tag's, and closes the other.
func (m *tags) replace(other, fresh *counter) {
	m.mu.Lock()
	other.Close() // a call that finds it closed looks the tag up again, and finds the new one
	was := m.mu.tags[other.Tag()] == issuer(other)
	if was {
		m.set(other.Tag(), fresh)
	}
	m.mu.Unlock()
	if was {
		m.tour.finish(other)
	}
}

// dropIDs closes every counter and every generator, and returns how many IDs were dropped in all. Time-ordered
// tags stay in memory, for workers that are taken anew.
func (m *tags) dropIDs() int64 {
	list, _ := m.counters("", math.MaxInt)
	for _, c := range list {
		m.remove(c.Tag(), c)
	}
	m.windows.Drop()
	return m.tour.totals().dropped
}

// tagChanged applies a change of a tag that the ledger saw. An issuer in memory gets the new settings, and that
// of a deleted tag is dropped. The issuer of a prescaled tag is made, so that its IDs are there before its first
// caller.
func (m *tags) tagChanged(change ledger.TagChange) {
	m.unknown.changed(change.Name)
	m.damaged.note(change.Name, change.Err)
	if change.Settings == nil && change.Err == nil {
		m.deleted.changed()
	}
	tag := m.changed(change.Name)
	switch {
	case tag != nil && change.Settings == nil:
		m.remove(change.Name, tag)
		m.logDropped(change)
	case tag != nil:
		keeps, err := tag.update(m, *change.Settings)
		if err != nil {
			m.lines.refused.Log(time.Now(), m.log.Error, "tag's settings refused", "tag", change.Name, "error", err)
			return
		}
		if !keeps { // its next caller makes another one
			m.remove(change.Name, tag)
		}
		m.lines.updated.Log(time.Now(), m.log.Info, "tag updated", "tag", change.Name)
	case change.Settings != nil && change.Settings.Prescale > 0 && time.Now().Before(change.Settings.PrescaleUntil):
		select {
		case m.prescaled <- change.Name:
		default: // beyond maxPrescaled, tags are made by their first callers
		}
	}
}

// maxPrescaled is how many tags that no caller has asked for yet may wait for
// their prescale.
const maxPrescaled = 1000

// warmPrescaled makes the issuers of tags that were prescaled, until ctx ends.
func (m *tags) warmPrescaled(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case tag := <-m.prescaled:
			warming, cancel := context.WithTimeout(ctx, ledger.LongestWork)
			if err := m.warmTag(warming, tag); err != nil && ctx.Err() == nil {
				m.lines.unwarmed.Log(time.Now(), m.log.Warn,
					"tag not prescaled yet; its first caller prescales it", "tag", tag, "error", err)
			}
			cancel()
		}
	}
}
