package ledger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/rarely"
)

// Config says which cluster a ledger is of.
type Config struct {
	// Cluster names the cluster within its etcd, as a room is named: all keys
	// are under /march/<cluster>/. Default "default".
	Cluster string
	// UUID, where it is set, must be the cluster's: a prefix that belongs to
	// another cluster is then refused. Empty accepts what is found first.
	UUID string
	// TryTimeout bounds one try of a transaction. Default 2 s: more than an
	// election takes, short enough for a second try within a caller's patience.
	TryTimeout time.Duration
	// Observe, where it is set, is told of every transaction that was sent: how
	// long it took, and the error, if any.
	Observe func(took time.Duration, err error)
	// Tracer makes spans of what callers wait for; nil makes none.
	Tracer trace.TracerProvider
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Cluster: "default", TryTimeout: 2 * time.Second}
}

// Ledger is one process's view of a cluster. Methods are safe for concurrent
// use. Their errors carry a Kind; Unavailable where etcd did not answer in
// time, of which a change may or may not have happened.
type Ledger struct {
	cfg   Config
	store Store
	keys  keys
	log   hclog.Logger

	regressions atomic.Int64

	// What would be logged at each turn for as long as it lasts.
	wentBackLog, refusedLog, watchLog rarely.Line

	mu struct {
		sync.Mutex
		identity identityValue // zero until the cluster's was read
		timeline timeline
		state    *state        // never nil
		changed  chan struct{} // closed when state is replaced
		flight   *shared       // the look that leases wait for, nil while there is none
		haltsAs  string        // who halts leasing where this process sees etcd go back; empty for nobody
		told     func([]KV)    // of registrations that were written, nil for nobody
		blank    *blank        // why nothing is leased where journals are required; nil for nothing
		demands  bool          // a journal is required, whatever the cluster's settings say

		confirmed confirmations // see Confirmed

		contact  Contact
		awayLog  rarely.Line
		saidAway bool // that etcd is away was logged, so that it is back will be
	}
}

// New returns a ledger over store, which it closes with Close. Its error is
// Invalid.
func New(store Store, cfg Config) (*Ledger, error) {
	k, err := newKeys(cfg.Cluster)
	if err != nil {
		return nil, err
	}
	if cfg.TryTimeout <= 0 {
		return nil, allocator.Errorf(allocator.Invalid, "try timeout: %v; allowed: above 0", cfg.TryTimeout)
	}
	l := &Ledger{cfg: cfg, store: store, keys: k, log: cfg.Logger}
	if l.log == nil {
		l.log = hclog.NewNullLogger()
	}
	l.mu.state = &state{}
	l.mu.changed = make(chan struct{})
	l.mu.confirmed = make(confirmations)
	return l, nil
}

// Close closes the store.
func (l *Ledger) Close() error { return l.store.Close() }

// Contact is how a ledger last heard of etcd.
type Contact struct {
	Away    time.Time     // since when tries fail, zero while they do not
	Last    time.Time     // of the last answer, zero before the first
	Cause   error         // of the last failure, nil while tries do not fail
	Latency time.Duration // of an answer, a moving average; zero before the first
}

// latencyWeight is how many answers the moving average of the latency looks
// back on, about: as in TCP's, so that one slow answer shows and does not stay.
const latencyWeight = 8

// answered notes an answer that came after took.
func (c *Contact) answered(now time.Time, took time.Duration) {
	c.Away, c.Cause = time.Time{}, nil
	if c.Last.IsZero() {
		c.Latency = took
	} else {
		c.Latency += (took - c.Latency) / latencyWeight
	}
	c.Last = now
}

// Contact tells how this ledger last heard of etcd.
func (l *Ledger) Contact() Contact {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.contact
}

// try sends txn once. The answer is from the cluster's own etcd, or the error
// says otherwise. After an error it is unknown whether it happened.
func (l *Ledger) try(ctx context.Context, txn Txn) (Answer, error) {
	bounded, cancel := context.WithTimeout(ctx, l.cfg.TryTimeout)
	defer cancel()
	before := l.before()
	answer, err := l.store.Txn(bounded, txn)
	now := time.Now()
	if l.cfg.Observe != nil {
		l.cfg.Observe(now.Sub(before.at), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	contact, t := &l.mu.contact, &l.mu.timeline
	if err != nil {
		t.checked = check{} // what answers next may be another etcd
		if ctx.Err() == nil && allocator.KindOf(err) == allocator.Unavailable {
			contact.Cause = err
			if contact.Away.IsZero() {
				contact.Away = now
				l.mu.saidAway = l.mu.awayLog.Log(now, l.log.Warn, "etcd does not answer", append(traceID(ctx), "error", err)...)
			}
		}
		return Answer{}, err
	}
	if !contact.Away.IsZero() && l.mu.saidAway {
		l.log.Info("etcd answers again", append(traceID(ctx), "away", now.Sub(contact.Away).Round(time.Millisecond))...)
	}
	contact.answered(now, now.Sub(before.at))
	if pinned := l.mu.identity.ClusterID; pinned != 0 && pinned != answer.ClusterID && !mutant("no-cluster-check") {
		t.checked = check{}
		return Answer{}, allocator.Errorf(allocator.WentBack, "%w", &otherClusterError{l.mu.identity.UUID, pinned, answer.ClusterID})
	}
	if why := t.saw(before, answer.Revision); why != "" {
		t.suspect(why, nil)
	}
	return answer, nil
}

// sawBack counts and logs err, which says that etcd went back in time, and
// returns it. Where leasing is halted because of it, adopt counts that.
func (l *Ledger) sawBack(ctx context.Context, err error) error {
	l.regressions.Add(1)
	l.wentBackLog.Log(time.Now(), l.log.Error, "etcd went back in time", append(traceID(ctx), "error", err)...)
	return err
}

// Regressions returns how often this ledger saw etcd go back in time, or
// leasing halted because another process did.
func (l *Ledger) Regressions() int64 { return l.regressions.Load() }

// retryPause is the pause between tries of a read.
const retryPause = 50 * time.Millisecond

// read sends a transaction that changes nothing until it is answered or ctx
// ends, for at most two tries' time.
func (l *Ledger) read(ctx context.Context, txn Txn) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*l.cfg.TryTimeout)
	defer cancel()
	var reason error // of the last try that had its time
	for {
		answer, err := l.try(ctx, txn)
		if l.moved(ctx, err) {
			continue
		}
		if err == nil || allocator.KindOf(err) != allocator.Unavailable {
			return answer, err
		}
		if ctx.Err() == nil || reason == nil {
			reason = err
		}
		if !pause(ctx) {
			return Answer{}, reason
		}
	}
}

// pause waits a moment before another try, and returns false when ctx ends.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(retryPause):
		return true
	}
}

// gets reads keys in one transaction.
func (l *Ledger) gets(ctx context.Context, ops ...Op) (Answer, error) {
	return l.read(ctx, Txn{Then: ops})
}

// attach reads the cluster's identity, once. Its errors are Refused when there
// is no cluster yet, or it is another than configured.
func (l *Ledger) attach(ctx context.Context) error {
	l.mu.Lock()
	attached := l.mu.identity.UUID != ""
	l.mu.Unlock()
	if attached {
		return nil
	}
	answer, err := l.gets(ctx, get(l.keys.identity()))
	if err != nil {
		return err
	}
	kv, ok := answer.one(0)
	if !ok {
		return allocator.Errorf(allocator.Refused, "there is no cluster under %s yet: make one with `march layout init FILE`", l.keys)
	}
	var id identityValue
	if err := decode(kv, &id); err != nil {
		return err
	}
	return l.pin(id, answer.ClusterID)
}

// pin takes id for the cluster's identity from now on.
func (l *Ledger) pin(id identityValue, clusterID uint64) error {
	switch {
	case l.cfg.UUID != "" && !strings.EqualFold(l.cfg.UUID, id.UUID):
		return allocator.Errorf(allocator.Refused, "%s belongs to cluster %s, but this program is configured for cluster %s: check --cluster, --cluster-uuid and the etcd endpoints",
			l.keys, id.UUID, l.cfg.UUID)
	case id.ClusterID != clusterID:
		return allocator.Errorf(allocator.Refused, "%s belongs to a cluster in etcd cluster %x, but etcd cluster %x answered: a wrong endpoint, or a copy of the data; `march recover` takes over an etcd that was restored into a new cluster",
			l.keys, id.ClusterID, clusterID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.identity = id
	return nil
}

// UUID returns the cluster's uuid. Its errors are attach's.
func (l *Ledger) UUID(ctx context.Context) (string, error) {
	if err := l.attach(ctx); err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.identity.UUID, nil
}

// Ping checks within ctx that etcd answers. Its errors are Unavailable and
// Refused (the server's version is not supported).
func (l *Ledger) Ping(ctx context.Context) error {
	status, err := l.store.Status(ctx)
	if err != nil {
		return err
	}
	return checkVersion(status.Version)
}

// randomHex returns 128 random bits.
func randomHex() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
