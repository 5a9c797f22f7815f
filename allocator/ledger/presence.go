package ledger

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
)

// Registration is what an instance says of itself.
type Registration struct {
	Room    allocator.Room
	Name    allocator.Instance // stable over restarts: a host or pod name
	Address string             // where it serves gRPC, host:port
	Build   string             // the program's version
	// Journal is the directory of the instance's journal; empty for none: what
	// it remembers ends with the process then.
	Journal string
	// RequireJournal has this instance lease nothing without its journal until its
	// marks are confirmed, as ClusterSettings does for all; and an etcd that was
	// restored cannot have forgotten this one.
	RequireJournal bool
	// Ask asks another instance to vouch for this one's marks: for what its Vouch
	// returns. Nil asks nobody.
	Ask func(context.Context, SeenInstance) (Memory, error)
	// Hold is for how long the instance may go on issuing IDs of a layout since it
	// was last confirmed, where it is told to be strict about that, and for how
	// long clients may use what it leased to them.
	Hold time.Duration
}

// Instance is this process's registration in a room: what it leases with.
//
// A registration has no etcd lease: it goes at a clean Leave or by an
// operator's forget; silence is not absence. Its heartbeat does, and is a
// compare-and-swap on itself, so that of two processes with one name the one
// that loses finds out.
type Instance struct {
	ledger      *Ledger
	room        allocator.Room
	name        allocator.Instance
	incarnation string
	changed     func(TagChange) // see OnTag; nil for nobody
	behind      func(allocator.Tag, int64)
	memory      recollection // guarded by the ledger's lock
	ask         func(context.Context, SeenInstance) (Memory, error)
	tries       int              // how often others were asked; sought's
	journal     *journal.Journal // nil for none

	mu struct {
		sync.Mutex
		value  registrationValue
		kv     KV    // the registration as we last wrote it
		lost   error // why it is not ours any longer
		order  int64 // the epoch that we registered under, as timeline counts them
		looked bool  // it was looked into why the registration is not ours
	}
}

const (
	heartbeatEvery = 5 * time.Second
	// heartbeatTTL is how long a heartbeat outlives its sender: three that were
	// missed.
	heartbeatTTL = 15 * time.Second
)

// Join registers this process, in place of an earlier one of the same name,
// which leases nothing from then on. Its errors are Refused (no cluster, or a
// journal that cannot be used) and Unavailable.
func (l *Ledger) Join(ctx context.Context, r Registration) (*Instance, error) {
	if err := l.attach(ctx); err != nil {
		return nil, err
	}
	l.HaltAs("instance " + string(r.Room) + "/" + string(r.Name))
	l.mu.Lock()
	l.mu.demands = r.RequireJournal
	l.mu.Unlock()
	i := &Instance{ledger: l, room: r.Room, name: r.Name, incarnation: randomHex(), ask: r.Ask}
	if err := i.begin(ctx, r.Journal); err != nil {
		return nil, err
	}
	joined := false
	defer func() {
		if !joined {
			_ = i.Close()
		}
	}()
	record, err := l.look(ctx, true, l.read)
	if err != nil {
		return nil, err
	}
	i.mu.order = l.before().order
	i.mu.value = registrationValue{
		Incarnation: i.incarnation, Address: r.Address, Build: r.Build, Version: record.Layout.Version, Started: now(), Hold: r.Hold.String(),
	}
	key := l.keys.registration(r.Room, r.Name)
	for range joinAttempts {
		// Over what is there now, and nothing later: a first try of which the
		// answer was lost must not come after a second one and take its place.
		there, err := l.gets(ctx, get(key))
		if err != nil {
			return nil, err
		}
		if err := i.succeeds(there.Got[0]); err != nil {
			return nil, err
		}
		_, i.mu.value.Unconfirmed = l.isBlank()
		if i.mu.kv, err = i.succeed(there.Got[0]); err != nil {
			return nil, err
		}
		i.mu.lost, i.mu.order = nil, l.before().order
		if err = i.write(ctx); err == nil {
			joined = true
			l.mu.Lock()
			l.mu.told = i.watched
			l.mu.Unlock()
			i.soughtAtOnce(ctx)
			return i, nil
		}
		if kind := allocator.KindOf(err); kind != allocator.Refused && kind != allocator.Conflict {
			return nil, err
		}
	}
	return nil, allocator.Errorf(allocator.Unavailable, "other processes register as instance %s of room %s all the while", r.Name, r.Room)
}

// joinAttempts bounds how often Join and Leave start over because the
// registration was written just then.
const joinAttempts = 5

// write puts the registration as it now is, over what we know of it. Its error is
// Conflict where another goroutine did so just then: it is to be tried again. The
// lock is not held while etcd answers: leases read what
// we know.
func (i *Instance) write(ctx context.Context) error {
	i.mu.Lock()
	known, value, lost := i.mu.kv, encode(&i.mu.value), i.mu.lost
	i.mu.Unlock()
	if lost != nil {
		return lost
	}
	answer, err := i.ledger.try(ctx, Txn{If: []Cond{unchanged(known)}, Then: []Op{put(known.Key, value)}, Else: []Op{get(known.Key)}})
	if err != nil {
		// Unknown. What we know stays; if it was written, the next transaction
		// that compares it is refused, shows it, and check adopts it.
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if answer.Succeeded {
		if answer.Revision > i.mu.kv.ModRevision { // else a lease has seen it already
			i.mu.kv = KV{Key: known.Key, Value: value, ModRevision: answer.Revision}
		}
		return nil
	}
	i.mu.Unlock()
	err = i.check(ctx, answer.Got[0])
	i.mu.Lock()
	if err != nil {
		return err
	}
	if string(i.mu.kv.Value) == string(value) {
		return nil // written by an earlier try, or by this one, sent twice
	}
	return allocator.Errorf(allocator.Conflict, "the registration of instance %s of room %s was out of date", i.name, i.room)
}

// Version returns the layout version that the registration says is served.
func (i *Instance) Version() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.value.Version
}

// OnTag has told called with the settings of a tag when a lease finds that they
// are not those of the lease before: what a watch may have missed. It must be
// set before the first Source.
func (i *Instance) OnTag(told func(TagChange)) { i.changed = told }

// registered returns the registration as we know it.
func (i *Instance) registered() KV {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.kv
}

// adopt takes over what was found of our registration; the caller holds the
// lock. See check.
func (i *Instance) adopt(found []KV) error {
	if i.mu.lost != nil {
		return i.mu.lost
	}
	if len(found) == 0 {
		if err := i.displaced(); err != nil {
			return err
		}
		i.mu.lost = allocator.Errorf(allocator.Refused, "instance %s of room %s is not registered any longer (an operator's forget?): restart it to register again", i.name, i.room)
		return i.mu.lost
	}
	var v registrationValue
	if err := decode(found[0], &v); err != nil {
		return err
	}
	if v.Incarnation != i.incarnation {
		if err := i.displaced(); err != nil {
			return err
		}
		i.mu.lost = allocator.Errorf(allocator.Refused, "another process registered as instance %s of room %s at %s, from %s: give every process a name of its own (--name)",
			i.name, i.room, v.Started.Format(time.RFC3339), v.Address)
		return i.mu.lost
	}
	switch {
	case found[0].ModRevision > i.mu.kv.ModRevision:
		var was registrationValue
		if decode(i.mu.kv, &was) == nil && was.Unconfirmed && !v.Unconfirmed { // only an operator takes that away, or we
			i.mu.value.Unconfirmed = false
			i.ledger.mu.Lock()
			i.ledger.unblank("an operator")
			i.ledger.mu.Unlock()
		}
		i.mu.kv = found[0]
	case found[0].ModRevision < i.mu.kv.ModRevision && i.ledger.before().order != i.mu.order:
		return errDisplaced // as a restored etcd remembers it; else an answer was overtaken
	}
	return nil
}

// Serve reports that this instance issues no ID of a layout before version.
// It may be called again after an error.
func (i *Instance) Serve(ctx context.Context, version int64) error {
	i.mu.Lock()
	i.mu.value.Version = version
	i.mu.value.under(i.ledger.epoch())
	i.mu.Unlock()
	return i.write(ctx)
}

// Run sends heartbeats until ctx ends, and returns nil then. It returns a
// Refused error as soon as the registration is lost to another process or by
// an operator's forget: the process must stop issuing.
func (i *Instance) Run(ctx context.Context) error {
	var beat heartbeat
	following, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { i.follow(following) })
	follower.Go(func() { i.seek(following) })
	defer follower.Wait()
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	order := i.ledger.before().order
	for {
		_, adopted := i.ledger.current()
		if now := i.ledger.before().order; now != order {
			order = now // a restored etcd may have forgotten us: register again before `march recover` asks
			timer.Reset(0)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-adopted:
			continue
		case <-timer.C:
			order = i.ledger.before().order
		}
		_ = i.ledger.Check(ctx) // so that a lease seldom has to wait for a look, and an idle room looks, too
		if err := beat.send(ctx, i); err != nil && allocator.KindOf(err) == allocator.Refused {
			return err
		}
		timer.Reset(heartbeatEvery)
	}
}

// heartbeat is the state of an instance's heartbeat: the etcd lease that it
// lives under, the key as we know it, and what we wrote since without learning
// whether it was done. Each write compares kv, so none of these can be done
// once another was.
type heartbeat struct {
	lease int64
	kv    KV
	doubt [][]byte
}

// send writes one heartbeat. Where a lease has found the registration lost it
// stays so, be it that an etcd which was restored since has it again.
func (b *heartbeat) send(ctx context.Context, i *Instance) error {
	i.mu.Lock()
	lost := i.mu.lost
	i.mu.Unlock()
	if lost != nil {
		return lost
	}
	l := i.ledger
	ctx, cancel := context.WithTimeout(ctx, l.cfg.TryTimeout)
	defer cancel()
	var err error
	if b.lease != 0 {
		if err = l.store.KeepAlive(ctx, b.lease); allocator.KindOf(err) == allocator.NotFound && err != nil {
			b.lease = 0
		} else if err != nil {
			return err
		}
	}
	if b.lease == 0 {
		if b.lease, err = l.store.Grant(ctx, heartbeatTTL); err != nil {
			return err
		}
	}
	b.kv.Key = l.keys.alive(i.room, i.name)
	for range 2 { // a second time over what the first one found
		registration, order := i.registered(), l.before().order
		value := encode(&aliveValue{Incarnation: i.incarnation, Time: now(), Nonce: randomHex()})
		answer, err := l.try(ctx, Txn{
			If:   []Cond{unchanged(registration), unchanged(b.kv)},
			Then: []Op{{Put: &Put{Key: b.kv.Key, Value: value, Lease: b.lease}}},
			Else: []Op{get(registration.Key), get(b.kv.Key)},
		})
		if err != nil {
			b.doubt = append(b.doubt, value)
			return err
		}
		if answer.Succeeded {
			i.registeredUnder(order)
			b.kv, b.doubt = KV{Key: b.kv.Key, Value: value, ModRevision: answer.Revision}, nil
			return nil
		}
		if err := i.check(ctx, answer.Got[0]); err != nil {
			return err
		}
		if err := b.adopt(i, append(b.doubt, value, b.kv.Value), answer.Got[1]); err != nil {
			return err
		}
	}
	return nil
}

// adopt looks at what was found where our heartbeat should be: nothing (it
// expired), that of the process that we replaced, one of ours of which the
// answer was lost, or, with our incarnation but not from us, that of a copy of
// this process: then its error is Refused. An older one of ours is no copy's:
// etcd went back in time.
func (b *heartbeat) adopt(i *Instance, ours [][]byte, found []KV) error {
	known := b.kv
	if b.kv = (KV{Key: known.Key}); len(found) == 0 {
		return nil
	}
	b.kv = found[0]
	var v aliveValue
	if err := decode(found[0], &v); err != nil || v.Incarnation != i.incarnation || found[0].ModRevision <= known.ModRevision {
		return nil // not ours: it is overwritten
	}
	if slices.ContainsFunc(ours, func(value []byte) bool { return string(value) == string(found[0].Value) }) {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.lost = allocator.Errorf(allocator.Refused, "instance %s of room %s runs twice: a copy of this process, of a cloned machine perhaps, sent a heartbeat at %s: restart it under a name of its own (--name)",
		i.name, i.room, v.Time.Format(time.RFC3339))
	return i.mu.lost
}

// Leave takes the registration and the heartbeat away: a clean stop. Nothing
// may be leased after it. Where etcd went back in time, or is halted, the
// registration stays, and the error says so: `march recover` has to know of us.
func (i *Instance) Leave(ctx context.Context) error {
	l := i.ledger
	for range joinAttempts {
		state, err := l.lessableState(ctx)
		if err != nil && allocator.KindOf(err) != allocator.Refused { // an invalid layout is no reason to stay
			return err
		}
		if state == nil {
			state, _ = l.current()
		}
		registration := i.registered()
		answer, err := l.try(ctx, Txn{
			If:   []Cond{unchanged(registration), hasValue(l.keys.epoch(), state.raw)},
			Then: []Op{{Delete: registration.Key}, {Delete: l.keys.alive(i.room, i.name)}, {Delete: l.keys.silent(i.room, i.name)}},
			Else: []Op{get(registration.Key)},
		})
		if err != nil || answer.Succeeded || len(answer.Got[0]) == 0 { // gone: by an earlier try perhaps
			return err
		}
		if err := i.check(ctx, answer.Got[0]); err != nil {
			return err
		}
		if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) != allocator.Refused {
			return err
		}
	}
	return allocator.Errorf(allocator.Conflict, "the registration of instance %s of room %s, or the epoch, was changed %d times while it was to be taken away", i.name, i.room, joinAttempts)
}
