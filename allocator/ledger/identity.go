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
	answer, err := l.gets(ctx, store.OpGet(l.keys.Identity()), store.OpGet(l.keys.Epoch()), store.OpGet(l.keys.Layout()))
	if err != nil {
		return err
	}
	if other := record.LostIdentity(answer.Got); other != "" {
		return l.keys.IdentityLost(other)
	}
	return allocator.Errorf(allocator.Refused, text, l.keys)
}
