package timeid

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
)

// Generator issues the IDs of one worker within its window. All methods are safe for concurrent
// use. TryNext takes no lock and allocates nothing; neither does Next unless it waits.
//
// A word is a tick's ordinal and a sequence in one number, ordinal << s | sequence. The ordinal
// of a tick is its number + 1, so that one word is below all others. The word of the last taken
// ID alone decides which caller an ID belongs to: a caller takes an ID by moving the word up,
// by adding (TryNext) or by compare-and-swap (take). The word goes down in one case only, see
// giveBack.
type Generator struct {
	// Every call reads these fields, and each tick changes them. Invariant: last is below bound, or
	// was before Close. Callers that read a mixture of two ticks' values may get an ID of the later
	// tick, or try again; no ID is issued twice because of it, and none outside the window.

	// A given clock is in the tick of last from this reading on, below start + unit; noTick for none.
	start atomic.Int64
	ends  atomic.Int64  // the same for the computer's clock: until so many ns after base
	last  atomic.Uint64 // the last word that adding may take; 0 once closed

	clock func() int64 // nil for the computer's
	base  time.Time    // when the generator was made, with a monotonic reading
	unit  int64        // ms

	// The ID of a word is (word & high) << shift + word & low + plus.
	high, low, plus uint64
	shift           uint8
	_               [128]byte // the next field changes with each ID: keep it out of these cache lines

	word atomic.Uint64
	_    [128 - 8]byte

	// A call that has to look again reads these fields.
	bound atomic.Uint64 // the first word past the window; 0 once closed
	floor atomic.Uint64 // the last word before the window
	top   atomic.Uint64 // the highest ordinal issued, or the window's first: a clock below it went back
	ahead atomic.Uint64 // with Offset: how many ticks IDs may be ahead of the clock now
	seen  atomic.Uint64 // the top at the last counted rollback

	overflows, overflowNanos, rollbacks atomic.Int64

	cfg      Config
	sequence uint8  // bits
	mask     uint64 // of the sequence
	latest   uint64 // the largest ordinal, 2^TimeBits
	maxAhead uint64 // ticks

	mu struct {
		sync.Mutex
		window Window
		closed bool
	}
}

// noTick is a start that matches no reading of a clock.
const noTick = math.MaxInt64

// New returns a generator. Its errors are those of Config.Validate.
func New(cfg Config) (*Generator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	l := cfg.Layout.Narrow()
	g := &Generator{
		clock: cfg.Clock, base: time.Now(), unit: l.unit(),
		cfg: cfg, sequence: uint8(l.SequenceBits), mask: uint64(l.PerTick() - 1), latest: 1 << l.TimeBits,
		maxAhead: uint64(cfg.MaxAhead / l.Unit),
		shift:    uint8(l.WorkerBits),
	}
	// The ordinal is the tick + 1: plus subtracts that again.
	if l.Order == WorkerLast {
		g.high = math.MaxUint64
		g.plus = uint64(cfg.Worker)
	} else {
		g.high, g.low = ^g.mask, g.mask
		if l.WorkerBits == cfg.Layout.WorkerBits { // otherwise Parts has the worker
			g.plus = uint64(cfg.Worker) << g.sequence
		}
	}
	g.plus -= 1 << (l.WorkerBits + l.SequenceBits)
	from, until := l.ticks(cfg.Window)
	g.mu.window = cfg.Window
	g.start.Store(noTick)
	g.last.Store(1) // not closed; no clock is in its tick
	g.floor.Store(from<<g.sequence - 1)
	g.word.Store(from<<g.sequence - 1)
	g.top.Store(from)
	g.bound.Store(until << g.sequence)
	return g, nil
}

// ticks returns the ordinals of a window's whole ticks, from inclusive to until
// exclusive, none above the layout's last. w.From must not be before the epoch.
func (l Layout) ticks(w Window) (from, until uint64) {
	latest := uint64(1) << l.TimeBits
	from = min(uint64(w.From-l.Epoch+l.unit()-1)/uint64(l.unit()), latest) + 1
	if w.Until > l.Epoch {
		until = min(uint64(w.Until-l.Epoch)/uint64(l.unit()), latest) + 1
	}
	return from, until
}

// FirstTick returns when the first tick that begins in a window begins, in Unix ms, and whether
// that whole tick lies in the window.
func (l Layout) FirstTick(w Window) (at int64, whole bool) {
	w.From = max(w.From, l.Epoch)
	from, until := l.ticks(w)
	return l.Epoch + int64(from-1)*l.unit(), from < until
}

// TryNext returns the next ID. It returns false if the caller would have to wait or there is
// none; Next says why.
func (g *Generator) TryNext() (id int64, ok bool) {
	if g.inTick() {
		word := g.word.Add(1)
		if word <= g.last.Load() { // after the word was taken: see Close
			return g.id(word), true
		}
		g.giveBack(word)
	}
	first, _, _, state := g.take(1, false)
	if state != taken {
		return 0, false
	}
	return g.id(first), true
}

// Next returns the next ID. It waits while the tick's sequence is full, and for a clock that
// went back as the policy allows, at most until ctx ends. Its errors are *WindowError,
// *RollbackError, *OverflowError, ErrClosed and ctx's cause, all of Kind Unavailable, and
// *EndError of Kind Exhausted.
func (g *Generator) Next(ctx context.Context) (int64, error) {
	if id, ok := g.TryNext(); ok {
		return id, nil
	}
	first, _, err := g.claim(ctx, 1)
	if err != nil {
		return 0, err
	}
	return g.id(first), nil
}

// inTick reports whether the clock is in the tick of last.
func (g *Generator) inTick() bool {
	if g.clock == nil {
		return int64(time.Since(g.base)) < g.ends.Load()
	}
	// Below start, the difference is negative, and so a large uint64.
	return uint64(g.clock()-g.start.Load()) < uint64(g.unit)
}

// id returns the ID of a word: Layout's formula.
func (g *Generator) id(word uint64) int64 {
	return int64((word&g.high)<<(g.shift&63) + word&g.low + g.plus)
}

// Parts returns the parts of an ID that the generator issued. For Wide it returns only the
// worker.
func (g *Generator) Parts(id int64) Parts {
	p, _ := g.cfg.Layout.Narrow().Decompose(id) // it fits, as the generator issued it
	p.Worker = g.cfg.Worker
	return p
}

// giveBack takes back a word above last that the caller added and will not issue.
//
// The word then falls by one, if no other caller took one in the meantime; otherwise a gap
// remains. This keeps two invariants. No issued word is above g.word: the caller gives back the
// highest word of all, and only its own. And a single goroutine never skips a sequence.
func (g *Generator) giveBack(word uint64) { g.word.CompareAndSwap(word, word-1) }

// instant is a reading of the clock.
type instant struct {
	ms    int64 // Unix
	nanos int64 // of the computer's clock only: ns since base
	left  int64 // of the computer's clock only: ns to the end of the ms
}

func (g *Generator) now() instant {
	if g.clock != nil {
		return instant{ms: g.clock()}
	}
	now := time.Now()
	ms := now.UnixMilli()
	return instant{ms: ms, nanos: int64(now.Sub(g.base)), left: (ms+1)*int64(time.Millisecond) - now.UnixNano()}
}

// NextN appends n IDs, n from 1 to Layout.PerSecond, to dst as runs in growing order and
// returns the longer slice. It waits as Next does, for every tick that it fills. Its errors are
// those of Next, and Invalid. After an error the runs that it appended are lost, a gap. A run's
// Stride is the layout's.
func (g *Generator) NextN(ctx context.Context, n int64, dst []allocator.Run) ([]allocator.Run, error) {
	if n < 1 || n > g.cfg.Layout.PerSecond() {
		return dst, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d, what one worker has in a second",
			n, g.cfg.Layout.PerSecond())
	}
	for n > 0 {
		word, count, err := g.claim(ctx, uint64(n))
		if err != nil {
			return dst, err
		}
		first, stride := g.id(word), g.cfg.Layout.Stride()
		if last := len(dst) - 1; last >= 0 && dst[last].First+dst[last].Count*stride == first &&
			dst[last].Stride == stride {
			dst[last].Count += int64(count)
		} else {
			dst = append(dst, allocator.Run{First: first, Count: int64(count), Stride: stride})
		}
		n -= int64(count)
	}
	return dst, nil
}

// Extend gives the generator more time. If w begins at the end of its window or before, w.Until
// is the new end, and must not be below the old one. If w begins later, the generator goes on
// at w.From, and issues nothing of the time between. Its errors are Invalid, *EndError and
// ErrClosed; then nothing changes.
func (g *Generator) Extend(w Window) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	window := g.mu.window
	switch {
	case g.mu.closed:
		return ErrClosed
	case w.Until < window.Until:
		return allocator.Errorf(allocator.Invalid, "window: until %s; allowed: from the present end %s on",
			date(w.Until), date(window.Until))
	case w.From > window.Until:
		if err := g.cfg.Layout.checkWindow(w); err != nil {
			return err
		}
		// First make sure that no word before the new window can be taken any more, except by a
		// call that is under way and takes one of the old window. Then allow the words of the
		// new window.
		g.shut()
		from, _ := g.cfg.Layout.ticks(w)
		g.raiseTop(from)
		g.floor.Store(from<<g.sequence - 1)
		window.From = w.From
	case w.From >= w.Until:
		return allocator.Errorf(allocator.Invalid, "window: %s to %s; allowed: an end after the start",
			date(w.From), date(w.Until))
	}
	window.Until = w.Until
	g.mu.window = window
	_, until := g.cfg.Layout.ticks(window)
	g.bound.Store(until << g.sequence)
	return nil
}

// Window returns the generator's window. Its From is the start of the first window, or of the
// last one that began after the end of its predecessor.
func (g *Generator) Window() Window {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.window
}

// Close ends the generator and returns the end of the last tick of which it may have issued an
// ID, in Unix ms. That is at most Window.Until, and Window.From if it issued none. A later
// owner of the worker may begin there. A call that is under way either got an ID below that, or
// fails. A second Close returns the same.
func (g *Generator) Close() (used int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bound.Store(0)
	g.last.Store(0)
	// A caller takes its word before it compares it with last or bound. If it did not see these
	// zeros, it took its word before them, so that the word is included in the read below.
	if word := g.word.Load(); !g.mu.closed {
		g.mu.closed = true
		used = g.mu.window.From
		if word > g.floor.Load() {
			used = g.startOf(word>>g.sequence + 1)
		}
		g.mu.window.Until = min(g.mu.window.Until, used)
	}
	return g.mu.window.Until
}
