package sim_test

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// lease is a transaction by which a process asks for IDs.
type lease struct {
	tag        allocator.Tag
	first, end int64     // of the IDs of its room in between, all belong to this lease
	sent, done time.Time // done: when it was answered
	read       time.Time // when the marks that it was computed from were asked for; of the tag with max_skew
	lost       string    // why it is leased and lost; empty if it counts
	epoch      string    // in force at the lease
	version    int64     // of the layout at the lease
}

// markRecord has the fields of a mark that are read here.
type markRecord struct {
	Next int64 `json:"next,string"`
	Eras []struct {
		Version int64 `json:"version,string"`
		First   int64 `json:"first,string"`
		End     int64 `json:"end,string"`
	} `json:"eras"`
}

// last returns the layout version, the first ID and the end of the latest era.
func (m markRecord) last() (version, first, end int64) {
	if n := len(m.Eras); n > 0 {
		return m.Eras[n-1].Version, m.Eras[n-1].First, m.Eras[n-1].End
	}
	return 0, 0, 0
}

const markKeys = "/march/default/marks/"

// leaseOf returns the lease that a transaction is, and false if it is none.
func (l *link) leaseOf(txn store.Txn) (lease, bool) {
	if rest, takes := l.restOf(txn); takes {
		return rest, true
	}
	if len(txn.Then) == 0 || txn.Then[0].Put == nil || !strings.HasPrefix(txn.Then[0].Put.Key, markKeys) {
		return lease{}, false
	}
	put := txn.Then[0].Put
	_, tag, _ := strings.Cut(strings.TrimPrefix(put.Key, markKeys), "/")
	var was, mark markRecord
	if err := json.Unmarshal(put.Value, &mark); err != nil {
		l.w.Errorf("%s writes a mark: %v", l.name, err)
	}
	version, first, end := mark.last()
	at := slices.IndexFunc(txn.If, func(c store.Cond) bool { return c.Key == put.Key })
	switch {
	case mark.Next != end || at < 0: // it only raises a mark
		l.w.checkRaise(l, epochOf(txn), tag)
		return lease{}, false
	case txn.If[at].Value != nil:
		if err := json.Unmarshal(txn.If[at].Value, &was); err != nil {
			l.w.Errorf("%s compares a mark: %v", l.name, err)
		}
	case txn.If[at].ModRevision != 0:
		return lease{}, false
	}
	return lease{tag: allocator.Tag(tag), first: max(was.Next, first), end: mark.Next, sent: time.Now(),
		epoch: epochName(epochOf(txn)), version: version}, true
}

// epochName returns the random part of an epoch's value, empty while leasing is halted.
func epochName(value string) string {
	var e struct{ Epoch string }
	_ = json.Unmarshal([]byte(value), &e) // it may be none
	return e.Epoch
}

// epochOf returns the epoch that a transaction compares, empty for none.
func epochOf(txn store.Txn) string {
	for _, c := range txn.If {
		if c.Key == "/march/default/epoch" {
			return string(c.Value)
		}
	}
	return ""
}

// shown is the highest revision that a process was shown under an epoch, in answers to requests
// under that epoch. It also keeps the value before the present instant, as nothing orders the
// events of one instant.
type shown struct {
	before, now int64
	at          time.Time
}

// show stores a revision.
func (s shown) show(revision int64) shown {
	if now := time.Now(); now != s.at {
		s = shown{before: max(s.before, s.now), at: now}
	}
	s.now = max(s.now, revision)
	return s
}

// until returns the highest revision that was shown before this instant.
func (s shown) until() int64 {
	if s.at == time.Now() {
		return s.before
	}
	return max(s.before, s.now)
}

// asked is a transaction that is under way.
type asked struct {
	txn    store.Txn
	lease  lease
	leases bool
	window window
	takes  bool   // takes a window
	token  string // of what another process kept, which it takes; empty for none
	epoch  string
	shown  int64  // the highest revision under that epoch when it was sent
	pinned uint64 // the etcd cluster that the cluster lived in when the transaction was done
}

func (l *link) asks(txn store.Txn) *asked {
	a := &asked{txn: txn, epoch: epochOf(txn)}
	a.lease, a.leases = l.leaseOf(txn)
	a.window, a.takes = l.windowOf(txn)
	a.token = tokenOf(txn)
	l.mu.Lock()
	defer l.mu.Unlock()
	a.shown, a.lease.read = l.mu.shown[a.epoch].until(), l.mu.read
	return a
}

// done notes in which etcd cluster the transaction was done.
func (a *asked) done(w *world) {
	if a.leases || a.takes || a.token != "" {
		a.pinned = w.pinned()
	}
}

// answered notes whether a lease is its process's. It is if there was no error, the transaction
// succeeded, and the answer came from the pinned etcd cluster at a revision above all that the
// process had been shown. Otherwise it is leased and lost, and none of its IDs may be issued.
func (l *link) answered(a *asked, answer store.Answer, err error) {
	lost := l.notes(a, answer, err)
	if a.token != "" && lost == "" {
		l.inherits(a.token)
	}
}

// notes notes the answer, and returns why it does not count; empty if it does.
func (l *link) notes(a *asked, answer store.Answer, err error) (lost string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.mu.lives.learn(a.txn, answer)
	}
	switch {
	case err != nil:
		lost = "no answer came"
	case !answer.Succeeded:
		lost = "it was refused"
	case answer.ClusterID != a.pinned:
		lost = "another etcd cluster answered"
	case answer.Revision <= a.shown:
		lost = "the answer's revision was none above those shown before"
	}
	if a.leases {
		a.lease.done, a.lease.lost = time.Now(), lost
		l.mu.leases = append(l.mu.leases, a.lease)
	}
	if a.takes {
		a.window.done, a.window.lost = time.Now(), lost
		l.mu.windows = append(l.mu.windows, a.window)
	}
	// What another etcd cluster answers shows a process nothing of its own one's revisions.
	home := cmp.Or(a.pinned, l.mu.lives.in)
	if err == nil && answer.Succeeded && a.epoch != "" && answer.ClusterID == home {
		l.mu.shown[a.epoch] = l.mu.shown[a.epoch].show(answer.Revision)
	}
	return lost
}

// leasesOf returns the leases of a tag.
func (l *link) leasesOf(tag allocator.Tag) []lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.mu.leases), func(have lease) bool { return have.tag != tag })
}

// leasesWith returns the leases with an ID of a tag. Only one of them counts: a process whose
// knowledge has not changed asks for the same IDs again.
func (l *link) leasesWith(tag allocator.Tag, id int64) (all []lease) {
	if before := l.before(); before != nil {
		all = before.leasesWith(tag, id)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, have := range l.mu.leases {
		if have.tag == tag && have.first <= id && id < have.end {
			all = append(all, have)
		}
	}
	return all
}

// checkLease checks that IDs belong to leases that count.
func (w *world) checkLease(a answered) {
	for _, run := range a.runs {
		for id := run.First; id < run.First+run.Count; id++ {
			have := a.by.link.leasesWith(a.tag, id)
			switch {
			case len(have) == 0:
				w.Errorf("%s, tag %s: ID %d is of no lease of its own", a.by.id, a.tag, id)
			case !slices.ContainsFunc(have, func(l lease) bool { return l.lost == "" }):
				w.Errorf("%s, tag %s: ID %d is leased and lost: %s", a.by.id, a.tag, id, have[0].lost)
			default:
				w.count("IDs of leases that count", 1)
				continue
			}
			return
		}
	}
}
