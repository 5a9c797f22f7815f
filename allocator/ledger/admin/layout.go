package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/crash"
)

// Init creates the cluster: identity, epoch and the layout as version 1, in one
// transaction, and only under an empty prefix. Its errors are Invalid (the
// layout), Exists, and Unavailable, after which Init may be called again.
func (a *Admin) Init(ctx context.Context, layout allocator.Layout, actor string) (record.Layout, error) {
	if err := layout.Validate(); err != nil {
		return record.Layout{}, err
	}
	layout.Version = 1
	first := store.Op{Get: &store.Get{Interval: store.Prefix(string(a.keys)), Limit: 1, KeysOnly: true}}
	probe, err := a.Ledger.Gets(ctx, first,
		store.OpGet(a.keys.Identity()), store.OpGet(a.keys.Epoch()), store.OpGet(a.keys.Layout()))
	if err != nil {
		return record.Layout{}, err
	}
	if other := record.LostIdentity(probe.Got[1:]); other != "" {
		return record.Layout{}, allocator.Errorf(allocator.Exists, "%w", a.keys.IdentityLost(other))
	}
	if len(probe.Got[0]) > 0 {
		return record.Layout{}, allocator.Errorf(allocator.Exists,
			"the prefix %s is not empty (it has %s): a cluster is initialised only once", a.keys, probe.Got[0][0].Key)
	}
	stored := record.Layout{Layout: layout, Ever: slices.Sorted(maps.Keys(layout.Ranges)), Time: a.now(), Actor: actor}
	stored = stored.After(record.Layout{})
	if a.cfg.Formats > 1 {
		stored.Formats = a.cfg.Formats // no older program reads a new cluster
	}
	id := record.Identity{UUID: newUUID(), ClusterID: probe.ClusterID}
	if a.uuid != "" {
		id.UUID = a.uuid
	}
	value := stored.Encode(record.RandomHex())
	answer, err := a.Ledger.Try(ctx, store.Txn{
		If: []store.Cond{store.Absent(a.keys.Identity()), store.Absent(a.keys.Epoch()), store.Absent(a.keys.Layout())},
		Then: []store.Op{
			store.OpPut(a.keys.Identity(), record.Encode(&id)),
			store.OpPut(a.keys.Epoch(), record.Encode(&record.Epoch{Epoch: record.RandomHex()})),
			store.OpPut(a.keys.Layout(), value),
			store.OpPut(a.keys.LayoutAt(1), value),
			a.audit(actor, "init", a.keys.Layout(), nil, value),
		},
	})
	err = store.Outcome(answer, err, func() bool { // the layout has a nonce
		now, err := a.Ledger.Gets(ctx, store.OpGet(a.keys.Layout()))
		kv, ok := now.FirstIfAny()
		return err == nil && ok && string(kv.Value) == string(value)
	}, allocator.Errorf(allocator.Exists, "another process initialised %s just now", a.keys))
	if err != nil {
		return record.Layout{}, err
	}
	return a.Ledger.Refresh(ctx)
}

// ChangeLayout makes to the current layout, if from, which Refresh or Layout
// returned, is still the current one. It sets the version to the next one.
// Any valid layout may follow any other that leaves the rooms the workers that tags
// need. Its errors are Invalid, Refused, Conflict (the layout is no
// longer from), WentBack (no layout changes while leasing is halted) and
// Unavailable if the outcome is not known.
func (a *Admin) ChangeLayout(ctx context.Context, from record.Layout, to allocator.Layout,
	actor string) (record.Layout, error) {
	if err := to.Validate(); err != nil {
		return record.Layout{}, err
	}
	next := to
	next.Version = from.Layout.Version + 1
	needs, err := a.AllNeeds(ctx)
	if err == nil {
		err = needs.Check(from.Layout, next)
	}
	if err != nil {
		return record.Layout{}, err
	}
	s, err := a.Ledger.CheckNow(ctx)
	if err != nil {
		return record.Layout{}, err
	}
	if made, err := a.changeLayout(ctx, s, from, from.Next(to), actor, store.Txn{}); err != nil {
		return made, err
	}
	return a.Ledger.Refresh(ctx)
}

// changeLayout writes stored, which from.Next returned, in the epoch of s, which a check returned just now, under more
// conditions and with more operations in the same transaction. The ledger does not know the new layout before its next
// probe.
func (a *Admin) changeLayout(ctx context.Context, s *ledger.State, from, stored record.Layout, actor string,
	with store.Txn) (record.Layout, error) {
	if err := stored.Layout.Validate(); err != nil {
		return record.Layout{}, err
	}
	stored.Time, stored.Actor = a.now(), actor
	to, action := stored.Layout, "change layout"
	if stored.Formats > from.Formats {
		action = "upgrade formats"
	}
	if len(stored.Ever) > allocator.MaxRooms {
		return record.Layout{}, allocator.Errorf(allocator.Invalid,
			"rooms: %d in the cluster's life with this layout; allowed: %d", len(stored.Ever), allocator.MaxRooms)
	}
	nonce := record.RandomHex()
	value := stored.Encode(nonce)
	answer, err := a.Ledger.Change(ctx, store.Txn{
		If: append(with.If,
			store.Cond{Key: a.keys.Layout(), ModRevision: from.Revision},
			a.Ledger.HoldsEpoch(s),
			store.Absent(a.keys.LayoutAt(to.Version)),
		),
		Then: append(with.Then,
			store.OpPut(a.keys.Layout(), value),
			store.OpPut(a.keys.LayoutAt(to.Version), value),
			a.audit(actor, action, a.keys.Layout(), from.Encode(""), value),
		),
	}, a.keys.All(record.Layouts))
	crash.Here(crash.AfterChange)
	var unknown error // why it is not known whether the change was made
	refused := errors.New("the conditions do not hold")
	err = store.Outcome(answer, err, func() (made bool) {
		made, unknown = a.layoutHasNonce(ctx, to.Version, nonce)
		return made
	}, refused)
	switch {
	case err == nil && answer.Succeeded:
		stored.Nonce, stored.Revision = nonce, answer.Revision
		return stored, nil
	case err == nil:
		return a.Ledger.Refresh(ctx)
	case err != refused && unknown != nil:
		return record.Layout{}, allocator.Errorf(allocator.Unavailable,
			"change to layout version %d: the outcome is unknown, look at the layout before trying again: %w",
			to.Version, err)
	case err != refused:
		return record.Layout{}, err
	}
	current, err := a.Ledger.Refresh(ctx)
	if err != nil {
		return record.Layout{}, err
	}
	if s, _ := a.Ledger.State(); s.Refusal() != nil {
		return record.Layout{}, s.Refusal()
	}
	return record.Layout{}, allocator.Errorf(allocator.Conflict, "the layout is version %d by now (or the migration "+
		"moved on), the change was made for version %d", current.Layout.Version, from.Layout.Version)
}

// layoutHasNonce reports whether version was written with nonce. Call it after the
// try's time has ended: before that, the transaction may still arrive.
func (a *view) layoutHasNonce(ctx context.Context, version int64, nonce string) (bool, error) {
	answer, err := a.Ledger.Gets(ctx, store.OpGet(a.keys.LayoutAt(version)))
	if err != nil {
		return false, err
	}
	kv, ok := answer.One(0)
	if !ok {
		return false, nil
	}
	found, err := record.DecodeLayout(kv)
	return found.Nonce == nonce, err
}

// LayoutAt returns the layout with a version. Its error is NotFound if there is
// none.
func (a *view) LayoutAt(ctx context.Context, version int64) (record.Layout, error) {
	return readOne(ctx, a, a.keys.LayoutAt(version), record.DecodeLayout, allocator.Errorf(allocator.NotFound,
		"layout version %d does not exist; `march layout history` lists those that do", version))
}

// LayoutAfter returns the layout that replaced the one with a version: not always
// the next version, because versions that were lost when etcd went back in time are
// missing. Its error is NotFound if none did.
func (a *view) LayoutAfter(ctx context.Context, version int64) (record.Layout, error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return record.Layout{}, err
	}
	within := store.Interval{Key: a.keys.LayoutAt(version) + "\x00", End: store.PrefixEnd(a.keys.All(record.Layouts))}
	answer, err := a.Ledger.Gets(ctx, store.Op{Get: &store.Get{Interval: within, Limit: 1}})
	if err != nil {
		return record.Layout{}, err
	}
	kv, ok := answer.FirstIfAny()
	if !ok {
		return record.Layout{}, allocator.Errorf(allocator.NotFound,
			"no layout follows version %d; `march layout history` lists all", version)
	}
	return record.DecodeLayout(kv)
}

// Layouts returns up to n layouts with versions below before, 0 for no bound,
// the newest first, and the keys among them that cannot be read.
func (a *view) Layouts(ctx context.Context, before int64, n int) ([]record.Layout, []record.KeyError, error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return nil, nil, err
	}
	within := store.Prefix(a.keys.All(record.Layouts))
	if before > 0 {
		within.End = a.keys.LayoutAt(before)
	}
	return readPage(ctx, a, store.Get{Interval: within, Descending: true}, n, record.DecodeLayout)
}

// LastLayout returns the layout in force, for callers that only show it. If a key that
// all leasing needs cannot be read or used, unusable says why: a *ledger.UnusableError, or a
// *KeyError of the identity or the beat. The record is then the last good one that this
// process saw, else the newest of the history, and zero if there is none. err is
// Unavailable, or another error of Refresh.
func (a *view) LastLayout(ctx context.Context) (stored record.Layout, unusable, err error) {
	stored, unusable = a.Ledger.Refresh(ctx)
	_, isUnusable := errors.AsType[*ledger.UnusableError](unusable)
	_, isDamaged := errors.AsType[*record.KeyError](unusable)
	if !isUnusable && (!isDamaged || allocator.KindOf(unusable) == allocator.Refused) {
		return stored, nil, unusable
	}
	if stored.Layout.Version == 0 { // a failed probe returns no layout
		stored, _ = a.Ledger.Layout()
	}
	if stored.Layout.Version > 0 {
		return stored, unusable, nil
	}
	newest, _, err := a.Layouts(ctx, 0, 1)
	if len(newest) > 0 {
		stored = newest[0]
	}
	return stored, unusable, err
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
