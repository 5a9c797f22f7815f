package record

import (
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Reader decodes the keys and values that a cluster keeps in etcd, for programs that
// record a cluster's history and check it later. It asks etcd nothing.
type Reader struct{ keys Keys }

// NewReader returns a reader of a cluster's keys. Its error is Invalid.
func NewReader(cluster string) (*Reader, error) {
	k, err := NewKeys(cluster)
	return &Reader{k}, err
}

// All is the interval of all keys of the cluster.
func (r *Reader) All() store.Interval {
	return store.Prefix(string(r.keys))
}

// Cluster returns a reader of the cluster in a store.
func (r *Reader) Cluster(etcd store.Store) *Cluster {
	return &Cluster{Store: etcd, Keys: r.keys, TryTimeout: time.Minute}
}

// Epoch returns the key of the epoch in force, or of the halt.
func (r *Reader) Epoch() string { return r.keys.Epoch() }

// Marks is the interval of a room's marks, or of all rooms'.
func (r *Reader) Marks(room allocator.Room) store.Interval {
	return store.Prefix(r.keys.In(room, Marks))
}

// Lasting reports whether a key holds lasting data, and not only the sign that an instance
// runs.
func (r *Reader) Lasting(key string) bool { return !r.keys.rowOf(key).passes }

// Kept reports whether a key, once written, is never deleted.
func (r *Reader) Kept(key string) bool { return r.keys.rowOf(key).kept }

// Entry is the decoded content of a key and its value. Only the record of its kind is set, and
// none if the key was deleted.
type Entry struct {
	Kind     string // the first part of the key: "marks", say, see the package comment
	Room     allocator.Room
	Tag      allocator.Tag
	Instance allocator.Instance
	Version  int64 // of a layout of the history

	Epoch        *Epoch
	Layout       *Layout // the current one, or one of the history
	Stored       *Tag    // a living tag as it is stored
	Tombstone    *Tag    // a deleted one
	Mark         *Mark
	Registration *Instance
	Token        *Token
	Lease        *Lease // a worker
	Migration    *Migration
	Holder       *Holder
}

// Entry reads a key and its value. A key without a mod revision was deleted. Its errors are
// Internal.
func (r *Reader) Entry(kv store.KV) (Entry, error) {
	key, err := r.keys.Parse(kv.Key)
	e := Entry{Kind: key.Kind, Room: key.Room, Tag: key.Tag, Instance: key.Instance, Version: key.version}
	if err != nil || kv.ModRevision == 0 {
		return e, err
	}
	_, value, err := r.keys.Read(kv)
	switch v := value.(type) {
	case Epoch:
		e.Epoch = &v
	case Layout:
		v.Revision = kv.ModRevision
		e.Layout = &v
	case Tag:
		if err == nil && v.Deleted.IsZero() {
			e.Stored = &v
		} else if err == nil {
			e.Tombstone = &v
		}
	case Mark:
		e.Mark = &v
	case Instance:
		e.Registration = &v
	case Token:
		e.Token = &v
	case Worker:
		e.Lease = &Lease{WorkerID: key.Worker, Worker: v}
	case Migration:
		e.Migration = &v
	case Holder:
		e.Holder = &v
	}
	return e, err
}
