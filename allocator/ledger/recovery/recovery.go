// Package recovery makes a cluster lease again after its etcd went back in time: it was
// restored from a backup, rebuilt from one member, or halted. It is `march recover`.
//
// A restored etcd has forgotten leases, so its marks are too low: a lease by them would
// issue IDs again. The instances that made those leases remember them. Recovery asks each
// instance, raises the marks, and begins a new epoch, under which leasing goes on. Package
// ledger has what instances do meanwhile: the barrier (barrier.go) and the way into the
// new epoch (enter.go). DESIGN 3.4 is the design of record.
//
// # Steps
//
//  1. Run reads what the store has, and asks every process that may have leased since
//     the backup what it remembers. Nothing is changed so far.
//  2. Only if that went well, Run halts leasing, with a halt of its own: a lease
//     compares the epoch, so none is made in this store from then on.
//  3. The second question is a barrier: an instance that accepts it issues nothing from
//     any transaction that it sent before, and leases nothing under any epoch that it
//     has seen. So what it reports is all that it will ever issue.
//  4. Run raises the marks that a memory knows to be higher than the store's.
//  5. Run writes another halt and confirms all answers. One transaction, which compares
//     that halt's nonce, then begins a new random epoch with a layout version above all
//     that are known. Its margin total covers leases of instances that did not answer:
//     the floor adds it to every mark of an older total, so a recovery costs the same
//     with ten tags and with ten million.
//
// # Invariants
//
//  1. Nothing is changed before the operator has named every process that did not answer
//     and every mark that cannot be read.
//  2. Each write from the first halt to the new epoch compares the epoch's key with the
//     run's own halt. Of two runs at once, the first finds its halt gone and ends.
//  3. A mark is only raised, in the room that leased, and only to what a memory knows.
//  4. The new epoch lists the processes whose memory was taken: from a journal, or by an
//     answer that the process confirmed under the last halt (run.confirm).
//  5. The new epoch's margin total is not below any that the store, a journal or an answer
//     knows, and its layout version is above all of theirs.
//
// A run that breaks off leaves leasing halted at worst, and may be repeated.
//
// One risk remains: an instance that did not answer issues the IDs that it holds until it
// next reaches etcd; see enter.go of package ledger, and docs/restore.md.
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

// Config says how to recover.
type Config struct {
	Actor string
	// Apply does it; otherwise nothing is changed, no instance is barred, and the
	// report says what would be done.
	Apply bool
	// Ask asks an instance for its memory.
	Ask Ask
	// Memories are those of journals.
	Memories []record.Memory
	// Without are instances to go on without.
	Without []record.InstanceID
	// Skip are tags of which a mark cannot be read, to be left as they are.
	Skip []allocator.Tag
	// Wait is how long to wait, before halting, for instances that etcd has
	// forgotten to register again.
	Wait time.Duration
	// Margin is how many steps of each tag are left free for instances that recover
	// goes on without; nil for 1 + 2 * age of the backup / reserve for each of them,
	// by the least reserve of all tags, and at most 10 minutes.
	Margin *int64
	// Layout is which layout to go on with where etcd has an older one than an
	// instance knows.
	Layout LayoutChoice
	// Given is the layout of LayoutGiven.
	Given allocator.Layout
	// Progress, if it is not nil, is called now and then, from several goroutines.
	Progress func(Progress)
}

// Ask asks an instance for its memory. It calls use with each part of the marks
// that the instance remembers, and returns the rest.
type Ask func(ctx context.Context, s record.SeenInstance, q record.Question, use record.UseMarks) (record.Memory, error)

// LayoutChoice says which layout a recover puts in force.
type LayoutChoice string

// The choices. Undecided refuses to recover where the layouts differ.
const (
	LayoutUndecided LayoutChoice = ""
	LayoutStored    LayoutChoice = "stored" // the one that etcd has
	LayoutKnown     LayoutChoice = "known"  // the latest that any instance knows
	LayoutGiven     LayoutChoice = "given"  // Config.Given
)

// Progress is how far a recover is.
type Progress struct {
	Doing string
	Done  int64 // of what Doing counts
	Of    int64 // how much there is, 0 where that is not known
}

// Report is what a recover saw and did.
type Report struct {
	UUID       string
	Halt       record.HaltRecord // that was in force; zero where there was none
	Answered   []record.InstanceID
	LeftBefore []record.InstanceID // that left in good order before the backup
	Missing    []Missing
	Unreadable []record.KeyError // keys that cannot be read
	Beat       time.Time         // when etcd was last known to be there, by the restored store
	Margin     int64             // of this recover, in steps
	Total      int64             // of all recovers
	AtLimit    []allocator.Tag   // that the margin takes to their limits, or above
	Stored     record.Layout     // that etcd has; zero where it cannot be read
	Known      allocator.Layout
	Layout     allocator.Layout // that is put in force, with its version
	Higher     int64            // marks that a memory knows to be higher than etcd's
	Raised     int64            // of these
	Halted     time.Duration    // from recover's own halt to the new epoch
	Epoch      string           // empty before it is done
}

// Missing is a process whose memory is not known. Only the margin covers its
// leases since the backup, and it may still issue the IDs that it holds.
type Missing struct {
	ID          record.InstanceID
	Incarnation string
	Why         string
	Without     bool // the operator said to go on without it
}

// Ledger is what a run needs of allocator/ledger: a way to etcd that knows the cluster's
// identity and sees etcd go back in time.
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
	// HaltOver writes a halt over a value of the epoch's key. Its error is Conflict where
	// another value is in force.
	HaltOver(ctx context.Context, epoch []byte, actor, why string, also ...store.Op) (store.KV, error)
	// MakeRoom returns what removes the oldest keys of kinds, and the oldest audit entries.
	MakeRoom(ctx context.Context, kinds ...string) []store.Op
	// EachTagIn calls use with every tag that can be read, and its marks in rooms.
	EachTagIn(
		ctx context.Context, rooms []allocator.Room, use func(record.Tag, map[allocator.Room]record.Mark) error,
	) ([]record.KeyError, error)
	// RefreshTo has the ledger read epoch and layout: of a version, or 0 for any.
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
	halt    store.KV // our own, once it is written
	nonce   string

	reserve time.Duration // the least of all tags, and of the default

	mu struct { // answers come from several goroutines
		sync.Mutex
		known      map[string]known    // processes that may have leased, by incarnation
		answers    map[string]*answer  // by address
		silent     map[string]string   // addresses at which no process answered, and why
		higher     map[roomTag]int64   // what memories know better than the store,
		learned    int                 // and how often they did
		unreadable map[string]error    // keys, and why
		rooms      []allocator.Room    // that ever had a range
		version    int64               // the highest layout version,
		latest     string              // and the epoch in which it was in force
		extremes   record.Layout       // the narrowest range and the largest boundary of all layouts
		layout     allocator.Layout    // of the highest version that is known whole
		total      int64               // the largest margin total
		taken      map[string]struct{} // incarnations whose memory is here
	}
}

// roomTag names a mark.
type roomTag struct {
	room allocator.Room
	tag  allocator.Tag
}

// all takes all steps.
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

// barrier is that of the halt in force.
func (r *run) barrier() *record.Barrier {
	return &record.Barrier{Nonce: r.nonce, ClusterID: r.found.identity.ClusterID}
}

// bar does what is done while leasing is halted by this recover.
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
	return allocator.Errorf(allocator.Unavailable, "recover was broken off: %w", context.Cause(ctx))
}

func (r *run) progress(doing string, done, of int64) {
	if r.cfg.Progress != nil {
		r.cfg.Progress(Progress{Doing: doing, Done: done, Of: of})
	}
}

// forgetMissing deletes the registrations of the instances that recover went on without,
// so that the next recover need not ask them. An instance that lives after all registers
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

// newVersion returns the layout version of a recover: 1,000 above the highest that is
// known, so that it also lies above versions of moves that only an instance which did
// not answer knows; and at least recover's clock in seconds since 2026, so that the
// version of a recover that a later restore forgets does not come again. Uniqueness
// does not depend on the clock: leases compare the epoch.
func newVersion(known int64, at time.Time) int64 {
	step := known + record.RecoverVersions
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return max(step, int64(at.Sub(began)/time.Second))
}

// withoutID reports whether the operator said to go on without an instance.
func (r *run) withoutID(id record.InstanceID) bool { return slices.Contains(r.cfg.Without, id) }
