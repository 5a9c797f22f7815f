package ledgertest

import (
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// mvcc is every key at every revision.
type mvcc struct {
	rev       int64
	compacted int64
	keys      []string // all that ever were, sorted
	versions  map[string][]version
	log       map[int64][]string // the keys that a revision changed, in the order of its operations
}

// version is a key from one revision on.
type version struct {
	rev     int64
	value   []byte
	deleted bool
}

func newMVCC() mvcc {
	return mvcc{rev: 1, versions: make(map[string][]version), log: make(map[int64][]string)}
}

// until returns what was written up to a revision, at revision 1.
func (d *mvcc) until(rev int64) mvcc {
	copied := newMVCC()
	for _, key := range d.keys {
		for _, v := range d.versions[key] {
			if v.rev <= rev {
				copied.set(key, v)
			}
		}
	}
	return copied
}

// at returns a key as it was at a revision, and whether it was there.
func (d *mvcc) at(key string, rev int64) (version, bool) {
	versions := d.versions[key]
	for i := len(versions) - 1; i >= 0; i-- {
		if v := versions[i]; v.rev <= rev {
			return v, !v.deleted
		}
	}
	return version{}, false
}

// set writes a key at a revision, again perhaps.
func (d *mvcc) set(key string, v version) {
	if _, ok := d.versions[key]; !ok {
		i, _ := slices.BinarySearch(d.keys, key)
		d.keys = slices.Insert(d.keys, i, key)
	}
	d.versions[key] = append(d.versions[key], v)
	d.log[v.rev] = append(d.log[v.rev], key)
}

// get is a range read at a revision, or at one of its own. It returns how many keys the range has, too.
func (d *mvcc) get(g store.Get, rev int64) ([]store.KV, int64) {
	if g.At > 0 {
		rev = g.At
	}
	kvs := []store.KV{}
	first, _ := slices.BinarySearch(d.keys, g.Key)
	for _, key := range d.keys[first:] {
		if !in(g.Interval, key) {
			break
		}
		if v, ok := d.at(key, rev); ok {
			kvs = append(kvs, store.KV{Key: key, Value: v.value, ModRevision: v.rev})
		}
	}
	count := int64(len(kvs))
	if g.Descending {
		slices.Reverse(kvs)
	}
	if g.Limit > 0 && count > g.Limit {
		kvs = kvs[:g.Limit]
	}
	if g.KeysOnly {
		for i := range kvs {
			kvs[i].Value = nil
		}
	}
	return kvs, count
}

// answer adds what a range read finds to an answer.
func (d *mvcc) answer(a *store.Answer, g store.Get, rev int64) {
	kvs, count := d.get(g, rev)
	a.Got, a.Counts = append(a.Got, kvs), append(a.Counts, count)
}

// readable returns why operations cannot read at the revisions that they name, when the latest is rev.
func (d *mvcc) readable(ops []store.Op, rev int64) error {
	for _, op := range ops {
		switch {
		case op.Get == nil || op.Get.At == 0:
		case op.Get.At < d.compacted:
			return allocator.Errorf(allocator.Internal, "memory: %w", store.ErrCompacted)
		case op.Get.At > rev:
			return allocator.Errorf(allocator.Internal, "memory: required revision is a future revision")
		}
	}
	return nil
}

// in reports whether key is in the interval.
func in(i store.Interval, key string) bool {
	if i.End == "" {
		return key == i.Key
	}
	return i.Key <= key && key < i.End
}

// holds reports whether all conditions hold at a revision. An absent key has
// mod revision 0 and no value, not even an empty one.
func (d *mvcc) holds(conds []store.Cond, rev int64) bool {
	for _, c := range conds {
		v, ok := d.at(c.Key, rev)
		if !ok {
			v = version{}
		}
		if c.Value != nil && (!ok || string(c.Value) != string(v.value)) {
			return false
		}
		if (c.Value == nil || c.ModRevision != 0) && c.ModRevision != v.rev {
			return false
		}
	}
	return true
}

// changes returns what a revision changed in the intervals.
func (d *mvcc) changes(rev int64, intervals []store.Interval) []store.KV {
	var kvs []store.KV
	for _, key := range d.log[rev] {
		if !slices.ContainsFunc(intervals, func(i store.Interval) bool { return in(i, key) }) {
			continue
		}
		kv := store.KV{Key: key}
		if v, ok := d.at(key, rev); ok {
			kv.Value, kv.ModRevision = v.value, v.rev
		}
		kvs = append(kvs, kv)
	}
	return kvs
}
