// Package store has what March uses of etcd: transactions, reads of intervals, watches and the
// status of a server, behind one interface. It knows no key and no protocol. It is the only
// package that imports etcd's client.
//
// A transaction is sent at most once per call. After an error its outcome is unknown: it may
// have been applied. The caller has to find out, as only the caller can tell its own write from
// others.
package store

import (
	"context"
	"errors"
	"fmt"
)

// Store has the operations that the ledger needs of etcd. It is an interface so that
// tests can make faults on demand which a real etcd shows rarely: package ledgertest has
// the other store, and one suite that checks that both behave alike.
//
// A Store keeps these promises: transactions are serializable, in the order of their
// revisions; a Txn without Puts and Deletes is a linearizable read. After an error from
// Txn it is unknown whether the transaction happened. A transaction is sent at most once
// per call. Errors carry a Kind: Unavailable if a later try may succeed.
type Store interface {
	Txn(ctx context.Context, txn Txn) (Answer, error)

	// Watch sends what changes in the intervals from revision from on, until
	// ctx ends or an error, which is the last thing sent before the channel is
	// closed. ErrCompacted means that changes since from are lost; Unavailable
	// that the store has been silent for too long. Changes of one interval come
	// in order.
	Watch(ctx context.Context, intervals []Interval, from int64) <-chan Change

	// Status asks the member in use. If that does not answer, it asks another member, which is
	// then in use.
	Status(ctx context.Context) (Status, error)
	// Compact forgets the values of keys before a revision. ErrCompacted means that they are
	// forgotten already.
	Compact(ctx context.Context, revision int64) error
	Close() error
}

// ErrCompacted says that the requested history is gone.
var ErrCompacted = errors.New("revision compacted")

// CompactedError is an ErrCompacted with the revision up to which the history is gone. The
// errors of watches have this type.
type CompactedError struct{ Revision int64 }

func (e *CompactedError) Error() string { return fmt.Sprintf("%v: up to %d", ErrCompacted, e.Revision) }

// Unwrap returns ErrCompacted.
func (e *CompactedError) Unwrap() error { return ErrCompacted }

// ErrNoSpace says that etcd answers but takes no writes: its database has reached its quota.
var ErrNoSpace = errors.New("database space exceeded, etcd takes no writes")

// Interval is the keys from Key up to End, exclusive; the single key if End is empty.
type Interval struct{ Key, End string }

// Txn is one transaction: if all conditions hold, Then is done, else Else.
type Txn struct {
	If         []Cond
	Then, Else []Op
}

// Cond compares one key. The zero ModRevision with a nil Value means that the
// key is absent.
type Cond struct {
	Key         string
	ModRevision int64  // of the key; not compared when it is 0 and Value is not nil
	Value       []byte // not compared when nil
}

// Op is one operation of a transaction: exactly one of Put, Get and Delete.
type Op struct {
	Put    *Put
	Get    *Get
	Delete string // the key
}

// Put writes a key.
type Put struct {
	Key   string
	Value []byte
}

// Get reads an interval in the order of keys.
type Get struct {
	Interval
	Limit      int64 // at most so many, 0 for all
	Descending bool
	KeysOnly   bool
	At         int64 // the revision to read at, 0 for the latest; the error is ErrCompacted if that is forgotten
}

// KV is a key as a transaction or a watch saw it.
type KV struct {
	Key         string
	Value       []byte
	ModRevision int64 // 0 in a Change: the key was deleted
}

// Answer is a transaction's outcome.
type Answer struct {
	Sender
	Revision  int64  // of the store after the transaction
	Succeeded bool   // whether Then was done, and not Else
	Got       [][]KV // for each Get of the branch that was done
	// Counts has, for each Get, how many keys its interval has, whatever the limit.
	Counts []int64
}

// Sender identifies the server that answered.
type Sender struct {
	ClusterID uint64 // of the etcd cluster
	MemberID  uint64
	// Connection numbers the connection that was used. Two answers with one number are from one
	// process that was not restarted in between. It is 0 if the connection broke meanwhile.
	Connection int64
}

// Status is a member's report of itself. It is not linearizable, but RaftIndex is at or above
// the index of every earlier answer of this member.
type Status struct {
	Sender
	Revision  int64
	Version   string // of the server
	RaftIndex uint64 // up to which it knows the log to be committed
	RaftTerm  uint64
	Size      int64 // of its database, in bytes
	Quota     int64 // the limit of Size; 0 if the server does not report it
	NoSpace   bool  // a member has raised the alarm NOSPACE, so etcd takes no writes
	Corrupt   bool  // a member has raised the alarm CORRUPT, so etcd takes neither reads nor writes
}

// One returns the key that the i-th Get, of a single key, found.
func (a Answer) One(i int) (KV, bool) {
	if len(a.Got[i]) == 0 {
		return KV{}, false
	}
	return a.Got[i][0], true
}

// Change is the content of one watch message.
type Change struct {
	KVs []KV
	Err error
}

// OpPut writes a value.
func OpPut(key string, value []byte) Op { return Op{Put: &Put{Key: key, Value: value}} }

// OpGet reads one key.
func OpGet(key string) Op { return Op{Get: &Get{Interval: Interval{Key: key}}} }

// Prefix is the interval of the keys that begin with prefix, which ends in a byte below 0xff.
func Prefix(prefix string) Interval { return Interval{Key: prefix, End: PrefixEnd(prefix)} }

// OpGetPrefix reads all keys that begin with prefix.
func OpGetPrefix(prefix string) Op { return Op{Get: &Get{Interval: Prefix(prefix)}} }

// Absent holds if the key does not exist.
func Absent(key string) Cond { return Cond{Key: key} }

// Unchanged holds if the key was not written since it was read.
func Unchanged(kv KV) Cond { return Cond{Key: kv.Key, ModRevision: kv.ModRevision} }

// HasValue holds if the key has exactly this value.
func HasValue(key string, value []byte) Cond { return Cond{Key: key, Value: value} }

// FirstIfAny returns the first key of the first Get, if the answer has one.
func (a Answer) FirstIfAny() (KV, bool) {
	if len(a.Got) == 0 {
		return KV{}, false
	}
	return a.One(0)
}

// MaxOps is how many operations etcd takes in one transaction.
const MaxOps = 128

// With returns the transaction with as many of these operations added as fit.
func (t Txn) With(more []Op) Txn {
	t.Then = append(t.Then, more[:min(len(more), max(MaxOps-len(t.Then), 0))]...)
	return t
}

// PrefixEnd returns the end of the interval of keys that begin with prefix,
// which ends in a byte below 0xff.
func PrefixEnd(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string(prefix[last]+1)
}
