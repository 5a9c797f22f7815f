package ledgertest

import (
	"context"
	"fmt"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Fate is what becomes of a transaction.
type Fate struct {
	Name FateName
	// N is of Late how many transactions, of anybody, are done before it; of
	// StaleRead and OldRevision how many revisions the answer is behind.
	N int
	// Do, if not nil, is called before.
	Do func()
}

// FateName names what can happen to a transaction. Each is something that a
// real etcd was seen to do, or may do.
type FateName int

// The fates. Those that end in an error leave the caller in doubt.
const (
	Done              FateName = iota
	DoneAnswerLost             // it happened, the caller gets an error
	NotDone                    // lost on the way there
	Late                       // the caller gets an error; then, later, it happens
	Twice                      // sent twice, done twice where its conditions allow; the caller gets the second answer
	StaleRead                  // a pure read is answered from N revisions ago, header and all; a write is Done
	WrongCluster               // it happened, and the answer is another etcd cluster's
	OldRevision                // it happened, and the header's revision is N below the store's
	NoLeader                   // refused: there is no leader
	NoSpaceButApplied          // it happened, and the caller is told that there was no space
	fates
)

var fateNames = [fates]string{
	"done", "done, answer lost", "not done", "late", "twice", "stale read", "wrong cluster", "old revision",
	"no leader", "no space but applied",
}

func (n FateName) String() string { return fateNames[n] }

func (f Fate) String() string { return fmt.Sprintf("%v (%d)", f.Name, f.N) }

// Fates returns every name, for tables that must cover them all.
func Fates() []FateName {
	all := make([]FateName, fates)
	for i := range all {
		all[i] = FateName(i)
	}
	return all
}

// Writes reports whether txn has a Put or a Delete in either branch.
func Writes(txn store.Txn) bool {
	for _, ops := range [][]store.Op{txn.Then, txn.Else} {
		for _, op := range ops {
			if op.Get == nil {
				return true
			}
		}
	}
	return false
}

// puts reports whether txn has a Put in either branch: a full etcd refuses it then.
func puts(txn store.Txn) bool {
	isPut := func(op store.Op) bool { return op.Put != nil }
	return slices.ContainsFunc(txn.Then, isPut) || slices.ContainsFunc(txn.Else, isPut)
}

// lateTxn is a transaction on its way.
type lateTxn struct {
	txn   store.Txn
	after int // it is done before the transaction with this number
}

// Txns returns how many transactions were sent.
func (m *Fake) Txns() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.count
}

// Txn implements ledger.Store.
func (c *Conn) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	if err := c.alive(ctx); err != nil {
		return store.Answer{}, err
	}
	c.mu.Lock()
	choose := c.mu.fate
	c.mu.Unlock()
	var fate Fate
	if choose != nil {
		fate = choose(txn)
	}
	if fate.Do != nil {
		fate.Do()
	}
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.count++
	m.arrive(false)
	if m.mu.full && puts(txn) {
		return store.Answer{}, allocator.Errorf(allocator.Unavailable, "memory: %w", store.ErrNoSpace)
	}
	unknown := func(why string) (store.Answer, error) {
		return store.Answer{}, allocator.Errorf(allocator.Unavailable, "memory: %s", why)
	}
	switch fate.Name {
	case NotDone:
		return unknown("lost on the way")
	case NoLeader:
		return unknown("etcdserver: no leader")
	case Late:
		m.mu.late = append(m.mu.late, lateTxn{txn: txn, after: m.mu.count + fate.N})
		return unknown("request timed out")
	case StaleRead:
		if !Writes(txn) {
			return m.readAt(txn, max(m.mu.data.rev-int64(fate.N), 1))
		}
	case Twice:
		if _, err := m.apply(txn, true); err != nil {
			return store.Answer{}, err
		}
	}
	answer, err := m.apply(txn, true)
	if err != nil {
		return store.Answer{}, err
	}
	switch fate.Name {
	case DoneAnswerLost:
		return unknown("request timed out")
	case NoSpaceButApplied:
		return unknown("etcdserver: mvcc: database space exceeded")
	case WrongCluster:
		answer.ClusterID++
	case OldRevision:
		answer.Revision -= int64(fate.N)
	}
	return answer, nil
}

// Arrive has all late transactions happen now.
func (m *Fake) Arrive() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrive(true)
}

// arrive does the late transactions whose time has come. The caller holds mu.
func (m *Fake) arrive(all bool) {
	for i := 0; i < len(m.mu.late); {
		if l := m.mu.late[i]; all || l.after < m.mu.count {
			m.mu.late = append(m.mu.late[:i], m.mu.late[i+1:]...)
			_, _ = m.apply(l.txn, true)
		} else {
			i++
		}
	}
}

// readAt answers a pure read from a snapshot. The caller holds mu.
func (m *Fake) readAt(txn store.Txn, rev int64) (store.Answer, error) {
	d := &m.mu.data
	answer := store.Answer{Sender: m.sender(), Revision: rev, Succeeded: d.holds(txn.If, rev)}
	ops := txn.Then
	if !answer.Succeeded {
		ops = txn.Else
	}
	if err := d.readable(ops, rev); err != nil {
		return store.Answer{}, err
	}
	for _, op := range ops {
		d.answer(&answer, *op.Get, rev)
	}
	return answer, nil
}

// apply does a transaction. An error means that nothing was done. The caller
// holds mu.
func (m *Fake) apply(txn store.Txn, watchful bool) (store.Answer, error) {
	d := &m.mu.data
	if err := check(txn); err != nil {
		return store.Answer{}, err
	}
	answer := store.Answer{Sender: m.sender(), Succeeded: d.holds(txn.If, d.rev)}
	ops := txn.Then
	if !answer.Succeeded {
		ops = txn.Else
	}
	if err := d.readable(ops, d.rev); err != nil {
		return store.Answer{}, err
	}
	if watchful {
		m.complain(txn, ops)
	}
	m.mu.index++
	if o := m.mu.over; o != nil && o.etcd == nil {
		o.do(func() { o.fill(context.Background(), d) })
	}
	// All writes of a transaction share the next revision, and its own reads
	// see those before them.
	next, wrote := d.rev+1, false
	for _, op := range ops {
		switch {
		case op.Put != nil:
			d.set(op.Put.Key, version{rev: next, value: append([]byte{}, op.Put.Value...)})
			wrote = true
		case op.Get != nil:
			d.answer(&answer, *op.Get, next)
		default:
			if _, ok := d.at(op.Delete, next); ok {
				d.set(op.Delete, version{rev: next, deleted: true})
				wrote = true
			}
		}
	}
	if wrote {
		d.rev = next
		m.wake()
	}
	answer.Revision = d.rev
	if o := m.mu.over; o != nil {
		o.do(func() { answer = o.apply(txn, answer) })
	}
	return answer, nil
}

// check refuses what etcd refuses, whichever branch would be done.
func check(txn store.Txn) error {
	const maxOps = 128 // etcd's default
	if len(txn.If) > maxOps || len(txn.Then) > maxOps || len(txn.Else) > maxOps {
		return allocator.Errorf(allocator.Internal, "memory: too many operations in txn request")
	}
	for _, c := range txn.If {
		if c.Key == "" {
			return allocator.Errorf(allocator.Internal, "memory: key is not provided")
		}
	}
	for _, ops := range [][]store.Op{txn.Then, txn.Else} {
		puts, deletes := make(map[string]bool), make(map[string]bool)
		for _, op := range ops {
			key := op.Delete
			switch {
			case op.Put != nil:
				key = op.Put.Key
				if puts[key] {
					return allocator.Errorf(allocator.Internal, "memory: duplicate key given in txn request")
				}
				puts[key] = true
			case op.Get != nil:
				key = op.Get.Key
			default:
				deletes[key] = true
			}
			if key == "" {
				return allocator.Errorf(allocator.Internal, "memory: key is not provided")
			}
		}
		for key := range deletes {
			if puts[key] {
				return allocator.Errorf(allocator.Internal, "memory: duplicate key given in txn request")
			}
		}
	}
	return nil
}

// Unknown has the fates that leave a caller without an answer that it can trust.
var Unknown = []FateName{DoneAnswerLost, NotDone, Late, NoLeader, NoSpaceButApplied, Twice}

// Happened reports whether a transaction with a fate of Unknown was done by the time its
// caller had the answer.
func (n FateName) Happened() bool {
	return n == DoneAnswerLost || n == NoSpaceButApplied || n == Twice
}
