package ledger

import (
	"maps"
	"time"

	"github.com/march-id/march/allocator"
)

// Revisions repeat after etcd was restored from a backup, so what a process
// remembers of them belongs to an epoch. Epochs are random: one that is there
// again after another was in force is time going back, and so is a revision
// below one that was seen under the same epoch. A halt counts as an epoch of
// its own.
//
// All of this may be seen wrongly once: answers overtake each other, and an
// etcd below 3.6.9 answered reads from the past. A halt that is wrong is an
// outage, one that is missed a duplicate. So a sight of it is a doubt first: it
// stops leasing here at once, which costs nothing but a moment, and only a
// second look, which goes through etcd's consensus as a write does, makes it
// certain. See look.

// timeline is what a process remembers of epochs.
type timeline struct {
	current    string              // id of the epoch in force, as state.id has it; empty before the first
	past       map[string]struct{} // ids that were in force before
	order      int64               // how often current changed
	seen       int64               // the highest revision of any answer to what was asked under current
	generation int64               // grows with order, at each doubt and at a barrier: a lease of an earlier one is lost
	barred     string              // the epoch under which nothing is leased any longer; see Bar
	doubt      *doubt              // why nothing is leased at present, nil where there is no doubt
	checked    check
}

// doubt is a sight of an etcd that went back in time, not yet confirmed.
type doubt struct {
	why   string
	marks map[string]int64 // keys of marks that were below what they were: at least what they must be
}

// check is a look that found nothing wrong. The zero value is none.
type check struct {
	at time.Time // before it was sent
	by Sender
}

// checkFor is how long after a check leases may be made without another one.
const checkFor = 5 * time.Second

// moment is what a timeline was when a request was sent.
type moment struct {
	timeline
	at time.Time
}

// id names what is in force: an epoch, or a halt. Empty where it cannot be
// read.
func (s *state) id() string {
	if s.halted != nil {
		return "halted " + s.halted.Nonce
	}
	return s.epoch
}

// before returns what the timeline is before a request is sent.
func (l *Ledger) before() moment {
	l.mu.Lock()
	defer l.mu.Unlock()
	return moment{l.mu.timeline, time.Now()}
}

// knows reports whether id was in force before.
func (t *timeline) knows(id string) bool {
	_, was := t.past[id]
	return was
}

// turn makes id the epoch in force. Revisions begin anew with it.
func (t *timeline) turn(id string, revision int64) {
	if t.current != "" {
		// A copy: moments share the map.
		past := maps.Clone(t.past)
		if past == nil {
			past = make(map[string]struct{})
		}
		past[t.current] = struct{}{}
		t.past = past
	}
	t.current, t.seen = id, revision
	t.order++
	t.generation++
	t.doubt = nil
	t.checked = check{}
}

// saw takes note of an answer's revision. Its error tells of a doubt.
func (t *timeline) saw(before moment, revision int64) (why string) {
	if t.order != before.order {
		return "" // asked under another epoch: it says nothing of this one
	}
	t.seen = max(t.seen, revision)
	if revision < before.seen {
		return "etcd answered at revision " + itoa(revision) + " after it had shown revision " + itoa(before.seen)
	}
	return ""
}

// suspect notes a doubt: nothing is leased until a look has cleared it up, and
// no answer counts to what was sent before.
func (t *timeline) suspect(why string, marks map[string]int64) {
	t.generation++
	t.checked = check{}
	if t.doubt == nil {
		t.doubt = &doubt{why: why, marks: marks}
		return
	}
	// A doubt is immutable: a look clears up the one that it was made for. So
	// there is a new one only where there is more to look at.
	more := maps.Clone(t.doubt.marks)
	for key, next := range marks {
		if more[key] < next && len(more) < maxDoubtful {
			if more == nil {
				more = make(map[string]int64)
			}
			more[key] = next
		}
	}
	if !maps.Equal(more, t.doubt.marks) {
		t.doubt = &doubt{why: t.doubt.why, marks: more}
	}
}

// maxDoubtful bounds how many marks a look looks at again.
const maxDoubtful = 50

// suspect notes a doubt.
func (l *Ledger) suspect(why string, marks map[string]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.timeline.doubt == nil {
		l.log.Warn("etcd may have gone back in time: nothing is leased until that is cleared up", "why", why)
	}
	l.mu.timeline.suspect(why, marks)
}

// uncheck has the next lease look before it is made: the connection broke, say.
func (l *Ledger) uncheck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.timeline.checked = check{}
}

// lessable returns why nothing can be leased in state s at present.
func (t *timeline) lessable(s *state) error {
	if err := s.lessable(); err != nil {
		return err
	}
	switch {
	case t.doubt != nil:
		return allocator.Errorf(allocator.WentBack, "etcd may have gone back in time, nothing is leased until that is cleared up: %s", t.doubt.why)
	case t.barred != "" && t.barred == s.epoch:
		return allocator.Errorf(allocator.WentBack, "`march recover` is under way: nothing is leased until it has begun a new epoch")
	}
	return nil
}
