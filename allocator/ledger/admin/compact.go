package admin

import (
	"context"
	"errors"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// StoreSize is how large etcd's database is, and which alarms etcd has raised.
type StoreSize struct {
	Revision int64
	Bytes    int64
	Quota    int64 // the size at which etcd takes no more writes; 0 if the server does not report it
	NoSpace  bool  // etcd takes no writes, until an operator disarms the alarm
	Corrupt  bool  // etcd's members differ, and it takes neither reads nor writes
}

// StoreSize asks etcd for the size of its database, and for its alarms. Its errors are ledger.Ledger.Attach's,
// Unavailable, and WentBack if another etcd cluster answers.
func (a *view) StoreSize(ctx context.Context) (StoreSize, error) {
	status, err := a.Ledger.Cluster().Status(ctx)
	if err != nil {
		return StoreSize{}, err
	}
	size := StoreSize{status.Revision, status.Size, status.Quota, status.NoSpace, status.Corrupt}
	if size.Corrupt { // it does not answer what follows
		return size, nil
	}
	if err := a.Ledger.Attach(ctx); err != nil {
		return StoreSize{}, err
	}
	id, err := a.Ledger.Identity(ctx)
	if err != nil {
		return StoreSize{}, err
	}
	if id.ClusterID != status.ClusterID {
		return StoreSize{}, allocator.Errorf(allocator.WentBack, "%w",
			&record.OtherClusterError{UUID: id.UUID, Pinned: id.ClusterID, Told: status.ClusterID})
	}
	return size, nil
}

// Compact makes etcd forget its history before a revision. It returns no error if
// that is already done.
func (a *Admin) Compact(ctx context.Context, revision int64) error {
	c := a.Ledger.Cluster()
	ctx, cancel := context.WithTimeout(ctx, c.TryTimeout)
	defer cancel()
	if err := c.Store.Compact(ctx, revision); !errors.Is(err, store.ErrCompacted) {
		return err
	}
	return nil
}

// Compacted returns up to which revision etcd's history was compacted, 0 where it never was.
// Its errors are ledger.Ledger.Attach's, the watch's and ctx's.
func (a *view) Compacted(ctx context.Context) (int64, error) {
	if err := a.Ledger.Attach(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := a.Ledger.Cluster()
	// The identity was written once, so a watch from the beginning sees that, or learns what
	// is gone.
	changes := c.Store.Watch(ctx, []store.Interval{{Key: c.Keys.Identity()}}, 1)
	change := <-changes
	cancel()
	for range changes { // the watch ends first
	}
	if gone, is := errors.AsType[*store.CompactedError](change.Err); is {
		return gone.Revision, nil
	}
	return 0, change.Err
}
