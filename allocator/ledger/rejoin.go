package ledger

import (
	"context"
	"errors"
	"slices"

	"github.com/march-id/march/allocator"
)

// A registration that is gone, or another's, is lost: an operator's forget, or
// a process of the same name. But a restored etcd has forgotten registrations
// too, and there the process must live on: to see that etcd went back in time,
// to be asked by `march recover`, and to go on after it. So it looks first; and
// under another epoch than the one that it registered under, it registers again.

// errDisplaced is an answer of adopt: the registration is not as it was left,
// and that is to be looked into first.
var errDisplaced = &allocator.Error{Kind: allocator.Unavailable, Msg: "the registration is not as it was left; etcd is looked at first"}

// displaced returns errDisplaced, or nil where the registration is lost. The
// caller holds the lock.
func (i *Instance) displaced() error {
	l := i.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.timeline
	if t.order != i.mu.order || t.doubt != nil || !i.mu.looked {
		return errDisplaced
	}
	return nil
}

// check looks at what a transaction showed of our registration. Its error is
// Refused when it is not ours any longer.
func (i *Instance) check(ctx context.Context, found []KV) error {
	i.mu.Lock()
	i.mu.looked = false
	err := i.adopt(found)
	order := i.mu.order
	older := err == nil && found[0].ModRevision < i.mu.kv.ModRevision
	i.mu.Unlock()
	l := i.ledger
	if older && l.before().order != order {
		// What we wrote last is lost with the stretch that etcd forgot: mod revisions
		// can be compared within an epoch only.
		return i.rejoin(ctx, found)
	}
	if !errors.Is(err, error(errDisplaced)) {
		return err
	}
	if l.before().order == order {
		l.suspect("the registration of "+l.haltsAs()+" is gone, or another's", nil)
		if _, err := l.look(ctx, true, l.try); err != nil && allocator.KindOf(err) != allocator.Refused {
			return err
		}
	}
	if l.before().order != order {
		return i.rejoin(ctx, found)
	}
	// What was found is from before the look: we may have registered again since,
	// in another goroutine. It is read in the order of all writes, as sight does.
	answer, err := l.try(ctx, Txn{
		If: []Cond{absent(l.keys.identity())}, Then: []Op{{Delete: l.keys.beat()}},
		Else: []Op{get(l.keys.registration(i.room, i.name))},
	})
	if err != nil || answer.Succeeded {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.looked = true
	return i.adopt(answer.Got[0])
}

// rejoin registers again under an epoch that is not the one that we registered
// under, over what was found; but not over a process that was started after us.
func (i *Instance) rejoin(ctx context.Context, found []KV) error {
	l := i.ledger
	order := l.before().order
	i.mu.Lock()
	lost := i.mu.lost
	if lost == nil && len(found) > 0 {
		var v registrationValue
		if decode(found[0], &v) == nil && v.Incarnation != i.incarnation && v.Started.After(i.mu.value.Started) {
			i.mu.order, i.mu.looked = order, true
			lost = i.adopt(found)
		}
	}
	known, err := KV{}, lost
	if err == nil {
		known, err = i.succeed(found)
	}
	value := encode(&i.mu.value)
	i.mu.Unlock()
	if err != nil {
		return err
	}
	answer, err := l.try(ctx, Txn{If: []Cond{unchanged(known)}, Then: []Op{put(known.Key, value)}})
	if err != nil || !answer.Succeeded {
		return err // the next heartbeat looks again
	}
	l.log.Warn("registered again: etcd had forgotten it", "instance", i.name, "room", i.room)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.kv, i.mu.order = KV{Key: known.Key, Value: value, ModRevision: answer.Revision}, order
	return nil
}

// succeed prepares to register over what was found, which it returns. Where
// that is a process whose journal we do not have, nobody may have its memory: we
// say so, for `march recover`. The caller holds the lock.
func (i *Instance) succeed(found []KV) (KV, error) {
	l := i.ledger
	kv, epoch := KV{Key: l.keys.registration(i.room, i.name)}, l.epoch()
	if len(found) > 0 {
		kv = found[0]
		var was registrationValue
		if err := decode(kv, &was); err != nil {
			return KV{}, err
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
	}
	i.mu.value.under(epoch)
	return kv, nil
}

// maxLost bounds how many processes whose memory is lost are named: that there
// is one is what counts.
const maxLost = 10

// under notes that the registration is written under an epoch; empty while that
// is halted, or not known. Whoever was lost under an earlier one is no matter
// any longer: `march recover` has gone on without.
func (v *registrationValue) under(epoch string) {
	if epoch != "" && epoch != v.Epoch {
		v.Epoch, v.Lost = epoch, nil
	}
}

// epoch returns the epoch in force as this process knows it, empty where there
// is none.
func (l *Ledger) epoch() string {
	s, _ := l.current()
	return s.epoch
}

// registeredUnder notes that the registration was as we know it under the epoch
// of an order.
func (i *Instance) registeredUnder(order int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.order = max(i.mu.order, order)
}
