package record

import (
	"strings"

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
	return store.Interval{Key: string(r.keys), End: store.PrefixEnd(string(r.keys))}
}

// Epoch is the key that says which epoch it is, or that leasing is halted.
func (r *Reader) Epoch() string { return r.keys.Epoch() }

// Marks is the interval of a room's marks, or of all rooms'.
func (r *Reader) Marks(room allocator.Room) store.Interval {
	marks := r.keys.Marks(room)
	return store.Interval{Key: marks, End: store.PrefixEnd(marks)}
}

// Lasting reports whether a key says something that lasts, and not only that an
// instance lives.
func (r *Reader) Lasting(key string) bool {
	k := r.keys
	return !strings.HasPrefix(key, k.Heartbeats("")) && key != k.ActiveMigration() && key != k.Beat()
}

// Kept reports whether a key, once it is there, is never deleted.
func (r *Reader) Kept(key string) bool {
	k := r.keys
	return strings.HasPrefix(key, k.Marks("")) || key == k.Identity() || key == k.Epoch() || key == k.Layout()
}

// Entry is what a key and its value say. Of its records the one of its kind is
// set, none where the key was deleted.
type Entry struct {
	Kind     string // the first part of the key: "marks", say, see the package comment
	Room     allocator.Room
	Tag      allocator.Tag
	Instance allocator.Instance
	Version  int64 // of a layout of the history

	Epoch        *EpochRecord
	Layout       *Layout // the current one, or one of the history
	Stored       *Tag    // a tag as it is stored
	Mark         *Mark
	Registration *Instance
	Lease        *Lease // a worker
	Migration    *Migration
}

// EpochRecord is what the key `epoch` says.
type EpochRecord struct {
	Epoch  string // empty while leasing is halted
	Total  int64  // the margin total of the epoch, or of the epoch that the halt stopped
	Halted bool
	By     string // the instance or person that halted it,
	Why    string // and why
}

// Entry reads a key and its value. A key without a mod revision was deleted.
// Values that only people read (audit) are not looked into. Its errors are
// Internal.
func (r *Reader) Entry(kv store.KV) (Entry, error) {
	key, err := r.keys.Parse(kv.Key)
	e := Entry{Kind: key.Kind, Room: key.Room, Tag: key.Tag, Instance: key.Instance, Version: key.version}
	if err != nil || kv.ModRevision == 0 {
		return e, err
	}
	switch key.Kind {
	case "epoch":
		var v Epoch
		if err = Decode(kv, &v); err == nil {
			e.Epoch = &EpochRecord{Epoch: v.Epoch, Total: v.MarginTotal}
			if v.Halted != nil {
				e.Epoch = &EpochRecord{Total: v.MarginTotal, Halted: true, By: v.Halted.By, Why: v.Halted.Why}
			}
		}
	case "layout", "layouts":
		read := DecodeLayout
		if e.Kind == "layouts" {
			read = r.keys.DecodeHistory
		}
		var record Layout
		record, err = read(kv)
		record.Revision = kv.ModRevision
		e.Layout = &record
	case "tags":
		var t Tag
		t, err = r.keys.DecodeTag(kv)
		e.Stored = &t
	case "marks":
		var m Mark
		m, err = DecodeMark(kv)
		e.Mark = &m
	case "rooms":
		var i Instance
		i, err = r.keys.ParseInstance(kv)
		e.Registration = &i
	case "workers":
		var w Worker
		w, err = decodeWorker(kv)
		e.Lease = &Lease{key.Worker, w}
	case "migrations":
		var m Migration
		m, err = r.keys.ParseMigration(kv)
		e.Migration = &m
	}
	return e, err
}

// Dump returns what keys and values of one snapshot say together: see
// Ledger.Dump.
func (r *Reader) Dump(revision int64, kvs []store.KV) (*Dump, error) {
	return r.keys.Dump(revision, kvs)
}
