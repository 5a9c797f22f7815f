package allocator

import "unsafe"

// Link exports link, the object on the hot path.
type Link struct{ l *link }

// NewLink is newLink.
func NewLink(s Segment, n int64) (Link, Segment) {
	l, rest := newLink(s, n)
	return Link{l}, rest
}

// Try takes an ID as Chain.TryNext does.
func (l Link) Try() (int64, bool) {
	n := uint64(l.l.counter.Add(1))
	if n >= l.l.end {
		return 0, false
	}
	return l.l.id(n), true
}

// TakeN calls takeN and appends the runs that it took to dst.
func (l Link) TakeN(n int64, dst []Run) ([]Run, int64) {
	first, got := l.l.takeN(n)
	if got > 0 {
		dst = l.l.appendRuns(dst, first, got)
	}
	return dst, got
}

func (l Link) Segment() Segment { return l.l.seg }
func (l Link) Left() int64      { return l.l.remaining() }
func (l Link) Taken() int64     { return l.l.taken() }
func (l Link) Close() int64     { return l.l.close() }

// Skip advances the counter by n, as late callers would.
func (l Link) Skip(n int64) { l.l.counter.Add(n) }

// At returns the ID of the link's k-th ordinal without taking it.
func (l Link) At(k int64) int64 { return l.l.id(l.l.start() + uint64(k)) }

// Sizes of the objects whose place in cache lines matters.
const (
	LinkSize      = unsafe.Sizeof(link{})
	ChainSize     = unsafe.Sizeof(Chain{})
	LockOffset    = unsafe.Offsetof(Chain{}.mu)
	CounterOffset = unsafe.Offsetof(link{}.counter)
)

// Below is Segment.below.
func Below(s Segment, limit int64) Segment { return s.below(limit) }

// Queued returns how many entries wait in the refiller's queues.
func (r *Refiller) Queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.queues[0].len() + r.mu.queues[1].len()
}

// Wanted returns how many IDs the callers wait for.
func (c *Chain) Wanted() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.callers.wanted
}
