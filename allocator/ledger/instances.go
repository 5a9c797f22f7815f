package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/march-id/march/allocator"
)

// InstanceRecord is an instance as etcd knows it.
type InstanceRecord struct {
	Registration
	Version  int64 // of the layout it serves
	Started  time.Time
	Alive    bool      // whether its heartbeat is there
	LastSeen time.Time // when its last heartbeat was sent, by its clock; zero when it is not there
	// SilentSince is when a console first missed its heartbeat, by the console's
	// clock; zero while the heartbeat is there, or before one looked.
	SilentSince time.Time
	// Unconfirmed: it started without its journal, which is required, and leases
	// nothing before its marks are confirmed.
	Unconfirmed bool

	incarnation  string
	registration KV
	epoch        KV // as it was in the same snapshot
	silent       KV // the note of its silence; without a value where there is none
}

// Instances returns the registered instances of a room, or of all when room is
// empty, by room and name.
func (l *Ledger) Instances(ctx context.Context, room allocator.Room) ([]InstanceRecord, error) {
	if err := l.attach(ctx); err != nil {
		return nil, err
	}
	answer, err := l.gets(ctx, getPrefix(l.keys.registrations(room)), getPrefix(l.keys.heartbeats(room)), getPrefix(l.keys.silences(room)), get(l.keys.epoch()))
	if err != nil {
		return nil, err
	}
	beats := make(map[string]aliveValue, len(answer.Got[1]))
	for _, kv := range answer.Got[1] {
		var v aliveValue
		if err := decode(kv, &v); err != nil {
			return nil, err
		}
		beats[v.Incarnation] = v
	}
	silences := make(map[string]KV, len(answer.Got[2]))
	for _, kv := range answer.Got[2] {
		silences[kv.Key] = kv
	}
	epoch, _ := answer.one(3)
	records := make([]InstanceRecord, 0, len(answer.Got[0]))
	for _, kv := range answer.Got[0] {
		r, err := l.parseInstance(kv)
		if err != nil {
			return nil, err
		}
		beat, alive := beats[r.incarnation]
		r.Alive, r.LastSeen, r.epoch = alive, beat.Time, epoch
		key := l.keys.silent(r.Room, r.Name)
		r.silent = silences[key]
		r.silent.Key = key
		if err := r.note(); err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// parseInstance reads a registration.
func (l *Ledger) parseInstance(kv KV) (InstanceRecord, error) {
	var v registrationValue
	if err := decode(kv, &v); err != nil {
		return InstanceRecord{}, err
	}
	key, err := l.keys.parse(kv.Key)
	if err != nil {
		return InstanceRecord{}, err
	}
	hold, err := time.ParseDuration(v.Hold)
	if err != nil {
		return InstanceRecord{}, allocator.Errorf(allocator.Internal, "key %s: hold: %w", kv.Key, err)
	}
	return InstanceRecord{
		Registration: Registration{Room: key.room, Name: key.instance, Address: v.Address, Build: v.Build, Hold: hold},
		Version:      v.Version, Started: v.Started, Unconfirmed: v.Unconfirmed, incarnation: v.Incarnation, registration: kv,
	}, nil
}

// note takes up the note of silence, unless it is an earlier process's, or the
// heartbeat is there again.
func (r *InstanceRecord) note() error {
	if r.silent.ModRevision == 0 || r.Alive {
		return nil
	}
	var v silentValue
	if err := decode(r.silent, &v); err != nil {
		return err
	}
	if v.Incarnation == r.incarnation {
		r.SilentSince = v.Since
	}
	return nil
}

// NoteSilence stores since when instances have been silent, so that whichever
// console looks next goes on counting, and takes away the notes of those that
// are not any longer. It is for the console that drives. An instance whose
// note another process changed at the same time is left for the next look. Its
// error is Unavailable.
func (l *Ledger) NoteSilence(ctx context.Context, instances []InstanceRecord) error {
	for _, i := range instances {
		var txn Txn
		switch {
		case i.Alive && i.silent.ModRevision != 0:
			txn = Txn{If: []Cond{unchanged(i.silent)}, Then: []Op{{Delete: i.silent.Key}}}
		case !i.Alive && i.SilentSince.IsZero():
			txn = Txn{
				If:   []Cond{unchanged(i.registration), absent(l.keys.alive(i.Room, i.Name)), unchanged(i.silent)},
				Then: []Op{put(i.silent.Key, encode(&silentValue{Incarnation: i.incarnation, Since: now()}))},
			}
		default:
			continue
		}
		if _, err := l.try(ctx, txn); err != nil {
			return err
		}
	}
	return nil
}

// ForgetSilent forgets an instance that has been silent for long, unless it was
// heard of since i was read, or leasing is halted: then nothing happens. Its
// error is Unavailable.
func (l *Ledger) ForgetSilent(ctx context.Context, i InstanceRecord, actor string) error {
	if i.SilentSince.IsZero() {
		return errors.New("ledger: an instance that is not silent was to be forgotten as silent")
	}
	if forgettable(i.epoch) != nil {
		return nil
	}
	if err := l.unforgetful(ctx); err != nil {
		return err
	}
	key := l.keys.registration(i.Room, i.Name)
	answer, err := l.try(ctx, Txn{
		If: []Cond{unchanged(i.registration), hasValue(i.epoch.Key, i.epoch.Value), absent(l.keys.alive(i.Room, i.Name)), unchanged(i.silent)},
		Then: []Op{
			{Delete: key}, {Delete: i.silent.Key},
			l.audit(actor, "forget instance", key, i.registration.Value, nil),
		},
	})
	if err == nil && answer.Succeeded {
		l.log.Info("instance forgotten: it was silent for long", "instance", i.ID(), "silent_since", i.SilentSince)
	}
	return err
}

// forgettable returns why no instance may be forgotten, nil where it may:
// `march recover` asks those that are registered.
func forgettable(epoch KV) error {
	var e epochValue
	if err := decode(epoch, &e); err != nil {
		return err
	}
	if e.Halted != nil {
		return allocator.Errorf(allocator.WentBack, "leasing is halted by %s since %s: `march recover` has to know of every instance, none is forgotten before it has ended; it goes on without one by `march recover --without ROOM/INSTANCE`",
			e.Halted.By, e.Halted.Time.UTC().Format(time.RFC3339))
	}
	return nil
}

// unforgetful returns why it may be that etcd itself has forgotten something: then
// nobody is forgotten, as `march recover` has to ask all, nor confirmed. An invalid
// layout is no reason.
func (l *Ledger) unforgetful(ctx context.Context) error {
	if _, err := l.checkNow(ctx); err != nil && allocator.KindOf(err) != allocator.Refused {
		return err
	}
	return nil
}

// Forget takes an instance's registration away: it leases nothing from then on,
// whatever it does. It compares the epoch: after a restore the mod revision of
// another registration may be the same. Its errors are NotFound where it is not
// registered, WentBack while leasing is halted, and Conflict.
func (l *Ledger) Forget(ctx context.Context, room allocator.Room, name allocator.Instance, actor string) error {
	if err := l.attach(ctx); err != nil {
		return err
	}
	key := l.keys.registration(room, name)
	answer, err := l.gets(ctx, get(key), get(l.keys.epoch()))
	if err != nil {
		return err
	}
	kv, ok := answer.one(0)
	if !ok {
		return allocator.Errorf(allocator.NotFound, "instance %s/%s is not registered; `march instance list` lists those that are", room, name)
	}
	epoch, _ := answer.one(1)
	if err := forgettable(epoch); err != nil {
		return err
	}
	if err := l.unforgetful(ctx); err != nil {
		return err
	}
	answer, err = l.try(ctx, Txn{
		If:   []Cond{unchanged(kv), hasValue(epoch.Key, epoch.Value)},
		Then: []Op{{Delete: key}, {Delete: l.keys.silent(room, name)}, l.audit(actor, "forget instance", key, kv.Value, nil)},
	})
	if err == nil && answer.Succeeded {
		return nil
	}
	// Unknown, or perhaps sent twice: it is gone, or it tells who is there.
	check, checkErr := l.gets(ctx, get(key))
	if checkErr == nil {
		if _, there := check.one(0); !there {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return allocator.Errorf(allocator.Conflict, "instance %s/%s registered again, or the epoch changed, just now", room, name)
}

// ConfirmInstance says, as an operator, that the store has all that an instance
// without its journal may have leased. It takes that up with its next heartbeat.
// One that is confirmed stays so. Its errors are NotFound where it is not
// registered, WentBack while leasing is halted, Conflict and Unavailable.
func (l *Ledger) ConfirmInstance(ctx context.Context, room allocator.Room, name allocator.Instance, actor string) error {
	if err := l.attach(ctx); err != nil {
		return err
	}
	key := l.keys.registration(room, name)
	v, kv, epoch, err := l.registrationOf(ctx, key)
	if err != nil {
		return err
	}
	if v == nil {
		return allocator.Errorf(allocator.NotFound, "instance %s/%s is not registered; `march instance list` lists those that are", room, name)
	}
	var e epochValue
	if err := decode(epoch, &e); err != nil {
		return err
	}
	switch {
	case e.Halted != nil:
		return allocator.Errorf(allocator.WentBack, "leasing is halted by %s since %s: `march recover` first, then confirm who is still without its journal", e.Halted.By, e.Halted.Time.UTC().Format(time.RFC3339))
	case !v.Unconfirmed:
		return nil
	}
	if err := l.unforgetful(ctx); err != nil {
		return err
	}
	v.Unconfirmed = false
	value := encode(v)
	answer, err := l.try(ctx, Txn{
		If:   []Cond{unchanged(kv), hasValue(epoch.Key, epoch.Value)},
		Then: []Op{put(key, value), l.audit(actor, "confirm instance", key, kv.Value, value)},
	})
	if err == nil && answer.Succeeded {
		return nil
	}
	// Unknown, or perhaps sent twice: the registration tells.
	if now, _, _, checkErr := l.registrationOf(ctx, key); checkErr == nil && now != nil && now.Incarnation == v.Incarnation && !now.Unconfirmed {
		return nil
	}
	if err != nil {
		return err
	}
	return allocator.Errorf(allocator.Conflict, "instance %s/%s registered again, or the epoch changed, just now", room, name)
}

// registrationOf returns a registration, nil where there is none, and the epoch
// of the same snapshot.
func (l *Ledger) registrationOf(ctx context.Context, key string) (v *registrationValue, kv, epoch KV, err error) {
	answer, err := l.gets(ctx, get(key), get(l.keys.epoch()))
	if err != nil {
		return nil, kv, epoch, err
	}
	epoch, _ = answer.one(1)
	kv, ok := answer.one(0)
	if !ok {
		return nil, kv, epoch, nil
	}
	v = &registrationValue{}
	return v, kv, epoch, decode(kv, v)
}
