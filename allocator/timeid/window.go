package timeid

import "github.com/march-id/march/allocator"

// Extend gives the generator more time. Where w begins at the end of its window or
// before, w.Until is the new end, which is not below the old one. Where w begins
// later, the generator goes on at w.From, and issues nothing of the time between.
// Its errors are Invalid, *EndError and ErrClosed; then nothing changes.
func (g *Generator) Extend(w Window) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	window := g.mu.window
	switch {
	case g.mu.closed:
		return ErrClosed
	case w.Until < window.Until:
		return allocator.Errorf(allocator.Invalid, "window: until %s; allowed: from the present end %s on", date(w.Until), date(window.Until))
	case w.From > window.Until:
		if err := g.cfg.Layout.checkWindow(w); err != nil {
			return err
		}
		// First no word before the new window can be taken any more, but for a call
		// that is under way and takes one of the old window; then those of the new one
		// can.
		g.shut()
		from, _ := g.cfg.Layout.ticks(w)
		g.raiseTop(from)
		g.floor.Store(from<<g.sequence - 1)
		window.From = w.From
	case w.From >= w.Until:
		return allocator.Errorf(allocator.Invalid, "window: %s to %s; allowed: an end after the start", date(w.From), date(w.Until))
	}
	window.Until = w.Until
	g.mu.window = window
	_, until := g.cfg.Layout.ticks(window)
	g.bound.Store(until << g.sequence)
	return nil
}

// Window returns the generator's window: From of the first one, or of the last that
// began later than the one before had ended.
func (g *Generator) Window() Window {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.window
}

// Close ends the generator and returns the end of the last tick that it may have
// issued an ID of, in Unix ms: at most Window.Until, and Window.From where it issued
// none. A later owner of the worker may begin there. A call that is under way either
// got an ID below that, or fails. A second Close returns the same.
func (g *Generator) Close() (used int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bound.Store(0)
	g.last.Store(0)
	// A caller took its word before it compared it with last or bound. If it did not
	// see these zeros, its word was taken before them, and is in what is read here.
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
