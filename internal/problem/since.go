package problem

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Log remembers when it first met each problem that has no time of its own. The zero
// value is ready to use. Methods are safe for concurrent use.
type Log struct {
	mu struct {
		sync.Mutex
		first map[id]time.Time
	}
}

// Note adds times to a list of all problems, and forgets problems that are not in
// it.
func (l *Log) Note(all []*marchv1.Problem, now time.Time) []*marchv1.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.mu.first
	l.mu.first = make(map[id]time.Time)
	for _, p := range all {
		if first, ok := was[idOf(p)]; ok {
			l.mu.first[idOf(p)] = first
		}
	}
	l.fill(all, now)
	return all
}

// Fill adds times to a list of some problems.
func (l *Log) Fill(some []*marchv1.Problem, now time.Time) []*marchv1.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fill(some, now)
	return some
}

// fill gives problems a time. The lock is held.
func (l *Log) fill(list []*marchv1.Problem, now time.Time) {
	if l.mu.first == nil {
		l.mu.first = make(map[id]time.Time)
	}
	for _, p := range list {
		at := now
		switch {
		case p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_MORE || p.GetSince() != nil && !met(p):
			continue
		case p.GetSince() != nil:
			at = p.GetSince().AsTime()
		}
		first, ok := l.mu.first[idOf(p)]
		if !ok || at.Before(first) {
			first = at
			l.mu.first[idOf(p)] = at
		}
		p.Since = Stamp(first)
	}
}

// met reports whether a problem's time is when a process first met it. Of several such
// times the earliest is shown.
func met(p *marchv1.Problem) bool {
	switch p.GetKind() {
	case marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE, marchv1.ProblemKind_PROBLEM_KIND_UNUSABLE,
		marchv1.ProblemKind_PROBLEM_KIND_NO_RANGE:
		return true
	}
	return false
}

// Changes logs which problems begin and end. The zero value is ready to use. It is for one goroutine.
type Changes struct{ noted map[id]noted }

// noted is a problem of the list before. One that is there a second time has its line: not what only a start shows.
type noted struct {
	what   string
	logged bool
	gone   time.Time // zero while the problem is there
}

// over is how long a problem must be gone to be over: the log does not follow one that comes and goes.
const over = 10 * time.Second

// Write logs what changed since the list before, a line each with the remedy.
func (c *Changes) Write(log hclog.Logger, list []*marchv1.Problem, now time.Time) {
	if c.noted == nil {
		c.noted = make(map[id]noted)
	}
	present := make(map[id]bool, len(list))
	for _, p := range list {
		present[idOf(p)] = true
		n, again := c.noted[idOf(p)]
		if again && !n.logged {
			log.Warn("a problem began", "kind", api.Word(p.GetKind()), "what", p.GetWhat(),
				"since", at(p.GetSince()), "remedy", Plain(p))
		}
		c.noted[idOf(p)] = noted{what: p.GetWhat(), logged: again}
	}
	for key, n := range c.noted {
		switch {
		case present[key]:
		case !n.logged:
			delete(c.noted, key)
		case n.gone.IsZero():
			n.gone = now
			c.noted[key] = n
		case now.Sub(n.gone) >= over:
			delete(c.noted, key)
			log.Info("a problem is over", "kind", api.Word(key.kind), "what", n.what)
		}
	}
}
