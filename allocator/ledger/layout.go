package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/crash"
)

// Init makes the cluster: identity, epoch and the layout as version 1, in one
// transaction, and only under an empty prefix. Its errors are Invalid (the
// layout), Exists, and Unavailable, after which Init may be called again.
func (l *Ledger) Init(ctx context.Context, layout allocator.Layout, actor string) (record.Layout, error) {
	if err := layout.Validate(); err != nil {
		return record.Layout{}, err
	}
	layout.Version = 1
	probe, err := l.gets(ctx, store.Op{Get: &store.Get{Interval: store.Interval{Key: string(l.keys), End: store.PrefixEnd(string(l.keys))}, Limit: 1, KeysOnly: true}},
		store.OpGet(l.keys.Identity()), store.OpGet(l.keys.Epoch()), store.OpGet(l.keys.Layout()))
	if err != nil {
		return record.Layout{}, err
	}
	if other := record.LostIdentity(probe.Got[1:]); other != "" {
		return record.Layout{}, allocator.Errorf(allocator.Exists, "%w", l.keys.IdentityLost(other))
	}
	if len(probe.Got[0]) > 0 {
		return record.Layout{}, allocator.Errorf(allocator.Exists, "there is something under %s already (%s): a cluster is initialised once", l.keys, probe.Got[0][0].Key)
	}
	stored := record.Layout{Layout: layout, Ever: slices.Sorted(maps.Keys(layout.Ranges)), Time: l.now(), Actor: actor}
	stored = stored.After(record.Layout{})
	id := record.Identity{UUID: newUUID(), ClusterID: probe.ClusterID}
	if l.cfg.UUID != "" {
		id.UUID = l.cfg.UUID
	}
	value := stored.Encode(record.RandomHex())
	answer, err := l.Try(ctx, store.Txn{
		If: []store.Cond{store.Absent(l.keys.Identity()), store.Absent(l.keys.Epoch()), store.Absent(l.keys.Layout())},
		Then: []store.Op{
			store.OpPut(l.keys.Identity(), record.Encode(&id)),
			store.OpPut(l.keys.Epoch(), record.Encode(&record.Epoch{Epoch: record.RandomHex()})),
			store.OpPut(l.keys.Layout(), value),
			store.OpPut(l.keys.LayoutAt(1), value),
			l.audit(actor, "init", l.keys.Layout(), nil, value),
		},
		Else: []store.Op{store.OpGet(l.keys.Layout())},
	})
	if err != nil { // unknown: is what is there now ours?
		check, checkErr := l.gets(ctx, store.OpGet(l.keys.Layout()))
		if kv, ok := check.FirstIfAny(); checkErr != nil || !ok || string(kv.Value) != string(value) {
			return record.Layout{}, err
		}
	} else if kv, _ := answer.FirstIfAny(); !answer.Succeeded && string(kv.Value) != string(value) {
		return record.Layout{}, allocator.Errorf(allocator.Exists, "another process initialised %s just now", l.keys)
	}
	return l.Refresh(ctx)
}

// ChangeLayout makes to the current layout, where from, which Refresh or
// Layout returned, still is the current one. The version is set to the next.
// Any valid layout may follow any other. Its errors are Invalid, Conflict (the
// layout is no longer from), WentBack (leasing is halted: nothing changes a
// layout then) and Unavailable where the outcome could not be learned.
func (l *Ledger) ChangeLayout(ctx context.Context, from record.Layout, to allocator.Layout, actor string) (record.Layout, error) {
	return l.changeLayout(ctx, from, to, actor, store.Txn{})
}

// changeLayout is ChangeLayout, under more conditions and with more operations
// in the same transaction.
func (l *Ledger) changeLayout(ctx context.Context, from record.Layout, to allocator.Layout, actor string, with store.Txn) (record.Layout, error) {
	if err := to.Validate(); err != nil {
		return record.Layout{}, err
	}
	s, err := l.checkNow(ctx)
	if err != nil {
		return record.Layout{}, err
	}
	stored := from.Next(to)
	stored.Time, stored.Actor = l.now(), actor
	to = stored.Layout
	if len(stored.Ever) > allocator.MaxRooms {
		return record.Layout{}, allocator.Errorf(allocator.Invalid, "rooms: the cluster would have had %d rooms in its life; allowed: %d", len(stored.Ever), allocator.MaxRooms)
	}
	nonce := record.RandomHex()
	value := stored.Encode(nonce)
	answer, err := l.change(ctx, store.Txn{
		If: append(with.If,
			store.Cond{Key: l.keys.Layout(), ModRevision: from.Revision},
			store.HasValue(l.keys.Epoch(), s.raw),
			store.Absent(l.keys.LayoutAt(to.Version)),
		),
		Then: append(with.Then,
			store.OpPut(l.keys.Layout(), value),
			store.OpPut(l.keys.LayoutAt(to.Version), value),
			l.audit(actor, "change layout", l.keys.Layout(), from.Encode(""), value),
		),
	}, l.keys.Layouts())
	crash.Here(crash.AfterChange)
	if err == nil && answer.Succeeded {
		return l.Refresh(ctx)
	}
	// A crash or a lost answer here leaves the outcome to the nonce; and an
	// answer that it did not happen may be to its being sent twice.
	made, checkErr := l.layoutHasNonce(ctx, to.Version, nonce)
	switch {
	case checkErr != nil && err != nil:
		return record.Layout{}, allocator.Errorf(allocator.Unavailable, "change to layout version %d: the outcome is unknown, look at the layout before trying again: %w", to.Version, err)
	case err != nil && !made:
		return record.Layout{}, err
	}
	current, refreshErr := l.Refresh(ctx)
	if refreshErr != nil || made {
		return current, refreshErr
	}
	if s, _ := l.current(); s.refusal() != nil {
		return record.Layout{}, s.refusal()
	}
	return record.Layout{}, allocator.Errorf(allocator.Conflict, "the layout is version %d by now (or the migration moved on), the change was made for version %d", current.Layout.Version, from.Layout.Version)
}

// layoutHasNonce reports whether version was written with nonce. It must be
// asked after the try's time is over: a transaction that was sent may still
// arrive before.
func (l *Ledger) layoutHasNonce(ctx context.Context, version int64, nonce string) (bool, error) {
	answer, err := l.gets(ctx, store.OpGet(l.keys.LayoutAt(version)))
	if err != nil {
		return false, err
	}
	kv, ok := answer.One(0)
	if !ok {
		return false, nil
	}
	_, found, err := record.DecodeLayoutNonce(kv)
	return found == nonce, err
}

// LayoutAt returns the layout with a version. Its error is NotFound where
// there never was one.
func (l *Ledger) LayoutAt(ctx context.Context, version int64) (record.Layout, error) {
	if err := l.attachToRead(ctx); err != nil {
		return record.Layout{}, err
	}
	answer, err := l.gets(ctx, store.OpGet(l.keys.LayoutAt(version)))
	if err != nil {
		return record.Layout{}, err
	}
	kv, ok := answer.One(0)
	if !ok {
		return record.Layout{}, allocator.Errorf(allocator.NotFound, "layout version %d does not exist; `march layout history` lists those that do", version)
	}
	return record.DecodeLayout(kv)
}

// LayoutAfter returns the layout that replaced the one with a version: not always
// the next version, for those that were lost when etcd went back in time never
// were. Its error is NotFound where none did.
func (l *Ledger) LayoutAfter(ctx context.Context, version int64) (record.Layout, error) {
	if err := l.attachToRead(ctx); err != nil {
		return record.Layout{}, err
	}
	within := store.Interval{Key: l.keys.LayoutAt(version) + "\x00", End: store.PrefixEnd(l.keys.Layouts())}
	answer, err := l.gets(ctx, store.Op{Get: &store.Get{Interval: within, Limit: 1}})
	if err != nil {
		return record.Layout{}, err
	}
	kv, ok := answer.FirstIfAny()
	if !ok {
		return record.Layout{}, allocator.Errorf(allocator.NotFound, "no layout follows version %d; `march layout history` lists all", version)
	}
	return record.DecodeLayout(kv)
}

// Layouts returns up to n layouts with versions below before, 0 for no bound,
// the newest first, and the keys among them that cannot be read.
func (l *Ledger) Layouts(ctx context.Context, before int64, n int) ([]record.Layout, []record.KeyError, error) {
	if err := l.attachToRead(ctx); err != nil {
		return nil, nil, err
	}
	within := store.Interval{Key: l.keys.Layouts(), End: store.PrefixEnd(l.keys.Layouts())}
	if before > 0 {
		within.End = l.keys.LayoutAt(before)
	}
	return readPage(ctx, l, store.Get{Interval: within, Descending: true}, n, record.DecodeLayout)
}

// LastLayout returns the layout in force, for callers that only show it. If a key that
// all leasing needs cannot be read or used, unusable says why: an *UnusableError, or a
// *KeyError of the identity or the beat. The record is then the last good one that this
// process saw, else the newest of the history, and zero if there is none. err is
// Unavailable, or another error of Refresh.
func (l *Ledger) LastLayout(ctx context.Context) (stored record.Layout, unusable, err error) {
	stored, unusable = l.Refresh(ctx)
	_, isUnusable := errors.AsType[*UnusableError](unusable)
	_, isDamaged := errors.AsType[*record.KeyError](unusable)
	if !isUnusable && (!isDamaged || allocator.KindOf(unusable) == allocator.Refused) {
		return stored, nil, unusable
	}
	if stored.Layout.Version == 0 { // a probe that failed returns none
		stored, _ = l.Layout()
	}
	if stored.Layout.Version > 0 {
		return stored, unusable, nil
	}
	newest, _, err := l.Layouts(ctx, 0, 1)
	if len(newest) > 0 {
		stored = newest[0]
	}
	return stored, unusable, err
}

// historyAt reads what a probe has to see of the history where the layout is of a
// version, or of the next: both keys, the one before and the one after. The version
// must be known beforehand, as etcd would read the whole history to find its end.
// Where the layout turns out to be of another version, otherVersion says so, and
// the probe is made again.
func (l *Ledger) historyAt(version int64) store.Op {
	within := store.Interval{Key: l.keys.LayoutAt(max(version-1, 0)), End: store.PrefixEnd(l.keys.Layouts())}
	return store.Op{Get: &store.Get{Interval: within, Limit: 4}}
}

// historyVersion returns the version of the layout that was read last.
func (l *Ledger) historyVersion() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.version
}

// otherVersion reports whether the layout that s saw is of another version than it
// took for the current one, and notes that.
func (l *Ledger) otherVersion(s *probeResult) bool {
	kv, _ := s.answer.One(1)
	var v record.LayoutValue
	if json.Unmarshal(kv.Value, &v) != nil || v.Version < 1 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.version = v.Version
	return v.Version != s.version && v.Version != s.version+1
}

// now is the time by this process's clock, as records carry it: see Config.Now.
func (l *Ledger) now() time.Time { return record.Recorded(l.cfg.Now()) }
