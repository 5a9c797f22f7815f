package ledgertest

import (
	"slices"
	"strings"

	"github.com/march-id/march/allocator/ledger/ledgertest/rules"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// complain fails the test where ops, which are about to be done because txn's
// conditions decided so, are something that no ledger may ever do. The caller
// holds mu.
func (m *Fake) complain(txn store.Txn, ops []store.Op) {
	for cluster, ops := range byCluster(ops) {
		keys, err := record.NewKeys(cluster)
		if err != nil {
			m.tb.Errorf("complaint: a key under %s%s: %v", root, cluster, err)
			continue
		}
		before := before{keys: keys, data: &m.mu.data, read: make(map[string]record.Entry)}
		writes := m.writes(keys, ops)
		all := append(rules.Check(keys, before, writes), rules.Conditions(keys, before, txn.If, writes)...)
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
var newer = []record.Kind{record.Tags, record.Registrations, record.Migrations, record.SettingsKey}

// writes returns what operations write, and complains of what cannot be read. The caller
// holds mu.
func (m *Fake) writes(keys record.Keys, ops []store.Op) (writes []rules.Write) {
	for _, op := range ops {
		kv := store.KV{Key: op.Delete}
		if op.Put != nil {
			kv = store.KV{Key: op.Put.Key, Value: op.Put.Value, ModRevision: m.mu.data.rev + 1}
		} else if _, there := m.mu.data.at(op.Delete, m.mu.data.rev); !there {
			continue
		}
		entry, err := keys.Entry(kv)
		if err != nil && !slices.Contains(newer, entry.Kind) {
			m.tb.Errorf("complaint: values: %v", err)
			continue
		}
		writes = append(writes, rules.Write{KV: kv, Entry: entry})
	}
	return writes
}
