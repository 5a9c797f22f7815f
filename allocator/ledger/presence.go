package ledger

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Registration is the description that an instance registers.
type Registration struct {
	Room    allocator.Room
	Name    allocator.Instance // stable over restarts: a host or pod name
	Address string             // where it serves gRPC, host:port
	// AdminAddress is where it answers operators' calls; empty if at Address.
	AdminAddress string
	Build        string // the program's version
	// Journal is the directory of the instance's journal. Empty for none: the
	// memory of the instance then ends with the process.
	Journal string
	// RequireJournal makes this instance lease nothing without its journal until
	// its marks are confirmed, as ClusterSettings does for all. Unlike that
	// setting, a restored etcd cannot have forgotten it.
	RequireJournal bool
	// Hold is how long clients may use the segments that they lease from the
	// instance. It is also how long a strict instance may go on issuing IDs of a
	// layout after that was last confirmed.
	Hold time.Duration
	// Pin is the number of the instance's workers of time-ordered IDs, as operators chose
	// it (worker.Pin); nil for none.
	Pin *int64
	// Keeps names the instance's doors whose clients keep IDs.
	Keeps []string
}

// ID returns the instance's name in the cluster.
func (r Registration) ID() record.InstanceID { return record.NewInstanceID(r.Room, r.Name) }

// Instance is this process's registration in a room. The process leases through it.
//
// A registration goes at a clean Leave, by an operator's forget, or after a day of
// silence; a shorter silence does not mean that the instance is gone. heartbeat.go
// handles a registration or a heartbeat that was changed.
//
// An Instance owns this process's registration and its memory: mu guards both. The
// Ledger owns the process's knowledge of etcd, under a lock of its own. The order of
// locks is the instance's, the ledger's, the admission's, the journal's. A method
// that takes a lock holds it to its end; no lock is held while etcd or the disk answers,
// nor while a function that a caller gave is called: a Logger may block, too (see package pending).
type Instance struct {
	ledger      *Ledger
	room        allocator.Room
	name        allocator.Instance
	incarnation string
	changed     func(TagChange)                        // see OnTag; nil for none
	drop        func(string)                           // see OnDrop; nil for none
	alarm       func(Orphan)                           // see OnOrphan; nil for none
	lostWorkers func()                                 // see OnLostWorkers; nil for none
	opens       func(context.Context, time.Time) error // see OnPeriod; nil for none
	memory      instanceMemory                         // guarded by mu
	journal     *journal.Journal                       // nil for none
	resolving   chan struct{}                          // holds one while resolveRegistration runs
	admission   admission
	rights      atomic.Pointer[rights] // in etcd, which it lacks; nil before it asked

	mu struct {
		sync.Mutex
		value    record.Registration // as it should be
		kv       store.KV            // as it was last seen, and ours
		beat     heartbeat
		lost     error     // why the registration is no longer ours
		epochSeq int64     // epochClock.epochSeq when it was last seen to be ours
		serves   int64     // the layout version that this process serves
		alone    time.Time // until then the replaced process may serve its own version; zero once ours is written

		audited time.Time // when a worker that this process took over was last audited
	}
}

// Join registers this process, in place of an earlier one of the same name,
// which leases nothing from then on. Its errors are Refused (no cluster, or a
// journal that cannot be used) and Unavailable.
func (l *Ledger) Join(ctx context.Context, r Registration) (*Instance, error) {
	if err := l.Attach(ctx); err != nil {
		return nil, err
	}
	l.HaltAs("instance " + string(r.Room) + "/" + string(r.Name))
	i := &Instance{
		ledger: l, room: r.Room, name: r.Name, incarnation: record.RandomHex(), resolving: make(chan struct{}, 1),
		admission: admission{demands: r.RequireJournal},
	}
	if err := i.begin(ctx, r.Journal); err != nil {
		return nil, err
	}
	l.joins(i)
	joined := false
	defer func() {
		if !joined {
			_ = i.Close()
		}
	}()
	found := i.found()
	probed, stored, err := l.look(ctx, true, l.Read, found[:len(found)-1]...) // the epoch it reads anyway
	if err != nil {
		return nil, err
	}
	if err := i.confirmInEmpty(ctx); err != nil {
		return nil, err
	}
	started := l.now()
	i.mu.serves = stored.Layout.Version
	i.mu.value = record.Registration{
		Incarnation: i.incarnation, Address: r.Address, AdminAddress: r.AdminAddress, Build: r.Build,
		Formats: record.Formats,
		Hold:    record.DurationOf(r.Hold), Pin: r.Pin, Keeps: r.Keeps,
	}
	there, beat := store.Answer{Got: append(probed.more, probed.answer.Got[0])}, l.nextBeat(probed)
	for k := range joinAttempts {
		epochSeq := l.before().epochSeq
		// Write over the present value, and over no later one: a first try whose
		// answer was lost must not arrive after a second one and replace it.
		if k > 0 {
			if there, err = l.Gets(ctx, found...); err != nil {
				return nil, err
			}
			beat = store.Txn{}
		}
		if err := i.loadPredecessor(ctx, there.Got[0]); err != nil {
			return nil, err
		}
		i.mu.value.Started, i.mu.value.Version, i.mu.alone = started, i.mu.serves, time.Time{}
		if err := i.replaces(there.Got[0]); err != nil {
			return nil, err
		}
		i.mu.value.Unconfirmed = l.Unconfirmed()
		switch done, err := i.register(ctx, there, epochSeq, beat); {
		case len(beat.Then) > 0 && allocator.KindOf(err) == allocator.Denied: // it may not write a beat
		case err != nil:
			return nil, err
		case done:
			joined = true
			return i, nil
		}
	}
	return nil, allocator.Errorf(allocator.Unavailable,
		"other processes registered as instance %s of room %s at each try: give every process its own name (--name)",
		r.Name, r.Room)
}

// joins makes i the instance of this process.
func (l *Ledger) joins(i *Instance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.instance = i
}

// joinAttempts bounds how often Join, Leave and resolveRegistration start over because the
// registration was written just then.
const joinAttempts = 5

// replaces prepares to replace the registered process. This process counts as the
// newer one, whatever the clocks say. It does not report a layout for the other
// process, which may be cut off and still issue IDs: the registration keeps the
// other's version until the other's hold has passed. If this process has the
// other's journal, the other has ended.
func (i *Instance) replaces(found []store.KV) error {
	if len(found) == 0 {
		return nil
	}
	var was record.Registration
	if err := record.Decode(found[0], &was); err != nil {
		return err
	}
	if after := was.Started.Add(time.Millisecond); after.After(i.mu.value.Started) {
		i.mu.value.Started = after
	}
	if i.journal != nil && slices.Contains(i.memory.incarnations, was.Incarnation) || was.Version >= i.mu.serves {
		return nil
	}
	i.mu.value.Version, i.mu.alone = was.Version, time.Now().Add(was.Hold.Duration())
	return nil
}

// write replaces the known registration by its new value. Its error is Conflict if
// another goroutine has just done so: the caller tries again. The lock is not held
// while etcd answers, because leases read the registration.
func (i *Instance) write(ctx context.Context) error {
	known, value, err := i.toWrite()
	if err != nil {
		return err
	}
	answer, err := i.ledger.Try(ctx, store.Txn{If: []store.Cond{store.Unchanged(known)},
		Then: []store.Op{store.OpPut(known.Key, value)}, Else: []store.Op{store.OpGet(known.Key)}})
	if err != nil {
		// The outcome is unknown. Keep the known registration. If the new one was
		// written, the next transaction that compares it is refused and shows it, and
		// checkRegistration accepts it.
		return err
	}
	if answer.Succeeded {
		i.wrote(store.KV{Key: known.Key, Value: value, ModRevision: answer.Revision})
		return nil
	}
	if err := i.checkRegistration(ctx, answer.Got[0]); err != nil {
		return err
	}
	if string(i.registered().Value) == string(value) {
		return nil // written by an earlier try, or by this one, sent twice
	}
	return allocator.Errorf(allocator.Conflict,
		"the registration of instance %s of room %s was out of date", i.name, i.room)
}

// toWrite returns the known registration, and its new value. Its error means that the
// registration is no longer ours.
func (i *Instance) toWrite() (known store.KV, value []byte, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.value.Unconfirmed = i.ledger.Unconfirmed() // only an operator removes that while it holds
	return i.mu.kv, record.Encode(&i.mu.value), i.mu.lost
}

// wrote notes a registration that we wrote, if a lease has not seen a later one.
func (i *Instance) wrote(registration store.KV) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if registration.ModRevision > i.mu.kv.ModRevision {
		i.mu.kv = registration
	}
}

// Version returns the layout version that this process serves.
func (i *Instance) Version() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.serves
}

// OnTag sets a function that is called with a tag's settings when a lease finds that
// they have changed since the lease before: a watch may miss a change. OnTag must be
// called before the first Source.
func (i *Instance) OnTag(told func(TagChange)) { i.changed = told }

// Serve reports that this instance serves the layout of a version: of segments from
// before that layout it issues only those that the layout keeps (Part.Keeps). It may
// be called again after an error.
func (i *Instance) Serve(ctx context.Context, version int64) error {
	if err := i.setServed(version); err != nil {
		return err
	}
	return i.serve(ctx)
}

// setServed notes the layout version that this process serves. Its error means that
// the registration is no longer ours.
func (i *Instance) setServed(version int64) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.serves = version
	return i.mu.lost
}

// serve writes the served version into the registration, unless the replaced
// process may still serve another. In that case Run does it later.
func (i *Instance) serve(ctx context.Context) error {
	if !i.mayServe() {
		return nil
	}
	if err := i.write(ctx); err != nil {
		return err
	}
	i.served() // only after the write: if that fails, Run tries again
	return nil
}

// mayServe puts the served version into the registration's value. False means that
// the replaced process may still serve another.
func (i *Instance) mayServe() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Now().Before(i.mu.alone) && i.mu.value.Version < i.mu.serves {
		return false
	}
	i.mu.value.Version = i.mu.serves
	i.mu.value.Under(i.ledger.epoch())
	return true
}

// served notes that the registration has the version that this process serves.
func (i *Instance) served() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.alone = time.Time{}
}

// Run sends heartbeats until ctx ends, and returns nil then. It returns a
// Refused error as soon as another process has registered under the name, or a
// copy of this one runs: the process must stop issuing.
func (i *Instance) Run(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { i.watchRegistrations(watching) })
	watchers.Go(func() { i.compareOwn(watching) })
	defer watchers.Wait()
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Time // of the next heartbeat
	epochSeq := i.ledger.before().epochSeq
	for {
		_, adopted := i.ledger.State()
		if now := i.ledger.before().epochSeq; now != epochSeq {
			epochSeq = now // a restored etcd may have forgotten us: register again before `march recover` asks
			due = time.Time{}
			timer.Reset(0)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-adopted:
			continue
		case <-timer.C:
			epochSeq = i.ledger.before().epochSeq
		}
		// Ahead of need, so that leases hardly ever wait for a probe. An idle room probes, too.
		i.noteProbe(i.ledger.Check(ctx))
		if left := time.Until(due); left > 0 {
			timer.Reset(min(left, i.ledger.nextCheck()))
			continue
		}
		err := i.send(ctx)
		if err != nil && allocator.KindOf(err) == allocator.Refused {
			return err
		}
		if ctx.Err() == nil {
			i.noteBeat(err)
		}
		pause, left, pending := i.pause()
		if pending && left <= 0 {
			_ = i.serve(ctx) // otherwise with the next heartbeat
		} else if pending {
			pause = min(pause, left)
		}
		due = time.Now().Add(pause)
		if pause == heartbeatEvery { // many instances would read too much
			pause = min(pause, i.ledger.nextCheck())
		}
		timer.Reset(pause)
	}
}

// pause returns the pause before the next heartbeat. pending is true if the served
// version must still be written, left from now.
func (i *Instance) pause() (pause, left time.Duration, pending bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return HeartbeatInterval(i.mu.beat.instances), time.Until(i.mu.alone), !i.mu.alone.IsZero()
}

// loadPredecessor makes this process unconfirmed if its journal does not cover its
// predecessor, the process that it replaces. That is written down before the
// predecessor's registration goes.
func (i *Instance) loadPredecessor(ctx context.Context, found []store.KV) error {
	var was record.Registration
	if len(found) == 0 || i.memory.unconfirmed {
		return nil
	}
	if err := record.Decode(found[0], &was); err != nil {
		return err
	}
	if slices.Contains(i.memory.incarnations, was.Incarnation) {
		return nil
	}
	i.startUnconfirmed()
	return i.noteUnconfirmed(ctx)
}

// confirmInEmpty confirms this process if nothing was ever leased in the store.
func (i *Instance) confirmInEmpty(ctx context.Context) error {
	l := i.ledger
	if !l.Unconfirmed() {
		return nil
	}
	s, _ := l.State()
	if s.Refusal() != nil {
		return nil // a later start, or an operator, confirms it
	}
	marks := store.OpGetPrefix(l.keys.Marks(""))
	marks.Get.Limit = 1
	answer, err := l.Try(ctx, store.Txn{If: l.Holds(s), Then: []store.Op{marks}})
	if err != nil {
		return err
	}
	if answer.Succeeded && len(answer.Got[0]) == 0 {
		var said pending.Lines
		i.confirmMarks(&said, "a store in which nothing was ever leased")
		said.Write(l.log)
	}
	return nil
}
