package recovery

import (
	"context"
	"slices"
	"sync"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
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
	// HaltOver writes a halt over a value of the epoch's key, with a margin total if that is
	// larger than the value's. Its error is Conflict if another value is in force.
	HaltOver(ctx context.Context, epoch []byte, total int64, actor, why string, also ...store.Op) (store.KV, error)
	// MakeRoom returns operations that remove the oldest keys of kinds, and the oldest
	// audit entries.
	MakeRoom(ctx context.Context, kinds ...string) []store.Op
	// Gets reads keys in one transaction, as Read does.
	Gets(ctx context.Context, keys ...store.Op) (store.Answer, error)
	// RefreshTo makes the ledger read epoch and layout: of a version, or 0 for any.
	RefreshTo(ctx context.Context, version int64) (record.Layout, error)
}

// run is one recovery. It is composed of what the store, memories and mirrors show, each part with the methods that
// read it and act on it, in this order: a part uses those before it. One lock, mu, guards what answers change, as these
// come from several goroutines.
type run struct {
	witnesses
	begins  int64 // the new epoch's not_before, once all answers are confirmed
	inDoubt bool  // the transaction that begins the new epoch got no answer: it may come late
}

// session is what the run does with the store, under its own halt.
type session struct {
	l       Ledger
	cluster *record.Cluster
	keys    record.Keys
	cfg     Config
	report  *Report
	found   stored
	nonce   string // of the run's own halt, after it was written: found.epoch is then that halt

	mu  sync.Mutex
	bad map[string]error // why each key cannot be read; guarded by mu
}

// findings are what memories and mirrors know, which is raised where the store has less. They are guarded by mu.
type findings struct {
	session
	higher    map[roomTag]reached                // marks that are higher than in the store,
	learned   int                                // and how often a higher one, or a later window, was found
	total     int64                              // the largest margin total,
	notBefore int64                              // and the latest not_before of any epoch
	workers   map[record.WorkerIn]record.Worker  // that memories know
	rooms     []allocator.Room                   // that ever had a range
	extremes  record.Layout                      // the narrowest range and the largest boundary of all layouts
	limits    map[allocator.Tag]int64            // the largest limits, of the tags that mirrors know
	bounds    map[allocator.Tag]tagBounds        // what mirrors saw of tags that is more than the store has
	machines  map[record.WorkerIn]record.Machine // machine IDs that mirrors saw
}

// processes are those that may have leased since the backup, and what they answered. They are guarded by mu.
type processes struct {
	findings
	known   map[string]known    // by incarnation
	byPlace map[string]*answer  // the answers, by address
	silent  map[string]string   // why no process answered, by address
	taken   map[string]struct{} // incarnations whose memory was taken
	version int64               // the highest layout version that they or the store know,
	latest  string              // and the epoch in which it was in force
	newest  allocator.Layout    // of the highest version of which the whole layout is known
}

// witnesses are the mirrors, and what permits something in them. They are guarded by mu.
type witnesses struct {
	processes
	mirrors  map[string]*Witnessed    // by name, as they answered last,
	ticks    map[string]mirror.Answer // and when they did
	mirrored int64                    // the highest layout version that mirrors saw,
	layouts  []mirroredIn             // and their latest layouts
}

// reached is how far memories know a mark: each number for itself. Below next lies all that a
// lease of a margin total passed by, and all that others with a smaller total did.
type reached struct {
	next, total int64
	known       int64  // the largest next of store and instances
	by          string // the mirror that knows next, empty if an instance does
}

// roomTag names a mark.
type roomTag struct {
	room allocator.Room
	tag  allocator.Tag
}

// known is a process that may have leased since the backup.
type known struct {
	record.SeenInstance

	left      bool     // it left in good order before the backup
	leftAt    int64    // the revision at which it left, as others saw it; 0 if that was not seen
	addresses []string // the addresses at which it, or a process that replaced it, was registered
}

// answer is the last answer of the process at an address.
type answer struct {
	id          record.InstanceID
	incarnation string
	first       bool // its memory begins with this process, so that earlier ones of its name may be lost
	sequence    int64
	windows     []record.Lease // of its own process, in which it goes on after the barrier
}

// stored are the values that recover reads from the store, in one snapshot.
type stored struct {
	identity   record.Identity
	identityKV store.KV
	epoch      record.Epoch // zero if it cannot be read; the halt of this run once it is written
	epochKV    store.KV
	layoutKV   store.KV
	layout     record.Layout // zero if it cannot be read
	layoutErr  error
	beat       record.Beat
	// beatRevision is the mod revision of the beat's key
	beatRevision int64
	status       store.Status
}

// with calls do under the lock.
func (r *session) with(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// audit returns the operation that records a change by the operator.
func (r *session) audit(action, object string, from, to []byte) store.Op {
	return r.keys.Audited(r.cluster.Now(), r.cfg.Actor, action, object, from, to)
}

// barrier returns the barrier of the halt in force.
func (r *session) barrier() *record.Barrier {
	return &record.Barrier{Nonce: r.nonce, ClusterID: r.found.identity.ClusterID}
}

// named returns the instances that the operator lets recover go on without.
func (r *session) named() []record.InstanceID { return slices.Concat(r.cfg.Without, r.cfg.Stopped) }

func (r *session) progress(doing string, done, of int64) {
	if r.cfg.Progress != nil {
		r.cfg.Progress(Progress{Doing: doing, Done: done, Of: of})
	}
}

// brokenOff returns the error of a recover whose context has ended.
func brokenOff(ctx context.Context) error {
	return allocator.Errorf(allocator.Unavailable, "recover was interrupted; run it again: %w", context.Cause(ctx))
}

func (r *session) unreadable(key string, err error) {
	r.with(func() { r.bad[key] = err })
}

// gets reads keys in one transaction. Once recover has halted leasing, it does so under
// the condition that its own halt is in force, so that it does not mix its own findings
// with another recover's changes. Its errors are Conflict and Unavailable.
func (r *session) gets(ctx context.Context, ops ...store.Op) (store.Answer, error) {
	if r.nonce == "" {
		return r.l.Read(ctx, store.Txn{Then: ops})
	}
	answer, err := r.l.Read(ctx, store.Txn{If: []store.Cond{store.HasValue(r.found.epochKV.Key, r.found.epochKV.Value)},
		Then: ops})
	if err == nil && !answer.Succeeded {
		err = errOtherRecover
	}
	return answer, err
}

var errOtherRecover = &allocator.Error{Kind: allocator.Conflict,
	Msg: "another `march recover` began meanwhile, or ended: see `march audit list`"}
