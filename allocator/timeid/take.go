package timeid

// state is how an attempt to take words ended.
type state uint8

const (
	taken  state = iota
	full         // of the tick, or of what Offset allows: a later tick is needed
	behind       // the clock is behind the last ID, or before the window
	over         // the clock is past the window, or Offset would be
	ended        // the time bits are used up
	closed
)

// take takes up to n words that follow each other in one tick, if that needs no
// wait, and returns the first and how many, with the reading of the clock that it
// went by. waited tells that the caller has waited for this tick, as the one before
// was full.
//
// Two orders of events matter. A word is taken by moving g.word, and only then
// compared with the bound: a Close that the comparison does not see reads a word
// that is no lower. And all words are read before the clock, and top is raised before
// g.word: so a clock below top did go back, and a word of a later tick than top's is
// one that a caller added and gave up.
func (g *Generator) take(n uint64, waited bool) (first, count uint64, at instant, s state) {
	for {
		top, word, bound := g.top.Load(), g.word.Load(), g.bound.Load()
		floor := g.floor.Load() // after the bound: see Extend
		if bound == 0 {
			return 0, 0, at, closed
		}
		at = g.now()
		if at.ms < g.cfg.Layout.Epoch {
			return 0, 0, at, behind
		}
		tick := g.ordinal(at.ms)
		if tick > g.latest {
			return 0, 0, at, ended
		}
		if word < floor {
			g.word.CompareAndSwap(word, floor)
			continue
		}
		reach, ok := g.reach(tick, top)
		if !ok {
			return 0, 0, at, behind
		}
		switch last := word >> g.sequence; {
		case tick > last:
			first = tick<<g.sequence + g.begin(word, waited)
		case word&g.mask != g.mask && last <= reach:
			first = word + 1
		case word&g.mask == g.mask && last < reach:
			first = (last+1)<<g.sequence + g.begin(word, word > floor)
		default:
			g.shut()
			return 0, 0, at, full
		}
		if first >= bound {
			return 0, 0, at, over
		}
		end := first | g.mask // the tick's last
		count = min(n, end-first+1)
		g.raiseTop(first >> g.sequence)
		if !g.word.CompareAndSwap(word, first+count-1) {
			continue
		}
		if g.bound.Load() == 0 {
			return 0, 0, at, closed
		}
		if tick == first>>g.sequence {
			g.publish(at, end)
		}
		return first, count, at, taken
	}
}

// ordinal returns the ordinal of the tick at ms, which is not before the epoch, or
// one above the latest.
func (g *Generator) ordinal(ms int64) uint64 {
	return min(uint64(ms-g.cfg.Layout.Epoch)/uint64(g.unit), g.latest) + 1
}

// startOf returns when the tick of an ordinal begins, in Unix ms.
func (g *Generator) startOf(ordinal uint64) int64 {
	return g.cfg.Layout.Epoch + int64(ordinal-1)*g.unit
}

// begin returns the first sequence of a tick after word's. waited tells that
// the caller waited for it, or goes on to it, as word's tick is full. What is before
// a window counts as a tick that was full.
func (g *Generator) begin(word uint64, waited bool) uint64 {
	switch sequence := word & g.mask; {
	case g.cfg.Sequence == Random:
		return g.random()
	case g.cfg.Sequence == Reset || waited:
		return 0
	case sequence >= uint64(g.cfg.CarryTo):
		return min(1, g.mask)
	default:
		return min(sequence+1, g.mask) // less only without any bits
	}
}

// reach returns the highest ordinal that may be issued while the clock is in the
// tick of an ordinal, and false where the clock went back by too much.
//
// With Offset the clock may be behind top. Then ahead is the distance at which that
// was found, and reach goes on as the clock does: so a full tick costs a tick's
// wait, as ever. Once the clock has caught up, ahead is 0 again.
func (g *Generator) reach(tick, top uint64) (uint64, bool) {
	for {
		ahead := g.ahead.Load()
		switch {
		case tick >= top:
			if ahead != 0 {
				g.ahead.CompareAndSwap(ahead, 0)
			}
			return tick, true
		case tick+ahead >= top:
			return tick + ahead, true
		case g.cfg.Rollback != Offset || top-tick > g.maxAhead:
			// Of the callers that find it, one counts it.
			if seen := g.seen.Load(); g.issued() && seen != top && g.seen.CompareAndSwap(seen, top) {
				g.rollbacks.Add(1)
			}
			return 0, false
		case g.ahead.CompareAndSwap(ahead, top-tick):
			g.shut() // so that a caller looks again when the clock is back, and ahead is 0
			if g.issued() {
				g.rollbacks.Add(1)
			}
			return top, true
		}
	}
}

// issued reports whether anything was issued in the window so far.
func (g *Generator) issued() bool { return g.word.Load()>>g.sequence >= g.top.Load() }

// raiseTop raises top to an ordinal that was issued.
func (g *Generator) raiseTop(ordinal uint64) {
	for {
		top := g.top.Load()
		if ordinal <= top || g.top.CompareAndSwap(top, ordinal) {
			return
		}
	}
}

// shut makes all callers look again: nothing more is to be taken by adding.
func (g *Generator) shut() {
	g.start.Store(noTick)
	g.ends.Store(0)
}

// publish lets callers take words up to last by adding, while the clock is in the
// tick that it is in now. It does nothing once closed.
func (g *Generator) publish(at instant, last uint64) {
	for {
		old := g.last.Load()
		if old == 0 {
			return
		}
		if old == last || g.last.CompareAndSwap(old, last) {
			break
		}
	}
	if g.clock == nil {
		// The tick's end, but at most the end of this ms: then the wall clock is looked
		// at again.
		g.ends.Store(at.nanos + at.left)
		return
	}
	g.start.Store(g.startOf(last >> g.sequence))
}
