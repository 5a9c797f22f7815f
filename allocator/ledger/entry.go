package ledger

import (
	"fmt"
	"strings"

	"github.com/march-id/march/allocator"
)

// Reader reads what a cluster keeps in etcd without being part of it: for those
// who keep a history of a cluster and look at it later. It asks etcd nothing.
type Reader struct{ l *Ledger }

// NewReader returns a reader of a cluster's keys. Its error is Invalid.
func NewReader(cluster string) (*Reader, error) {
	cfg := DefaultConfig()
	cfg.Cluster = cluster
	l, err := New(nil, cfg)
	return &Reader{l}, err
}

// All is the interval of all keys of the cluster.
func (r *Reader) All() Interval {
	return Interval{Key: string(r.l.keys), End: prefixEnd(string(r.l.keys))}
}

// Epoch is the key that says which epoch it is, or that leasing is halted.
func (r *Reader) Epoch() string { return r.l.keys.epoch() }

// Marks is the interval of a room's marks.
func (r *Reader) Marks(room allocator.Room) Interval {
	marks := r.l.keys.marksOf(room)
	return Interval{Key: marks, End: prefixEnd(marks)}
}

// Lasting reports whether a key says something that lasts, and not only who
// lives and who drives.
func (r *Reader) Lasting(key string) bool {
	k := r.l.keys
	for _, passing := range []string{k.heartbeats(""), k.silences("")} {
		if strings.HasPrefix(key, passing) {
			return false
		}
	}
	return key != k.activeMigration() && key != k.driver() && key != k.beat()
}

// Kept reports whether a key, once it is there, is never deleted.
func (r *Reader) Kept(key string) bool {
	k := r.l.keys
	for _, kept := range []string{k.layouts(), string(k) + "marks/", string(k) + "eras/", k.audits()} {
		if strings.HasPrefix(key, kept) {
			return true
		}
	}
	return key == k.identity() || key == k.epoch() || key == k.layout()
}

// Entry is what a key and its value say. Of its records the one of its kind is
// set, none where the key was deleted.
type Entry struct {
	Kind     string // the first part of the key: "marks", say, see the package comment
	Room     allocator.Room
	Tag      allocator.Tag
	Instance allocator.Instance
	Version  int64 // of a layout of the history, or of an era

	Epoch        *EpochRecord
	Layout       *LayoutRecord // the current one, or one of the history
	Settings     *TagSettings
	Mark         *Mark
	Era          *Era
	Registration *InstanceRecord
	Migration    *Migration
}

// EpochRecord is what the key `epoch` says.
type EpochRecord struct {
	Epoch  string // empty while leasing is halted
	Halted bool
	By     string // who halted it,
	Why    string // and why
}

// Entry reads a key and its value. A key without a mod revision was deleted.
// Values that only people read (audit) are not looked into. Its errors are
// Internal.
func (r *Reader) Entry(kv KV) (Entry, error) {
	key, err := r.l.keys.parse(kv.Key)
	e := Entry{Kind: key.kind, Room: key.room, Tag: key.tag, Instance: key.instance, Version: key.version}
	if err != nil || kv.ModRevision == 0 {
		return e, err
	}
	switch key.kind {
	case "epoch":
		var v epochValue
		if err = decode(kv, &v); err == nil {
			e.Epoch = &EpochRecord{Epoch: v.Epoch}
			if v.Halted != nil {
				e.Epoch = &EpochRecord{Halted: true, By: v.Halted.By, Why: v.Halted.Why}
			}
		}
	case "layout", "layouts":
		var record LayoutRecord
		record, err = decodeLayout(kv)
		record.revision = kv.ModRevision
		if err == nil && e.Kind == "layouts" && record.Layout.Version != e.Version {
			err = allocator.Errorf(allocator.Internal, "key %s: holds version %d", kv.Key, record.Layout.Version)
		}
		e.Layout = &record
	case "tags":
		var t Tag
		t, err = r.l.decodeTag(kv)
		e.Settings = &t.Settings
	case "marks":
		var m Mark
		m, err = decodeMark(kv)
		e.Mark = &m
	case "eras":
		var era Era
		era, err = decodeEra(kv)
		if err == nil && era.Version != e.Version {
			err = fmt.Errorf("key %s: holds an era of version %d", kv.Key, era.Version)
		}
		e.Era = &era
	case "rooms":
		var i InstanceRecord
		i, err = r.l.parseInstance(kv)
		e.Registration = &i
	case "migrations":
		var m Migration
		m, err = r.l.parseMigration(kv)
		e.Migration = &m
	}
	return e, err
}

// Dump returns what keys and values of one snapshot say together: see
// Ledger.Dump.
func (r *Reader) Dump(revision int64, kvs []KV) (*Dump, error) { return r.l.dump(revision, kvs) }
