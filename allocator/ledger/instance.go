package ledger

import (
	"cmp"
	"context"
	"errors"
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

// process is this process of an instance, and its view of etcd.
type process struct {
	ledger      *Ledger
	room        allocator.Room
	name        allocator.Instance
	incarnation string
}

// Layout returns the layout as this process knows it, and a channel that is closed when
// it knows another one.
func (p process) Layout() (record.Layout, <-chan struct{}) { return p.ledger.Layout() }

// Room returns the room that the instance serves.
func (p process) Room() allocator.Room { return p.room }

// Name returns the instance's name, which is stable over restarts.
func (p process) Name() allocator.Instance { return p.name }

// Incarnation returns the name of this process, which no other process has.
func (p process) Incarnation() string { return p.incarnation }

// Now returns the time by the ledger's clock, in whole ms.
func (p process) Now() time.Time { return p.ledger.now() }

// EtcdTime returns the time by the clock of the member of etcd that answers, give or take unsure. Nothing that makes
// IDs unique rests on it.
func (p process) EtcdTime(ctx context.Context) (at time.Time, unsure time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.ledger.tryFor())
	defer cancel()
	clock, err := store.ReadClock(ctx, p.ledger.store)
	return time.Now().Add(clock.Ahead), clock.Unsure, err
}

// Instance is this process's registration in a room. The process leases through it.
//
// A registration goes at a clean Leave, by an operator's forget, or after a day of
// silence; a shorter silence does not mean that the instance is gone. presence.go
// handles a registration or a heartbeat that was changed.
//
// An Instance is composed of its presence in etcd and its memory, which has whether its marks are confirmed (admission)
// and what failed (failures); the Ledger has what the process knows of etcd. See Ledger for their locks.
type Instance struct {
	process
	memory
	presence presence
	holders  holders
	changed  func(TagChange)                        // see OnTag; nil for none
	alarm    func(Orphan)                           // see OnOrphan; nil for none
	opens    func(context.Context, time.Time) error // see OnPeriod; nil for none
	rights   atomic.Pointer[rights]                 // in etcd, which it lacks; nil before it asked
}

// Join registers this process, in place of an earlier one of the same name,
// which leases nothing from then on. Its errors are Refused (no cluster, or a
// journal that cannot be used) and Unavailable.
func (l *Ledger) Join(ctx context.Context, r Registration) (*Instance, error) {
	if err := l.Attach(ctx); err != nil {
		return nil, err
	}
	l.HaltAs("instance " + string(r.Room) + "/" + string(r.Name))
	i := &Instance{process: process{ledger: l, room: r.Room, name: r.Name, incarnation: record.RandomHex()}}
	p, m := &i.presence, &i.memory
	p.process, p.memory, p.resolving = i.process, m, make(chan struct{}, 1)
	m.process, m.admission.demands = i.process, r.RequireJournal
	i.holders.init()
	if err := m.begin(ctx, r.Journal); err != nil {
		return nil, err
	}
	l.with(func() { l.mu.instance = i })
	joined := false
	defer func() {
		if !joined {
			_ = i.Close()
		}
	}()
	found := p.found()
	probed, stored, err := l.look(ctx, true, l.Read, found[:len(found)-1]...) // the epoch it reads anyway
	if err != nil {
		return nil, err
	}
	if err := i.confirmInEmpty(ctx); err != nil {
		return nil, err
	}
	started := l.now()
	p.mu.serves = stored.Layout.Version
	p.mu.value = record.Registration{
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
		if err := m.loadPredecessor(ctx, there.Got[0]); err != nil {
			return nil, err
		}
		p.mu.value.Started, p.mu.value.Version, p.mu.alone = started, p.mu.serves, time.Time{}
		if err := p.replaces(there.Got[0]); err != nil {
			return nil, err
		}
		p.mu.value.Unconfirmed = l.Unconfirmed()
		switch done, err := p.register(ctx, there, epochSeq, beat); {
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

// begin records in the journal that this process writes it from now on.
func (m *memory) begin(ctx context.Context, dir string) error {
	m.mu.marks, m.mu.steps, m.mu.windows = make(ownMarks), make(map[allocator.Tag]int64), make(ownWindows)
	m.incarnations = []string{m.incarnation}
	// A ledger that has met an epoch does not show it while leasing is halted, or its key cannot be read.
	m.ledger.with(func() { m.ledger.mu.clock.entering = m.ledger.mu.clock.current != "" })
	if dir == "" {
		m.startUnconfirmed()
		return nil
	}
	if err := m.ledger.Attach(ctx); err != nil {
		return err
	}
	if err := m.openJournal(ctx, dir); err != nil {
		return err
	}
	if m.mu.unconfirmed {
		m.startUnconfirmed()
	}
	if err := m.journal.Append(ctx, journal.Record{Incarnations: []string{m.incarnation},
		Unconfirmed: m.mu.unconfirmed}); err != nil {
		return errors.Join(err, m.journal.Close())
	}
	return nil
}

// loadPredecessor makes this process unconfirmed if its journal does not cover its
// predecessor, the process that it replaces. That is written down before the
// predecessor's registration goes. The next process is then unconfirmed, too, unless IDs were leased in between.
func (m *memory) loadPredecessor(ctx context.Context, found []store.KV) error {
	var was record.Registration
	if len(found) == 0 || m.mu.unconfirmed {
		return nil
	}
	if err := record.Decode(found[0], &was); err != nil {
		return err
	}
	if slices.Contains(m.incarnations, was.Incarnation) {
		return nil
	}
	m.startUnconfirmed()
	if m.journal == nil {
		return nil
	}
	return m.journal.Append(ctx, journal.Record{Unconfirmed: true})
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
	marks := store.OpGetPrefix(l.keys.All(record.Marks))
	marks.Get.Limit = 1
	answer, err := l.Try(ctx, store.Txn{If: l.Holds(s), Then: []store.Op{marks}})
	if err != nil {
		return err
	}
	if answer.Succeeded && len(answer.Got[0]) == 0 {
		var said pending.Lines
		i.memory.confirmMarks(&said, "a store in which nothing was ever leased")
		said.Write(l.log)
	}
	return nil
}

// OnTag sets a function that is called with a tag's settings when a lease finds that
// they have changed since the lease before: a watch may miss a change. OnTag must be
// called before the first Source.
func (i *Instance) OnTag(told func(TagChange)) { i.changed = told }

// OnDrop sets a function that is called when all segments and workers must be dropped.
// This is so if a recover went on without this instance. It is also so if the
// registration is gone without evidence that etcd went back in time, for example after
// an operator's forget: migrations did not wait for the instance meanwhile. OnDrop
// must be called before Run and the first Source.
func (i *Instance) OnDrop(drop func(why string)) { i.memory.drop = drop }

// OnPeriod sets a function that is called before a lease that opens a tag's next period for
// the room, by now, a reading of this process's clock. Its error is the lease's: it may refuse a
// clock that is ahead. It is set before the first lease.
func (i *Instance) OnPeriod(opens func(ctx context.Context, now time.Time) error) { i.opens = opens }

// OnOrphan sets a function that is called with each tag of which IDs may have been
// issued twice. It must be called before Run.
func (i *Instance) OnOrphan(alarm func(Orphan)) { i.alarm = alarm }

// OnLostWorkers sets a function that is called when a window of this process has ended at once,
// because its key is no longer what the process wrote: HoldsWorker then says which one. Before the
// window is over, only another process's mistake, or an attack with etcd's rights, changes such a
// key. Call OnLostWorkers before Run.
func (i *Instance) OnLostWorkers(lost func()) { i.memory.lostWorkers = lost }

// Version returns the layout version that this process serves.
func (i *Instance) Version() (version int64) {
	i.presence.with(func() { version = i.presence.mu.serves })
	return version
}

// Serve reports that this instance serves the layout of a version: of segments from
// before that layout it issues only those that the layout keeps (Part.Keeps). It may
// be called again after an error.
func (i *Instance) Serve(ctx context.Context, version int64) error {
	p := &i.presence
	var lost error
	p.with(func() { p.mu.serves, lost = version, p.mu.lost })
	if lost != nil {
		return lost
	}
	return p.serve(ctx)
}

// Run sends heartbeats until ctx ends, and returns nil then. It returns a
// Refused error as soon as another process has registered under the name, or a
// copy of this one runs: the process must stop issuing.
func (i *Instance) Run(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { i.watchRegistrations(watching) })
	watchers.Go(func() { i.memory.compareOwn(watching) })
	watchers.Go(func() { i.confirmAll(watching) })
	watchers.Go(func() { i.releaseAll(watching) })
	defer watchers.Wait()
	defer stop()
	l, p := i.ledger, &i.presence
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Time // of the next heartbeat
	epochSeq := l.before().epochSeq
	for {
		_, adopted := l.State()
		if now := l.before().epochSeq; now != epochSeq {
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
			epochSeq = l.before().epochSeq
		}
		// Ahead of need, so that leases hardly ever wait for a probe. An idle room probes, too.
		i.memory.noteProbe(l.Check(ctx))
		if left := time.Until(due); left > 0 {
			timer.Reset(min(left, l.nextCheck()))
			continue
		}
		err := p.send(ctx)
		if err != nil && allocator.KindOf(err) == allocator.Refused {
			return err
		}
		if ctx.Err() == nil {
			i.memory.noteBeat(err)
		}
		var pause time.Duration
		var alone time.Time // the served version must still be written after that
		p.with(func() { pause, alone = HeartbeatInterval(p.mu.beat.instances), p.mu.alone })
		if left := time.Until(alone); !alone.IsZero() && left <= 0 {
			_ = p.serve(ctx) // otherwise with the next heartbeat
		} else if !alone.IsZero() {
			pause = min(pause, left)
		}
		due = time.Now().Add(pause)
		if pause == heartbeatEvery { // many instances would read too much
			pause = min(pause, l.nextCheck())
		}
		timer.Reset(pause)
	}
}

// Leave removes the registration and the heartbeat: a clean stop. Nothing may be
// leased after it. If etcd went back in time, or leasing is halted, the
// registration stays, and the error says so: `march recover` has to know of this
// instance.
//
// A missing registration may also come from an operator's forget. So Leave first
// writes into the registration that the instance leaves in good order, for processes
// that watch it. That write compares a last heartbeat, which counted as a lease
// does. So each store that shows that the instance left also has all its leases, and
// those of the earlier processes that it covers. The token of what Keep kept is written with it.
func (i *Instance) Leave(ctx context.Context) error {
	covers := i.memory.covered(ctx)
	i.readTokens(ctx)
	for range joinAttempts {
		state, err := i.ledger.LeasableState(ctx)
		if err != nil && allocator.KindOf(err) != allocator.Refused { // an invalid layout does not stop a leave
			return err
		}
		if state == nil {
			state, _ = i.ledger.State()
		}
		done, err := i.presence.leave(ctx, state, covers)
		if allocator.KindOf(err) == allocator.Denied && i.memory.dropTokens() {
			i.ledger.log.Error("what this process kept is a gap: its user of etcd may not write the token; "+
				"`march etcd roles` prints the grant", "key", i.ledger.keys.Token(i.room, i.name), "error", err)
			continue
		}
		if err != nil || done {
			return err
		}
	}
	return allocator.Errorf(allocator.Conflict, "the registration of instance %s of room %s, or the epoch, "+
		"was changed %d times while it was to be taken away", i.name, i.room, joinAttempts)
}

// leave writes into the registration that the instance leaves, and which earlier processes it covers, if its last
// heartbeat still stands, and then removes both keys. False without an error means that they, or the epoch of state,
// were changed just then, or that another heartbeat is due.
func (p *presence) leave(ctx context.Context, state *State, covers []string) (done bool, err error) {
	l := p.ledger
	var registration, beat store.KV
	var value record.Registration
	p.with(func() { registration, beat, value = p.mu.kv, p.mu.beat.kv, p.mu.value })
	txn := store.Txn{
		If:   []store.Cond{store.Unchanged(registration), store.HasValue(l.keys.Epoch(), state.raw)},
		Then: []store.Op{{Delete: registration.Key}, {Delete: beat.Key}},
		Else: []store.Op{store.OpGet(registration.Key)},
	}
	var leaving []byte
	if !value.Leaving {
		before := l.before()
		if err := p.send(ctx); err != nil {
			return false, err
		}
		if !p.sentChecked(before) {
			l.uncheck()
			return false, nil
		}
		p.with(func() { registration, beat, value = p.mu.kv, p.mu.beat.kv, p.mu.value })
		value.Leaving, value.Covers = true, covers
		leaving = record.Encode(&value)
		txn.If = []store.Cond{store.Unchanged(registration), store.HasValue(l.keys.Epoch(), state.raw),
			{Key: beat.Key, ModRevision: beat.ModRevision, Value: beat.Value}}
		txn.Then = append([]store.Op{store.OpPut(registration.Key, leaving)}, p.memory.tokens(state)...)
	}
	answer, err := l.Try(ctx, txn)
	switch {
	case err != nil:
		return false, err
	case answer.Succeeded && leaving != nil:
		p.with(func() {
			p.mu.value.Leaving = true
			p.mu.kv = store.KV{Key: registration.Key, Value: leaving, ModRevision: answer.Revision}
		})
		return false, nil
	case leaving == nil && (answer.Succeeded || len(answer.Got[0]) == 0): // it is gone, perhaps by an earlier try
		_ = p.lose("instance %s of room %s has left", p.name, p.room) // a late lease does not register it again
		return true, nil
	}
	if err := p.check(ctx, answer.Got[0]); err != nil {
		return false, err
	}
	if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) != allocator.Refused {
		return false, err
	}
	return false, nil
}

// sentChecked reports whether the last heartbeat counts as a lease would: its answer
// came over the probed connection, at a revision above all that were seen before,
// and no barrier or epoch came up meanwhile. A suspicion undoes the probe.
func (p *presence) sentChecked(before sentAt) bool {
	l := p.ledger
	p.mu.Lock()
	defer p.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	revision := p.mu.beat.kv.ModRevision
	return revision > before.seen && l.mu.clock.shows(before, p.mu.beat.by, revision)
}

// tokens returns what a stop under a state writes beside `leaving`: the token of what was kept, or no token any more.
// The instance has entered the epoch of a token: what it holds it held there.
func (m *memory) tokens(s *State) (ops []store.Op) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, key, n := &m.mu.kept, m.ledger.keys.Token(m.room, m.name), len(m.mu.epochs)
	if k.token != "" && n > 0 && m.mu.epochs[n-1] == s.epoch {
		token := record.Token{Epoch: s.epoch, Hash: k.token}
		return append(slices.Clone(k.oldest), store.OpPut(key, record.Encode(&token)))
	}
	if k.there {
		return []store.Op{{Delete: key}}
	}
	return nil
}

// readTokens reads the room's tokens, before a stop writes its own, or deletes it. It makes room for one: the oldest
// tokens, of instances that never came back, go. Where they cannot be read, the next stop tries again.
func (i *Instance) readTokens(ctx context.Context) {
	stored, _ := i.ledger.Layout()
	if !stored.Upgraded() {
		return
	}
	tokens := store.OpGetPrefix(i.ledger.keys.In(i.room, record.Tokens))
	tokens.Get.KeysOnly = true
	answer, err := i.ledger.Try(ctx, store.Txn{Then: []store.Op{tokens}})
	if err != nil {
		return
	}
	own := i.ledger.keys.Token(i.room, i.name)
	others := slices.DeleteFunc(slices.Clone(answer.Got[0]), func(kv store.KV) bool { return kv.Key == own })
	slices.SortFunc(others, func(a, b store.KV) int { return cmp.Compare(a.ModRevision, b.ModRevision) })
	m := &i.memory
	m.with(func() {
		m.mu.kept.there, m.mu.kept.oldest = len(others) < len(answer.Got[0]), nil
		for _, kv := range others[:min(max(len(others)+1-record.MaxTokens, 0), record.OverflowMost)] {
			m.mu.kept.oldest = append(m.mu.kept.oldest, store.Op{Delete: kv.Key})
		}
	})
}

// Close closes the journal, after the last lease.
func (i *Instance) Close() error {
	if i.memory.journal == nil {
		return nil
	}
	return i.memory.journal.Close()
}

// registrationsEvery is how often an instance reads which processes are registered, in
// case the watch, which is faster, missed some.
const registrationsEvery = time.Minute

// watchRegistrations notes which processes are registered until ctx ends.
func (i *Instance) watchRegistrations(ctx context.Context) {
	ticker := time.NewTicker(registrationsEvery)
	defer ticker.Stop()
	epochSeq := i.ledger.before().epochSeq - 1
	for {
		_, adopted := i.ledger.State()
		if now := i.ledger.before().epochSeq; now != epochSeq {
			epochSeq = now
			i.seeRegistered(ctx)
			i.askRights(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-adopted:
		case <-ticker.C:
			i.seeRegistered(ctx)
			i.askRights(ctx)
		}
	}
}

const (
	// compareEvery is how far apart the pages are that compareOwn compares: 5,000 marks a second.
	compareEvery = 20 * time.Millisecond
	// comparePause is the pause before another try.
	comparePause = 5 * time.Second
)

// compareOwn compares the marks that the instance remembers at its start, which are
// its journal's, with those in etcd, once. A mark in etcd that is below one of them
// is evidence, even if no caller asks for its tag again. compareOwn works in pages,
// at a bounded rate, until ctx ends.
func (m *memory) compareOwn(ctx context.Context) {
	tags := m.unshown()
	for len(tags) > 0 {
		page, wait := tags[:min(keysAtOnce, len(tags))], compareEvery
		if m.ledger.Check(ctx) == nil && m.compareMarks(ctx, page) {
			tags = tags[len(page):]
		} else {
			wait = comparePause // Check confirms a suspicion, or clears it up
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// unshown returns the tags of marks that no answer showed so far as they are remembered, sorted.
func (m *memory) unshown() []allocator.Tag {
	m.mu.Lock()
	defer m.mu.Unlock()
	tags := make([]allocator.Tag, 0, len(m.mu.marks))
	for tag, own := range m.mu.marks {
		if !own.shown {
			tags = append(tags, tag)
		}
	}
	slices.Sort(tags)
	return tags
}

// compareMarks reads the marks of some tags, and compares them with what the instance
// remembers. It returns false if a mark has to be read again.
func (m *memory) compareMarks(ctx context.Context, tags []allocator.Tag) bool {
	marks, all := make([]string, len(tags)), true
	for k, tag := range tags {
		marks[k] = m.ledger.keys.Mark(m.room, tag)
	}
	err := m.ledger.readKeys(ctx, marks, func(page []string, before sentAt, answer store.Answer) error {
		for k, mark := range page {
			next := m.ledger.nextOf(answer.Got[k])
			if next == allocator.MaxID {
				continue // it cannot be read, or is at its end, so no IDs of it are leased
			}
			key, _ := m.ledger.keys.Parse(mark)
			all = m.compareMark(before, answer, key.Tag, next) && all
		}
		return nil
	})
	return err == nil && all
}

// maxCovers bounds how many earlier processes a leaving one covers: the latest.
const maxCovers = 100

// covered returns the earlier processes of this instance whose leases etcd has: those with whose
// memory this process began, if answers that count show all of it.
func (m *memory) covered(ctx context.Context) []string {
	chain := m.incarnations[:len(m.incarnations)-1]
	ctx, cancel := context.WithTimeout(ctx, m.ledger.Patience()) // to see marks and windows
	defer cancel()
	if len(chain) == 0 || m.ledger.Check(ctx) != nil {
		return nil
	}
	if !m.compareMarks(ctx, m.unshown()) || len(m.unshown()) > 0 || !m.windowsShown(ctx) {
		return nil
	}
	return slices.Clone(chain[max(len(chain)-maxCovers, 0):])
}

// windowsShown reads the workers that this instance remembers, and reports whether etcd has each
// window that was accepted.
func (m *memory) windowsShown(ctx context.Context) bool {
	l, accepted := m.ledger, make(map[record.WorkerID]int64)
	var workers []string
	m.with(func() {
		for id, own := range m.mu.windows {
			if own.worker.Until > 0 {
				accepted[id] = own.worker.Until
				workers = append(workers, l.keys.Window(m.room, id), l.keys.Worker(id))
			}
		}
	})
	err := l.readKeys(ctx, workers, func(_ []string, before sentAt, answer store.Answer) (err error) {
		l.with(func() {
			if !l.mu.clock.shows(before, answer.Sender, answer.Revision) {
				err = errEpochChanged
			}
		})
		for _, kv := range slices.Concat(answer.Got...) {
			if key, _ := l.keys.Parse(kv.Key); untilOf(kv) >= accepted[key.Worker] {
				delete(accepted, key.Worker)
			}
		}
		return err
	})
	return err == nil && len(accepted) == 0
}
