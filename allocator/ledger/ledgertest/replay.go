package ledgertest

import (
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest/rules"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// before is what a cluster has in the store before a transaction: rules.Before. It reads
// what is asked for, as each transaction needs little of it.
type before struct {
	keys record.Keys
	data *mvcc
	read map[string]record.Entry // what was read so far as it is now

	// Of a history:
	unseen []unseen        // revisions whose changes are not known
	past   map[string]bool // epochs that were in force before etcd went back in time
}

// unseen are the revisions above after, up to upTo.
type unseen struct{ after, upTo int64 }

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
	v, there := b.data.at(key, rev)
	if !there {
		return record.Entry{}
	}
	e, err := b.keys.Entry(store.KV{Key: key, Value: v.value, ModRevision: v.rev})
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
	if e := b.now(b.keys.Epoch()); e.Epoch != nil {
		return *e.Epoch
	}
	return record.Epoch{}
}

func (b before) Layout() record.Layout {
	if e := b.now(b.keys.Layout()); e.Layout != nil {
		return *e.Layout
	}
	return record.Layout{}
}

func (b before) Tag(tag allocator.Tag) (record.Tag, bool) {
	if e := b.now(b.keys.Tag(tag)); e.Stored != nil {
		return *e.Stored, true
	}
	return record.Tag{}, false
}

func (b before) Mark(room allocator.Room, tag allocator.Tag) record.Mark {
	if e := b.now(b.keys.Mark(room, tag)); e.Mark != nil {
		return *e.Mark
	}
	return record.Mark{}
}

// Floor implements rules.Before by what the marks were when the later of layout and epoch
// was written.
func (b before) Floor(tag allocator.Tag) int64 {
	layout := b.Layout()
	epoch, _ := b.Get(b.keys.Epoch())
	began := max(layout.Revision, epoch.ModRevision)
	if slices.ContainsFunc(b.unseen, func(u unseen) bool { return u.after < began && began <= u.upTo }) {
		return 0
	}
	marks := make(map[allocator.Room]record.Mark, len(layout.Ever))
	for _, room := range layout.Ever {
		if e := b.at(b.keys.Mark(room, tag), began); e.Mark != nil {
			marks[room] = *e.Mark
		}
	}
	e := b.Epoch()
	return rules.Floor(layout, e.Margins(), b.at(b.keys.Tag(tag), began).Stored, marks)
}

func (b before) Registered(room allocator.Room) bool {
	kvs, _ := b.data.get(store.Get{Interval: store.Prefix(b.keys.In(room, record.Registrations))}, b.data.rev)
	return len(kvs) > 0
}

func (b before) WasInForce(epoch string) bool {
	return b.past[epoch] || slices.Contains(b.epochs(), epoch)
}

// epochs returns all epochs that were in force.
func (b before) epochs() (all []string) {
	for _, v := range b.data.versions[b.keys.Epoch()] {
		if e := b.at(b.keys.Epoch(), v.rev); e.Epoch != nil {
			all = append(all, e.Epoch.Epoch)
		}
	}
	return all
}

// Replay is the content of an etcd, as a history of it goes on: so the rules that a Fake has are those that
// a real etcd is held to.
type Replay struct {
	before before
	data   mvcc
}

// NewReplay returns an etcd without keys of a cluster.
func NewReplay(keys record.Keys) *Replay {
	r := &Replay{before: before{keys: keys, past: make(map[string]bool)}, data: newMVCC()}
	r.before.data = &r.data
	return r
}

// Restart begins again without keys: etcd went back in time.
func (r *Replay) Restart() {
	for _, epoch := range r.before.epochs() {
		r.before.past[epoch] = true
	}
	r.data, r.before.unseen = newMVCC(), nil
}

// Load replaces all keys by those of a revision: the changes until then were not seen.
func (r *Replay) Load(kvs []store.KV, revision int64) {
	r.before.unseen = append(r.before.unseen, unseen{r.data.rev, revision})
	r.data.rev = max(r.data.rev, revision)
	gone := make(map[string]bool)
	for _, kv := range r.All() {
		gone[kv.Key] = true
	}
	for _, kv := range kvs {
		delete(gone, kv.Key)
		if v, there := r.data.at(kv.Key, revision); !there || v.rev != kv.ModRevision {
			r.data.set(kv.Key, version{rev: kv.ModRevision, value: kv.Value})
		}
	}
	for key := range gone {
		r.data.set(key, version{rev: revision, deleted: true})
	}
}

// Apply applies what one transaction wrote. A history has the revision of no delete: it is that of the
// transaction's other writes, or the next one.
func (r *Replay) Apply(writes []rules.Write) {
	revision := int64(0)
	for _, w := range writes {
		revision = max(revision, w.ModRevision)
	}
	if revision == 0 {
		revision = r.data.rev + 1
	}
	r.data.rev = max(r.data.rev, revision)
	for _, w := range writes {
		r.data.set(w.Key, version{rev: revision, value: w.Value, deleted: w.ModRevision == 0})
	}
}

// Before returns the present content, until the next change.
func (r *Replay) Before() rules.Before {
	before := r.before
	before.read = make(map[string]record.Entry)
	return before
}

// Revision returns the latest revision.
func (r *Replay) Revision() int64 { return r.data.rev }

// All returns all keys, in order.
func (r *Replay) All() []store.KV {
	kvs, _ := r.data.get(store.Get{Interval: store.Prefix(string(r.before.keys))}, r.data.rev)
	return kvs
}
