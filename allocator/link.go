package allocator

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// A link is the part of a segment that is being handed out. Everything in it
// but the counter is immutable, so a value taken from the counter is always
// checked against the end of the very link it came from.
//
// An ordinal is the dense index of one of the range's IDs, counted from the
// start of the link's first block. With q = ordinal / width, the ID is
//
//	base + ordinal + q*gap     where gap = boundary - width
//
// and the division is a multiplication by its reciprocal: with
// magic = floor(2^64/width) + 1, the high word of ordinal*magic is q for every
// ordinal with ordinal*width <= 2^64 (magic*width exceeds 2^64 by e, 1 <= e <=
// width, and the error ordinal*e stays below 2^64; Granlund and Montgomery,
// "Division by Invariant Integers using Multiplication", 1994). newLink cuts
// its segment so that this holds; magic 0 stands for q = 0 always.
//
// The counter has its cache lines to itself (128 bytes: the hardware fetches
// lines in pairs), so that taking an ID on one core does not evict the
// immutable words another core reads. Objects of 256 bytes are aligned to 256.
type link struct {
	end   uint64 // ordinals up to here, exclusive, are the link's
	magic uint64
	base  int64
	gap   int64
	seg   Segment
	_     [128 - 32 - 72]byte // up to 128

	counter atomic.Int64 // the last ordinal taken; may run past end, never back
	_       [120]byte
}

// closed is added to a counter to end its link early. It is beyond every end
// (at most 2^62, see newLink), and 2^62 late takers away from wrapping.
const closed = 1 << 62

// maxOrdinal bounds the ordinals of a link that spans blocks: with a width of
// at most maxOrdinal, every ordinal*width is at most 2^64.
const maxOrdinal = 1 << 32

// newLink makes a link of at most n IDs from the front of s, and returns the
// rest of s. n and s.Count must be at least 1.
func newLink(s Segment, n int64) (*link, Segment) {
	width := s.Range.Width()
	gap := s.Boundary - width
	offset := s.offset()
	l := &link{base: s.blockStart(), gap: gap}
	n = min(n, s.Count, closed/2)
	switch {
	case gap == 0 || n <= width-offset:
		// There is only one run. Counting from First instead of the block's start
		// keeps ordinals small whatever the width.
		l.base, l.gap, offset = s.First, 0, 0
	case width == 1:
		// 2^64/1 does not fit. With ordinals from 1 on and magic = 2^64-1 the
		// high word of ordinal*magic is ordinal-1, which is q.
		l.magic, l.base, offset = 1<<64-1, l.base-1, 1
	case width > maxOrdinal/2:
		n = width - offset // end at the block's end: these are still billions of IDs
		l.base, l.gap, offset = s.First, 0, 0
	default:
		l.magic, _ = bits.Div64(1, 0, uint64(width))
		l.magic++
		n = min(n, maxOrdinal-offset)
	}
	if width == 1 && l.magic != 0 {
		n = min(n, maxOrdinal)
	}
	var rest Segment
	l.seg, rest = s.Split(n)
	l.counter.Store(offset - 1)
	l.end = uint64(offset + n)
	return l, rest
}

// id returns the ID at ordinal.
func (l *link) id(ordinal uint64) int64 {
	q, _ := bits.Mul64(ordinal, l.magic)
	return l.base + int64(ordinal) + int64(q)*l.gap
}

// takeN takes up to n ordinals in one atomic operation and returns the first
// and how many there are, 0 when the link is spent.
func (l *link) takeN(n int64) (first uint64, got int64) {
	if uint64(l.counter.Load()+1) >= l.end {
		return 0, 0 // do not advance the counter of a spent link
	}
	first = uint64(l.counter.Add(n) - n + 1)
	if first >= l.end {
		return 0, 0
	}
	return first, min(n, int64(l.end-first))
}

// takeRun takes n ordinals whose IDs are consecutive, and returns the first. It returns false,
// and takes nothing, if the rest of the link, or of its present block, is shorter.
func (l *link) takeRun(n int64) (first uint64, ok bool) {
	for {
		last := l.counter.Load()
		first = uint64(last + 1)
		if first >= l.end || uint64(n) > l.end-first {
			return 0, false
		}
		if l.magic != 0 { // the link spans blocks
			if width := uint64(l.seg.Range.Width()); uint64(n) > width-first%width {
				return 0, false
			}
		}
		if l.counter.CompareAndSwap(last, last+n) {
			return first, true
		}
	}
}

// start returns the link's first ordinal.
func (l *link) start() uint64 { return l.end - uint64(l.seg.Count) }

// taken returns how many IDs were taken so far.
func (l *link) taken() int64 {
	next := uint64(l.counter.Load() + 1)
	return int64(min(next, l.end) - l.start())
}

// remaining returns how many IDs are left.
func (l *link) remaining() int64 { return l.seg.Count - l.taken() }

// close ends the link and returns how many IDs had been taken by then. A later
// caller finds the link spent.
func (l *link) close() int64 {
	next := uint64(l.counter.Add(closed) - closed + 1)
	return int64(min(next, l.end) - l.start())
}

// appendRuns appends the n IDs from ordinal first on as runs. It extends the last
// run of dst if there is no gap.
func (l *link) appendRuns(dst []Run, first uint64, n int64) []Run {
	id, run := l.id(first), n
	width := l.seg.Range.Width()
	if l.magic != 0 { // the link spans blocks
		run = width - (id%l.seg.Boundary - l.seg.Range.Lower)
	}
	for {
		run = min(run, n)
		if last := len(dst) - 1; last >= 0 && dst[last].First+dst[last].Count == id {
			dst[last].Count += run
		} else {
			dst = append(dst, Run{First: id, Count: run})
		}
		if n -= run; n == 0 {
			return dst
		}
		id += run + l.gap
		run = width
	}
}

// spent is the link of all chains that have none: its end is 0, and no ordinal is below that.
var spent = &link{}

// A stock is what a chain holds: the link that is being handed out, and the segments after it. Callers take IDs of the
// link without a lock. All else is guarded by the chain's lock. Each ID that was leased is issued, held or dropped.
type stock struct {
	// front is the chain's head, or gated. Its link is never nil. It does not change itself, so that its link may be
	// loaded without the lock.
	front    *atomic.Pointer[link]
	tail     []Segment // the segments after the link, in the order of leasing
	tailHeld int64     // the IDs in tail
	last     int64     // the last ID of the last segment leased, -1 before any
	past     int64     // the IDs that were issued, without those of the link
	dropped  int64     // IDs leased and never issued: closes, layout changes, errors
}

// issued returns how many IDs were taken so far.
func (s *stock) issued() int64 { return s.past + s.front.Load().taken() }

// held returns how many IDs are left.
func (s *stock) held() int64 { return s.front.Load().remaining() + s.tailHeld }

// segments returns the held segments, the next to be issued first.
func (s *stock) segments() []Segment {
	held := make([]Segment, 0, 1+len(s.tail))
	l := s.front.Load()
	if _, rest := l.seg.Split(l.taken()); rest.Count > 0 {
		held = append(held, rest)
	}
	return append(held, s.tail...)
}

// holds reports whether match is true for a held segment.
func (s *stock) holds(match func(Segment) bool) bool {
	return s.heldOf(match) > 0
}

// heldOf returns how many IDs the held segments have for which match is true.
func (s *stock) heldOf(match func(Segment) bool) (n int64) {
	l := s.front.Load()
	if n = l.remaining(); n > 0 && !match(l.seg) {
		n = 0
	}
	for _, seg := range s.tail {
		if match(seg) {
			n += seg.Count
		}
	}
	return n
}

// version returns the oldest layout of the held segments, 0 if there are none. It
// need not be the first segment's: a client's source may ask one instance of a room
// and then another with an older layout.
func (s *stock) version() int64 {
	var oldest int64
	s.holds(func(seg Segment) bool {
		if oldest == 0 || seg.Version < oldest {
			oldest = seg.Version
		}
		return false
	})
	return oldest
}

// add puts a segment at the end. It joins the segment with the last one if there is no gap, as is usual for a chain
// that is hardly used.
func (s *stock) add(seg Segment) {
	s.tailHeld += seg.Count
	if last := len(s.tail) - 1; last >= 0 {
		if whole, ok := s.tail[last].join(seg); ok {
			s.tail[last] = whole
			return
		}
	}
	s.tail = append(s.tail, seg)
}

// promote puts a link of at most n IDs at the front, if the one there is spent.
func (s *stock) promote(n int64) {
	l := s.front.Load()
	if l.remaining() > 0 || len(s.tail) == 0 {
		return
	}
	s.past += l.seg.Count
	next, left := newLink(s.tail[0], n)
	s.tailHeld -= next.seg.Count
	s.shorten(left)
	s.front.Store(next)
}

// putBack ends the link early and returns its rest to the front of the tail.
func (s *stock) putBack() {
	l := s.front.Load()
	taken := l.close()
	s.front.Store(spent)
	s.past += taken
	_, rest := l.seg.Split(taken)
	if rest.Count == 0 {
		return
	}
	s.tailHeld += rest.Count
	if len(s.tail) > 0 {
		if whole, ok := rest.join(s.tail[0]); ok {
			s.tail[0] = whole
			return
		}
	}
	s.tail = slices.Insert(s.tail, 0, rest)
}

// shorten replaces the first segment of the tail by rest.
func (s *stock) shorten(rest Segment) {
	if rest.Count > 0 {
		s.tail[0] = rest
		return
	}
	if s.tail = s.tail[1:]; len(s.tail) == 0 {
		s.tail = nil // free the array
	}
}

// cut ends the link early and takes up to n IDs from the first segment held.
func (s *stock) cut(n int64) (seg Segment) {
	s.putBack()
	if len(s.tail) == 0 {
		return Segment{}
	}
	seg, rest := s.tail[0].Split(n)
	s.tailHeld -= seg.Count
	s.past += seg.Count
	s.shorten(rest)
	return seg
}

// cutRun ends the link early and takes the first n consecutive IDs of the segments held, and drops the skipped IDs
// before them. If there are none, it takes and drops nothing.
func (s *stock) cutRun(n int64) (seg Segment, skipped int64) {
	s.putBack()
	s.join()
	at, before := 0, int64(0) // the segment, and how many of its IDs lie before the run
	for ; at < len(s.tail); at++ {
		if before = s.tail[at].before(n); before >= 0 {
			break
		}
		skipped += s.tail[at].Count
	}
	if at == len(s.tail) {
		return Segment{}, 0
	}
	skipped += before
	s.tail = s.tail[at:]
	_, rest := s.tail[0].Split(before)
	seg, rest = rest.Split(n)
	s.tailHeld -= skipped + n
	s.past += n
	s.dropped += skipped
	s.shorten(rest)
	return seg, skipped
}

// join joins each segment of the tail with the next one if that continues it without a gap.
func (s *stock) join() {
	joined := s.tail[:0]
	for _, seg := range s.tail {
		if last := len(joined) - 1; last >= 0 {
			if whole, ok := joined[last].join(seg); ok {
				joined[last] = whole
				continue
			}
		}
		joined = append(joined, seg)
	}
	clear(s.tail[len(joined):])
	s.tail = joined
}

// drop drops the held segments that are outdated. The link is one of its own: what follows it may stay.
func (s *stock) drop(outdated func(Segment) bool) {
	if l := s.front.Load(); outdated(l.seg) {
		taken := l.close()
		s.front.Store(spent)
		s.past += taken
		s.dropped += l.seg.Count - taken
	}
	s.tail = slices.DeleteFunc(s.tail, func(seg Segment) bool {
		if !outdated(seg) {
			return false
		}
		s.tailHeld -= seg.Count
		s.dropped += seg.Count
		return true
	})
	if len(s.tail) == 0 {
		s.tail = nil // let the array go
	}
}

// limit drops the held IDs from limit on, and reports whether there were any.
func (s *stock) limit(limit int64) bool {
	if !s.holds(func(seg Segment) bool { return seg.Last() >= limit }) {
		return false
	}
	s.putBack()
	for i, seg := range s.tail {
		s.tail[i] = seg.below(limit)
		s.tailHeld -= seg.Count - s.tail[i].Count
		s.dropped += seg.Count - s.tail[i].Count
	}
	s.drop(func(seg Segment) bool { return seg.Count == 0 })
	return true
}
