package ledger

import (
	"context"
	"errors"
	"time"
)

// Store is what the ledger needs of etcd. It exists so that faults which a
// real etcd shows once in a blue moon can be shown at will: package ledgertest
// has the other store, and one suite that holds both to the same behaviour.
//
// What it owes: transactions are serializable and in the order of their
// revisions; a Txn without Puts and Deletes is a linearizable read. An error
// from Txn leaves unknown whether it happened. A transaction is sent at most
// once per call. Errors carry a Kind: Unavailable where a later try may
// succeed.
type Store interface {
	Txn(ctx context.Context, txn Txn) (Answer, error)

	// Watch sends what changes in the intervals from revision from on, until
	// ctx ends or an error, which is the last thing sent before the channel is
	// closed. ErrCompacted means that changes since from are lost; Unavailable
	// that the store has been silent for too long. Changes of one interval come
	// in order.
	Watch(ctx context.Context, intervals []Interval, from int64) <-chan Change

	// Grant makes an etcd lease that lives for ttl after its last KeepAlive.
	Grant(ctx context.Context, ttl time.Duration) (lease int64, err error)
	// KeepAlive prolongs a lease once. NotFound: it has expired.
	KeepAlive(ctx context.Context, lease int64) error

	// Status asks the member that is in use, or another one where that does not
	// answer, which is then in use.
	Status(ctx context.Context) (Status, error)
	Close() error
}

// ErrCompacted is a watch's error when what it should show is gone.
var ErrCompacted = errors.New("revision compacted")

// Interval is the keys from Key up to End, exclusive; the one key where End is
// empty.
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
	Lease int64 // the etcd lease it lives under, 0 for none
}

// Get reads an interval in the order of keys.
type Get struct {
	Interval
	Limit      int64 // at most so many, 0 for all
	Descending bool
	KeysOnly   bool
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
	Succeeded bool   // whether Then was done
	Got       [][]KV // for each Get of the branch that was done
}

// Sender says who answered.
type Sender struct {
	ClusterID uint64 // of the etcd cluster
	MemberID  uint64
	// Connection numbers the connection that was used: two answers with one
	// number are of one process, which was not started again in between. 0 where
	// the connection broke meanwhile.
	Connection int64
}

// Status is what a member says of itself. Nothing of it is linearizable, but
// RaftIndex is at or above the index of all that this member answered before.
type Status struct {
	Sender
	Revision  int64
	Version   string // of the server
	RaftIndex uint64 // up to which it knows the log to be committed
	RaftTerm  uint64
}

// one returns what the i-th Get of a single key found.
func (a Answer) one(i int) (KV, bool) {
	if len(a.Got[i]) == 0 {
		return KV{}, false
	}
	return a.Got[i][0], true
}

// Change is what one watch message carries.
type Change struct {
	KVs []KV
	Err error
}

func put(key string, value []byte) Op { return Op{Put: &Put{Key: key, Value: value}} }
func get(key string) Op               { return Op{Get: &Get{Interval: Interval{Key: key}}} }

func getPrefix(prefix string) Op {
	return Op{Get: &Get{Interval: Interval{Key: prefix, End: prefixEnd(prefix)}}}
}

func absent(key string) Cond                 { return Cond{Key: key} }
func unchanged(kv KV) Cond                   { return Cond{Key: kv.Key, ModRevision: kv.ModRevision} }
func hasValue(key string, value []byte) Cond { return Cond{Key: key, Value: value} }
