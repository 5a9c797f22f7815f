package ledgertest

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/march-id/march/allocator/ledger"
)

// The complaints are a second opinion on what package ledger writes: they know
// the keys and the JSON from the design alone, not from the ledger's code.

type seenEra struct {
	Epoch    string `json:"epoch"`
	Revision int64  `json:"layout_revision,string"`
	Version  int64  `json:"version,string"`
	First    int64  `json:"first,string"`
	End      int64  `json:"end,string"`
}

type seenMark struct {
	Next int64    `json:"next,string"`
	Era  *seenEra `json:"era"`
}

type seenLayout struct {
	Version int64    `json:"version,string"`
	Ever    []string `json:"ever"`
}

// forever are the keys that are never deleted, and once are never changed.
var (
	forever = []string{"identity", "epoch", "layout", "layouts/", "marks/", "eras/", "audit/"}
	once    = []string{"identity", "layouts/", "eras/", "audit/"}
)

// complain fails the test where ops, which are about to be done because txn's
// conditions decided so, are something that no ledger may ever do. The caller
// holds mu.
func (m *Memory) complain(txn ledger.Txn, ops []ledger.Op) {
	for _, op := range ops {
		if op.Put != nil {
			if cluster, rest, ok := cut(op.Put.Key); ok {
				m.complainPut(txn, ops, op.Put, cluster, rest)
			}
			continue
		}
		if _, rest, ok := cut(op.Delete); ok && op.Get == nil && isOneOf(rest, forever) {
			m.tb.Errorf("complaint: %s is deleted; it never may be", op.Delete)
		}
	}
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

func (m *Memory) complainPut(txn ledger.Txn, ops []ledger.Op, put *ledger.Put, cluster, rest string) {
	old, there := m.mu.data.at(put.Key, m.mu.data.rev)
	if there && isOneOf(rest, once) && string(old.value) != string(put.Value) && !recovers(ops, cluster, rest, old.value, put.Value) {
		m.tb.Errorf("complaint: %s is written again with other content:\n was %s\n now %s", put.Key, old.value, put.Value)
	}
	switch {
	case rest == "layout":
		m.complainLayout(ops, put, cluster, old, there)
	case strings.HasPrefix(rest, "marks/"):
		m.complainMark(txn, ops, put, cluster, rest)
	}
}

// recovers reports whether a recover writes what else is written once: the ID
// of the etcd cluster, together with a new epoch; or again a lost era, further up
// and from the same ID on.
func recovers(ops []ledger.Op, cluster, rest string, old, now []byte) bool {
	if rest == "identity" {
		var was, is struct{ UUID string }
		return json.Unmarshal(old, &was) == nil && json.Unmarshal(now, &is) == nil && was == is &&
			slices.ContainsFunc(ops, func(op ledger.Op) bool { return op.Put != nil && op.Put.Key == cluster+"epoch" })
	}
	var was, is seenEra
	return strings.HasPrefix(rest, "eras/") && json.Unmarshal(old, &was) == nil && json.Unmarshal(now, &is) == nil &&
		was.Version == is.Version && was.First == is.First && was.End < is.End && was.Epoch != is.Epoch
}

// complainLayout: the version grows, the rooms that ever were stay, and the
// history gets the same value.
func (m *Memory) complainLayout(ops []ledger.Op, put *ledger.Put, cluster string, old version, there bool) {
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
	if !slices.ContainsFunc(ops, func(op ledger.Op) bool {
		return op.Put != nil && strings.HasPrefix(op.Put.Key, cluster+"layouts/") && string(op.Put.Value) == string(put.Value)
	}) {
		m.tb.Errorf("complaint: layout version %d is written without its history", now.Version)
	}
}

// complainMark: next never falls, and a lease is made under the present epoch
// and layout, under conditions on all that it stands on, above the floor, and
// with the era that it ends.
func (m *Memory) complainMark(txn ledger.Txn, ops []ledger.Op, put *ledger.Put, cluster, rest string) {
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
	if now.Era == nil || was.Era != nil && *now.Era == *was.Era {
		if now.Era == nil && was.Era != nil {
			m.tb.Errorf("complaint: %s loses its era: %s", put.Key, put.Value)
		}
		return // raised, not leased
	}
	_, room, _ := strings.Cut(rest, "/")
	room, tag, _ := strings.Cut(room, "/")
	layout, _ := d.at(cluster+"layout", d.rev)
	epoch, _ := d.at(cluster+"epoch", d.rev)
	var under seenLayout
	var in struct{ Epoch string }
	_, _ = json.Unmarshal(layout.value, &under), json.Unmarshal(epoch.value, &in)
	era := now.Era
	switch {
	case era.Revision != layout.rev || era.Version != under.Version:
		m.tb.Errorf("complaint: %s carries the stamp of layout version %d at revision %d, but the layout is version %d at revision %d", put.Key, era.Version, era.Revision, under.Version, layout.rev)
	case era.Epoch != in.Epoch || in.Epoch == "":
		m.tb.Errorf("complaint: %s is leased in epoch %q, but the epoch is %s", put.Key, era.Epoch, epoch.value)
	case era.First < 0 || era.End <= era.First || era.End != now.Next || era.First < was.Next && (was.Era == nil || was.Era.Version != era.Version):
		m.tb.Errorf("complaint: %s does not fit: was %+v, now %s", put.Key, was, put.Value)
	}
	for _, needed := range []string{"epoch", "layout", "tags/" + tag, "rooms/" + room + "/", rest} {
		if !slices.ContainsFunc(txn.If, func(c ledger.Cond) bool {
			key, ok := strings.CutPrefix(c.Key, cluster)
			return ok && (key == needed || strings.HasSuffix(needed, "/") && strings.HasPrefix(key, needed) && c.ModRevision != 0)
		}) {
			m.tb.Errorf("complaint: %s is leased without a condition on %s", put.Key, needed)
		}
	}
	if was.Era != nil && was.Era.Version == era.Version {
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
		if (mark.Era == nil || mark.Era.Revision != layout.rev) && mark.Next > era.First && v.rev < layout.rev {
			m.tb.Errorf("complaint: %s begins an era at %d, below the mark %d of room %s", put.Key, era.First, mark.Next, other)
		}
	}
	if was.Era != nil && !slices.ContainsFunc(ops, func(op ledger.Op) bool {
		var ended seenEra
		return op.Put != nil && strings.HasPrefix(op.Put.Key, cluster+"eras/"+room+"/"+tag+"/") &&
			json.Unmarshal(op.Put.Value, &ended) == nil && ended == *was.Era
	}) {
		m.tb.Errorf("complaint: %s begins an era without writing the one it ends, %+v", put.Key, *was.Era)
	}
}
