package ledger

import (
	"context"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// register registers over the keys that were found, in the order of found, under
// the epoch of an order, and sends a heartbeat with it. False means that one of
// these keys was changed just then.
func (i *Instance) register(ctx context.Context, there store.Answer, order int64) (done bool, err error) {
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
		If:   []store.Cond{store.Unchanged(known), store.Unchanged(beat), store.HasValue(epoch.Key, epoch.Value)},
		Then: []store.Op{store.OpPut(known.Key, r.registration.Value), store.OpPut(beat.Key, r.value)},
	})
	if err != nil || !answer.Succeeded {
		return false, err // if it was written nevertheless, the next heartbeat finds it
	}
	l.log.Info("registered", "instance", i.name, "room", i.room)
	r.known, r.order = beat, order
	i.joined(r, answer)
	return true, nil
}

// toRegister returns the registration to replace, and the new one with its heartbeat.
func (i *Instance) toRegister(found []store.KV) (known store.KV, b beating, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if known, err = i.succeed(found); err != nil {
		return known, b, err
	}
	b.registration = store.KV{Key: known.Key, Value: record.Encode(&i.mu.value)}
	b.value, b.counter = i.next()
	return known, b, nil
}

// joined notes that a registration was written, with its heartbeat.
func (i *Instance) joined(b beating, answer store.Answer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	b.registration.ModRevision = answer.Revision
	i.mu.kv = b.registration
	i.sent(store.KV{Key: b.known.Key, Value: b.value, ModRevision: answer.Revision}, b.counter, b.order)
}

// succeed prepares to register over the registration that was found, and returns
// it. If this process does not have the journal of that registration's process, its
// memory may be lost: the new registration records that for `march recover`. The
// caller holds the lock.
func (i *Instance) succeed(found []store.KV) (store.KV, error) {
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
			i.learn(was)
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
