package ledgertest

import (
	"encoding/json"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator/ledger/store"
)

type seenWorker struct {
	Room        string    `json:"room"`
	Incarnation string    `json:"incarnation"`
	From        int64     `json:"from,string"`
	Until       int64     `json:"until,string"`
	Stamp       seenStamp `json:"stamp"`
}

type seenRanges struct {
	Boundary int64 `json:"boundary,string"`
	Rooms    map[string]struct {
		Lower int64 `json:"lower,string"`
		Upper int64 `json:"upper,string"`
	} `json:"rooms"`
}

// complainWorker: a window is put under the present epoch and layout, under conditions
// on all that it stands on, in the room's slice, and has no time in common with the
// window before, unless it goes on from it. Only the owner lowers an end. While
// leasing is halted a recover may raise an end. The caller holds mu.
func (m *Fake) complainWorker(txn store.Txn, put *store.Put, cluster, rest string) {
	d := &m.mu.data
	var now, was seenWorker
	if err := json.Unmarshal(put.Value, &now); err != nil {
		m.tb.Errorf("complaint: %s: %v", put.Key, err)
		return
	}
	if old, ok := d.at(put.Key, d.rev); ok && json.Unmarshal(old.value, &was) != nil {
		m.tb.Errorf("complaint: %s is written over what is no worker: %s", put.Key, old.value)
	}
	layout, _ := d.at(cluster+"layout", d.rev)
	epoch, _ := d.at(cluster+"epoch", d.rev)
	var under seenRanges
	var in struct {
		Epoch     string
		NotBefore int64 `json:"not_before,string"`
		Halted    *struct{}
	}
	_, _ = json.Unmarshal(layout.value, &under), json.Unmarshal(epoch.value, &in)
	needed := []string{"epoch", rest}
	if in.Halted != nil {
		if now.Until <= was.Until {
			m.tb.Errorf("complaint: %s is written while leasing is halted, and not raised: was %+v, now %s", put.Key, was, put.Value)
		}
	} else {
		needed = append(needed, "layout", "rooms/"+now.Room+"/")
		goes := now.Incarnation == was.Incarnation && now.From == was.From
		lowers := goes && now.Until < was.Until
		lower, upper := slice(under, now.Room, rest)
		number, _ := strconv.ParseInt(rest[strings.LastIndex(rest, "/")+1:], 10, 64)
		switch {
		case lowers && now.Stamp == was.Stamp: // given back; the room may not have it in its slice any longer
		case now.Stamp.Epoch != in.Epoch || now.Stamp.Revision != layout.rev:
			m.tb.Errorf("complaint: %s has the stamp %+v, but the epoch is %s, and the layout of revision %d", put.Key, now.Stamp, epoch.value, layout.rev)
		case !goes && now.From < was.Until:
			m.tb.Errorf("complaint: %s begins at %d, before the end of the window before: was %+v, now %s", put.Key, now.From, was, put.Value)
		case !goes && now.From < in.NotBefore:
			m.tb.Errorf("complaint: %s begins at %d, before the epoch's windows do, %d", put.Key, now.From, in.NotBefore)
		case number < lower || number >= upper:
			m.tb.Errorf("complaint: %s is not in the slice [%d, %d) of room %s", put.Key, lower, upper, now.Room)
		case now.Until < now.From:
			m.tb.Errorf("complaint: %s does not fit: was %+v, now %s", put.Key, was, put.Value)
		}
	}
	for _, key := range needed {
		if !slices.ContainsFunc(txn.If, func(c store.Cond) bool {
			has, ok := strings.CutPrefix(c.Key, cluster)
			return ok && (has == key || strings.HasSuffix(key, "/") && strings.HasPrefix(has, key) && c.ModRevision != 0)
		}) {
			m.tb.Errorf("complaint: %s is written without a condition on %s", put.Key, key)
		}
	}
}

// slice returns the workers of a room, of the width that a key names.
func slice(l seenRanges, room, rest string) (lower, upper int64) {
	bits, _ := strconv.Atoi(strings.Split(rest, "/")[1])
	image := func(residue int64) int64 {
		n := new(big.Int).Lsh(big.NewInt(residue), uint(bits))
		n.Add(n, big.NewInt(l.Boundary-1))
		return n.Div(n, big.NewInt(max(l.Boundary, 1))).Int64()
	}
	r := l.Rooms[room]
	return image(r.Lower), image(r.Upper)
}
