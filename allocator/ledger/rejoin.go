package ledger

import (
	"context"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// register registers over the keys that were found, in the order of found, under
// the epoch of epochSeq, and sends a heartbeat with it, and what the transaction also has.
// False means that one of these keys, or one of also, was changed just then.
func (i *Instance) register(ctx context.Context, there store.Answer, epochSeq int64,
	also store.Txn) (done bool, err error) {
	l := i.ledger
	epoch, ok := there.One(2)
	if !ok {
		return false, allocator.Errorf(allocator.Refused, "there is no key %s", l.keys.Epoch())
	}
	beat := store.KV{Key: l.keys.Alive(i.room, i.name)}
	if kv, ok := there.One(1); ok {
		beat = kv
	}
	known, r, err := i.toRegister(there.Got[0])
	if err != nil {
		return false, err
	}
	answer, err := l.Try(ctx, store.Txn{
		If: append([]store.Cond{store.Unchanged(known), store.Unchanged(beat),
			store.HasValue(epoch.Key, epoch.Value)}, also.If...),
		Then: append([]store.Op{store.OpPut(known.Key, r.registration.Value), store.OpPut(beat.Key, r.value)},
			also.Then...),
	})
	if err != nil || !answer.Succeeded {
		return false, err // if it was written nevertheless, the next heartbeat finds it
	}
	l.log.Info("registered", "instance", i.name, "room", i.room)
	r.known, r.epochSeq = beat, epochSeq
	i.joined(r, answer)
	return true, nil
}

// toRegister returns the registration to replace, and the new one with its heartbeat.
func (i *Instance) toRegister(found []store.KV) (known store.KV, b beating, err error) {
	now := i.ledger.now()
	var said pending.Lines
	defer said.Write(i.ledger.log)
	i.mu.Lock()
	defer i.mu.Unlock()
	if known, err = i.replacePredecessor(&said, found); err != nil {
		return known, b, err
	}
	b.registration = store.KV{Key: known.Key, Value: record.Encode(&i.mu.value)}
	b.value, b.counter = i.next(now)
	return known, b, nil
}

// joined notes that a registration was written, with its heartbeat.
func (i *Instance) joined(b beating, answer store.Answer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	b.registration.ModRevision = answer.Revision
	i.mu.kv = b.registration
	i.sent(store.KV{Key: b.known.Key, Value: b.value, ModRevision: answer.Revision}, b.counter, b.epochSeq)
}

// replacePredecessor prepares to register over the registration that was found, and returns
// it. If this process does not have the journal of that registration's process, its
// memory may be lost: the new registration records that for `march recover`. The
// caller holds the lock.
func (i *Instance) replacePredecessor(said *pending.Lines, found []store.KV) (store.KV, error) {
	l := i.ledger
	kv, epoch := store.KV{Key: l.keys.Registration(i.room, i.name)}, l.epoch()
	if len(found) > 0 {
		kv = found[0]
		var was record.Registration
		if err := record.Decode(kv, &was); err != nil {
			return store.KV{}, err
		}
		lost := slices.Concat(was.Lost, []string{was.Incarnation})
		known := append(slices.Clone(i.mu.value.Lost), i.memory.incarnations...)
		for _, incarnation := range lost {
			if !slices.Contains(known, incarnation) {
				i.mu.value.Lost = append(i.mu.value.Lost, incarnation)
			}
		}
		if more := len(i.mu.value.Lost) - maxLost; more > 0 {
			i.mu.value.Lost = slices.Clone(i.mu.value.Lost[more:])
		}
		i.mu.value.Epoch = was.Epoch
		if was.Incarnation == i.incarnation { // otherwise the unknown leases are another process's
			i.learn(said, was)
		}
	}
	i.mu.value.Under(epoch)
	return kv, nil
}

// maxLost bounds the list of processes whose memory is lost: even one entry has the
// full effect.
const maxLost = 10

// epoch returns the epoch in force as this process knows it, empty where there
// is none.
func (l *Ledger) epoch() string {
	s, _ := l.State()
	return s.epoch
}

// send sends one heartbeat.
func (i *Instance) send(ctx context.Context) error {
	l := i.ledger
	for range 2 { // the second time over the keys that the first one found
		b, err := i.toSend()
		if err != nil {
			return err
		}
		txn := store.Txn{
			If: []store.Cond{store.Unchanged(b.registration),
				{Key: b.known.Key, ModRevision: b.known.ModRevision, Value: b.known.Value}},
			Then: []store.Op{store.OpPut(b.known.Key, b.value)},
			Else: i.found(),
		}
		if b.count {
			all := store.OpGetPrefix(l.keys.Registrations(""))
			all.Get.KeysOnly, all.Get.Limit = true, 1
			txn.Then = append(txn.Then, all)
		}
		answer, err := l.Try(ctx, txn)
		if err != nil {
			return err
		}
		if answer.Succeeded {
			i.beaten(b, answer)
			return nil
		}
		if !i.takeStanding(b, answer) {
			if err := i.resolveRegistration(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// resolveRegistration finds out why the registration or the heartbeat is not as the instance
// left it, and follows the rules at the top of this file. Its error is Refused if
// the instance must stop. After any other error the next heartbeat tries again.
func (i *Instance) resolveRegistration(ctx context.Context) error {
	l := i.ledger
	select {
	case i.resolving <- struct{}{}:
		defer func() { <-i.resolving }()
	case <-ctx.Done():
		return allocator.Errorf(allocator.Unavailable, "instance %s/%s: its registration could not be read in time",
			i.room, i.name)
	}
	probed := false
	for range joinAttempts {
		epochSeq := l.before().epochSeq
		there, err := l.Try(ctx, l.ordered(i.found()...))
		if err != nil {
			return err
		}
		if there.Succeeded || len(there.Got[2]) == 0 {
			return allocator.Errorf(allocator.Unavailable,
				"etcd has no key %s, or no %s: its data is gone, or it is another cluster's",
				l.keys.Identity(), l.keys.Epoch())
		}
		what, again, err := i.examineAndTake(there, epochSeq)
		switch {
		case err != nil:
			return err
		case what == stands && !again:
			return nil
		case what == copied:
			return i.runsTwice(there.Got[1][0])
		case !again && !probed:
			l.suspect("the registration of "+l.haltsAs()+", or its heartbeat, is not as it was left", nil)
			if _, err := l.probe(ctx, true, l.Try); err != nil && allocator.KindOf(err) != allocator.Refused {
				return err
			}
			probed = true
			continue
		case what == displaced:
			return i.replaced(there.Got[0][0])
		}
		if state, _ := l.State(); !again && state.halted == nil {
			l.log.Warn("forgotten, perhaps by an operator: the instance drops all its IDs, and registers anew",
				"instance", i.name, "room", i.room)
			i.dropHeld("it was forgotten, perhaps by an operator")
		}
		if done, err := i.register(ctx, there, epochSeq, store.Txn{}); err != nil || done {
			return err
		}
	}
	return allocator.Errorf(allocator.Unavailable, "instance %s/%s: its registration changed at each try",
		i.room, i.name)
}

// examineAndTake returns the state of our keys, and accepts them if they stand. again is true if
// this process has registered under another epoch than that of epochSeq. Its error
// means that the registration is no longer ours, or cannot be read.
func (i *Instance) examineAndTake(there store.Answer, epochSeq int64) (what finding, again bool, err error) {
	var said pending.Lines
	defer said.Write(i.ledger.log)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.lost != nil {
		return missing, false, i.mu.lost
	}
	what, err = i.examine(there.Got[0], there.Got[1])
	again = i.mu.epochSeq != epochSeq
	if err == nil && what == stands && !again {
		i.take(&said, there.Got[0][0], there.Got[1])
	}
	return what, again, err
}

// checkRegistration checks our registration as a transaction showed it. Its error is
// Refused if it is no longer ours.
func (i *Instance) checkRegistration(ctx context.Context, found []store.KV) error {
	if ours, err := i.takeOurs(found); err != nil || ours {
		return err
	}
	return i.resolveRegistration(ctx)
}
