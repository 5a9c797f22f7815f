package sim_test

import (
	"slices"
	"strings"
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

// looks notes an answer if it is a look at the tag with max_skew: the registrations of a room, and tags with the marks
// of all rooms.
func (l *link) looks(txn store.Txn, answer store.Answer, err error) {
	if err != nil || !answer.Succeeded || l.in == "" || answer.ClusterID != ledgertest.ClusterID || len(txn.Then) < 3 ||
		txn.Then[0].Get == nil || !strings.HasPrefix(txn.Then[0].Get.Key, "/march/default/rooms/") {
		return
	}
	found, skew := look{at: time.Now()}, int64(0)
	for i, op := range txn.Then[1:] {
		if op.Get == nil {
			return
		}
		key, err := keys.Parse(op.Get.Key)
		kv, there := answer.One(1 + i)
		if err != nil || key.Tag != skewTag || !there {
			continue
		}
		if key.Kind == "tags" {
			if t, err := keys.DecodeTag(kv); err == nil {
				skew = t.MaxSkew
			}
			continue
		}
		if mark, err := record.DecodeMark(kv); err == nil {
			found.least = max(found.least, mark.Next-skew)
		}
	}
	if skew > 0 {
		l.mu.Lock()
		l.mu.looks = append(l.mu.looks, found)
		l.mu.Unlock()
	}
}

// checkSkew checks that no call got an ID a boundary below what a look allowed, once the instance, which had callers
// before the look, was answered a lease that it sent after it. Where etcd went back, or shows the past, marks fall.
func (w *world) checkSkew() {
	if !w.strict || w.wentBack() {
		return
	}
	calls := make(map[*process][]time.Time) // when they were answered
	for _, a := range w.mu.calls {
		if a.tag == skewTag && len(a.runs) > 0 {
			calls[a.by] = append(calls[a.by], a.done)
		}
	}
	boundary := int64(0)
	for _, l := range w.mu.ever {
		boundary = max(boundary, l.layout.Boundary)
	}
	for _, a := range w.mu.calls {
		if a.tag != skewTag || len(a.runs) == 0 {
			continue
		}
		for _, least := range a.by.risen(calls[a.by], a.began) {
			w.count("calls of a tag with max_skew checked", 1)
			if a.runs[0].First < least-boundary {
				w.Errorf("SKEW: a call that began at %v got %v of %s: below %d less %d", a.began.Sub(w.began), a.runs,
					a.by.id, least, boundary)
			}
		}
	}
}

// risen returns what the last look allowed after which a lease was sent and answered before a time, and before which
// the instance had callers since its look before; nothing without one.
func (p *process) risen(calls []time.Time, before time.Time) []int64 {
	var sent time.Time
	for _, have := range p.link.mu.leases {
		if have.tag == skewTag && have.lost == "" && have.done.Before(before) {
			sent = have.sent
		}
	}
	looks := p.link.mu.looks
	for n := len(looks) - 1; n > 0; n-- {
		used := func(at time.Time) bool { return at.After(looks[n-1].at) && at.Before(looks[n].at) }
		if looks[n].at.Before(sent) && slices.ContainsFunc(calls, used) {
			return []int64{looks[n].least}
		}
	}
	return nil
}
