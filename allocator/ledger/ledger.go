package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/throttle"
)

// Config are the settings of a ledger.
type Config struct {
	// Cluster names the cluster within its etcd, as a room is named: all keys
	// are under /march/<cluster>/. Default "default".
	Cluster string
	// UUID, if set, must be the cluster's: a prefix that belongs to another cluster
	// is then refused. Empty accepts the cluster that is found first.
	UUID string
	// TryTimeout bounds one try of a transaction where etcd is near. Default 2 s: longer
	// than an election, and short enough for a second try before callers give up. See
	// Ledger.tryFor.
	TryTimeout time.Duration
	// Etcdctl is the command with which an operator asks this etcd. Default etcdctl, without flags.
	Etcdctl string
	// EtcdUser is etcd's user of this process; empty for none, or for that of its certificate.
	EtcdUser string
	// Observe, if set, is called after every transaction with its duration and its
	// error, if any.
	Observe func(took time.Duration, err error)
	// Audited, if set, is called after each transaction with an entry of the audit, with the entry's key. written says
	// whether it is known to be written: after an error it may be, or not.
	Audited func(key string, e *record.AuditEntry, written bool)
	// Now is the clock for the times in records, the age of a beat, and the versions
	// that recovers choose. Safety does not depend on it, so it may be wrong. Durations
	// are measured with time.Now. Default, also for nil: time.Now.
	Now func() time.Time
	// Tracer makes spans of what callers wait for; nil makes none.
	Tracer trace.TracerProvider
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Cluster: "default", TryTimeout: 2 * time.Second}
}

// Ledger is one process's view of a cluster, in layers: each one stands on those below it, and has its own state and
// lock. They are what the process knows of etcd (knowledge, state.go), the transactions that it sends (client, this
// file), its probes of etcd (probes, probe.go), and here the leases that wait for a probe (leasable.go). The state of
// the process's instance is in Instance.
//
// Methods are safe for concurrent use. Their errors carry a Kind: Unavailable if etcd did not answer in time. A change
// may then have happened or not.
//
// # Locks
//
// A goroutine that holds one of these locks takes only later ones: the presence's, the memory's, the Ledger's own
// (wait), the knowledge's, and then one of the troubles', the contacts' (line), the rings', the probes' (ping) and the
// journal's. Beside these a Tenure's comes before the holders'. No lock is held while etcd or the disk answers, nor
// while a function that a caller gave is called: a Logger may block, too (see package pending).
type Ledger struct {
	probes
	watchLog throttle.Log

	wait struct {
		sync.Mutex
		flight    *shared   // the probe that leases wait for; nil if there is none
		lastProbe time.Time // when the last probe that leases waited for ended
	}
}

// client sends transactions to the cluster's etcd, and keeps the number of keys bounded.
type client struct {
	knowledge
	contacts
	rings
	store store.Store
}

// New returns a ledger over store, which it closes with Close. Its error is
// Invalid.
func New(etcd store.Store, cfg Config) (*Ledger, error) {
	k, err := record.NewKeys(cfg.Cluster)
	if err != nil {
		return nil, err
	}
	if cfg.TryTimeout <= 0 {
		return nil, allocator.Errorf(allocator.Invalid, "try timeout: %v; allowed: above 0", cfg.TryTimeout)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	l := &Ledger{}
	l.cfg, l.store, l.keys, l.log, l.tryTimeout, l.bounds = cfg, etcd, k, cfg.Logger, cfg.TryTimeout, defaultBounds
	l.count.spare = make(map[string]int64)
	for _, ring := range k.Rings() {
		l.chains = append(l.chains, record.NewChain(ring))
	}
	if l.log == nil {
		l.log = hclog.NewNullLogger()
	}
	l.mu.state = &State{}
	l.confirmations.Store(&confirmations{})
	l.mu.changed = make(chan struct{})
	return l, nil
}

// Close closes the store.
func (l *client) Close() error { return l.store.Close() }

// Try sends txn once. The answer is from the cluster's own etcd, or the error
// says otherwise. After an error it is unknown whether it happened.
func (l *client) Try(ctx context.Context, txn store.Txn) (answer store.Answer, err error) {
	bounded, cancel := context.WithTimeout(ctx, l.tryFor())
	defer cancel()
	if entries := l.link(&txn); entries != nil {
		defer func() { entries(answer.Succeeded, err) }()
	}
	before := l.before()
	answer, err = l.store.Txn(bounded, txn)
	now := time.Now()
	if l.cfg.Observe != nil {
		l.cfg.Observe(now.Sub(before.at), err)
	}
	if err != nil {
		if ctx.Err() == nil && allocator.KindOf(err) == allocator.Unavailable && !errors.Is(err, store.ErrNoSpace) {
			var said pending.Lines
			l.unanswered(ctx, &said, now, err, bounded.Err() != nil)
			said.Write(l.log)
		}
		return store.Answer{}, err
	}
	return l.received(ctx, before, now, answer)
}

// link links the entries of the audit in a transaction to this process's chains. It returns a function for the
// outcome; nil if there are no entries.
func (l *client) link(txn *store.Txn) (outcome func(succeeded bool, err error)) {
	for k, op := range txn.Then {
		for _, chain := range l.chains {
			if op.Put == nil {
				continue
			}
			put, entry, done := chain.Link(op.Put)
			if entry == nil {
				continue
			}
			txn.Then = slices.Clone(txn.Then) // it may be the caller's
			txn.Then[k].Put = put
			before := outcome
			outcome = func(succeeded bool, err error) {
				if before != nil {
					before(succeeded, err)
				}
				written := err == nil && succeeded
				done(written)
				if l.cfg.Audited != nil && (written || err != nil) {
					l.cfg.Audited(put.Key, entry, written)
				}
			}
		}
	}
	return outcome
}

// received returns the answer to a transaction, or an error if the answer is of another
// etcd cluster. It checks the answer's revision.
func (l *client) received(ctx context.Context, before sentAt, now time.Time,
	answer store.Answer) (store.Answer, error) {
	var said pending.Lines
	defer said.Write(l.log)
	l.answered(ctx, &said, now, now.Sub(before.at))
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.clock
	if pinned := l.mu.identity.ClusterID; pinned != 0 && pinned != answer.ClusterID {
		t.checked = check{}
		return store.Answer{}, allocator.Errorf(allocator.WentBack, "%w",
			&record.OtherClusterError{UUID: l.mu.identity.UUID, Pinned: pinned, Told: answer.ClusterID})
	}
	if why := t.saw(before, answer.Revision); why != "" {
		t.suspect(why, nil)
	}
	l.mu.ages.note(now, answer.Revision)
	return answer, nil
}

// Read sends a transaction that changes nothing until it is answered or ctx
// ends, for at most two tries' time. If `march recover` has moved the cluster to another
// etcd cluster, it asks there.
func (l *client) Read(ctx context.Context, txn store.Txn) (store.Answer, error) {
	return store.Retry(ctx, l.tryFor(), func(ctx context.Context) (store.Answer, error) {
		for {
			answer, err := l.Try(ctx, txn)
			if !l.moved(ctx, err) {
				return answer, err
			}
		}
	})
}

// Gets reads keys in one transaction.
func (l *client) Gets(ctx context.Context, ops ...store.Op) (store.Answer, error) {
	return l.Read(ctx, store.Txn{Then: ops})
}

// keysAtOnce is how many keys readKeys reads in one transaction.
const keysAtOnce = 100

// readKeys reads keys, and calls use with each page of them, what they showed, and what was known before.
func (l *client) readKeys(ctx context.Context, keys []string,
	use func(page []string, before sentAt, answer store.Answer) error) error {
	for page := range slices.Chunk(keys, keysAtOnce) {
		ops := make([]store.Op, len(page))
		for k, key := range page {
			ops[k] = store.OpGet(key)
		}
		before := l.before()
		answer, err := l.Gets(ctx, ops...)
		if err == nil {
			err = use(page, before, answer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Attach reads the cluster's identity, once. Its errors are Refused if there is no
// cluster yet, or it is another than configured.
func (l *client) Attach(ctx context.Context) error {
	if l.pinned().UUID != "" {
		return nil
	}
	answer, err := l.Gets(ctx, store.OpGet(l.keys.Identity()), store.OpGet(l.keys.Layout()))
	if err != nil {
		return err
	}
	kv, ok := answer.One(0)
	if !ok {
		return l.noIdentity(ctx, noCluster)
	}
	l.expects(answer.Got[1]) // which saves the first probe a second try
	var id record.Identity
	if err := record.Decode(kv, &id); err != nil {
		return err
	}
	return l.pin(id, answer.ClusterID)
}

// expects notes the version of the layout that was read, which the next probe assumes, and returns it; 0 if it cannot
// be read.
func (l *knowledge) expects(layout []store.KV) int64 {
	var v record.Layout
	if len(layout) == 0 || json.Unmarshal(layout[0].Value, &v) != nil || v.Version < 1 {
		return 0
	}
	l.with(func() { l.mu.version = v.Version })
	return v.Version
}

// AttachToRead is Attach for processes that only read. It is no error if the identity
// cannot be read: such a process can show the cluster anyway. Other errors are Attach's.
func (l *client) AttachToRead(ctx context.Context) error {
	err := l.Attach(ctx)
	if _, damaged := errors.AsType[*record.KeyError](err); damaged && allocator.KindOf(err) != allocator.Refused {
		return nil
	}
	return err
}

// pin makes id the cluster's identity from now on.
func (l *knowledge) pin(id record.Identity, clusterID uint64) error {
	if err := id.Check(l.keys, l.cfg.UUID, clusterID); err != nil {
		return err
	}
	l.with(func() { l.mu.identity = id })
	return nil
}

// Cluster returns a reader of this cluster that does not take part in the protocol.
func (l *client) Cluster() *record.Cluster {
	return &record.Cluster{Store: l.store, Keys: l.keys, UUID: l.cfg.UUID,
		TryTimeout: l.tryFor(), Now: l.now, Log: l.log}
}

// Identity returns the cluster's identity. Its errors are Attach's.
func (l *client) Identity(ctx context.Context) (record.Identity, error) {
	if err := l.Attach(ctx); err != nil {
		return record.Identity{}, err
	}
	return l.pinned(), nil
}

// pinned returns the identity with which answers are compared, zero before Attach.
func (l *knowledge) pinned() (id record.Identity) {
	l.with(func() { id = l.mu.identity })
	return id
}

// UUID returns the cluster's uuid. Its errors are Attach's.
func (l *client) UUID(ctx context.Context) (string, error) {
	id, err := l.Identity(ctx)
	return id.UUID, err
}

// now is the time by this process's clock, as records carry it: see Config.Now.
func (l *knowledge) now() time.Time { return record.Recorded(l.cfg.Now()) }

// audit returns the operation that records a change, as Keys.Audited does.
func (l *knowledge) audit(actor, action, object string, from, to []byte) store.Op {
	return l.keys.Audited(l.now(), actor, action, object, from, to)
}

// The messages to an operator if there is no cluster. Each takes the prefix.
const (
	noCluster        = record.NoCluster
	nothingToRecover = "there is no cluster under %s: nothing to recover"
	clusterGone      = "the cluster under %s is gone: restore etcd from a backup, then run `march recover`"
)

// ErrNoCluster is the cause of the errors that say that there is no cluster yet: no layout
// was ever made.
var ErrNoCluster = errors.New("no cluster")

// noIdentity returns why the cluster's identity is missing: there is no cluster, as
// text says, or the key was lost. Its error is Refused, or that of the read.
func (l *client) noIdentity(ctx context.Context, text string) error {
	answer, err := l.Gets(ctx, store.OpGet(l.keys.Identity()), store.OpGet(l.keys.Epoch()),
		store.OpGet(l.keys.Layout()))
	if err != nil {
		return err
	}
	if other := record.LostIdentity(answer.Got); other != "" {
		return l.keys.IdentityLost(other)
	}
	return &allocator.Error{Kind: allocator.Refused, Msg: fmt.Sprintf(text, l.keys), Err: ErrNoCluster}
}

// otherCluster returns the error that etcd has another cluster than the one that this process knows.
func (l *knowledge) otherCluster(id record.Identity) error {
	return allocator.Errorf(allocator.Refused,
		"%s belongs to cluster %s by now, and was cluster %s: a wrong endpoint, or another etcd's data",
		l.keys, id.UUID, l.pinned().UUID)
}

// moved reports whether err came up because the cluster was moved to another etcd
// cluster, so that the request must be repeated.
func (l *client) moved(ctx context.Context, err error) bool {
	var other *record.OtherClusterError
	if !errors.As(err, &other) {
		return false
	}
	moved, moveErr := l.moveToCluster(ctx)
	if moveErr == nil && !moved {
		_ = l.sawBack(ctx, err) // the caller has the error
	}
	return moveErr == nil && moved
}

// moveToCluster takes over the ID of the etcd cluster that answers, if `march recover` wrote
// it into the identity together with an epoch that was never seen here. It reports
// whether it did. It leaves to classify whether that epoch is an old one that was
// missed. classify then halts leasing, so that an operator recovers instead of
// looking for a wrong endpoint.
func (l *client) moveToCluster(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, l.tryFor())
	defer cancel()
	answer, err := l.store.Txn(ctx, store.Txn{Then: []store.Op{store.OpGet(l.keys.Identity()),
		store.OpGet(l.keys.Epoch())}})
	if err != nil {
		return false, err
	}
	identity, ok := answer.One(0)
	epoch, there := answer.One(1)
	if !ok || !there {
		return false, nil
	}
	var id record.Identity
	var e record.Epoch
	if err := errors.Join(record.Decode(identity, &id), record.Decode(epoch, &e)); err != nil {
		return false, err
	}
	var said pending.Lines
	defer said.Write(l.log)
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.clock
	if id.UUID != l.mu.identity.UUID || id.ClusterID != answer.ClusterID || e.Epoch == "" ||
		e.Epoch == t.current || t.knows(e.Epoch) {
		return false, nil
	}
	said.Warn("the cluster moved to another etcd cluster, with a new epoch", "etcd_cluster_id",
		fmt.Sprintf("%x", id.ClusterID))
	l.mu.identity = id
	// The new cluster is read anew, so nothing that was seen of the old one counts.
	t.turn("moved "+e.Epoch, 0)
	return true, nil
}
