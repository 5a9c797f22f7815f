package ledger

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/store"
)

// Revisions repeat after etcd was restored from a backup. So what a process
// remembers of revisions belongs to an epoch. Epochs are random. A halt counts as an epoch of its own.
//
// Evidence may be seen wrongly once: answers overtake each other, and an etcd
// below 3.6.9 answered reads from the past. A wrong halt is an outage, a missed one
// a duplicate. So evidence is a suspicion first. A suspicion stops leasing here at
// once, which costs little. Only a second probe, which goes through etcd's
// consensus as a write does, confirms it. See probe.

// epochClock is what a process remembers of epochs.
type epochClock struct {
	current   string              // State.id of the epoch in force; empty before the first
	past      map[string]struct{} // ids that were in force before
	epochSeq  int64               // how often current changed: the generation that a request and its answer are of
	entering  bool                // this process's instance has not entered the last epoch that came into force
	seen      int64               // the highest revision of any answer to a request sent under current
	version   int64               // the highest layout version that was ever in force,
	latest    string              // and the epoch in which it was
	total     int64               // the largest margin total of any epoch,
	notBefore int64               // and the latest NotBefore
	suspicion *suspicion          // why nothing is leased now; nil without a suspicion
	checked   check
}

// suspicion is evidence that etcd went back in time, not yet confirmed.
type suspicion struct {
	why   string
	marks map[string]int64 // the marks that have fallen, by key, with the least value that they must have
}

// check is a probe that found nothing wrong. The zero value is none.
type check struct {
	at time.Time // before it was sent
	by store.Sender
}

// checkFor is how long after a check leases may be made without another one, where etcd is near.
const checkFor = 5 * time.Second

// sentAt has the values of an epochClock when a request was sent.
type sentAt struct {
	epochClock
	at time.Time
}

// id names the epoch or halt in force. It is empty if that cannot be read.
func (s *State) id() string {
	if s.halted != nil {
		return haltID(s.halted.Nonce)
	}
	return s.epoch
}

func haltID(nonce string) string { return "halted " + nonce }

// before returns the values of the epochClock. It is called before a request is
// sent.
func (l *knowledge) before() sentAt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return sentAt{l.mu.clock, time.Now()}
}

// shows reports whether what an answer shows is in etcd: the epoch is the one that its request was sent under, it came
// through the connection that was checked, and its revision is not below one that was seen before.
func (t *epochClock) shows(before sentAt, by store.Sender, revision int64) bool {
	return before.epochSeq == t.epochSeq && by.Connection != 0 && by == t.checked.by && revision >= before.seen
}

// knows reports whether id was in force before.
func (t *epochClock) knows(id string) bool {
	_, was := t.past[id]
	return was
}

// turn makes id the epoch in force. Revisions begin anew with it.
func (t *epochClock) turn(id string, revision int64) {
	if t.current != "" {
		t.knew(t.current)
	}
	t.current, t.seen = id, revision
	t.epochSeq++
	t.suspicion = nil
	t.checked = check{}
}

// knew adds ids to the past ones.
func (t *epochClock) knew(ids ...string) {
	past := maps.Clone(t.past) // a copy, because sentAt values share the map
	if past == nil {
		past = make(map[string]struct{}, len(ids))
	}
	for _, id := range ids {
		past[id] = struct{}{}
	}
	t.past = past
}

// missed returns evidence if id, which was never seen, cannot be an epoch that
// began after the known ones.
func (t *epochClock) missed(id string, version int64) string {
	if t.current == "" || version > t.version {
		return ""
	}
	return "epoch " + id + " was never seen here, and its layout version is " + strconv.FormatInt(version,
		10) + ", not above " + strconv.FormatInt(t.version, 10) + ": it is an old one"
}

// saw notes an answer's revision. It returns evidence, or "".
func (t *epochClock) saw(before sentAt, revision int64) (why string) {
	if t.epochSeq != before.epochSeq {
		return "" // the request was sent under another epoch, so the answer shows nothing about this one
	}
	t.seen = max(t.seen, revision)
	if revision < before.seen {
		return "etcd answered at revision " + strconv.FormatInt(revision,
			10) + " after it had shown revision " + strconv.FormatInt(before.seen, 10)
	}
	return ""
}

// suspect notes evidence. From then on nothing is leased until a probe has cleared
// it up, and no answer counts, as no connection is checked.
func (t *epochClock) suspect(why string, marks map[string]int64) {
	t.checked = check{}
	if t.suspicion == nil {
		t.suspicion = &suspicion{why: why, marks: marks}
		return
	}
	// A suspicion is immutable: a probe clears up the one that it was made for. So
	// make a new one only if there are more marks to check.
	more := maps.Clone(t.suspicion.marks)
	for key, next := range marks {
		if more[key] < next && len(more) < maxFallenMarks {
			if more == nil {
				more = make(map[string]int64)
			}
			more[key] = next
		}
	}
	if !maps.Equal(more, t.suspicion.marks) {
		t.suspicion = &suspicion{why: t.suspicion.why, marks: more}
	}
}

// maxFallenMarks bounds how many marks a probe checks again.
const maxFallenMarks = 50

// suspect is epochClock.suspect, and logs the first suspicion.
func (l *knowledge) suspect(why string, marks map[string]int64) {
	var said pending.Lines
	defer said.Write(l.log)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.clock.suspicion == nil {
		said.Warn("etcd may have gone back in time: nothing is leased until that is cleared up", "why", why)
	}
	l.mu.clock.suspect(why, marks)
}

// uncheck makes the next lease probe first, for example because the connection
// broke.
func (l *knowledge) uncheck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.clock.checked = check{}
}

// ages has revisions of etcd, and when an answer first had shown them: from when on a key has certainly been there.
type ages struct{ list []age }

type age struct {
	at       time.Time
	revision int64
}

const (
	agesEvery  = time.Second / 4
	longestAge = 70 * time.Second // of a young tenure with the longest hold, and more
)

// note notes the revision of an answer.
func (a *ages) note(now time.Time, revision int64) {
	if n := len(a.list); n > 0 && now.Sub(a.list[n-1].at) < agesEvery {
		return
	}
	for len(a.list) > 1 && now.Sub(a.list[1].at) > longestAge {
		a.list = a.list[1:]
	}
	a.list = append(a.list, age{now, revision})
}

// sawBefore reports whether an answer had shown a revision, or a later one, before a time.
func (l *knowledge) sawBefore(revision int64, at time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.mu.ages.list, func(a age) bool { return a.revision >= revision && a.at.Before(at) })
}
