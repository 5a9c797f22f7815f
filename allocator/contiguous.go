package allocator

import "context"

// NextRun returns n consecutive IDs, for clients of other systems that count on from a
// single number. n is at least 1 and at most the width of the room's range, because a
// block has no more. If the range is the whole block, n is at most LargestStep/2.
//
// If the rest of a block is shorter than n, it is skipped: skipped is the number of IDs
// that are never issued because of that. NextRun waits only while the chain does not hold
// n consecutive IDs, or is behind. Its errors are Next's, and Invalid if n is not allowed. An n above
// half of the tag's max_step is not allowed either: if other instances of the room lease,
// too, a run must come from one lease.
func (c *Chain) NextRun(ctx context.Context, n int64) (run Run, skipped int64, err error) {
	if n < 1 || n > LargestStep/2 {
		return Run{}, 0, Errorf(Invalid, "count: %d; allowed: 1 to %d", n, int64(LargestStep/2))
	}
	if c.gate == nil {
		l := c.head.Load()
		if first, ok := l.takeRun(n); ok {
			return Run{First: l.id(first), Count: n}, 0, nil
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
				// Even if the source has no more IDs, the chain may hold n consecutive
				// ones.
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

// TryRun returns n consecutive IDs if the chain holds them, and false otherwise. It skips as
// NextRun does, and only if it returns IDs. The chain asks its source for no more IDs than
// single ones would make it ask for.
func (c *Chain) TryRun(n int64) (run Run, ok bool) {
	if n < 1 {
		return Run{}, false
	}
	seg, _, _, err := c.cutRun(n)
	if err != nil || seg.Count == 0 {
		return Run{}, false
	}
	if ok, err := c.admits(seg); err != nil || !ok {
		return Run{}, false
	}
	return Run{First: seg.First, Count: n}, true
}

// cutRun takes the first n consecutive IDs of the segments held, and drops the IDs before them. If there are none, it
// takes and drops nothing, and need is how many IDs the chain must hold to be sure to have n consecutive ones.
func (c *Chain) cutRun(n int64) (seg Segment, skipped, need int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.stock
	defer c.settle(c.now(), true)
	if c.mu.bounds.behind() {
		return Segment{}, 0, 1, nil
	}
	seg, skipped = s.cutRun(n)
	if seg.Count > 0 {
		return seg, skipped, 0, nil
	}
	if len(s.tail) > 0 {
		if last := s.tail[len(s.tail)-1]; last.Boundary > last.Range.Width() && n > last.Range.Width() {
			return Segment{}, 0, 0, Errorf(Invalid,
				"count: %d; allowed: 1 to %d, because no more IDs of %v mod %d are consecutive", n,
				last.Range.Width(), last.Range, last.Boundary)
		}
	}
	if c.mu.refills == 0 {
		return Segment{}, 0, 1, nil // the first segment will show the width of the range
	}
	if most := (c.mu.pace.settings.MaxStep + 1) / 2; n > most {
		return Segment{}, 0, 0, Errorf(Invalid,
			"count: %d; allowed: 1 to %d consecutive IDs, half of the tag's max_step", n, most)
	}
	// A segment of at least 2n-1 IDs has n IDs in one block, wherever it
	// begins.
	return Segment{}, 0, min(s.held()+2*n-1, LargestStep), nil
}

// before returns how many IDs of s lie before its first n consecutive ones, or -1 if it has
// none. These lie in its first run or in the next block.
func (s Segment) before(n int64) int64 {
	width := s.Range.Width()
	first := width - s.offset() // the rest of the first block
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
