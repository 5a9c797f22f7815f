package sim_test

import (
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// skewTag has a max_skew, which never changes.
const skewTag = allocator.Tag("skewed")

// look is an answer that showed an instance how far it is behind.
type look struct {
	at    time.Time
	least int64 // the furthest mark of the other rooms less max_skew
	mark  int64 // of the instance's own room
	skew  int64 // the max_skew
	mates bool  // least is by the own room's mark
}

// reads returns whether a transaction reads the tag with max_skew with the marks of all rooms, and what it showed. A
// source does that before each lease, and reads the mark of its own room apart; a look does not.
func (l *link) reads(txn store.Txn, answer store.Answer) (found look, source, looks bool) {
	found.at = time.Now()
	own := 0
	for k, op := range txn.Then {
		if op.Get == nil || op.Get.End != "" {
			return found, false, false
		}
		key, err := keys.Parse(op.Get.Key)
		if err != nil || key.Tag != skewTag {
			continue
		}
		looks = looks || key.Kind == record.Tags
		if key.Kind == record.Marks && key.Room == l.in {
			own++
		}
		if k >= len(answer.Got) || len(answer.Got[k]) == 0 { // it is not answered yet, or the key is not there
			continue
		}
		kv := answer.Got[k][0]
		if t, err := keys.DecodeTag(kv); key.Kind == record.Tags && err == nil {
			found.skew = t.MaxSkew
		}
		switch mark, err := record.DecodeMark(kv); {
		case key.Kind != record.Marks || err != nil:
		case key.Room == l.in:
			found.mark = mark.Next
		default:
			found.least = max(found.least, mark.Next)
		}
	}
	found.least -= found.skew
	return found, looks && own == 2, looks && own == 1 && found.skew > 0
}

// looks notes an answer that showed an instance how far it is behind.
func (l *link) looks(txn store.Txn, answer store.Answer, err error) {
	if err != nil || !answer.Succeeded || l.in == "" || answer.ClusterID != ledgertest.ClusterID {
		return
	}
	if found, _, looks := l.reads(txn, answer); looks {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.looks = append(l.mu.looks, found)
	}
}

// checkSkew checks that no call got an ID below what a look allowed, once the instance was answered a lease that read
// the marks 2 s or more after that, or a second one that read them after it. Where etcd went back, or shows the past,
// marks fall.
func (w *world) checkSkew() {
	if !w.strict || w.wentBack() {
		return
	}
	for _, a := range w.mu.calls {
		if a.tag != skewTag || len(a.runs) == 0 {
			continue
		}
		if look, ok := a.by.link.lookBefore(a.began, w.versionAt(a.began)); ok {
			w.count("calls of a tag with max_skew checked", 1)
			if look.mates {
				w.count("calls of a tag with max_skew checked against what other instances of the room leased", 1)
			}
			if a.runs[0].First < look.least {
				w.Errorf("SKEW: a call that began at %v got %v of %s: the look at %v allows %d", a.began.Sub(w.began),
					a.runs, a.by.id, look.at.Sub(w.began), look.least)
			}
		}
	}
}

// versionAt returns the layout in force at a time.
func (w *world) versionAt(at time.Time) (version int64) {
	for _, c := range w.mu.timeline {
		if !c.at.After(at) {
			version = c.layout.Version
		}
	}
	return version
}

// lookBefore returns the last look before a time after which a lease was begun and answered by then, and at which none
// was under way. A lease that reads the marks soon after a look may have begun before it, and then the next one counts.
// A lease under an older layout than the one in force then may be dropped as it comes. The mark of the instance's own
// room counts, too, where it lies above all IDs that the instance had asked for by then, and the instance read no marks
// for a lease shortly before or after: otherwise a lease may have been under way.
func (l *link) lookBefore(before time.Time, version int64) (look, bool) {
	const soon = 2 * time.Second
	for _, look := range slices.Backward(l.mu.looks) {
		leases := 0
		others := !slices.ContainsFunc(l.mu.sourced, func(at time.Time) bool { return at.Sub(look.at).Abs() < soon })
		free := !slices.ContainsFunc(l.mu.leases, func(have lease) bool {
			if have.tag != skewTag {
				return false
			}
			others = others && (have.read.After(look.at) || have.end < look.mark)
			if have.lost == "" && have.version >= version && have.read.After(look.at) && have.done.Before(before) {
				if leases++; have.read.Sub(look.at) >= soon {
					leases++
				}
			}
			return !have.read.After(look.at) && !have.done.Before(look.at)
		})
		if free && leases > 1 {
			if others && look.mark-look.skew > look.least {
				look.least, look.mates = look.mark-look.skew, true
			}
			return look, true
		}
	}
	return look{}, false
}
