package ledger

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/crash"
)

func (r LayoutRecord) encode(nonce string) []byte {
	v := &layoutValue{
		Version: r.Layout.Version, Boundary: r.Layout.Boundary, Rooms: make(map[string]rangeValue, len(r.Layout.Ranges)),
		Time: r.Time, Actor: r.Actor, Nonce: nonce, Lost: r.Lost,
	}
	for room, rng := range r.Layout.Ranges {
		v.Rooms[string(room)] = rangeValue(rng)
	}
	for _, room := range r.Ever {
		v.Ever = append(v.Ever, string(room))
	}
	return encode(v)
}

func decodeLayout(kv KV) (LayoutRecord, error) {
	r, _, err := decodeLayoutNonce(kv)
	return r, err
}

// decodeLayoutNonce checks all that a layout must be by itself.
func decodeLayoutNonce(kv KV) (LayoutRecord, string, error) {
	var v layoutValue
	if err := decode(kv, &v); err != nil {
		return LayoutRecord{}, "", err
	}
	r := LayoutRecord{
		Layout: allocator.Layout{Version: v.Version, Boundary: v.Boundary, Ranges: make(map[allocator.Room]allocator.Range, len(v.Rooms))},
		Time:   v.Time, Actor: v.Actor, Lost: v.Lost,
	}
	for room, rng := range v.Rooms {
		r.Layout.Ranges[allocator.Room(room)] = allocator.Range(rng)
	}
	for _, room := range v.Ever {
		r.Ever = append(r.Ever, allocator.Room(room))
	}
	if err := r.Layout.Validate(); err != nil {
		return LayoutRecord{}, "", allocator.Errorf(allocator.Internal, "key %s: %w", kv.Key, err)
	}
	for i, room := range r.Ever { // they become parts of keys
		if _, err := allocator.ParseRoom(string(room)); err != nil || i > 0 && r.Ever[i-1] >= room {
			return LayoutRecord{}, "", allocator.Errorf(allocator.Internal, "key %s: rooms that ever were: %q; allowed: names in order", kv.Key, r.Ever)
		}
	}
	if v.Lost != 0 && (v.Lost < 2 || v.Lost >= v.Version) {
		return LayoutRecord{}, "", allocator.Errorf(allocator.Internal, "key %s: version %d, with versions lost from %d on", kv.Key, v.Version, v.Lost)
	}
	if v.Version < 1 || len(r.Ever) > allocator.MaxRooms || !containsAll(r.Ever, r.Layout.Rooms()) {
		return LayoutRecord{}, "", allocator.Errorf(allocator.Internal, "key %s: version %d with rooms %v and rooms that ever were %v", kv.Key, v.Version, r.Layout.Rooms(), r.Ever)
	}
	return r, v.Nonce, nil
}

// Init makes the cluster: identity, epoch and the layout as version 1, in one
// transaction, and only under an empty prefix. Its errors are Invalid (the
// layout), Exists, and Unavailable, after which Init may be called again.
func (l *Ledger) Init(ctx context.Context, layout allocator.Layout, actor string) (LayoutRecord, error) {
	if err := layout.Validate(); err != nil {
		return LayoutRecord{}, err
	}
	layout.Version = 1
	probe, err := l.gets(ctx, Op{Get: &Get{Interval: Interval{Key: string(l.keys), End: prefixEnd(string(l.keys))}, Limit: 1, KeysOnly: true}})
	if err != nil {
		return LayoutRecord{}, err
	}
	if len(probe.Got[0]) > 0 {
		return LayoutRecord{}, allocator.Errorf(allocator.Exists, "there is something under %s already (%s): a cluster is initialised once", l.keys, probe.Got[0][0].Key)
	}
	record := LayoutRecord{Layout: layout, Ever: slices.Sorted(maps.Keys(layout.Ranges)), Time: now(), Actor: actor}
	id := identityValue{UUID: newUUID(), ClusterID: probe.ClusterID}
	if l.cfg.UUID != "" {
		id.UUID = l.cfg.UUID
	}
	value := record.encode(randomHex())
	answer, err := l.try(ctx, Txn{
		If: []Cond{absent(l.keys.identity()), absent(l.keys.epoch()), absent(l.keys.layout())},
		Then: []Op{
			put(l.keys.identity(), encode(&id)),
			put(l.keys.epoch(), encode(&epochValue{Epoch: randomHex()})),
			put(l.keys.layout(), value),
			put(l.keys.layoutAt(1), value),
			l.audit(actor, "init", l.keys.layout(), nil, value),
		},
		Else: []Op{get(l.keys.layout())},
	})
	if err != nil { // unknown: is what is there now ours?
		check, checkErr := l.gets(ctx, get(l.keys.layout()))
		if kv, ok := check.firstIfAny(); checkErr != nil || !ok || string(kv.Value) != string(value) {
			return LayoutRecord{}, err
		}
	} else if kv, _ := answer.firstIfAny(); !answer.Succeeded && string(kv.Value) != string(value) {
		return LayoutRecord{}, allocator.Errorf(allocator.Exists, "somebody else initialised %s just now", l.keys)
	}
	return l.Refresh(ctx)
}

// ChangeLayout makes to the current layout, where from, which Refresh or
// Layout returned, still is the current one. The version is set to the next.
// Any valid layout may follow any other. Its errors are Invalid, Conflict (the
// layout is no longer from), WentBack (leasing is halted: nothing changes a
// layout then) and Unavailable where the outcome could not be learned.
func (l *Ledger) ChangeLayout(ctx context.Context, from LayoutRecord, to allocator.Layout, actor string) (LayoutRecord, error) {
	return l.changeLayout(ctx, from, to, actor, Txn{})
}

// changeLayout is ChangeLayout, under more conditions and with more operations
// in the same transaction.
func (l *Ledger) changeLayout(ctx context.Context, from LayoutRecord, to allocator.Layout, actor string, with Txn) (LayoutRecord, error) {
	if err := to.Validate(); err != nil {
		return LayoutRecord{}, err
	}
	s, err := l.checkNow(ctx)
	if err != nil {
		return LayoutRecord{}, err
	}
	to.Version = from.Layout.Version + 1
	ever := slices.Concat(from.Ever, to.Rooms())
	slices.Sort(ever)
	record := LayoutRecord{Layout: to, Ever: slices.Compact(ever), Time: now(), Actor: actor}
	if len(record.Ever) > allocator.MaxRooms {
		return LayoutRecord{}, allocator.Errorf(allocator.Invalid, "rooms: the cluster would have had %d rooms in its life; allowed: %d", len(record.Ever), allocator.MaxRooms)
	}
	nonce := randomHex()
	value := record.encode(nonce)
	answer, err := l.try(ctx, Txn{
		If: append(with.If,
			Cond{Key: l.keys.layout(), ModRevision: from.revision},
			hasValue(l.keys.epoch(), s.raw),
			absent(l.keys.layoutAt(to.Version)),
		),
		Then: append(with.Then,
			put(l.keys.layout(), value),
			put(l.keys.layoutAt(to.Version), value),
			l.audit(actor, "change layout", l.keys.layout(), from.encode(""), value),
		),
	})
	crash.Here(crash.AfterChange)
	if err == nil && answer.Succeeded {
		return l.Refresh(ctx)
	}
	// A crash or a lost answer here leaves the outcome to the nonce; and an
	// answer that it did not happen may be to its being sent twice.
	made, checkErr := l.layoutHasNonce(ctx, to.Version, nonce)
	switch {
	case checkErr != nil && err != nil:
		return LayoutRecord{}, allocator.Errorf(allocator.Unavailable, "change to layout version %d: the outcome is unknown, look at the layout before trying again: %w", to.Version, err)
	case err != nil && !made:
		return LayoutRecord{}, err
	}
	current, refreshErr := l.Refresh(ctx)
	if refreshErr != nil || made {
		return current, refreshErr
	}
	if s, _ := l.current(); s.lessable() != nil {
		return LayoutRecord{}, s.lessable()
	}
	return LayoutRecord{}, allocator.Errorf(allocator.Conflict, "the layout is version %d by now (or the migration moved on), the change was made for version %d", current.Layout.Version, from.Layout.Version)
}

// layoutHasNonce reports whether version was written with nonce. It must be
// asked after the try's time is over: a transaction that was sent may still
// arrive before.
func (l *Ledger) layoutHasNonce(ctx context.Context, version int64, nonce string) (bool, error) {
	answer, err := l.gets(ctx, get(l.keys.layoutAt(version)))
	if err != nil {
		return false, err
	}
	kv, ok := answer.one(0)
	if !ok {
		return false, nil
	}
	_, found, err := decodeLayoutNonce(kv)
	return found == nonce, err
}

// LayoutAt returns the layout with a version. Its error is NotFound where
// there never was one.
func (l *Ledger) LayoutAt(ctx context.Context, version int64) (LayoutRecord, error) {
	if err := l.attach(ctx); err != nil {
		return LayoutRecord{}, err
	}
	answer, err := l.gets(ctx, get(l.keys.layoutAt(version)))
	if err != nil {
		return LayoutRecord{}, err
	}
	kv, ok := answer.one(0)
	if !ok {
		return LayoutRecord{}, allocator.Errorf(allocator.NotFound, "layout version %d does not exist; `march layout history` lists those that do", version)
	}
	return decodeLayout(kv)
}

// LayoutAfter returns the layout that replaced the one with a version: not always
// the next version, for those that were lost when etcd went back in time never
// were. Its error is NotFound where none did.
func (l *Ledger) LayoutAfter(ctx context.Context, version int64) (LayoutRecord, error) {
	if err := l.attach(ctx); err != nil {
		return LayoutRecord{}, err
	}
	within := Interval{Key: l.keys.layoutAt(version) + "\x00", End: prefixEnd(l.keys.layouts())}
	answer, err := l.gets(ctx, Op{Get: &Get{Interval: within, Limit: 1}})
	if err != nil {
		return LayoutRecord{}, err
	}
	kv, ok := answer.firstIfAny()
	if !ok {
		return LayoutRecord{}, allocator.Errorf(allocator.NotFound, "no layout follows version %d; `march layout history` lists all", version)
	}
	return decodeLayout(kv)
}

// Layouts returns up to n layouts with versions below before, 0 for no bound,
// the newest first.
func (l *Ledger) Layouts(ctx context.Context, before int64, n int) ([]LayoutRecord, error) {
	if err := l.attach(ctx); err != nil {
		return nil, err
	}
	within := Interval{Key: l.keys.layouts(), End: prefixEnd(l.keys.layouts())}
	if before > 0 {
		within.End = l.keys.layoutAt(before)
	}
	answer, err := l.gets(ctx, Op{Get: &Get{Interval: within, Limit: int64(n), Descending: true}})
	if err != nil {
		return nil, err
	}
	records := make([]LayoutRecord, 0, len(answer.Got[0]))
	for _, kv := range answer.Got[0] {
		r, err := decodeLayout(kv)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// now is the time that records carry, for people to read, and by which versions of
// recovers go on (newVersion): never for safety.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// firstIfAny returns the first key of the first Get, where the answer has one.
func (a Answer) firstIfAny() (KV, bool) {
	if len(a.Got) == 0 {
		return KV{}, false
	}
	return a.one(0)
}
