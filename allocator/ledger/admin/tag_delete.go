package admin

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// DeleteTag deletes a tag's settings: no more IDs of it are leased. Its marks
// stay, so that a tag of the same name goes on above them. Its errors
// are NotFound, WentBack while leasing is halted, Conflict and Unavailable.
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

// deletion returns the transaction that deletes a tag. With its settings etcd forgets
// its largest step, its start and its skips, from which the margin of a recover follows:
// a tag of the same name with smaller ones would issue again what the margin leaves
// free. So a mark is raised over the margin if no room has leased above it. While
// leasing is halted no tag is deleted, because the margin of the next recover is not
// known.
//
// Some leases are not covered: those of a later tag of that name, if a restore forgets
// that the tag was created again; and those under changed settings, if a restore forgets
// the change. No process knows the settings that they were leased by. The same is true of
// every tag that had larger steps since the backup than in it. An operator who knows of
// such a tag gives a larger --margin.
func (a *Admin) deletion(ctx context.Context, s *ledger.State, name allocator.Tag, revision int64,
	actor string) (store.Txn, error) {
	key := a.keys.Tag(name)
	ops := []store.Op{store.OpGet(key)}
	for _, room := range s.Layout().Ever {
		ops = append(ops, store.OpGet(a.keys.Mark(room, name)))
	}
	answer, err := a.Ledger.Gets(ctx, ops...)
	if err != nil {
		return store.Txn{}, err
	}
	kv, ok := answer.One(0)
	if !ok {
		return store.Txn{}, ledger.UnknownTag(name)
	}
	if err := unchangedSince(kv, name, revision); err != nil {
		return store.Txn{}, err
	}
	txn := store.Txn{
		If:   append(a.Ledger.Holds(s), store.Unchanged(kv)),
		Then: []store.Op{{Delete: key}, a.audit(actor, "delete tag", key, kv.Value, nil)},
	}
	t, err := a.keys.DecodeTag(kv)
	if err != nil || s.MarginTotal() == 0 { // no recover has left a margin
		return txn, err
	}
	marks := make(map[allocator.Room]record.Mark, len(s.Layout().Ever))
	furthest := raise{key: ops[1].Get.Key, cond: store.Absent(ops[1].Get.Key)}
	for k, room := range s.Layout().Ever {
		kv, ok := answer.One(k + 1)
		if !ok {
			continue
		}
		m, err := record.DecodeMark(kv)
		if err != nil {
			return store.Txn{}, err
		}
		if marks[room] = m; m.Next >= furthest.mark.Next {
			furthest = raise{key: kv.Key, mark: m, cond: store.Unchanged(kv)}
		}
	}
	f := s.Floor("", t.Terms(), marks)
	if f.Least > f.Most {
		txn.If = append(txn.If, furthest.cond)
		txn.Then = append(txn.Then, store.OpPut(furthest.key, furthest.mark.Raised(f.Least).Encode()))
	}
	return txn, nil
}

type raise struct {
	key  string
	mark record.Mark
	cond store.Cond
}

// deletionsRead is how many audit entries DeletedTimeTags reads.
const deletionsRead = 1000

// DeletedTimeTags returns the tags of time-ordered IDs that were deleted, as far as the
// latest audit entries tell.
func (a *Admin) DeletedTimeTags(ctx context.Context) (map[allocator.Tag]bool, error) {
	entries, _, err := a.Audits(ctx, "", deletionsRead)
	if err != nil {
		return nil, err
	}
	deleted, seen := make(map[allocator.Tag]bool), make(map[string]bool)
	for _, e := range entries { // the newest first
		if e.Action != "delete tag" || seen[e.Object] {
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
