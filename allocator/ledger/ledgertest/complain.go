package ledgertest

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/march-id/march/allocator/ledger/store"
)

// The complaints are a second opinion on what package ledger writes: they know
// the keys and the JSON from the design alone, not from the ledger's code.

type seenStamp struct {
	Epoch    string `json:"epoch"`
	Revision int64  `json:"layout_revision,string"`
}

type seenEra struct {
	Version int64  `json:"version,string"`
	Epoch   string `json:"epoch"`
	First   int64  `json:"first,string"`
	End     int64  `json:"end,string"`
}

type seenMark struct {
	Next  int64     `json:"next,string"`
	Stamp seenStamp `json:"stamp"`
	Total int64     `json:"total,string"`
	Began int64     `json:"began,string"`
	Eras  []seenEra `json:"eras"`
}

// seenEras is how many eras a mark keeps.
const seenEras = 8

type seenLayout struct {
	Version int64    `json:"version,string"`
	Ever    []string `json:"ever"`
}

// forever are the keys that are never deleted, once those that are never changed.
// Of those in turn the oldest goes when another one comes.
var (
	forever = []string{"identity", "epoch", "layout", "marks/", "workers/"}
	once    = []string{"identity", "layouts/", "audit/"}
	inTurn  = []string{"layouts/", "migrations/", "audit/"}
)

// complain fails the test where ops, which are about to be done because txn's
// conditions decided so, are something that no ledger may ever do. The caller
// holds mu.
func (m *Fake) complain(txn store.Txn, ops []store.Op) {
	for _, op := range ops {
		if op.Put != nil {
			if cluster, rest, ok := cut(op.Put.Key); ok {
				m.complainPut(txn, ops, op.Put, cluster, rest)
			}
			continue
		}
		cluster, rest, ok := cut(op.Delete)
		if !ok || op.Get != nil {
			continue
		}
		if isOneOf(rest, forever) {
			m.tb.Errorf("complaint: %s is deleted; it never may be", op.Delete)
		}
		if isOneOf(rest, inTurn) && !m.isTurn(ops, cluster, rest) {
			m.tb.Errorf("complaint: %s is deleted, and it is not its turn", op.Delete)
		}
	}
}

// isTurn reports whether a key is the oldest of its kind, but for those that go
// with it, and another one comes. The caller holds mu.
func (m *Fake) isTurn(ops []store.Op, cluster, rest string) bool {
	kind, _, _ := strings.Cut(rest, "/")
	kind = cluster + kind + "/"
	kvs, _ := m.mu.data.get(store.Get{Interval: store.Interval{Key: kind, End: cluster + rest}}, m.mu.data.rev)
	for _, kv := range kvs {
		if !slices.ContainsFunc(ops, func(op store.Op) bool { return op.Delete == kv.Key }) {
			return false
		}
	}
	return slices.ContainsFunc(ops, func(op store.Op) bool {
		return op.Put != nil && strings.HasPrefix(op.Put.Key, kind)
	})
}

// cut parts a key into the cluster's prefix and the rest.
func cut(key string) (cluster, rest string, ok bool) {
	rest, ok = strings.CutPrefix(key, "/march/")
	if !ok {
		return "", "", false
	}
	cluster, rest, ok = strings.Cut(rest, "/")
	return "/march/" + cluster + "/", rest, ok
}

func isOneOf(rest string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return rest == name || strings.HasSuffix(name, "/") && strings.HasPrefix(rest, name)
	})
}

func (m *Fake) complainPut(txn store.Txn, ops []store.Op, put *store.Put, cluster, rest string) {
	old, there := m.mu.data.at(put.Key, m.mu.data.rev)
	if there && isOneOf(rest, once) && string(old.value) != string(put.Value) && !moves(ops, cluster, rest, old.value, put.Value) {
		m.tb.Errorf("complaint: %s is written again with other content:\n was %s\n now %s", put.Key, old.value, put.Value)
	}
	switch {
	case rest == "layout":
		m.complainLayout(ops, put, cluster, old, there)
	case strings.HasPrefix(rest, "marks/"):
		m.complainMark(txn, put, cluster, rest)
	case strings.HasPrefix(rest, "workers/"):
		m.complainWorker(txn, put, cluster, rest)
	}
}

// moves reports whether a recover writes the ID of the etcd cluster, together with
// a new epoch.
func moves(ops []store.Op, cluster, rest string, old, now []byte) bool {
	var was, is struct{ UUID string }
	return rest == "identity" && json.Unmarshal(old, &was) == nil && json.Unmarshal(now, &is) == nil && was == is &&
		slices.ContainsFunc(ops, func(op store.Op) bool { return op.Put != nil && op.Put.Key == cluster+"epoch" })
}

// complainLayout: the version grows, the rooms that ever were stay, and the
// history gets the same value.
func (m *Fake) complainLayout(ops []store.Op, put *store.Put, cluster string, old version, there bool) {
	var was, now seenLayout
	if err := json.Unmarshal(put.Value, &now); err != nil {
		m.tb.Errorf("complaint: %s: %v", put.Key, err)
		return
	}
	if there && json.Unmarshal(old.value, &was) == nil {
		if now.Version <= was.Version {
			m.tb.Errorf("complaint: the layout's version goes from %d to %d", was.Version, now.Version)
		}
		for _, room := range was.Ever {
			if !slices.Contains(now.Ever, room) {
				m.tb.Errorf("complaint: room %s was in the list of rooms that ever were, and is gone from layout version %d", room, now.Version)
			}
		}
	}
	if !slices.ContainsFunc(ops, func(op store.Op) bool {
		return op.Put != nil && strings.HasPrefix(op.Put.Key, cluster+"layouts/") && string(op.Put.Value) == string(put.Value)
	}) {
		m.tb.Errorf("complaint: layout version %d is written without its history", now.Version)
	}
}

// complainMark: next never falls, and a lease is made under the present epoch
// and layout, under conditions on all that it stands on, above the floor, and
// keeps the latest eras.
func (m *Fake) complainMark(txn store.Txn, put *store.Put, cluster, rest string) {
	d := &m.mu.data
	var now, was seenMark
	if err := json.Unmarshal(put.Value, &now); err != nil {
		m.tb.Errorf("complaint: %s: %v", put.Key, err)
		return
	}
	if old, ok := d.at(put.Key, d.rev); ok {
		if err := json.Unmarshal(old.value, &was); err != nil {
			m.tb.Errorf("complaint: %s is written over what is no mark: %s", put.Key, old.value)
		}
	}
	if now.Next < was.Next {
		m.tb.Errorf("complaint: %s falls from %d to %d", put.Key, was.Next, now.Next)
	}
	if reflect.DeepEqual(now.Eras, was.Eras) && now.Stamp == was.Stamp && now.Total == was.Total && now.Began == was.Began {
		return // raised, not leased
	}
	_, room, _ := strings.Cut(rest, "/")
	room, tag, _ := strings.Cut(room, "/")
	layout, _ := d.at(cluster+"layout", d.rev)
	epoch, _ := d.at(cluster+"epoch", d.rev)
	var under seenLayout
	var in struct {
		Epoch string
		Total int64 `json:"margin_total,string"`
	}
	_, _ = json.Unmarshal(layout.value, &under), json.Unmarshal(epoch.value, &in)
	var era, last seenEra
	if n := len(now.Eras); n > 0 {
		era = now.Eras[n-1]
	}
	kept := was.Eras
	if n := len(kept); n > 0 && was.Stamp == now.Stamp {
		last, kept = kept[n-1], kept[:n-1]
	}
	kept = kept[max(len(kept)+1-seenEras, 0):]
	began := was.Began
	if was.Stamp.Epoch != now.Stamp.Epoch {
		began = now.Began // anything from next up
	}
	switch {
	case now.Stamp.Revision != layout.rev || era.Version != under.Version:
		m.tb.Errorf("complaint: %s has the stamp of layout version %d, revision %d, but the layout is version %d, revision %d",
			put.Key, era.Version, now.Stamp.Revision, under.Version, layout.rev)
	case now.Stamp.Epoch != in.Epoch || in.Epoch == "" || era.Epoch != in.Epoch || now.Total != in.Total:
		m.tb.Errorf("complaint: %s is leased in epoch %q, with the margin total %d, but the epoch is %s",
			put.Key, now.Stamp.Epoch, now.Total, epoch.value)
	case era.First < 0 || era.End <= era.First || era.End != now.Next, last.Version == 0 && era.First < was.Next,
		last.Version != 0 && (era.First != last.First || era.End <= last.End),
		now.Began != began || now.Began > era.First,
		!slices.Equal(kept, now.Eras[:len(now.Eras)-1]):
		m.tb.Errorf("complaint: %s does not fit: was %+v, now %s", put.Key, was, put.Value)
	}
	for _, needed := range []string{"epoch", "layout", "tags/" + tag, "rooms/" + room + "/", rest} {
		if !slices.ContainsFunc(txn.If, func(c store.Cond) bool {
			key, ok := strings.CutPrefix(c.Key, cluster)
			return ok && (key == needed || strings.HasSuffix(needed, "/") && strings.HasPrefix(key, needed) && c.ModRevision != 0)
		}) {
			m.tb.Errorf("complaint: %s is leased without a condition on %s", put.Key, needed)
		}
	}
	if last.Version != 0 {
		return
	}
	// A new era: above all marks that do not already stand under this layout. One
	// that was raised since the layout is of an instance that a recover left out: the
	// floor may have been read before.
	for _, other := range under.Ever {
		var mark seenMark
		v, ok := d.at(cluster+"marks/"+other+"/"+tag, d.rev)
		if !ok || json.Unmarshal(v.value, &mark) != nil {
			continue
		}
		if mark.Stamp.Revision != layout.rev && mark.Next > era.First && v.rev < layout.rev {
			m.tb.Errorf("complaint: %s begins an era at %d, below the mark %d of room %s", put.Key, era.First, mark.Next, other)
		}
	}
}
