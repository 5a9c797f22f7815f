package ledger

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// bounds are how many keys of each kind are kept. Tests lower them.
type bounds struct{ layouts, migrations, audits int64 }

var defaultBounds = bounds{record.MaxLayouts, record.MaxMigrations, record.MaxAudits}

// rings are the rings of the audit, in which this process counts and links its entries, and the bounds of all kinds.
type rings struct {
	bounds bounds
	chains []*record.Chain // of this process's entries in each ring of the audit

	count struct {
		sync.Mutex
		spare map[string]int64 // how many entries of each ring may be written before they are counted again
	}
}

// spend takes one of the entries of a ring that may be written before they are counted again, and reports whether
// there was one.
func (r *rings) spend(ring string) bool {
	r.count.Lock()
	defer r.count.Unlock()
	r.count.spare[ring]--
	return r.count.spare[ring] >= 0
}

// counted notes how many entries of a ring may be written before they are counted again.
func (r *rings) counted(ring string, spare int64) {
	r.count.Lock()
	defer r.count.Unlock()
	r.count.spare[ring] = spare
}

// Change sends a transaction, once, that adds an audit entry, and a key to each of
// kinds, which are prefixes of keys that sort by age. It removes in the same
// transaction the oldest keys of a kind that is at its bound. Processes that write
// at the same moment may leave a key too many each, which later writes remove. It changes only the cluster that the
// process knows: in an etcd that lost it, or has another one, its error is Refused.
func (l *client) Change(ctx context.Context, txn store.Txn, kinds ...string) (store.Answer, error) {
	var oldest []store.Op
	var counting sync.WaitGroup
	counting.Go(func() { oldest = l.MakeRoom(ctx, kinds...) })
	answer, err := l.Gets(ctx, store.OpGet(l.keys.Identity()))
	counting.Wait()
	if err != nil {
		return store.Answer{}, err
	}
	kv, ok := answer.One(0)
	if !ok {
		return store.Answer{}, l.noIdentity(ctx, clusterGone)
	}
	var id record.Identity
	if known := l.pinned(); known.UUID != "" && record.Decode(kv, &id) == nil && id.UUID != known.UUID {
		return store.Answer{}, l.otherCluster(id)
	}
	txn.If = append(slices.Clip(txn.If), store.Unchanged(kv))
	return l.Try(ctx, txn.With(oldest))
}

// MakeRoom returns operations that remove the oldest keys of kinds and audit entries,
// so that the next Change does not exceed their bounds.
func (l *client) MakeRoom(ctx context.Context, kinds ...string) (oldest []store.Op) {
	for _, kind := range append(kinds, l.keys.All(record.Audits)) {
		oldest = append(oldest, l.overflow(ctx, kind)...)
	}
	return oldest
}

// auditBound returns the number of audit entries at which the oldest are removed, and
// how many may be written before the next count.
func (r *rings) auditBound() (bound, slack int64) {
	return r.bounds.audits - min(record.AuditReserve, r.bounds.audits/2), min(record.AuditSlack, r.bounds.audits/4)
}

// overflow returns operations that remove keys of a kind so that one more fits. If
// the keys cannot be counted, it returns none and the change is tried, which
// matters most for a halt. The next change counts again.
func (l *client) overflow(ctx context.Context, kind string) []store.Op {
	bound, slack := l.bounds.layouts, int64(0)
	ring := slices.Contains(l.keys.Rings(), kind)
	switch {
	case kind == l.keys.All(record.Migrations):
		bound = l.bounds.migrations
	case ring:
		if bound, slack = l.auditBound(); l.spend(kind) {
			return nil
		}
	}
	answer, err := l.Try(ctx, store.Txn{Then: []store.Op{{Get: &store.Get{
		Interval: store.Prefix(kind),
		Limit:    slack + record.OverflowMost + 1, KeysOnly: true,
	}}}})
	if err != nil {
		return nil
	}
	count, oldest := answer.Counts[0], answer.Got[0]
	excess := count + 1 - bound
	if excess > 0 {
		excess += slack
	}
	gone := max(min(excess, int64(len(oldest))-1), 0)
	if ring && gone > 0 && !l.noteOldest(ctx, kind, oldest[gone-1].Key, oldest[gone].Key) {
		return nil
	}
	oldest = oldest[:gone]
	if ring {
		l.counted(kind, min(slack, bound-(count+1-int64(len(oldest)))))
	}
	ops := make([]store.Op, len(oldest))
	for i, kv := range oldest {
		ops[i].Delete = kv.Key
	}
	return ops
}

// noteOldest notes that the entries of a ring go up to one, and which is the oldest that is left. It reports whether
// they may go: under formats 2 only once that is noted, so that a check does not take them for removed by hand.
func (l *client) noteOldest(ctx context.Context, ring, removed, left string) bool {
	s, _ := l.State()
	if layout := s.Layout(); !layout.Upgraded() {
		return layout.Layout.Version > 0 // else nothing was read yet, and another process will remove them
	}
	answer, err := l.Try(ctx, store.Txn{Then: []store.Op{store.OpGet(l.keys.Oldest(ring)), store.OpGet(left)}})
	if err != nil {
		return false
	}
	note := record.Oldest{Removed: removed[len(ring):], ID: left[len(ring):]}
	kv, there := answer.One(0)
	is := store.Absent(l.keys.Oldest(ring))
	if there {
		var before record.Oldest
		if is = store.Unchanged(kv); record.Decode(kv, &before) == nil && before.Removed >= note.Removed {
			return true // another process noted more, and perhaps did not remove it
		}
	}
	oldest, ok := answer.One(1)
	if !ok {
		return false
	}
	note.Hash = record.HashOf(oldest.Value)
	answer, err = l.Try(ctx, store.Txn{If: []store.Cond{is},
		Then: []store.Op{store.OpPut(l.keys.Oldest(ring), record.Encode(&note))}})
	return err == nil && answer.Succeeded
}

// takeoversEvery is the least time between two audit entries of workers that a process
// takes over: a room that lends workers to callers may take hundreds a second.
const takeoversEvery = 10 * time.Second

// auditsOwner reports whether taking a worker must be audited: its last window is another
// instance's, and the last such entry is not too recent. A renewal, and the next process of the
// same instance, do not change the owner.
func (m *memory) auditsOwner(last record.Worker) bool {
	if last.Incarnation == "" || last.ID() == record.NewInstanceID(m.room, m.name) {
		return false
	}
	now := m.ledger.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	since := now.Sub(m.mu.audited)
	return since < 0 || since >= takeoversEvery // below 0 if the clock went back
}

// countAudits reads how many audit entries there are, for countedAudits. A caller that
// sends a read anyway adds it, and overflow need not count.
func (l *client) countAudits() store.Op {
	kind := l.keys.All(record.Audits)
	return store.Op{Get: &store.Get{Interval: store.Prefix(kind),
		Limit: 1, KeysOnly: true}}
}

// countedAudits notes the number of audit entries. The next count is due when the
// writes since then may have reached the bound.
func (l *client) countedAudits(n int64) {
	bound, slack := l.auditBound()
	l.counted(l.keys.All(record.Audits), max(min(slack, bound-n), 0))
}

// PinAnew pins this ledger to the etcd cluster that answers, even if the identity has
// another one, as a recover does. It reads the identity and also in one transaction, and
// returns the identity with the ID of that etcd cluster; the answer has the identity's key
// first. Its errors are those of the read, a KeyError, and Refused: if there is no
// cluster, with the zero identity, or if it is another one than configured.
func (l *client) PinAnew(ctx context.Context, also ...store.Op) (id record.Identity, answer store.Answer, err error) {
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
