package allocator

import "context"

// NextRun returns n consecutive IDs: callers of other systems count on from a single
// number, and cannot be told of a gap. n is at least 1 and at most the width of the
// room's range, which is all that one block has; where the range is the whole block, at
// most LargestStep/2.
//
// The rest of a block that is shorter than n is skipped: skipped says how many IDs so were
// never issued. NextRun waits only while the chain does not hold n consecutive IDs. Its
// errors are Next's, and Invalid where n is not allowed: so is one above half of the tag's
// max_step, because a run is of one lease where other instances of the room lease, too.
func (c *Chain) NextRun(ctx context.Context, n int64) (run Run, skipped int64, err error) {
	if n < 1 || n > LargestStep/2 {
		return Run{}, 0, Errorf(Invalid, "count: %d; allowed: 1 to %d", n, int64(LargestStep/2))
	}
	if c.gate == nil {
		l := c.head.Load()
		if l.magic == 0 && l.left() >= n {
			first, got := l.takeN(n)
			if got == n {
				return Run{First: l.id(first), Count: n}, 0, nil
			}
			skipped = got // others took the rest of the link meanwhile
		}
	}
	for {
		seg, passed, need, err := c.cutRun(n)
		skipped += passed
		switch {
		case err != nil:
			return Run{}, skipped, err
		case seg.Count == 0:
			if waited := c.wait(ctx, need, need); waited != nil {
				// The source may have nothing more, and the chain n in a row all the same.
				if seg, passed, _, err = c.cutRun(n); err != nil || seg.Count == 0 {
					return Run{}, skipped + passed, waited
				}
				skipped += passed
			}
		}
		if seg.Count == 0 {
			continue
		}
		switch ok, err := c.admits(seg); {
		case err != nil:
			return Run{}, skipped, err
		case ok:
			return Run{First: seg.First, Count: n}, skipped, nil
		}
	}
}

// cutRun ends the head early and takes the first n consecutive IDs of the segments held,
// and drops what lies before them. Where there are none it takes and drops nothing, and
// need is how many IDs the chain has to hold so that there are some in any case.
func (c *Chain) cutRun(n int64) (seg Segment, skipped, need int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putBack()
	defer c.promote(c.now())
	c.joinTail()
	at, before := 0, int64(0) // the segment, and how many of its IDs lie before the run
	for ; at < len(c.mu.tail); at++ {
		if before = c.mu.tail[at].before(n); before >= 0 {
			break
		}
		skipped += c.mu.tail[at].Count
	}
	if at == len(c.mu.tail) {
		if at > 0 {
			if last := c.mu.tail[at-1]; last.Boundary > last.Range.Width() && n > last.Range.Width() {
				return Segment{}, 0, 0, Errorf(Invalid, "count: %d; allowed: 1 to %d, as no more of %v mod %d lie in a row", n, last.Range.Width(), last.Range, last.Boundary)
			}
		}
		if c.mu.refills == 0 {
			return Segment{}, 0, 1, nil // how wide the range is, the first segment tells
		}
		if most := (c.settings().MaxStep + 1) / 2; n > most {
			return Segment{}, 0, 0, Errorf(Invalid, "count: %d; allowed: 1 to %d in a row, half of the tag's max_step", n, most)
		}
		// A segment of 2n-1 IDs or more has n in one block, wherever it begins.
		return Segment{}, 0, min(c.held()+2*n-1, LargestStep), nil
	}
	skipped += before
	c.mu.tail = c.mu.tail[at:]
	_, rest := c.mu.tail[0].Split(before)
	seg, rest = rest.Split(n)
	c.mu.tailHeld -= skipped + n
	c.mu.issued += n
	c.mu.dropped += skipped
	c.shorten(rest)
	return seg, skipped, 0, nil
}

// joinTail joins segments that go on where the one before ends. The caller holds the lock.
func (c *Chain) joinTail() {
	joined := c.mu.tail[:0]
	for _, s := range c.mu.tail {
		if last := len(joined) - 1; last >= 0 {
			if whole, ok := joined[last].join(s); ok {
				joined[last] = whole
				continue
			}
		}
		joined = append(joined, s)
	}
	clear(c.mu.tail[len(joined):])
	c.mu.tail = joined
}

// before returns how many IDs of s lie before its first n consecutive ones, or -1 if it has
// none: its first run, the next block, or nothing.
func (s Segment) before(n int64) int64 {
	width := s.Range.Width()
	first := width - s.offset() // what is left of the first block
	switch {
	case s.Count < n:
		return -1
	case width == s.Boundary || first >= n:
		return 0
	case n <= width && s.Count-first >= n:
		return first
	}
	return -1
}
