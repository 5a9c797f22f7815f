package record

import (
	"errors"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Dump is the whole content of a cluster in etcd, from one snapshot. It has everything that a
// check of the whole cluster needs, so that a tool need not know keys.
type Dump struct {
	Revision  int64  // of the store
	UUID      string // the cluster's
	ClusterID uint64 // the etcd cluster that it lives in
	Epoch     string // empty while leasing is halted

	Layout  Layout
	History []Layout // by version

	Tags  map[allocator.Tag]Tag
	Marks map[allocator.Tag]map[allocator.Room]Mark

	Workers []Lease // by width and number

	Registrations []Instance // by room and name
	Audits        int        // number of audit entries
}

// Dump decodes the keys of one snapshot. It has the errors of Cluster.Dump.
func (k Keys) Dump(revision int64, kvs []store.KV) (*Dump, error) {
	d := &Dump{
		Revision: revision,
		Tags:     make(map[allocator.Tag]Tag),
		Marks:    make(map[allocator.Tag]map[allocator.Room]Mark),
	}
	var errs []error
	for _, kv := range kvs {
		if err := d.add(k, kv); err != nil {
			errs = append(errs, err)
		}
	}
	return d, errors.Join(errs...)
}

func (d *Dump) add(k Keys, kv store.KV) error {
	key, value, err := k.Read(kv)
	switch v := value.(type) {
	case Identity:
		d.UUID, d.ClusterID = v.UUID, v.ClusterID
	case Epoch:
		d.Epoch = v.Epoch
	case Layout:
		if key.Kind == "layouts" {
			d.History = append(d.History, v)
			break
		}
		d.Layout, d.Layout.Revision = v, kv.ModRevision
	case Tag:
		if v.Deleted.IsZero() {
			d.Tags[key.Tag] = v
		}
	case Mark:
		if d.Marks[key.Tag] == nil {
			d.Marks[key.Tag] = make(map[allocator.Room]Mark)
		}
		d.Marks[key.Tag][key.Room] = v
	case Instance:
		d.Registrations = append(d.Registrations, v)
	case Worker:
		d.Workers = append(d.Workers, Lease{WorkerID: key.Worker, Worker: v})
	case AuditEntry:
		d.Audits++
	}
	return err
}

// Stamp returns the stamp of a lease that is made now.
func (d *Dump) Stamp() Stamp { return Stamp{Epoch: d.Epoch, Revision: d.Layout.Revision} }
