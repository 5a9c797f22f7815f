package ledgertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
)

// over is a real etcd below a Fake: it does each transaction that the Fake does, and its answers are the Fake's. Faults
// and journeys back in time are made in front of it.
type over struct {
	*Outside
	etcd *Etcd // nil while it has other data than the Fake
	conn store.Store
}

// Outside does for a bubble of testing/synctest what uses sockets, which would stop the bubble's clock.
type Outside struct {
	tb    testing.TB
	calls chan func()
	done  chan struct{}
}

// NewOutside must be called outside the bubble. It ends with the test.
func NewOutside(tb testing.TB) *Outside {
	o := &Outside{tb, make(chan func()), make(chan struct{})}
	tb.Cleanup(func() { close(o.calls) })
	go func() {
		for call := range o.calls {
			go func() {
				defer func() { o.done <- struct{}{} }() // also if the call ends the test
				call()
			}()
		}
	}()
	return o
}

func (o *Outside) do(call func()) {
	o.calls <- call
	<-o.done
}

func (o *over) end() {
	if o != nil && o.etcd != nil {
		o.do(func() {
			_ = o.conn.Close()
			o.etcd.Stop()
			o.etcd = nil
		})
	}
}

// fill starts an etcd, and does in it what the data was made of, revision by revision.
func (o *over) fill(ctx context.Context, d *mvcc) {
	o.etcd = StartEtcd(o.tb)
	o.conn = o.etcd.Store(o.tb)
	all := []store.Interval{{Key: "\x00", End: "\xff"}}
	at := int64(1)
	for _, rev := range slices.Sorted(maps.Keys(d.log)) {
		o.pass(ctx, at, rev-1)
		txn := store.Txn{}
		for _, kv := range d.changes(rev, all) {
			op := store.OpPut(kv.Key, kv.Value)
			if kv.ModRevision == 0 {
				op = store.Op{Delete: kv.Key}
			}
			txn.Then = append(txn.Then, op)
		}
		if answer, err := o.conn.Txn(ctx, txn); err != nil || answer.Revision != rev {
			o.tb.Fatalf("revision %d of a real etcd: %v, %+v", rev, err, answer)
		}
		at = rev
	}
	o.pass(ctx, at, d.rev)
	if err := o.conn.Compact(ctx, d.compacted); err != nil && !errors.Is(err, store.ErrCompacted) {
		o.tb.Fatalf("compact a real etcd: %v", err)
	}
}

// pass brings the etcd from one revision to another, in which others wrote: many were skipped by a restore.
func (o *over) pass(ctx context.Context, from, to int64) {
	const most = 10_000
	if to-from > most {
		_ = o.conn.Close()
		o.etcd.Restore(o.tb, o.etcd.Backup(o.tb), uint64(to-from), "")
		o.conn = o.etcd.Store(o.tb)
		return
	}
	for range to - from {
		if _, err := o.conn.Txn(ctx, store.Txn{Then: []store.Op{store.OpPut("others'", nil)}}); err != nil {
			o.tb.Fatalf("a real etcd: %v", err)
		}
	}
}

// apply does a transaction to which the Fake gave an answer.
func (o *over) apply(txn store.Txn, answer store.Answer) store.Answer {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := o.conn.Txn(ctx, txn)
	same := err == nil && got.Revision == answer.Revision && got.Succeeded == answer.Succeeded &&
		slices.Equal(got.Counts, answer.Counts) &&
		slices.EqualFunc(got.Got, answer.Got, func(a, b []store.KV) bool {
			return slices.EqualFunc(a, b, func(a, b store.KV) bool {
				return a.Key == b.Key && string(a.Value) == string(b.Value) && a.ModRevision == b.ModRevision
			})
		})
	if !same {
		o.tb.Errorf("a real etcd answers %+v, %v\nand the fake %+v\nto %+v", got, err, answer, txn)
	}
	got.Sender = answer.Sender
	return got
}
