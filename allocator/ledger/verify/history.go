package verify

import (
	"context"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// history reads the layouts that were not read before, and the current one, in one
// snapshot.
func (v *verification) history(ctx context.Context) error {
	answer, err := v.cluster.Gets(ctx, v.historyOps()...)
	if err != nil {
		return err
	}
	v.tookHistory(answer)
	return nil
}

// historyOps reads the two values for tookHistory, which come first in the answer.
func (v *verification) historyOps() []store.Op {
	k := v.cluster.Keys
	return []store.Op{store.OpGet(k.Layout()), page(max(k.Layouts(), v.newest.Key+"\x00"),
		store.PrefixEnd(k.Layouts()), 0)}
}

func (v *verification) tookHistory(answer store.Answer) {
	kv, _ := answer.One(0)
	if r, err := record.DecodeLayout(kv); err == nil {
		v.current = r.Layout.Version
	}
	for _, old := range answer.Got[1] {
		v.newest = old
		v.version(old)
	}
	if kv.ModRevision != v.layout.ModRevision || !v.fresh {
		v.layout, v.fresh = kv, true
		v.inForce(kv)
	}
}

// version checks a layout of the history.
func (v *verification) version(kv store.KV) {
	r, err := v.cluster.Keys.DecodeHistory(kv)
	if err != nil {
		v.unreadable(kv.Key, err)
		return
	}
	v.checker.version(r)
	v.revisions[kv.ModRevision] = r.Layout // the revision of the key layout, too: one transaction wrote both
}

// inForce checks the layout in force against the last of the history.
func (v *verification) inForce(kv store.KV) {
	if kv.ModRevision == 0 {
		v.missing(v.cluster.Keys.Layout())
		return
	}
	r, err := record.DecodeLayout(kv)
	if err != nil {
		v.unreadable(kv.Key, err)
		return
	}
	r.Revision = kv.ModRevision
	v.checker.current(r)
	if own := v.cluster.Keys.LayoutAt(r.Layout.Version); v.newest.Key == own &&
		string(v.newest.Value) != string(kv.Value) {
		v.add("the layout in force differs from its own history, %s", own)
	}
}
