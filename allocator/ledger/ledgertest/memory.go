package ledgertest

import (
	"context"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

// TB is what this package needs of a test: *testing.T, *testing.B and
// *rapid.T have it.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Memory is an etcd in memory: as much of it as the ledger uses, with etcd's
// semantics, and with faults by name. It complains by itself: a transaction
// that no ledger may ever make (see complain.go) fails the test.
type Memory struct {
	tb TB

	mu struct {
		sync.Mutex
		data   mvcc
		grew   chan struct{} // closed at every write, and by Break
		breaks int           // how often Break was called
		leases map[int64]*memoryLease
		late   []lateTxn
		serial int64 // of the last lease
		index  uint64
		id     uint64 // of the etcd cluster
		count  int    // transactions so far
	}
}

// memoryLease is an etcd lease. Its keys are those that carry its ID.
type memoryLease struct {
	ttl   time.Duration
	timer *time.Timer
}

// ClusterID and MemberID are what a Memory's answers carry.
const (
	ClusterID uint64 = 0xfedc_ba98_7654_3210 // past 2^63, as etcd's often are
	MemberID  uint64 = 7
)

// NewMemory returns an empty store, at revision 1 as etcd's is.
func NewMemory(tb TB) *Memory {
	m := &Memory{tb: tb}
	m.mu.data = newMVCC()
	m.mu.index, m.mu.id = firstIndex, ClusterID
	m.mu.grew = make(chan struct{})
	m.mu.leases = make(map[int64]*memoryLease)
	return m
}

// Open returns a connection, with faults of its own.
func (m *Memory) Open() *Conn { return &Conn{m: m, done: make(chan struct{})} }

// Revision returns the store's revision.
func (m *Memory) Revision() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.data.rev
}

// Value returns a key's value, and whether it is there.
func (m *Memory) Value(key string) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.mu.data.at(key, m.mu.data.rev)
	return v.value, ok
}

// Keys returns all keys that begin with prefix, in order.
func (m *Memory) Keys(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var keys []string
	for _, kv := range m.mu.data.get(ledger.Get{Interval: ledger.Interval{Key: prefix, End: prefix + "\xff"}}, m.mu.data.rev) {
		keys = append(keys, kv.Key)
	}
	return keys
}

// Corrupt does ops without a complaint: what an operator's hand, or another
// program, may do to etcd.
func (m *Memory) Corrupt(ops ...ledger.Op) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.apply(ledger.Txn{Then: ops}, false); err != nil {
		m.tb.Fatalf("corrupt: %v", err)
	}
}

// Compact drops history before the present revision.
func (m *Memory) Compact() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.data.compacted = m.mu.data.rev
}

// Break ends all watches with an error, as a member that restarts does.
func (m *Memory) Break() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.breaks++
	m.wake()
}

// Expire ends a lease now, and with it the keys under it.
func (m *Memory) Expire(lease int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.mu.leases[lease]
	if !ok {
		return
	}
	l.timer.Stop()
	delete(m.mu.leases, lease)
	var ops []ledger.Op
	for _, key := range m.mu.data.under(lease) {
		ops = append(ops, ledger.Op{Delete: key})
	}
	if len(ops) > 0 {
		_, _ = m.apply(ledger.Txn{Then: ops}, true)
	}
}

// ExpireAll ends all leases now.
func (m *Memory) ExpireAll() {
	m.mu.Lock()
	leases := make([]int64, 0, len(m.mu.leases))
	for id := range m.mu.leases {
		leases = append(leases, id)
	}
	m.mu.Unlock()
	for _, id := range leases {
		m.Expire(id)
	}
}

// wake tells all watches that there is something new. The caller holds mu.
func (m *Memory) wake() {
	close(m.mu.grew)
	m.mu.grew = make(chan struct{})
}

// Conn is a connection to a Memory: a ledger.Store.
type Conn struct {
	m    *Memory
	done chan struct{} // closed by Close

	mu struct {
		sync.Mutex
		closed bool
		fate   func(ledger.Txn) Fate
	}
}

// Fate sets what becomes of each transaction from now on; nil is Done for all.
// It is called outside of any lock, once per transaction.
func (c *Conn) Fate(f func(ledger.Txn) Fate) {
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
	return nil
}

// Grant implements ledger.Store.
func (c *Conn) Grant(ctx context.Context, ttl time.Duration) (int64, error) {
	if err := c.alive(ctx); err != nil {
		return 0, err
	}
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.serial++
	id := m.mu.serial
	m.mu.leases[id] = &memoryLease{ttl: ttl, timer: time.AfterFunc(ttl, func() { m.Expire(id) })}
	return id, nil
}

// KeepAlive implements ledger.Store.
func (c *Conn) KeepAlive(ctx context.Context, lease int64) error {
	if err := c.alive(ctx); err != nil {
		return err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	l, ok := c.m.mu.leases[lease]
	if !ok {
		return allocator.Errorf(allocator.NotFound, "memory: requested lease not found")
	}
	l.timer.Reset(l.ttl)
	return nil
}

// Status implements ledger.Store.
func (c *Conn) Status(ctx context.Context) (ledger.Status, error) {
	if err := c.alive(ctx); err != nil {
		return ledger.Status{}, err
	}
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	return ledger.Status{
		Sender: m.sender(), Revision: m.mu.data.rev, Version: "3.7.3", RaftIndex: m.mu.index, RaftTerm: 2,
	}, nil
}

// sender says who answers. The caller holds mu.
func (m *Memory) sender() ledger.Sender {
	return ledger.Sender{ClusterID: m.mu.id, MemberID: MemberID, Connection: int64(m.mu.breaks) + 1}
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
func (c *Conn) Watch(ctx context.Context, intervals []ledger.Interval, from int64) <-chan ledger.Change {
	out := make(chan ledger.Change)
	go func() {
		defer close(out)
		err := c.watch(ctx, intervals, from, out)
		select {
		case out <- ledger.Change{Err: err}:
		case <-ctx.Done():
		}
	}()
	return out
}

func (c *Conn) watch(ctx context.Context, intervals []ledger.Interval, from int64, out chan<- ledger.Change) error {
	if err := c.alive(ctx); err != nil {
		return err
	}
	m := c.m
	m.mu.Lock()
	breaks := m.mu.breaks
	m.mu.Unlock()
	for {
		m.mu.Lock()
		grew, rev, broken, gone := m.mu.grew, m.mu.data.rev, m.mu.breaks != breaks, from < m.mu.data.compacted
		var changes []ledger.Change
		for ; from <= rev && !gone; from++ {
			if kvs := m.mu.data.changes(from, intervals); len(kvs) > 0 {
				changes = append(changes, ledger.Change{KVs: kvs})
			}
		}
		m.mu.Unlock()
		if gone {
			return ledger.ErrCompacted
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
