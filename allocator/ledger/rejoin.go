package ledger

import (
	"slices"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// succeed prepares to register over the registration that was found, and returns
// it. If that is of a process whose journal we do not have, its memory may be lost:
// the new registration records that for `march recover`. The caller holds the lock.
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
		l.mu.Lock()
		known := append(slices.Clone(i.mu.value.Lost), i.memory.incarnations...)
		l.mu.Unlock()
		for _, incarnation := range lost {
			if !slices.Contains(known, incarnation) {
				i.mu.value.Lost = append(i.mu.value.Lost, incarnation)
			}
		}
		if more := len(i.mu.value.Lost) - maxLost; more > 0 {
			i.mu.value.Lost = slices.Clone(i.mu.value.Lost[more:])
		}
		i.mu.value.Epoch = was.Epoch
		if was.Incarnation == i.incarnation { // else what is not known of it is of another process
			i.learn(was)
		}
	}
	i.mu.value.Under(epoch)
	return kv, nil
}

// maxLost bounds how many processes whose memory is lost are named: that there
// is one is what counts.
const maxLost = 10

// epoch returns the epoch in force as this process knows it, empty where there
// is none.
func (l *Ledger) epoch() string {
	s, _ := l.State()
	return s.epoch
}
