package admin

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// DeleteTag deletes a tag: no more IDs of it are leased. Its marks and a tombstone stay,
// so that a tag of the same name issues no ID again. Its errors are NotFound, WentBack
// while leasing is halted, Conflict and Unavailable.
func (a *Admin) DeleteTag(ctx context.Context, name allocator.Tag, actor string) error {
	return a.DeleteTagAt(ctx, name, 0, actor)
}

// DeleteTagAt is DeleteTag for a tag whose settings were stored at a revision, 0 for any. Its
// error is Conflict if they were changed since.
func (a *Admin) DeleteTagAt(ctx context.Context, name allocator.Tag, revision int64, actor string) error {
	state, err := a.Ledger.CheckNow(ctx)
	if err != nil {
		return err
	}
	txn, err := a.deletion(ctx, state, name, revision, actor)
	if err != nil {
		return err
	}
	answer, err := a.Ledger.Change(ctx, txn)
	return store.Outcome(answer, err, func() bool { // this call or another deleted it; either is a success
		_, err := a.Tag(ctx, name)
		return allocator.KindOf(err) == allocator.NotFound
	}, allocator.Errorf(allocator.Conflict, "tag %s, the layout or the epoch was changed just now: try again", name))
}

// deletion returns the transaction that deletes a tag: see section 3.5 of the design.
func (a *Admin) deletion(ctx context.Context, s *ledger.State, name allocator.Tag, revision int64,
	actor string) (store.Txn, error) {
	p, err := a.past(ctx, s, name)
	switch {
	case err != nil:
		return store.Txn{}, err
	case !p.there:
		return store.Txn{}, ledger.UnknownTag(name)
	}
	t, err := a.keys.DecodeTag(p.kv)
	if err == nil {
		err = unchangedSince(p.kv, name, revision)
	}
	if err != nil {
		return store.Txn{}, err
	}
	txn := store.Txn{If: append(a.Ledger.Holds(s), store.Unchanged(p.kv))}
	value := t.Buried(a.now()).Encode(record.RandomHex())
	remove := store.Op{Delete: p.kv.Key}
	switch {
	case !s.Layout().Upgraded():
		value = nil
		a.raiseOver(&txn, s, t, p)
	case t.Unused(s.MarginTotal(), p.marks):
		value = nil
		txn.If = append(txn.If, p.conds...)
	default:
		remove = store.OpPut(p.kv.Key, value)
	}
	txn.Then = append(txn.Then, remove, a.audit(actor, deleteAction, p.kv.Key, p.kv.Value, value))
	return txn, nil
}

// raiseOver makes a deletion raise a mark over the margins of all recovers, if no room has leased
// above it: formats of generation 1 have no tombstones, so with a tag's key etcd forgets its
// largest step, its start and its skips.
func (a *Admin) raiseOver(txn *store.Txn, s *ledger.State, t record.Tag, p past) {
	if s.MarginTotal() == 0 || t.Time != nil {
		return
	}
	end, most := s.End(t, p.marks, a.now()), t.Start
	for _, m := range p.marks {
		most = max(most, m.Next)
	}
	if end <= most {
		return
	}
	ever, at := s.Layout().Ever, 0
	for k, room := range ever {
		if p.marks[room].Next >= p.marks[ever[at]].Next {
			at = k
		}
	}
	txn.If = append(txn.If, p.conds[at])
	txn.Then = append(txn.Then,
		store.OpPut(a.keys.Mark(ever[at], t.Name), p.marks[ever[at]].Raised(end).Encode()))
}

// ForgetTag deletes the tombstone of a deleted tag, so that nothing is known of the name any
// more. Its errors are those of DeleteTag; Refused if the tag is not deleted.
func (a *Admin) ForgetTag(ctx context.Context, name allocator.Tag, actor string) error {
	s, err := a.Ledger.CheckNow(ctx)
	if err != nil {
		return err
	}
	kv, there, err := a.tombstone(ctx, name)
	switch {
	case err != nil:
		return err
	case !there:
		return allocator.Errorf(allocator.NotFound, "tag %s: no deleted tag has this name", name)
	}
	answer, err := a.Ledger.Change(ctx, store.Txn{
		If:   append(a.Ledger.Holds(s), store.Unchanged(kv)),
		Then: []store.Op{{Delete: kv.Key}, a.audit(actor, forgetAction, kv.Key, kv.Value, nil)},
	})
	return store.Outcome(answer, err, func() bool {
		_, there, err := a.tombstone(ctx, name)
		return err == nil && !there
	}, allocator.Errorf(allocator.Conflict, "tag %s, the layout or the epoch was changed just now: try again", name))
}

const (
	deleteAction = "delete tag"
	forgetAction = "forget tag"
)

// tombstone reads the tombstone of a name. Its error is Refused if the tag lives.
func (a *Admin) tombstone(ctx context.Context, name allocator.Tag) (kv store.KV, there bool, err error) {
	answer, err := a.Ledger.Gets(ctx, store.OpGet(a.keys.Tag(name)))
	if err != nil {
		return kv, false, err
	}
	if kv, there = answer.One(0); !there {
		return kv, false, nil
	}
	t, err := record.ReadAs[record.Tag](a.keys, kv)
	if err == nil && t.Deleted.IsZero() {
		err = allocator.Errorf(allocator.Refused, "tag %s is not deleted", name)
	}
	return kv, true, err
}

// deletionsRead is how many audit entries DeletedTimeTags reads.
const deletionsRead = 1000

// DeletedTimeTags returns the tags of time-ordered IDs that were deleted, as far as the
// latest audit entries tell.
func (a *view) DeletedTimeTags(ctx context.Context) (map[allocator.Tag]bool, error) {
	entries, _, err := a.Audits(ctx, "", deletionsRead)
	if err != nil {
		return nil, err
	}
	deleted, seen := make(map[allocator.Tag]bool), make(map[string]bool)
	for _, e := range entries { // the newest first
		if e.Action != deleteAction || seen[e.Object] {
			continue
		}
		seen[e.Object] = true
		t, err := a.keys.DecodeTag(store.KV{Key: string(a.keys) + e.Object, Value: e.From})
		if err == nil && t.Time != nil {
			deleted[t.Name] = true
		}
	}
	return deleted, nil
}
