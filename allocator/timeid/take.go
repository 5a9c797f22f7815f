package timeid

// state is the outcome of an attempt to take words.
type state uint8

const (
	taken  state = iota
	full         // of the tick, or of the ticks that Offset allows: a later tick is needed
	behind       // the clock is behind the last ID, or before the window
	over         // the clock is past the window, or Offset would go past it
	ended        // the time bits are used up
	closed
)

// take takes up to n consecutive words of one tick if that needs no wait. It returns the first
// word, how many it took, and the reading of the clock that it used. waited says that the
// caller has waited for this tick, as the previous one was full.
//
// Two orders of events matter. A word is taken by moving g.word, and only then compared with
// the bound: a Close that the comparison does not see reads a word that is no lower. And all
// words are read before the clock, and top is raised before g.word: so a clock below top did go
// back, and a word of a later tick than top's is one that a caller added and gave up.
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

// ordinal returns the ordinal of the tick at ms, which is not before the epoch, or one more
// than the latest ordinal.
func (g *Generator) ordinal(ms int64) uint64 {
	return min(uint64(ms-g.cfg.Layout.Epoch)/uint64(g.unit), g.latest) + 1
}

// startOf returns when the tick of an ordinal begins, in Unix ms.
func (g *Generator) startOf(ordinal uint64) int64 {
	return g.cfg.Layout.Epoch + int64(ordinal-1)*g.unit
}

// begin returns the first sequence of a tick after word's. waited says that the caller waited
// for it, or goes on to it, as word's tick is full. The time before a window counts as a full
// tick.
func (g *Generator) begin(word uint64, waited bool) uint64 {
	switch sequence := word & g.mask; {
	case g.cfg.Sequence == Random:
		return g.random()
	case g.cfg.Sequence == Reset || waited:
		return 0
	case sequence >= uint64(g.cfg.CarryTo):
		return min(1, g.mask)
	default:
		return min(sequence+1, g.mask) // less only if there are no sequence bits
	}
}

// reach returns the highest ordinal that may be issued while the clock is in the tick of an
// ordinal, and false if the clock went back by too much.
//
// With Offset the clock may be behind top. Then ahead is the distance at the time when that was
// found, and reach advances with the clock: so a full tick costs a wait of one tick, as always.
// Once the clock has caught up, ahead is 0 again.
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
			// Of the callers that find a rollback, one counts it.
			if seen := g.seen.Load(); g.issued() && seen != top && g.seen.CompareAndSwap(seen, top) {
				g.rollbacks.Add(1)
			}
			return 0, false
		case g.ahead.CompareAndSwap(ahead, top-tick):
			g.shut() // so that callers look again when the clock is back, and ahead becomes 0
			if g.issued() {
				g.rollbacks.Add(1)
			}
			return top, true
		}
	}
}

// issued reports whether any ID was issued in the window so far.
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

// shut makes all callers look again: adding takes no more words.
func (g *Generator) shut() {
	g.start.Store(noTick)
	g.ends.Store(0)
}

// publish lets callers take words up to last by adding, while the clock is in its present tick.
// It does nothing once closed.
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
		// The end of the tick, but at most the end of this ms: then the wall clock is read
		// again.
		g.ends.Store(at.nanos + at.left)
		return
	}
	g.start.Store(g.startOf(last >> g.sequence))
}
