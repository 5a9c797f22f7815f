package ledger

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
)

// Driver is a console's claim to drive migrations: a key under an etcd lease.
// It keeps consoles out of each other's way and nothing more: what they write
// is fenced by the migration's own revision. It is not etcd's concurrency
// package because that needs an etcd client, and this must also run over the
// store that shows faults.
//
// The zero value holds nothing. It is for one goroutine.
type Driver struct {
	lease int64
}

// DriverTTL is how long a driver that died is waited for.
const DriverTTL = 5 * time.Second

// Drive claims or renews the claim, and reports whether this console is the
// driver for the next DriverTTL. name is for people to read.
func (l *Ledger) Drive(ctx context.Context, d *Driver, name string) (bool, error) {
	// Nothing is written where there is no cluster yet, whose Init must find its
	// prefix empty, or one other than configured.
	if err := l.attach(ctx); err != nil {
		return false, err
	}
	if d.lease != 0 {
		err := l.store.KeepAlive(ctx, d.lease)
		if err == nil {
			answer, err := l.gets(ctx, get(l.keys.driver()))
			if err != nil {
				return false, err
			}
			kv, ok := answer.one(0)
			var v holderValue
			if ok && decode(kv, &v) == nil && v.Name == name {
				return true, nil
			}
		} else if allocator.KindOf(err) != allocator.NotFound {
			return false, err
		}
		d.lease = 0
	}
	answer, err := l.gets(ctx, get(l.keys.driver()))
	if err != nil {
		return false, err
	}
	if _, held := answer.one(0); held {
		return false, nil
	}
	lease, err := l.store.Grant(ctx, DriverTTL)
	if err != nil {
		return false, err
	}
	answer, err = l.try(ctx, Txn{
		If:   []Cond{absent(l.keys.driver())},
		Then: []Op{{Put: &Put{Key: l.keys.driver(), Value: encode(&holderValue{Name: name}), Lease: lease}}},
	})
	if err != nil || !answer.Succeeded {
		return false, err // a lease that holds nothing expires by itself
	}
	d.lease = lease
	return true, nil
}

// Release gives the claim up, so that another console need not wait.
func (l *Ledger) Release(ctx context.Context, d *Driver, name string) error {
	if d.lease == 0 {
		return nil
	}
	d.lease = 0
	_, err := l.try(ctx, Txn{
		If:   []Cond{hasValue(l.keys.driver(), encode(&holderValue{Name: name}))},
		Then: []Op{{Delete: l.keys.driver()}},
	})
	return err
}
