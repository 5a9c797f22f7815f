package timeid

import "github.com/march-id/march/allocator"

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
