package ledger

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// The messages to an operator if there is no cluster. Each takes the prefix.
const (
	noCluster        = record.NoCluster
	nothingToRecover = "there is no cluster under %s: nothing to recover"
	clusterGone      = "the cluster under %s is gone: restore etcd from a backup, then run `march recover`"
)

// noIdentity returns why the cluster's identity is missing: there is no cluster, as
// text says, or the key was lost. Its error is Refused, or that of the read.
func (l *Ledger) noIdentity(ctx context.Context, text string) error {
	answer, err := l.Gets(ctx, store.OpGet(l.keys.Identity()), store.OpGet(l.keys.Epoch()), store.OpGet(l.keys.Layout()))
	if err != nil {
		return err
	}
	if other := record.LostIdentity(answer.Got); other != "" {
		return l.keys.IdentityLost(other)
	}
	return allocator.Errorf(allocator.Refused, text, l.keys)
}

// PinAnew pins this ledger to the etcd cluster that answers, be it another one than the
// identity has, as a recover does. It reads the identity and also in one transaction, and
// returns the identity with the ID of that etcd cluster; the answer has the identity's key
// first. Its errors are those of the read, a KeyError, and Refused: with the zero identity
// where there is no cluster, else because it is another one than configured.
func (l *Ledger) PinAnew(ctx context.Context, also ...store.Op) (id record.Identity, answer store.Answer, err error) {
	ops := append([]store.Op{store.OpGet(l.keys.Identity())}, also...)
	if answer, err = l.Gets(ctx, append(ops, l.countAudits())...); err != nil {
		return id, answer, err
	}
	kv, ok := answer.One(0)
	if !ok {
		return id, answer, l.noIdentity(ctx, nothingToRecover)
	}
	if err := record.Decode(kv, &id); err != nil {
		return record.Identity{}, answer, err
	}
	l.countedAudits(answer.Counts[len(ops)])
	id.ClusterID = answer.ClusterID
	return id, answer, l.pin(id, answer.ClusterID)
}
