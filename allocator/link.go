package allocator

import (
	"math/bits"
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
