package sim_test

import (
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// look is what a process read of how far the rooms had come with a tag that has a max_skew.
type look struct {
	at    time.Time
	least int64 // that it may issue from then on
}

// looks notes what a process read of tags and of the marks of all rooms.
func (l *link) looks(txn store.Txn, answer store.Answer, err error) {
	if err != nil || !answer.Succeeded || len(answer.Got) != len(txn.Then) || l.in == "" {
		return
	}
	for k, op := range txn.Then {
		if op.Get == nil || !strings.HasPrefix(op.Get.Key, keys.Tags()) || len(answer.Got[k]) == 0 {
			continue
		}
		t, err := keys.DecodeTag(answer.Got[k][0])
		if err != nil || t.MaxSkew == 0 {
			continue
		}
		var read []string
		var nexts []int64
		for at := k + 1; at < len(txn.Then) && txn.Then[at].Get != nil &&
			strings.HasPrefix(txn.Then[at].Get.Key, keys.Marks("")); at++ {
			read = append(read, txn.Then[at].Get.Key)
			for _, kv := range answer.Got[at] {
				if mark, err := record.DecodeMark(kv); err == nil {
					nexts = append(nexts, mark.Next)
				}
			}
		}
		slices.Sort(read)
		slices.Sort(nexts)
		if len(nexts) == 0 || len(slices.Compact(slices.Clone(read))) < len(read) {
			continue // it reads its own mark apart, for a lease
		}
		n := len(nexts)
		second := max(t.Start, t.Skip, t.Skips[l.in])
		if n > 1 {
			second = max(second, nexts[n-2])
		}
		if nexts[n-1]-second > t.MaxJump {
			continue // no room goes on above a mark that may be a mistake
		}
		l.mu.Lock()
		l.mu.looks[t.Name] = append(l.mu.looks[t.Name], look{time.Now(), nexts[n-1] - t.MaxSkew})
		l.mu.Unlock()
	}
}

// checkSkew checks that no ID of a call lies below what its process had read before the call began. An ID that was
// leased since was leased above the marks of another moment.
func (w *world) checkSkew(a answered) {
	l := a.by.link
	l.mu.Lock()
	looks := l.mu.looks[a.tag]
	l.mu.Unlock()
	at := slices.IndexFunc(looks, func(k look) bool { return !k.at.Before(a.began) })
	if at < 0 {
		at = len(looks)
	}
	if at == 0 {
		return
	}
	last := looks[at-1]
	for _, run := range a.runs {
		if run.First < last.least && !slices.ContainsFunc(l.leasesWith(a.tag, run.First), func(have lease) bool {
			return have.done.After(last.at)
		}) {
			w.Errorf("%s, tag %s: ID %d lies %d below what it may issue since %v", a.by.id, a.tag, run.First,
				last.least-run.First, a.at.Sub(last.at))
		}
		w.count("IDs checked for their skew", int(run.Count))
	}
}
