package ledger

import (
	"context"
	"errors"

	"github.com/march-id/march/allocator"
)

// Dump is all that etcd says of a cluster, from one snapshot: what a check of
// the whole needs, and nothing that an operator's tool would have to know keys
// for.
type Dump struct {
	Revision  int64  // of the store
	UUID      string // of the cluster
	ClusterID uint64 // of the etcd cluster that it lives in
	Epoch     string // empty while leasing is halted

	Layout  LayoutRecord
	History []LayoutRecord // by version

	Tags  map[allocator.Tag]Tag
	Marks map[allocator.Tag]map[allocator.Room]Mark
	Eras  map[allocator.Tag]map[allocator.Room][]Era // those that ended, by version; the current one is its mark's

	Registrations []Registration // by room and name
	Audits        int            // how many audit entries there are

	recovering bool // a recover has begun, and has not ended
}

// Dump reads a Dump. It reads everything in one transaction, so it is for
// tests and for cluster-wide checks, not for serving. Where there are keys or
// values that are not a ledger's, its error names each of them, and the Dump
// has what could be read.
func (l *Ledger) Dump(ctx context.Context) (*Dump, error) {
	answer, err := l.gets(ctx, getPrefix(string(l.keys)))
	if err != nil {
		return nil, err
	}
	return l.dump(answer.Revision, answer.Got[0])
}

// dump returns what keys of one snapshot say. Its errors are Dump's.
func (l *Ledger) dump(revision int64, kvs []KV) (*Dump, error) {
	d := &Dump{
		Revision: revision,
		Tags:     make(map[allocator.Tag]Tag),
		Marks:    make(map[allocator.Tag]map[allocator.Room]Mark),
		Eras:     make(map[allocator.Tag]map[allocator.Room][]Era),
	}
	var errs []error
	for _, kv := range kvs {
		if err := d.add(l, kv); err != nil {
			errs = append(errs, err)
		}
	}
	return d, errors.Join(errs...)
}

// add adds one key to d.
func (d *Dump) add(l *Ledger, kv KV) error {
	key, err := l.keys.parse(kv.Key)
	if err != nil {
		return err
	}
	switch key.kind {
	case "identity":
		var v identityValue
		err = decode(kv, &v)
		d.UUID, d.ClusterID = v.UUID, v.ClusterID
	case "epoch":
		var v epochValue
		err = decode(kv, &v)
		d.Epoch, d.recovering = v.Epoch, v.Halted != nil && v.Halted.Recover
	case "beat":
		err = decode(kv, &beatValue{})
	case "settings":
		_, _, err = l.decodeSettings([]KV{kv})
	case "layout":
		d.Layout, err = decodeLayout(kv)
		d.Layout.revision = kv.ModRevision
	case "layouts":
		var r LayoutRecord
		r, err = decodeLayout(kv)
		if err == nil && r.Layout.Version != key.version {
			err = allocator.Errorf(allocator.Internal, "key %s: holds version %d", kv.Key, r.Layout.Version)
		}
		d.History = append(d.History, r)
	case "tags":
		d.Tags[key.tag], err = l.decodeTag(kv)
	case "marks":
		if d.Marks[key.tag] == nil {
			d.Marks[key.tag] = make(map[allocator.Room]Mark)
		}
		d.Marks[key.tag][key.room], err = decodeMark(kv)
	case "eras":
		var e Era
		e, err = decodeEra(kv)
		if err == nil && e.Version != key.version {
			err = allocator.Errorf(allocator.Internal, "key %s: holds an era of version %d", kv.Key, e.Version)
		}
		if d.Eras[key.tag] == nil {
			d.Eras[key.tag] = make(map[allocator.Room][]Era)
		}
		d.Eras[key.tag][key.room] = append(d.Eras[key.tag][key.room], e)
	case "rooms":
		var v registrationValue
		err = decode(kv, &v)
		d.Registrations = append(d.Registrations, Registration{Room: key.room, Name: key.instance, Address: v.Address, Build: v.Build})
	case "alive":
		err = decode(kv, &aliveValue{})
	case "silent":
		err = decode(kv, &silentValue{})
	case "migrations":
		_, err = decodeMigration(kv)
	case "migration", "driver":
		err = decode(kv, &holderValue{})
	case "audit":
		err = decode(kv, &auditValue{})
		d.Audits++
	}
	return err
}

// Stamp returns the stamp of a lease that is made now.
func (d *Dump) Stamp() Stamp { return Stamp{Epoch: d.Epoch, Revision: d.Layout.revision} }
