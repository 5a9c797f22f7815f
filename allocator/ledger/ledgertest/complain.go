package ledgertest

import (
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest/rules"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// complain fails the test where ops, which are about to be done because txn's
// conditions decided so, are something that no ledger may ever do. The caller
// holds mu.
func (m *Fake) complain(txn store.Txn, ops []store.Op) {
	for cluster, ops := range byCluster(ops) {
		reader, err := record.NewReader(cluster)
		if err != nil {
			m.tb.Errorf("complaint: a key under %s%s: %v", root, cluster, err)
			continue
		}
		before := before{reader: reader, prefix: root + cluster + "/", data: &m.mu.data,
			read: make(map[string]record.Entry)}
		writes := m.writes(reader, ops)
		all := append(rules.Check(reader, before, writes), rules.Conditions(before.prefix, before, txn.If, writes)...)
		for _, broken := range all {
			m.tb.Errorf("complaint: %s: %s", broken.Rule, broken.Text)
		}
	}
}

// root is what all keys of all clusters begin with.
const root = "/march/"

// byCluster parts operations that write by the clusters that they write to. Keys of no
// cluster are left out.
func byCluster(ops []store.Op) map[string][]store.Op {
	var parts map[string][]store.Op
	for _, op := range ops {
		key := op.Delete
		if op.Put != nil {
			key = op.Put.Key
		} else if op.Get != nil {
			continue
		}
		rest, ok := strings.CutPrefix(key, root)
		if !ok {
			continue
		}
		if cluster, _, ok := strings.Cut(rest, "/"); ok {
			if parts == nil {
				parts = make(map[string][]store.Op, 1)
			}
			parts[cluster] = append(parts[cluster], op)
		}
	}
	return parts
}

// newer are the kinds of values that a test may write as a newer version of the program
// does, in a format that this one cannot read.
var newer = []string{"tags", "rooms", "migrations", "settings"}

// writes returns what operations write, and complains of what cannot be read. The caller
// holds mu.
func (m *Fake) writes(reader *record.Reader, ops []store.Op) (writes []rules.Write) {
	for _, op := range ops {
		kv := store.KV{Key: op.Delete}
		if op.Put != nil {
			kv = store.KV{Key: op.Put.Key, Value: op.Put.Value, ModRevision: m.mu.data.rev + 1}
		} else if _, there := m.mu.data.at(op.Delete, m.mu.data.rev); !there {
			continue
		}
		entry, err := reader.Entry(kv)
		if err != nil && !slices.Contains(newer, entry.Kind) {
			m.tb.Errorf("complaint: values: %v", err)
			continue
		}
		writes = append(writes, rules.Write{KV: kv, Entry: entry})
	}
	return writes
}

// before is what a cluster has in the store before a transaction: rules.Before. It reads
// what is asked for, as each transaction needs little of it.
type before struct {
	reader *record.Reader
	prefix string
	data   *mvcc
	read   map[string]record.Entry // what was read so far as it is now
}

// now returns what a key says; zero where it is not there, or cannot be read.
func (b before) now(key string) record.Entry {
	e, known := b.read[key]
	if !known {
		e = b.at(key, b.data.rev)
		b.read[key] = e
	}
	return e
}

// at returns what a key said at a revision; zero where it was not there, or could not be
// read.
func (b before) at(key string, rev int64) record.Entry {
	v, there := b.data.at(b.prefix+key, rev)
	if !there {
		return record.Entry{}
	}
	e, err := b.reader.Entry(store.KV{Key: b.prefix + key, Value: v.value, ModRevision: v.rev})
	if err != nil {
		return record.Entry{}
	}
	return e
}

func (b before) Get(key string) (store.KV, bool) {
	v, there := b.data.at(key, b.data.rev)
	if !there {
		return store.KV{}, false
	}
	return store.KV{Key: key, Value: v.value, ModRevision: v.rev}, true
}

func (b before) Older(prefix, key string) (older []string) {
	kvs, _ := b.data.get(store.Get{Interval: store.Interval{Key: prefix, End: key}}, b.data.rev)
	for _, kv := range kvs {
		older = append(older, kv.Key)
	}
	return older
}

func (b before) Epoch() record.Epoch {
	if e := b.now("epoch"); e.Epoch != nil {
		return *e.Epoch
	}
	return record.Epoch{}
}

func (b before) Layout() record.Layout {
	if e := b.now("layout"); e.Layout != nil {
		return *e.Layout
	}
	return record.Layout{}
}

func (b before) Tag(tag allocator.Tag) (record.Tag, bool) {
	if e := b.now("tags/" + string(tag)); e.Stored != nil {
		return *e.Stored, true
	}
	return record.Tag{}, false
}

func (b before) Mark(room allocator.Room, tag allocator.Tag) record.Mark {
	if e := b.now("marks/" + string(room) + "/" + string(tag)); e.Mark != nil {
		return *e.Mark
	}
	return record.Mark{}
}

// Floor implements rules.Before by what the marks were when the later of layout and epoch
// was written.
func (b before) Floor(tag allocator.Tag) int64 {
	layout := b.Layout()
	epoch, _ := b.Get(b.prefix + "epoch")
	began := max(layout.Revision, epoch.ModRevision)
	marks := make(map[allocator.Room]record.Mark, len(layout.Ever))
	for _, room := range layout.Ever {
		if e := b.at("marks/"+string(room)+"/"+string(tag), began); e.Mark != nil {
			marks[room] = *e.Mark
		}
	}
	e := b.Epoch()
	return rules.Floor(layout, e.Margins(), b.at("tags/"+string(tag), began).Stored, marks)
}

func (b before) Registered(room allocator.Room) bool {
	prefix := b.prefix + "rooms/" + string(room) + "/"
	kvs, _ := b.data.get(store.Get{Interval: store.Interval{Key: prefix, End: store.PrefixEnd(prefix)}}, b.data.rev)
	return len(kvs) > 0
}

func (b before) WasInForce(epoch string) bool {
	return slices.ContainsFunc(b.data.versions[b.prefix+"epoch"], func(v version) bool {
		e := b.at("epoch", v.rev)
		return e.Epoch != nil && e.Epoch.Epoch == epoch
	})
}
