package admin

import (
	"cmp"
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Instances returns the registered instances of a room, or of all when room is
// empty, by room and name, and the keys among them that cannot be read.
func (a *view) Instances(ctx context.Context, room allocator.Room) ([]record.Instance, []record.KeyError, error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return nil, nil, err
	}
	answer, err := a.Ledger.Gets(ctx, a.readInstances(room)...)
	if err != nil {
		return nil, nil, err
	}
	records, bad := a.instancesOf(answer.Got)
	return records, bad, nil
}

// readInstances reads what instancesOf needs.
func (a *view) readInstances(room allocator.Room) []store.Op {
	return []store.Op{store.OpGetPrefix(a.keys.In(room, record.Registrations)),
		store.OpGetPrefix(a.keys.In(room, record.Heartbeats)), store.OpGet(a.keys.Epoch())}
}

func (a *view) instancesOf(got [][]store.KV) ([]record.Instance, []record.KeyError) {
	beats := make(map[string]store.KV, len(got[1]))
	_, bad := record.ReadEach(got[1], func(kv store.KV) (v record.Heartbeat, err error) {
		beats[kv.Key] = kv
		err = record.Decode(kv, &v)
		return v, err
	})
	epoch, _ := store.Answer{Got: got}.One(2)
	inForce, isHalted := epochOf(epoch)
	records := make([]record.Instance, 0, len(got[0]))
	for _, kv := range got[0] {
		r, err := record.ReadAs[record.Instance](a.keys, kv)
		if err != nil {
			bad = append(bad, *record.Unreadable(kv.Key, err))
			if r.Name == "" {
				continue // not even the instance's name is known
			}
		}
		key := a.keys.Alive(r.Room, r.Name)
		r.EpochKV, r.BeatKV = epoch, beats[key]
		r.BeatKV.Key = key
		r.Stale = r.Unreadable == nil && !isHalted && (r.Epoch != inForce.Epoch || r.Version < inForce.Layout)
		r.Beat = r.Incarnation + string(r.BeatKV.Value)
		var v record.Heartbeat // an unreadable heartbeat counts as none
		if r.BeatKV.ModRevision != 0 && record.Decode(r.BeatKV, &v) == nil && v.Incarnation == r.Incarnation {
			r.LastSeen = v.Time
		}
		records = append(records, r)
	}
	return records, bad[:min(len(bad), record.MaxUnreadable)]
}

// epochOf returns the epoch of the epoch's key. While leasing is halted, or if the key
// cannot be read, no layout changes, and reports are not compared with it.
func epochOf(kv store.KV) (e record.Epoch, halted bool) {
	if err := record.Decode(kv, &e); err != nil || e.Halted != nil {
		return record.Epoch{}, true
	}
	return e, false
}

// ForgetSilent forgets an instance that a console counted as silent for long,
// unless the instance has sent a heartbeat since i was read, or leasing is halted:
// then nothing happens. Its error is Unavailable.
func (a *Admin) ForgetSilent(ctx context.Context, i record.Instance, actor string) error {
	if forgettable(i.EpochKV) != nil {
		return nil
	}
	if err := a.unforgetful(ctx); err != nil {
		return err
	}
	key := a.keys.Registration(i.Room, i.Name)
	answer, err := a.Ledger.Change(ctx, store.Txn{
		If: []store.Cond{store.Unchanged(i.RegistrationKV), store.HasValue(i.EpochKV.Key, i.EpochKV.Value),
			store.Unchanged(i.BeatKV)},
		Then: []store.Op{{Delete: key}, {Delete: i.BeatKV.Key},
			a.audit(actor, "forget instance", key, i.RegistrationKV.Value, nil)},
	})
	if err == nil && answer.Succeeded {
		a.log.Info("instance forgotten: it was silent for long", "instance", i.ID(), "last_seen", i.LastSeen)
	}
	return err
}

// forgettable returns why no instance may be forgotten, or nil. While leasing is
// halted none may be, because `march recover` asks the registered instances.
func forgettable(epoch store.KV) error {
	var e record.Epoch
	if err := record.Decode(epoch, &e); err != nil {
		return err
	}
	if e.Halted != nil {
		return allocator.Errorf(allocator.WentBack,
			"leasing is halted by %s since %s: no instance is forgotten before `march recover` has ended, "+
				"because it has to know all of them; `march recover --without ROOM/INSTANCE` goes on without one",
			e.Halted.By, e.Halted.Time.UTC().Format(time.RFC3339))
	}
	return nil
}

// unforgetful returns an error if etcd itself may have forgotten data. Then no
// instance may be forgotten, because `march recover` has to ask all of them, and none
// may be confirmed. An invalid layout does not count.
func (a *Admin) unforgetful(ctx context.Context) error {
	if _, err := a.Ledger.CheckNow(ctx); err != nil && allocator.KindOf(err) != allocator.Refused {
		return err
	}
	return nil
}

// Forget removes an instance's registration and its heartbeat. If the instance still
// runs, it drops all its IDs, and registers anew. Forget compares the epoch: after
// a restore the mod revision of another registration may be the same. Its errors are
// NotFound if the instance is not registered, WentBack while leasing is halted, and
// Conflict.
func (a *Admin) Forget(ctx context.Context, room allocator.Room, name allocator.Instance, actor string) error {
	kv, epoch, err := a.registrationOf(ctx, room, name)
	if err == nil {
		err = forgettable(epoch)
	}
	if err == nil {
		err = a.unforgetful(ctx)
	}
	if err != nil {
		return err
	}
	answer, err := a.Ledger.Change(ctx, store.Txn{
		If: []store.Cond{store.Unchanged(kv), store.HasValue(epoch.Key, epoch.Value)},
		Then: []store.Op{{Delete: kv.Key}, {Delete: a.keys.Alive(room, name)},
			a.audit(actor, "forget instance", kv.Key, kv.Value, nil)},
	})
	return store.Outcome(answer, err, func() bool { // if the key exists, it is another instance's
		_, _, err := a.registrationOf(ctx, room, name)
		return allocator.KindOf(err) == allocator.NotFound
	}, registeredAgain(room, name))
}

// ConfirmInstance confirms, for an operator, that the store has all leases of an
// instance that is without its journal. The instance reads that with its next
// heartbeat. Confirming a confirmed instance changes nothing. Its errors are
// NotFound if the instance is not registered, WentBack while leasing is halted,
// Conflict and Unavailable.
func (a *Admin) ConfirmInstance(ctx context.Context, room allocator.Room, name allocator.Instance, actor string) error {
	incarnation := "" // which an operator confirms; it writes its registration again under each new epoch
	return insist(func() error { return a.confirm(ctx, room, name, &incarnation, actor) })
}

// confirm is ConfirmInstance for an incarnation, which it sets if it is empty.
func (a *Admin) confirm(ctx context.Context, room allocator.Room, name allocator.Instance, incarnation *string,
	actor string) error {
	kv, epoch, err := a.registrationOf(ctx, room, name)
	var v record.Registration
	var e record.Epoch
	if err == nil {
		err = cmp.Or(record.Decode(kv, &v), record.Decode(epoch, &e))
	}
	switch {
	case err != nil:
		return err
	case *incarnation != "" && *incarnation != v.Incarnation:
		return registeredAgain(room, name)
	case e.Halted != nil:
		return allocator.Errorf(allocator.WentBack, "leasing is halted by %s since %s: `march recover` first, "+
			"then confirm each instance that is still without its journal", e.Halted.By,
			e.Halted.Time.UTC().Format(time.RFC3339))
	case !v.Unconfirmed:
		return nil
	}
	if err := a.unforgetful(ctx); err != nil {
		return err
	}
	*incarnation, v.Unconfirmed = v.Incarnation, false
	value := record.Encode(&v)
	answer, err := a.Ledger.Change(ctx, store.Txn{
		If:   []store.Cond{store.Unchanged(kv), store.HasValue(epoch.Key, epoch.Value)},
		Then: []store.Op{store.OpPut(kv.Key, value), a.audit(actor, "confirm instance", kv.Key, kv.Value, value)},
	})
	return store.Outcome(answer, err, func() bool {
		var now record.Registration
		kv, _, err := a.registrationOf(ctx, room, name)
		return err == nil && record.Decode(kv, &now) == nil && now.Incarnation == v.Incarnation && !now.Unconfirmed
	}, registeredAgain(room, name))
}

func registeredAgain(room allocator.Room, name allocator.Instance) error {
	return allocator.Errorf(allocator.Conflict,
		"instance %s/%s registered again, or the epoch changed, just now", room, name)
}

// registrationOf returns the key of an instance's registration, and the epoch of the same snapshot. Its errors are
// NotFound if the instance is not registered, and Unavailable.
func (a *Admin) registrationOf(ctx context.Context, room allocator.Room,
	name allocator.Instance) (kv, epoch store.KV, err error) {
	if err := a.Ledger.Attach(ctx); err != nil {
		return kv, epoch, err
	}
	answer, err := a.Ledger.Gets(ctx, store.OpGet(a.keys.Registration(room, name)), store.OpGet(a.keys.Epoch()))
	if err != nil {
		return kv, epoch, err
	}
	epoch, _ = answer.One(1)
	kv, there := answer.One(0)
	if !there {
		err = allocator.Errorf(allocator.NotFound,
			"instance %s/%s is not registered; `march instance list` lists those that are", room, name)
	}
	return kv, epoch, err
}
