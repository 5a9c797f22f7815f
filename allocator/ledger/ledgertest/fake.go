package ledgertest

import (
	"context"
	"sync"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// TB is what this package needs of a test: *testing.T, *testing.B and
// *rapid.T have it.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Fake is an etcd in memory: as much of it as the ledger uses, with etcd's
// semantics, and with faults by name. It complains by itself: a transaction
// that breaks one of package rules' rules fails the test.
type Fake struct {
	tb TB

	mu struct {
		sync.Mutex
		data   mvcc
		grew   chan struct{} // closed at every write, and by Break
		breaks int           // how often Break was called
		late   []lateTxn
		index  uint64
		id     uint64 // of the etcd cluster
		count  int    // transactions so far
		away   bool   // by Stop
		full   bool   // by NoSpace
		over   *over  // see Over; nil for none
	}
}

// ClusterID and MemberID are what a Fake's answers carry.
const (
	ClusterID uint64 = 0xfedc_ba98_7654_3210 // past 2^63, as etcd's often are
	MemberID  uint64 = 7
)

// NewFake returns an empty store, at revision 1 as etcd's is.
func NewFake(tb TB) *Fake {
	m := &Fake{tb: tb}
	m.mu.data = newMVCC()
	m.mu.index, m.mu.id = firstIndex, ClusterID
	m.mu.grew = make(chan struct{})
	return m
}

// Over puts a real etcd below the Fake, which lives until end is called. The test fails where the two answer
// differently. It must be called before the first transaction.
func (m *Fake) Over(o *Outside) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.over = &over{Outside: o}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.mu.over.end()
	}
}

// Holding returns a store that has these keys at a revision, in an etcd cluster.
func Holding(kvs []store.KV, revision int64, etcd uint64) store.Store {
	m := NewFake(nil)
	m.mu.data.rev, m.mu.id = revision, etcd
	for _, kv := range kvs {
		m.mu.data.set(kv.Key, version{rev: kv.ModRevision, value: kv.Value})
	}
	return m.Open()
}

// Open returns a connection, with faults of its own.
func (m *Fake) Open() *Conn { return &Conn{m: m, done: make(chan struct{})} }

// Revision returns the store's revision.
func (m *Fake) Revision() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.data.rev
}

// Value returns a key's value, and whether it is there.
func (m *Fake) Value(key string) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.mu.data.at(key, m.mu.data.rev)
	return v.value, ok
}

// Keys returns all keys that begin with prefix, in order.
func (m *Fake) Keys(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var keys []string
	kvs, _ := m.mu.data.get(store.Get{Interval: store.Interval{Key: prefix, End: prefix + "\xff"}}, m.mu.data.rev)
	for _, kv := range kvs {
		keys = append(keys, kv.Key)
	}
	return keys
}

// Corrupt does ops without a complaint, as an operator by hand, or another program, may
// do to etcd.
func (m *Fake) Corrupt(ops ...store.Op) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.apply(store.Txn{Then: ops}, false); err != nil {
		m.tb.Fatalf("corrupt: %v", err)
	}
}

// Compact drops history before the present revision.
func (m *Fake) Compact() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.data.compacted = m.mu.data.rev
	m.mu.over.end()
}

// Break ends all watches with an error, as a member that restarts does.
func (m *Fake) Break() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.breaks++
	m.wake()
}

// Stop has all calls fail, as a member does that is down. It ends all watches.
func (m *Fake) Stop() {
	m.Break()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.away = true
}

// Start has the store answer again, with all that it had.
func (m *Fake) Start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.away = false
}

// NoSpace has the store say that it is full: it answers reads and deletes then, and takes no
// puts. False ends that.
func (m *Fake) NoSpace(full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.full = full
}

// wake tells all watches that there is something new. The caller holds mu.
func (m *Fake) wake() {
	close(m.mu.grew)
	m.mu.grew = make(chan struct{})
}

// Conn is a connection to a Memory: a ledger.Store.
type Conn struct {
	m    *Fake
	done chan struct{} // closed by Close

	mu struct {
		sync.Mutex
		closed bool
		fate   func(store.Txn) Fate
	}
}

// Fate sets what becomes of each transaction from now on; nil is Done for all.
// It is called outside of any lock, once per transaction.
func (c *Conn) Fate(f func(store.Txn) Fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.fate = f
}

// alive returns why a call cannot be made.
func (c *Conn) alive(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return allocator.Errorf(allocator.Unavailable, "memory: the store is closed")
	}
	if err := ctx.Err(); err != nil {
		return allocator.Errorf(allocator.Unavailable, "memory: %w", err)
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.mu.away {
		return allocator.Errorf(allocator.Unavailable, "memory: connection refused")
	}
	return nil
}

// Compact implements ledger.Store.
func (c *Conn) Compact(ctx context.Context, revision int64) error {
	if err := c.alive(ctx); err != nil {
		return err
	}
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	switch data := &m.mu.data; {
	case revision <= data.compacted:
		return store.ErrCompacted
	case revision > data.rev:
		return allocator.Errorf(allocator.Internal,
			"memory: revision %d is not there yet, the latest is %d", revision, data.rev)
	default:
		data.compacted = revision
		return nil
	}
}

// Status implements ledger.Store.
func (c *Conn) Status(ctx context.Context) (store.Status, error) {
	if err := c.alive(ctx); err != nil {
		return store.Status{}, err
	}
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	return store.Status{
		Sender: m.sender(), Revision: m.mu.data.rev, Version: "3.7.3", RaftIndex: m.mu.index, RaftTerm: 2,
		Size: 1 << 20, Quota: 2 << 30, NoSpace: m.mu.full,
	}, nil
}

// Members is what store.ReadMembers asks.
func (c *Conn) Members(ctx context.Context) store.Members {
	answer := 1
	if c.alive(ctx) != nil {
		answer = 0
	}
	return store.Members{All: 1, Answer: answer}
}

// sender identifies the server that answers. The caller holds mu.
func (m *Fake) sender() store.Sender {
	return store.Sender{ClusterID: m.mu.id, MemberID: MemberID, Connection: int64(m.mu.breaks) + 1}
}

// Close implements ledger.Store. It may be called more than once.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.closed {
		c.mu.closed = true
		close(c.done)
	}
	return nil
}

// Watch implements ledger.Store.
func (c *Conn) Watch(ctx context.Context, intervals []store.Interval, from int64) <-chan store.Change {
	out := make(chan store.Change)
	go func() {
		defer close(out)
		err := c.watch(ctx, intervals, from, out)
		select {
		case out <- store.Change{Err: err}:
		case <-ctx.Done():
		}
	}()
	return out
}

func (c *Conn) watch(ctx context.Context, intervals []store.Interval, from int64, out chan<- store.Change) error {
	if err := c.alive(ctx); err != nil {
		return err
	}
	m := c.m
	m.mu.Lock()
	breaks := m.mu.breaks
	m.mu.Unlock()
	for {
		m.mu.Lock()
		grew, rev, broken, compacted := m.mu.grew, m.mu.data.rev, m.mu.breaks != breaks, m.mu.data.compacted
		gone := from < compacted
		var changes []store.Change
		for ; from <= rev && !gone; from++ {
			if kvs := m.mu.data.changes(from, intervals); len(kvs) > 0 {
				changes = append(changes, store.Change{KVs: kvs})
			}
		}
		m.mu.Unlock()
		if gone {
			return &store.CompactedError{Revision: compacted}
		}
		for _, change := range changes {
			select {
			case out <- change:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if broken {
			return allocator.Errorf(allocator.Unavailable, "memory: the watch was broken")
		}
		select {
		case <-grew:
		case <-c.done:
			return allocator.Errorf(allocator.Unavailable, "memory: the store is closed")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
