// Package throttle bounds log lines that could repeat for as long as a problem lasts.
// It logs the first line at once, then at most one line in each interval, which says how
// many lines were left out before it.
package throttle

import (
	"sync"
	"time"
)

// Interval is the least time between two lines of one kind.
const Interval = 10 * time.Second

// Log is one kind of line. The zero value is ready to use.
type Log struct {
	mu struct {
		sync.Mutex
		last    time.Time // when the last line was logged; zero before the first
		skipped int       // lines left out since then
	}
}

// Log logs a line with say, a method of a logger, unless the last one was logged
// less than Interval before now. It reports whether it did.
func (l *Log) Log(now time.Time, say func(msg string, args ...any), msg string, args ...any) bool {
	l.mu.Lock()
	if !l.mu.last.IsZero() && now.Sub(l.mu.last) < Interval {
		l.mu.skipped++
		l.mu.Unlock()
		return false
	}
	skipped := l.mu.skipped
	l.mu.last, l.mu.skipped = now, 0
	l.mu.Unlock()
	if skipped > 0 {
		args = append(args, "left_out", skipped)
	}
	say(msg, args...)
	return true
}
