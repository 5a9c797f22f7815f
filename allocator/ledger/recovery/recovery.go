package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Ledger has the methods of allocator/ledger that a run needs: transactions that check
// the cluster's identity and notice if etcd goes back in time.
type Ledger interface {
	// Cluster returns the cluster's keys and store, with the ledger's clock and log.
	Cluster() *record.Cluster
	// PinAnew reads the identity and other keys in one transaction, and pins the ledger to
	// the etcd cluster that answers.
	PinAnew(ctx context.Context, also ...store.Op) (record.Identity, store.Answer, error)
	// Read sends a transaction that changes nothing until it is answered, for two tries' time.
	Read(context.Context, store.Txn) (store.Answer, error)
	// Try sends a transaction once. After an error its outcome is unknown.
	Try(context.Context, store.Txn) (store.Answer, error)
	// HaltOver writes a halt over a value of the epoch's key. Its error is Conflict if
	// another value is in force.
	HaltOver(ctx context.Context, epoch []byte, actor, why string, also ...store.Op) (store.KV, error)
	// MakeRoom returns operations that remove the oldest keys of kinds, and the oldest
	// audit entries.
	MakeRoom(ctx context.Context, kinds ...string) []store.Op
	// Gets reads keys in one transaction, as Read does.
	Gets(ctx context.Context, keys ...store.Op) (store.Answer, error)
	// RefreshTo makes the ledger read epoch and layout: of a version, or 0 for any.
	RefreshTo(ctx context.Context, version int64) (record.Layout, error)
}

// Run recovers the cluster of a ledger. Its errors are Refused (instances did not answer,
// keys cannot be read, layouts differ: nothing was changed), Conflict (another recover
// began meanwhile), WentBack (etcd went back while recover ran) and Unavailable; it may
// be run again after each. The report is never nil.
func Run(ctx context.Context, l Ledger, cfg Config) (*Report, error) {
	cluster := l.Cluster()
	r := &run{l: l, cluster: cluster, keys: cluster.Keys, cfg: cfg, report: &Report{}}
	r.mu.known = make(map[string]known)
	r.mu.answers = make(map[string]*answer)
	r.mu.silent = make(map[string]string)
	r.mu.higher = make(map[roomTag]int64)
	r.mu.workers = make(map[record.WorkerID]record.Worker)
	r.mu.unreadable = make(map[string]error)
	return r.report, r.all(ctx)
}

// run is one recovery.
type run struct {
	l       Ledger
	cluster *record.Cluster
	keys    record.Keys
	cfg     Config
	report  *Report
	found   stored
	nonce   string // of the run's own halt, after it was written: found.epoch is then that halt

	reserve time.Duration // the least reserve of all tags and of the default

	mu struct { // answers come from several goroutines
		sync.Mutex
		known      map[string]known                  // processes that may have leased, by incarnation
		answers    map[string]*answer                // by address
		silent     map[string]string                 // why no process answered, by address
		higher     map[roomTag]int64                 // marks that are higher in memories than in the store,
		learned    int                               // and how often a higher one was found
		unreadable map[string]error                  // why each key cannot be read
		rooms      []allocator.Room                  // that ever had a range
		version    int64                             // the highest layout version,
		latest     string                            // and the epoch in which it was in force
		extremes   record.Layout                     // the narrowest range and the largest boundary of all layouts
		layout     allocator.Layout                  // of the highest version of which the whole layout is known
		total      int64                             // the largest margin total,
		notBefore  int64                             // and the latest not_before of any epoch
		workers    map[record.WorkerID]record.Worker // that memories know
		taken      map[string]struct{}               // incarnations whose memory was taken
	}
}

// roomTag names a mark.
type roomTag struct {
	room allocator.Room
	tag  allocator.Tag
}

func (r *run) all(ctx context.Context) error {
	if err := r.read(ctx); err != nil {
		return err
	}
	if err := r.takeJournals(ctx); err != nil {
		return err
	}
	if err := r.askAll(ctx, nil); err != nil {
		return err
	}
	if r.cfg.Apply && r.cfg.Wait > 0 {
		r.progress("waiting for instances to register again", 0, 0)
		if !sleep(ctx, r.cfg.Wait) {
			return brokenOff(ctx)
		}
		if err := r.readRegistrations(ctx); err != nil {
			return err
		}
		if err := r.askAll(ctx, nil); err != nil {
			return err
		}
	}
	if err := r.decide(ctx); err != nil {
		return err
	}
	if !r.cfg.Apply {
		return nil
	}
	began := time.Now()
	if err := r.haltStore(ctx); err != nil {
		return err
	}
	if err := r.bar(ctx); err != nil {
		return fmt.Errorf("leasing stays halted, run `march recover` again: %w", err)
	}
	r.report.Halted = time.Since(began)
	r.forgetMissing(ctx)
	_, err := r.l.RefreshTo(ctx, r.report.Layout.Version)
	return err
}

// audit returns the operation that records a change by the operator.
func (r *run) audit(action, object string, from, to []byte) store.Op {
	return r.keys.Audited(r.cluster.Now(), r.cfg.Actor, action, object, from, to)
}

// barrier returns the barrier of the halt in force.
func (r *run) barrier() *record.Barrier {
	return &record.Barrier{Nonce: r.nonce, ClusterID: r.found.identity.ClusterID}
}

// bar does the steps after this recover has halted leasing.
func (r *run) bar(ctx context.Context) error {
	if err := r.askAll(ctx, r.barrier()); err != nil {
		return err
	}
	if err := r.complete(); err != nil {
		return err
	}
	if err := r.raise(ctx); err != nil {
		return err
	}
	if err := r.raiseWorkers(ctx); err != nil {
		return err
	}
	if err := r.confirm(ctx); err != nil {
		return err
	}
	return r.begin(ctx)
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// brokenOff returns the error of a recover whose context has ended.
func brokenOff(ctx context.Context) error {
	return allocator.Errorf(allocator.Unavailable, "recover was interrupted; run it again: %w", context.Cause(ctx))
}

func (r *run) progress(doing string, done, of int64) {
	if r.cfg.Progress != nil {
		r.cfg.Progress(Progress{Doing: doing, Done: done, Of: of})
	}
}

// forgetMissing deletes the registrations of the instances that recover went on without,
// so that the next recover need not ask them. An instance that still runs registers
// again. A registration that cannot be deleted stays, for `march instance forget`.
func (r *run) forgetMissing(ctx context.Context) {
	gone := make(map[string]bool)
	for _, m := range r.report.Missing {
		gone[m.Incarnation] = true
	}
	if len(gone) == 0 {
		return
	}
	answer, err := r.l.Read(ctx, store.Txn{Then: []store.Op{store.OpGetPrefix(r.keys.Registrations(""))}})
	if err != nil {
		return
	}
	var errs []error
	for _, kv := range answer.Got[0] {
		var v record.Registration
		if record.Decode(kv, &v) != nil {
			v.Incarnation = unreadableID(kv.Key)
		}
		if !gone[v.Incarnation] {
			continue
		}
		txn := store.Txn{If: []store.Cond{store.Unchanged(kv)}, Then: []store.Op{{Delete: kv.Key}, r.audit("forget instance", kv.Key, kv.Value, nil)}}
		_, err := r.l.Try(ctx, txn.With(r.l.MakeRoom(ctx)))
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		r.cluster.Log.Warn("registrations of instances that recover went on without stay: see `march instance forget`", "error", err)
	}
}

// withoutID reports whether the operator lets recover go on without an instance.
func (r *run) withoutID(id record.InstanceID) bool { return slices.Contains(r.cfg.Without, id) }
