package ledger

import (
	"context"
	"errors"

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
	i.mu.Unlock()
	if !errors.Is(err, error(errDisplaced)) {
		return err
	}
	l := i.ledger
	if l.before().order == order {
		l.suspect("the registration of "+l.haltsAs()+" is gone, or another's", nil)
		if _, err := l.look(ctx, true, l.try); err != nil && allocator.KindOf(err) != allocator.Refused {
			return err
		}
	}
	if l.before().order != order {
		return i.rejoin(ctx, found)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.looked = true
	return i.adopt(found)
}

// rejoin registers again under an epoch that is not the one that we registered
// under, over what was found; but not over a process that was started after us.
func (i *Instance) rejoin(ctx context.Context, found []KV) error {
	l := i.ledger
	order := l.before().order
	i.mu.Lock()
	known, value, lost := KV{Key: i.mu.kv.Key}, encode(&i.mu.value), i.mu.lost
	if lost == nil && len(found) > 0 {
		known = found[0]
		var v registrationValue
		if decode(known, &v) == nil && v.Incarnation != i.incarnation && v.Started.After(i.mu.value.Started) {
			i.mu.order, i.mu.looked = order, true
			lost = i.adopt(found)
		}
	}
	i.mu.Unlock()
	if lost != nil {
		return lost
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

// registeredUnder notes that the registration was as we know it under the epoch
// of an order.
func (i *Instance) registeredUnder(order int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.order = max(i.mu.order, order)
}
