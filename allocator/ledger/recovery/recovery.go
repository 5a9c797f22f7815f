package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Run recovers the cluster of a ledger. Its errors are Refused (instances did not answer,
// keys cannot be read, layouts differ: nothing was changed), Conflict (another recover
// began meanwhile), WentBack (etcd went back while recover ran) and Unavailable; it may
// be run again after each. The report is never nil.
func Run(ctx context.Context, l Ledger, cfg Config) (*Report, error) {
	cluster := l.Cluster()
	r := &run{}
	r.l, r.cluster, r.keys, r.cfg, r.report, r.bad = l, cluster, cluster.Keys, cfg, &Report{}, make(map[string]error)
	r.higher, r.workers = make(map[roomTag]reached), make(map[record.WorkerIn]record.Worker)
	r.machines = make(map[record.WorkerIn]record.Machine)
	r.limits, r.bounds = make(map[allocator.Tag]int64), make(map[allocator.Tag]tagBounds)
	r.known, r.byPlace = make(map[string]known), make(map[string]*answer)
	r.silent, r.taken = make(map[string]string), make(map[string]struct{})
	r.mirrors, r.ticks = make(map[string]*Witnessed), make(map[string]mirror.Answer)
	return r.report, r.all(ctx)
}

func (r *run) all(ctx context.Context) error {
	if err := r.read(ctx); err != nil {
		return err
	}
	if err := r.takeJournals(ctx); err != nil {
		return err
	}
	if err := r.askMirrors(ctx); err != nil {
		return err
	}
	if err := r.askAll(ctx, nil); err != nil {
		return err
	}
	if r.cfg.Apply && r.cfg.Wait > 0 {
		r.progress("waiting for instances to register again", 0, 0)
		if !store.Sleep(ctx, r.cfg.Wait) {
			return brokenOff(ctx)
		}
		if err := r.readRegistrations(ctx); err != nil {
			return err
		}
		if err := r.askMirrors(ctx); err != nil {
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
		halted := "leasing stays halted"
		if r.inDoubt {
			halted += ", unless the new epoch comes late"
		}
		return fmt.Errorf("%s, run `march recover` again: %w", halted, err)
	}
	r.report.Halted = time.Since(began)
	r.forgetMissing(ctx)
	_, err := r.l.RefreshTo(ctx, r.report.Layout.Version)
	return err
}

// bar does the steps after this recover has halted leasing.
func (r *run) bar(ctx context.Context) error {
	if err := r.askAll(ctx, r.barrier()); err != nil {
		return err
	}
	if err := r.complete(); err != nil {
		return err
	}
	if err := r.raiseMarks(ctx); err != nil {
		return err
	}
	if err := r.raiseWorkers(ctx); err != nil {
		return err
	}
	if err := r.confirmAnswers(ctx); err != nil {
		return err
	}
	r.with(func() { r.begins = r.windowsBegin() }) // all answers are confirmed by now
	if err := r.freeWorkers(ctx, r.begins); err != nil {
		return err
	}
	if err := r.raiseTags(ctx); err != nil {
		return err
	}
	if err := r.raiseMachines(ctx); err != nil {
		return err
	}
	return r.begin(ctx)
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
	answer, err := r.l.Read(ctx, store.Txn{Then: []store.Op{store.OpGetPrefix(r.keys.All(record.Registrations))}})
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
		txn := store.Txn{If: []store.Cond{store.Unchanged(kv)},
			Then: []store.Op{{Delete: kv.Key}, r.audit("forget instance", kv.Key, kv.Value, nil)}}
		_, err := r.l.Try(ctx, txn.With(r.l.MakeRoom(ctx)))
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		r.cluster.Log.Warn("registrations of instances that recover went on without stay: see `march instance forget`",
			"error", err)
	}
}
