package ledger

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// A heartbeat is a plain key that its instance rewrites, by a compare-and-swap
// on the heartbeat before it and on the registration. If that fails, the instance
// reads both in the order of all writes, and finds out what happened:
//
//   - Both are its own, and not older than the last that it saw: an answer was
//     lost, or overtaken by another. It accepts them.
//   - The heartbeat has its incarnation and a counter that is not below the last
//     that it saw, but the instance did not send it: a copy of this process runs.
//     The instance stops.
//   - Anything else may come from an etcd that went back in time, so the instance
//     probes for that first. Under another epoch than the one that it was last
//     registered under, or while leasing is halted, it registers again over the keys.
//   - Without any evidence, a newer process of its name makes it stop. An instance
//     is newer than the one that it replaced, so the two do not displace each other
//     in turn.
//   - Otherwise it was forgotten. It drops all its segments, and registers anew.
//
// So an etcd that lost its data for a while stops no instance: the memory of a
// stopped instance would be lost.

const (
	// heartbeatEvery is how often an instance sends a heartbeat, while a cluster
	// has no more than heartbeatRate times as many instances as it has seconds.
	heartbeatEvery = 5 * time.Second
	// heartbeatRate is how many heartbeats a cluster writes in a second at most.
	heartbeatRate = 20
	// countEvery is how often an instance counts those that are registered.
	countEvery = time.Minute
	// joinAttempts bounds how often Join, Leave and resolve start over because the
	// registration was written just then.
	joinAttempts = 5
	// maxLost bounds the list of processes whose memory is lost: even one entry has the
	// full effect.
	maxLost = 10
)

// HeartbeatInterval returns how often an instance sends a heartbeat in a cluster
// with this many instances.
func HeartbeatInterval(instances int) time.Duration {
	return max(heartbeatEvery, time.Duration(instances)*time.Second/heartbeatRate)
}

// presence is an instance's registration, with its heartbeats.
type presence struct {
	process
	memory    *memory
	resolving chan struct{} // holds one while resolve runs

	mu struct {
		sync.Mutex
		value    record.Registration // as it should be
		kv       store.KV            // as it was last seen, and ours
		beat     heartbeat
		lost     error     // why the registration is no longer ours
		epochSeq int64     // epochClock.epochSeq when it was last seen to be ours
		serves   int64     // the layout version that this process serves
		alone    time.Time // until then the replaced process may serve its own version; zero once ours is written
	}
}

// heartbeat is an instance's knowledge of its own heartbeats.
type heartbeat struct {
	kv        store.KV     // the last heartbeat that was seen in etcd
	by        store.Sender // that answered the last one that was sent
	seen      int64        // its counter
	nonces    []string     // of the heartbeats sent since seen: each of them may be in etcd, too
	instances int          // how many are registered
	counted   time.Time    // when they were counted
}

// with calls do under the lock.
func (p *presence) with(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

// registered returns the registration as we know it.
func (p *presence) registered() (kv store.KV) {
	p.with(func() { kv = p.mu.kv })
	return kv
}

// lose stores the reason for which the registration is no longer ours, and returns
// it.
func (p *presence) lose(format string, args ...any) (lost error) {
	p.with(func() {
		if p.mu.lost == nil {
			p.mu.lost = allocator.Errorf(allocator.Refused, format, args...)
			p.memory.dropTokens() // nor does it issue what it took
		}
		lost = p.mu.lost
	})
	return lost
}

func (p *presence) replaced(by store.KV) error {
	var v record.Registration
	if err := record.Decode(by, &v); err != nil {
		return err
	}
	return p.lose("another process registered as instance %s of room %s at %s, from %s: "+
		"give every process a name of its own (--name)", p.name, p.room, v.Started.Format(time.RFC3339), v.Address)
}

func (p *presence) runsTwice(beat store.KV) error {
	var v record.Heartbeat
	if err := record.Decode(beat, &v); err != nil {
		return err
	}
	return p.lose("instance %s of room %s runs twice: a copy of this process, of a cloned machine perhaps, "+
		"sent a heartbeat at %s: restart it under a name of its own (--name)",
		p.name, p.room, v.Time.Format(time.RFC3339))
}

// found returns the operations that read this instance's keys, and the epoch.
func (p *presence) found() []store.Op {
	keys := p.ledger.keys
	return []store.Op{store.OpGet(keys.Registration(p.room, p.name)), store.OpGet(keys.Alive(p.room, p.name)),
		store.OpGet(keys.Epoch())}
}

// next returns the value of the next heartbeat and its counter, from 1 on. The
// caller holds the lock.
func (p *presence) next(now time.Time) (value []byte, counter int64) {
	b := &p.mu.beat
	if len(b.nonces) == 0 {
		b.nonces = []string{""}
	}
	nonce := record.RandomHex()
	b.nonces = append(b.nonces, nonce)
	counter = b.seen + int64(len(b.nonces)) - 1
	return record.Encode(&record.Heartbeat{Incarnation: p.incarnation, Counter: counter, Time: now, Nonce: nonce}),
		counter
}

// saw notes that a heartbeat was seen in etcd. The caller holds the lock.
func (b *heartbeat) saw(kv store.KV, counter int64) {
	if counter < b.seen {
		return // answers overtook each other
	}
	b.kv, b.nonces, b.seen = kv, b.nonces[counter-b.seen:], counter
}

// sent notes a heartbeat that was written under the epoch of epochSeq. The caller
// holds the lock.
func (p *presence) sent(beat store.KV, counter, epochSeq int64) {
	p.mu.beat.saw(beat, counter)
	p.mu.epochSeq = max(p.mu.epochSeq, epochSeq)
}

// replaces prepares to replace the registered process. This process counts as the
// newer one, whatever the clocks say. It does not report a layout for the other
// process, which may be cut off and still issue IDs: the registration keeps the
// other's version until the other's hold has passed. If this process has the
// other's journal, the other has ended.
func (p *presence) replaces(found []store.KV) error {
	if len(found) == 0 {
		return nil
	}
	var was record.Registration
	if err := record.Decode(found[0], &was); err != nil {
		return err
	}
	if after := was.Started.Add(time.Millisecond); after.After(p.mu.value.Started) {
		p.mu.value.Started = after
	}
	ended := p.memory.journal != nil && slices.Contains(p.memory.incarnations, was.Incarnation)
	if ended || was.Version >= p.mu.serves {
		return nil
	}
	p.mu.value.Version, p.mu.alone = was.Version, time.Now().Add(was.Hold.Duration())
	return nil
}

// register registers over the keys that were found, in the order of found, under
// the epoch of epochSeq, and sends a heartbeat with it, and what the transaction also has.
// False means that one of these keys, or one of also, was changed just then.
func (p *presence) register(ctx context.Context, there store.Answer, epochSeq int64,
	also store.Txn) (done bool, err error) {
	l := p.ledger
	epoch, ok := there.One(2)
	if !ok {
		return false, allocator.Errorf(allocator.Refused, "there is no key %s", l.keys.Epoch())
	}
	beat := store.KV{Key: l.keys.Alive(p.room, p.name)}
	if kv, ok := there.One(1); ok {
		beat = kv
	}
	known, registration, next, counter, err := p.toRegister(there.Got[0])
	if err != nil {
		return false, err
	}
	answer, err := l.Try(ctx, store.Txn{
		If: append([]store.Cond{store.Unchanged(known), store.Unchanged(beat),
			store.HasValue(epoch.Key, epoch.Value)}, also.If...),
		Then: append([]store.Op{store.OpPut(known.Key, registration), store.OpPut(beat.Key, next)}, also.Then...),
	})
	if err != nil || !answer.Succeeded {
		return false, err // if it was written nevertheless, the next heartbeat finds it
	}
	l.log.Info("registered", "instance", p.name, "room", p.room)
	p.with(func() {
		p.mu.kv = store.KV{Key: known.Key, Value: registration, ModRevision: answer.Revision}
		p.sent(store.KV{Key: beat.Key, Value: next, ModRevision: answer.Revision}, counter, epochSeq)
	})
	return true, nil
}

// toRegister returns the registration to replace, and the new one with its heartbeat.
func (p *presence) toRegister(found []store.KV) (known store.KV, registration, beat []byte, counter int64, err error) {
	now := p.ledger.now()
	var said pending.Lines
	defer said.Write(p.ledger.log)
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, err = p.replacePredecessor(&said, found); err != nil {
		return known, nil, nil, 0, err
	}
	beat, counter = p.next(now)
	return known, record.Encode(&p.mu.value), beat, counter, nil
}

// replacePredecessor prepares to register over the registration that was found, and returns
// it. If this process does not have the journal of that registration's process, its
// memory may be lost: the new registration records that for `march recover`. The
// caller holds the lock.
func (p *presence) replacePredecessor(said *pending.Lines, found []store.KV) (store.KV, error) {
	l := p.ledger
	kv, epoch := store.KV{Key: l.keys.Registration(p.room, p.name)}, l.epoch()
	if len(found) > 0 {
		kv = found[0]
		var was record.Registration
		if err := record.Decode(kv, &was); err != nil {
			return store.KV{}, err
		}
		lost := slices.Concat(was.Lost, []string{was.Incarnation})
		known := append(slices.Clone(p.mu.value.Lost), p.memory.incarnations...) // which do not change
		for _, incarnation := range lost {
			if !slices.Contains(known, incarnation) {
				p.mu.value.Lost = append(p.mu.value.Lost, incarnation)
			}
		}
		if more := len(p.mu.value.Lost) - maxLost; more > 0 {
			p.mu.value.Lost = slices.Clone(p.mu.value.Lost[more:])
		}
		p.mu.value.Epoch = was.Epoch
		if was.Incarnation == p.incarnation { // otherwise the unknown leases are another process's
			p.learn(said, was)
		}
	}
	p.mu.value.Under(epoch)
	return kv, nil
}

// learn accepts changes that other processes made in this process's registration
// since it was last seen. The caller holds the lock.
func (p *presence) learn(said *pending.Lines, is record.Registration) {
	p.mu.value.Rest = is.Rest
	var was record.Registration
	if record.Decode(p.mu.kv, &was) == nil && was.Unconfirmed && !is.Unconfirmed { // an operator did that, or we
		p.mu.value.Unconfirmed = false
		p.memory.confirmMarks(said, "an operator")
	}
}

// send sends one heartbeat.
func (p *presence) send(ctx context.Context) error {
	l := p.ledger
	for range 2 { // the second time over the keys that the first one found
		now, epochSeq := l.now(), int64(0)
		var registration, known store.KV
		var value []byte
		var counter int64
		var count bool
		var lost error
		p.with(func() {
			registration, known, lost, epochSeq = p.mu.kv, p.mu.beat.kv, p.mu.lost, l.before().epochSeq
			value, counter = p.next(now)
			count = time.Since(p.mu.beat.counted) >= countEvery
		})
		if lost != nil {
			return lost
		}
		txn := store.Txn{
			If: []store.Cond{store.Unchanged(registration),
				{Key: known.Key, ModRevision: known.ModRevision, Value: known.Value}},
			Then: []store.Op{store.OpPut(known.Key, value)},
			Else: p.found(),
		}
		if count {
			all := store.OpGetPrefix(l.keys.All(record.Registrations))
			all.Get.KeysOnly, all.Get.Limit = true, 1
			txn.Then = append(txn.Then, all)
		}
		answer, err := l.Try(ctx, txn)
		if err != nil {
			return err
		}
		if answer.Succeeded {
			p.with(func() {
				p.sent(store.KV{Key: known.Key, Value: value, ModRevision: answer.Revision}, counter, epochSeq)
				p.mu.beat.by = answer.Sender
				if count {
					p.mu.beat.instances, p.mu.beat.counted = int(answer.Counts[0]), time.Now()
				}
			})
			return nil
		}
		if what, again, err := p.examineAndTake(answer, epochSeq, false); err != nil || what != stands || again {
			if err := p.resolve(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// check checks our registration as a transaction showed it. Its error is
// Refused if it is no longer ours.
func (p *presence) check(ctx context.Context, found []store.KV) error {
	if ours, err := p.takeOurs(found); err != nil || ours {
		return err
	}
	return p.resolve(ctx)
}

// takeOurs accepts the registration that a transaction showed, if it is this process's,
// and reports whether it is. Its error means that the registration is no longer ours.
func (p *presence) takeOurs(found []store.KV) (bool, error) {
	var said pending.Lines
	defer said.Write(p.ledger.log)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lost != nil {
		return false, p.mu.lost
	}
	var v record.Registration
	if len(found) == 0 || record.Decode(found[0], &v) != nil || v.Incarnation != p.incarnation ||
		found[0].ModRevision < p.mu.kv.ModRevision {
		return false, nil
	}
	p.take(&said, found[0], nil)
	return true, nil
}

// take accepts a registration and a heartbeat, which are ours; the heartbeat may be
// missing. The caller holds the lock.
func (p *presence) take(said *pending.Lines, registration store.KV, beat []store.KV) {
	var is record.Registration
	if registration.ModRevision > p.mu.kv.ModRevision && record.Decode(registration, &is) == nil {
		p.learn(said, is)
	}
	p.mu.kv = registration
	if len(beat) > 0 {
		var v record.Heartbeat
		_ = record.Decode(beat[0], &v) // examine did
		p.mu.beat.saw(beat[0], v.Counter)
	}
}

// finding is the state in which an instance found its keys.
type finding int

const (
	stands    finding = iota // both are as the instance wrote them
	missing                  // the registration, or the heartbeat, is missing, older, or an older process's
	displaced                // a newer process registered
	copied                   // a copy of this process sent a heartbeat
)

// examine returns the state of our keys. The caller holds the lock.
func (p *presence) examine(registration, beat []store.KV) (finding, error) {
	if len(registration) == 0 {
		return missing, nil
	}
	var r record.Registration
	if err := record.Decode(registration[0], &r); err != nil {
		return missing, err
	}
	if r.Incarnation != p.incarnation {
		if r.Started.After(p.mu.value.Started) || r.Started.Equal(p.mu.value.Started) && r.Incarnation > p.incarnation {
			return displaced, nil
		}
		return missing, nil
	}
	var v record.Heartbeat
	if len(beat) == 0 || record.Decode(beat[0], &v) != nil || v.Incarnation != p.incarnation {
		return missing, nil // a key that cannot be read is overwritten
	}
	switch at := v.Counter - p.mu.beat.seen; {
	case at < 0:
		return missing, nil
	case at >= int64(len(p.mu.beat.nonces)) || v.Nonce != p.mu.beat.nonces[at]:
		return copied, nil
	}
	return stands, nil
}

// resolve finds out why the registration or the heartbeat is not as the instance
// left it, and follows the rules at the top of this file. Its error is Refused if
// the instance must stop. After any other error the next heartbeat tries again.
func (p *presence) resolve(ctx context.Context) error {
	l := p.ledger
	select {
	case p.resolving <- struct{}{}:
		defer func() { <-p.resolving }()
	case <-ctx.Done():
		return allocator.Errorf(allocator.Unavailable, "instance %s/%s: its registration could not be read in time",
			p.room, p.name)
	}
	probed := false
	for range joinAttempts {
		epochSeq := l.before().epochSeq
		there, err := l.Try(ctx, l.ordered(p.found()...))
		if err != nil {
			return err
		}
		if there.Succeeded || len(there.Got[2]) == 0 {
			return allocator.Errorf(allocator.Unavailable,
				"etcd has no key %s, or no %s: its data is gone, or it is another cluster's",
				l.keys.Identity(), l.keys.Epoch())
		}
		what, again, err := p.examineAndTake(there, epochSeq, true)
		switch {
		case err != nil:
			return err
		case what == stands && !again:
			return nil
		case what == copied:
			return p.runsTwice(there.Got[1][0])
		case !again && !probed:
			l.suspect("the registration of "+l.haltsAs()+", or its heartbeat, is not as it was left", nil)
			if _, err := l.probe(ctx, true, l.Try); err != nil && allocator.KindOf(err) != allocator.Refused {
				return err
			}
			probed = true
			continue
		case what == displaced:
			return p.replaced(there.Got[0][0])
		}
		if state, _ := l.State(); !again && state.halted == nil {
			l.log.Warn("forgotten, perhaps by an operator: the instance drops all its IDs, and registers anew",
				"instance", p.name, "room", p.room)
			p.memory.dropHeld("it was forgotten, perhaps by an operator")
		}
		if done, err := p.register(ctx, there, epochSeq, store.Txn{}); err != nil || done {
			return err
		}
	}
	return allocator.Errorf(allocator.Unavailable, "instance %s/%s: its registration changed at each try",
		p.room, p.name)
}

// examineAndTake returns the state of our keys, and accepts them if they stand. again is true if
// this process has registered under another epoch than that of epochSeq, or if the registration is
// older than the known one, and was not read in the order of all writes. Its error means that the
// registration is no longer ours, or cannot be read.
func (p *presence) examineAndTake(there store.Answer, epochSeq int64,
	ordered bool) (what finding, again bool, err error) {
	var said pending.Lines
	defer said.Write(p.ledger.log)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lost != nil {
		return missing, false, p.mu.lost
	}
	what, err = p.examine(there.Got[0], there.Got[1])
	again = p.mu.epochSeq != epochSeq
	if err == nil && what == stands && !again {
		if again = !ordered && there.Got[0][0].ModRevision < p.mu.kv.ModRevision; !again {
			p.take(&said, there.Got[0][0], there.Got[1])
		}
	}
	return what, again, err
}

// write replaces the known registration by its new value. Its error is Conflict if
// another goroutine has just done so: the caller tries again. The lock is not held
// while etcd answers, because leases read the registration.
func (p *presence) write(ctx context.Context) error {
	var known store.KV
	var value []byte
	var lost error
	p.with(func() {
		p.mu.value.Unconfirmed = p.ledger.Unconfirmed() // only an operator removes that while it holds
		known, value, lost = p.mu.kv, record.Encode(&p.mu.value), p.mu.lost
	})
	if lost != nil {
		return lost
	}
	answer, err := p.ledger.Try(ctx, store.Txn{If: []store.Cond{store.Unchanged(known)},
		Then: []store.Op{store.OpPut(known.Key, value)}, Else: []store.Op{store.OpGet(known.Key)}})
	if err != nil {
		// The outcome is unknown. Keep the known registration. If the new one was
		// written, the next transaction that compares it is refused and shows it, and
		// check accepts it.
		return err
	}
	if answer.Succeeded {
		p.with(func() {
			if answer.Revision > p.mu.kv.ModRevision { // otherwise a lease has seen a later one
				p.mu.kv = store.KV{Key: known.Key, Value: value, ModRevision: answer.Revision}
			}
		})
		return nil
	}
	if err := p.check(ctx, answer.Got[0]); err != nil {
		return err
	}
	if string(p.registered().Value) == string(value) {
		return nil // written by an earlier try, or by this one, sent twice
	}
	return allocator.Errorf(allocator.Conflict,
		"the registration of instance %s of room %s was out of date", p.name, p.room)
}

// serve writes the served version into the registration, unless the replaced
// process may still serve another. In that case Run does it later.
func (p *presence) serve(ctx context.Context) error {
	waits := false
	p.with(func() {
		if waits = time.Now().Before(p.mu.alone) && p.mu.value.Version < p.mu.serves; !waits {
			p.mu.value.Version = p.mu.serves
			p.mu.value.Under(p.ledger.epoch())
		}
	})
	if waits {
		return nil
	}
	if err := p.write(ctx); err != nil {
		return err
	}
	p.with(func() { p.mu.alone = time.Time{} }) // only after the write: if that fails, Run tries again
	return nil
}

// An instance remembers which processes were registered under the epoch in force,
// and which of these left in good order. If etcd is restored from an older backup,
// `march recover` has to ask all processes that may have leased since.

// seeRegistered notes which processes are registered. Under a new epoch it begins anew:
// `march recover` has asked those that were seen before, or has gone on without them.
func (i *Instance) seeRegistered(ctx context.Context) {
	epoch := i.ledger.epoch()
	answer, err := i.ledger.Gets(ctx, store.OpGetPrefix(i.ledger.keys.All(record.Registrations)))
	if err == nil { // otherwise next time
		i.memory.see(i.ledger.parseRegistrations(answer.Got[0], epoch), epoch)
	}
}

// watched notes which processes registered or left just now. Before this one has registered
// there is nothing to note: it reads them all as it begins to run.
func (i *Instance) watched(registrations []store.KV) {
	if i.presence.registered().ModRevision == 0 {
		return
	}
	epoch := i.ledger.epoch()
	i.memory.see(i.ledger.parseRegistrations(registrations, epoch), epoch)
}

// parseRegistrations returns the processes that registrations name, and the processes that they replaced
// without having their memory, under an epoch, or under any if epoch is empty. One that cannot
// be read is logged and skipped.
func (l *knowledge) parseRegistrations(found []store.KV, epoch string) []record.SeenInstance {
	var all []record.SeenInstance
	for _, kv := range found {
		seen, err := l.keys.SeenIn(kv, epoch)
		if err != nil {
			l.refusedLog.Log(time.Now(), l.log.Warn, "a registration cannot be read", "error", err)
		}
		all = append(all, seen...)
	}
	return all
}

// fewSeen is how many processes are searched for without an index: a watch reports one
// at a time, also if a thousand register or serve a new layout.
const fewSeen = 4

// see notes processes that are registered under an epoch.
func (m *memory) see(all []record.SeenInstance, epoch string) {
	var said pending.Lines
	defer said.Write(m.ledger.log)
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := m.mu.seen
	if epoch != "" && epoch != m.mu.seenUnder {
		m.mu.seenUnder, seen = epoch, nil
	}
	seen = slices.Clone(seen)
	var places map[record.SeenInstance]bool // by all fields except Left; nil if a search is cheaper
	if len(all) > fewSeen {
		places = make(map[record.SeenInstance]bool, len(seen))
		for _, s := range seen {
			s.Left = 0
			places[s] = true
		}
	}
	var changed []record.SeenInstance
	for k, s := range all {
		name := s
		name.Left = 0
		known := places[name]
		if places == nil {
			known = slices.ContainsFunc(seen, func(o record.SeenInstance) bool { o.Left = 0; return o == name })
		}
		// Of the processes that a leave covers only those are noted that are known already. Recover
		// asks for the leaver, which has their memory. Up to 100 others with each leave would push
		// processes out of the list that recover must ask.
		covered := s.Left != 0 && k+1 < len(all) && all[k+1].ID() == s.ID() && all[k+1].Left == s.Left
		if !known && !covered {
			seen, changed = append(seen, s), append(changed, s)
			if places != nil {
				places[name] = true
			}
		}
		if s.Left == 0 {
			continue
		}
		for at := range seen { // it may have been registered at other addresses
			if seen[at].Incarnation == s.Incarnation && seen[at].Left == 0 {
				seen[at].Left = s.Left
				changed = append(changed, seen[at])
			}
		}
	}
	m.mu.seen = record.TrimSeen(seen, maxSeen)
	if m.journal == nil || len(changed) == 0 {
		return
	}
	// Under the lock, to keep the order. Note does not wait for the disk, because the watch calls this.
	if err := m.journal.Note(journal.Record{SeenUnder: m.mu.seenUnder, Seen: changed}); err != nil {
		said.Warn("could not write to the journal which instances are registered", "error", err)
	}
}
