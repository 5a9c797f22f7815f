// Package pending keeps log lines until locks are released: a Logger may block, as standard
// error does if it is a full pipe, and a lock that is held meanwhile would stop everything.
package pending

import "github.com/hashicorp/go-hclog"

// Lines are log lines that wait. A method that holds a lock adds to them. The method that took
// the lock writes them, by
//
//	var said pending.Lines
//	defer said.Write(log)
//
// above the Lock. The lines of two goroutines may come in another order than their events. The
// zero value is empty.
type Lines []line

type line struct {
	level hclog.Level
	msg   string
	args  []any
}

// Add adds a line.
func (s *Lines) Add(level hclog.Level, msg string, args ...any) {
	*s = append(*s, line{level, msg, args})
}

// Warn adds a warning.
func (s *Lines) Warn(msg string, args ...any) { s.Add(hclog.Warn, msg, args...) }

// Write writes the lines. No lock may be held.
func (s *Lines) Write(log hclog.Logger) {
	for _, l := range *s {
		log.Log(l.level, l.msg, l.args...)
	}
}
