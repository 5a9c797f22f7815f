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
	least int64 // the furthest mark less max_skew
}

// looks notes an answer if it is a look at the marks of the tag with max_skew, and not of a lease: a source reads the
// mark of its own room twice.
func (l *link) looks(txn store.Txn, answer store.Answer, err error) {
	if err != nil || !answer.Succeeded || l.in == "" || answer.ClusterID != ledgertest.ClusterID {
		return
	}
	found, is := look{at: time.Now()}, false
	var skew int64
	seen := make(map[string]bool)
	for i, op := range txn.Then {
		if op.Get == nil || seen[op.Get.Key] {
			return
		}
		seen[op.Get.Key] = true
		key, err := keys.Parse(op.Get.Key)
		if err != nil || key.Kind != "tags" && key.Kind != "marks" || i == 0 && key.Kind != "tags" {
			return
		}
		kv, there := answer.One(i)
		if key.Tag != skewTag || !there {
			continue
		}
		if key.Kind == "tags" {
			t, err := keys.DecodeTag(kv)
			if err != nil {
				return
			}
			skew = t.MaxSkew
			continue
		}
		mark, err := record.DecodeMark(kv)
		if err != nil {
			return
		}
		found.least, is = max(found.least, mark.Next-skew), skew > 0
	}
	if !is {
		return
	}
	l.mu.Lock()
	l.mu.looks = append(l.mu.looks, found)
	l.mu.Unlock()
}

// checkSkew checks that no call got an ID below what the last look but one before it allowed. Where etcd went back, or
// shows the past, marks fall.
func (w *world) checkSkew() {
	if !w.strict || w.wentBack() {
		return
	}
	for _, a := range w.mu.calls {
		if a.tag != skewTag {
			continue
		}
		looks := a.by.link.mu.looks
		n, _ := slices.BinarySearchFunc(looks, a.began, func(l look, at time.Time) int { return l.at.Compare(at) })
		if n < 2 {
			continue
		}
		w.count("calls of a tag with max_skew checked", 1)
		if before := looks[n-2]; a.runs[0].First < before.least {
			w.Errorf("SKEW: a call that began at %v got %v of %s: below %d, by the marks at %v", a.began.Sub(w.began),
				a.runs, a.by.id, before.least, before.at.Sub(w.began))
		}
	}
}
