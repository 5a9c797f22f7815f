package ledger

import (
	"context"
	"errors"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// StoreSize is how large etcd's database is.
type StoreSize struct {
	Revision int64
	Bytes    int64
	Quota    int64 // at which etcd takes no more writes; 0 where the server does not say
}

// StoreSize asks etcd how large it is. Its errors are attach's, Unavailable, and
// WentBack where another etcd cluster answers.
func (l *Ledger) StoreSize(ctx context.Context) (StoreSize, error) {
	if err := l.attach(ctx); err != nil {
		return StoreSize{}, err
	}
	status, err := l.Cluster().Status(ctx)
	if err != nil {
		return StoreSize{}, err
	}
	l.mu.Lock()
	id := l.mu.identity
	l.mu.Unlock()
	if id.ClusterID != status.ClusterID {
		return StoreSize{}, allocator.Errorf(allocator.WentBack, "%w", &record.OtherClusterError{UUID: id.UUID, Pinned: id.ClusterID, Told: status.ClusterID})
	}
	return StoreSize{status.Revision, status.Size, status.Quota}, nil
}

// Compact has etcd forget its history before a revision. It is no error where
// etcd, or another console, has done so.
func (l *Ledger) Compact(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.TryTimeout)
	defer cancel()
	if err := l.store.Compact(ctx, revision); !errors.Is(err, store.ErrCompacted) {
		return err
	}
	return nil
}
