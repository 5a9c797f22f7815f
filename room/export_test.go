package room

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/serve"
)

// Growth exports growth, which measures how fast a mark rises.
type Growth = growth

// Note notes a segment.
func (g *Growth) Note(now time.Time, last int64) { g.note(now, last) }

// Rate returns by how much the mark rose per second.
func (g *Growth) Rate(now time.Time, last int64) float64 { return g.rate(now, last) }

// Rates exports rates, which remembers how many IDs were issued in each second.
type Rates = rates

// Start starts the measurement.
func (r *Rates) Start(now time.Time) { r.start(now) }

// Note notes how many IDs were issued in all.
func (r *Rates) Note(now time.Time, issued, leased int64) { r.note(now, issued, leased) }

// Get returns the rates.
func (r *Rates) Get() []float64 { return r.get() }

// Index opens the chains in the order of their tags.
type Index struct{ index index }

// Put adds a tag.
func (x *Index) Put(tag allocator.Tag) { x.index.put(tagged{tag: tag}) }

// Remove removes a tag.
func (x *Index) Remove(tag allocator.Tag) { x.index.remove(tag) }

// After returns the first n tags after one.
func (x *Index) After(tag allocator.Tag, n int) []allocator.Tag {
	tags := []allocator.Tag{}
	for _, t := range x.index.after(tag, n, nil) {
		tags = append(tags, t.tag)
	}
	return tags
}

// Exchanged returns how many workers were exchanged, and how many of them because another process had the worker.
func (w *Windows) Exchanged() (exchanges, conflicts int64) {
	s := w.status()
	return s.exchanges, s.conflicts
}

// Unknown exports unknown, which remembers tags that do not exist.
type Unknown struct{ unknown unknown }

// NewUnknown returns an Unknown with a limit for each caller.
func NewUnknown(most int64) *Unknown {
	var m *serve.Metrics
	u := &Unknown{}
	u.unknown.init(m.Limit(maxUnknownTags, most), rand.Float64)
	return u
}

// Look reports whether a tag may be read.
func (u *Unknown) Look(caller netip.Addr, tag allocator.Tag, now time.Time) (late bool, err error) {
	return u.unknown.check(caller, tag, now)
}

// Add notes that a tag was read and does not exist.
func (u *Unknown) Add(caller netip.Addr, tag allocator.Tag, now time.Time) {
	u.unknown.add(caller, tag, now, u.unknown.changes())
}

// Changed notes that a tag was created.
func (u *Unknown) Changed(tag allocator.Tag) { u.unknown.changed(tag) }

// Size returns how many tags and callers are remembered.
func (u *Unknown) Size() (tags, callers int) {
	return len(u.unknown.mu.tags), len(u.unknown.mu.callers)
}
