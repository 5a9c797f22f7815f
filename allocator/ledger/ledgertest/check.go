package ledgertest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

// Issued is every segment that a test's instances were given.
type Issued map[allocator.Tag]map[allocator.Room][]allocator.Segment

// Add adds a segment.
func (i Issued) Add(tag allocator.Tag, room allocator.Room, seg allocator.Segment) {
	if i[tag] == nil {
		i[tag] = make(map[allocator.Room][]allocator.Segment)
	}
	i[tag][room] = append(i[tag][room], seg)
}

// CheckCluster verifies a whole cluster: what etcd says must fit together and
// show that no ID can have been leased twice, and every segment that was issued
// must be covered by it. Tests above the ledger end with it.
func CheckCluster(tb TB, store ledger.Store, cluster string, issued Issued) {
	tb.Helper()
	cfg := ledger.DefaultConfig()
	cfg.Cluster = cluster
	l, err := ledger.New(store, cfg)
	if err != nil {
		tb.Fatalf("check of cluster %s: %v", cluster, err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d, err := l.Dump(ctx)
	if err != nil {
		tb.Errorf("check of cluster %s: %v", cluster, err)
		if d == nil {
			return
		}
	}
	for _, problem := range Verify(d, issued) {
		tb.Errorf("check of cluster %s: %s", cluster, problem)
	}
}

// Verify is the pure part of CheckCluster: it returns what is wrong.
func Verify(d *ledger.Dump, issued Issued) []string {
	v := &verifier{dump: d, layouts: make(map[int64]allocator.Layout)}
	v.history()
	for tag := range d.Marks {
		v.tag(tag)
	}
	for tag := range d.Eras {
		if d.Marks[tag] == nil {
			v.add("tag %s has eras but no mark", tag)
		}
	}
	for tag, rooms := range issued {
		v.issued(tag, rooms)
	}
	return v.problems
}

type verifier struct {
	dump     *ledger.Dump
	layouts  map[int64]allocator.Layout
	problems []string
}

func (v *verifier) add(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

// history checks that versions are 1 to n, that rooms that ever were stay so,
// and that the last is the current layout.
func (v *verifier) history() {
	d := v.dump
	if d.UUID == "" || d.ClusterID == 0 || len(d.History) == 0 {
		v.add("identity %q in etcd cluster %x, %d layouts", d.UUID, d.ClusterID, len(d.History))
		return
	}
	var ever []allocator.Room
	for i, r := range d.History {
		if r.Layout.Version != int64(i+1) {
			v.add("layout %d of the history is version %d", i+1, r.Layout.Version)
		}
		if err := r.Layout.Validate(); err != nil {
			v.add("layout version %d: %v", r.Layout.Version, err)
		}
		for _, room := range append(ever, r.Layout.Rooms()...) {
			if !slices.Contains(r.Ever, room) {
				v.add("layout version %d: room %s is not among those that ever were, %v", r.Layout.Version, room, r.Ever)
			}
		}
		ever = r.Ever
		v.layouts[r.Layout.Version] = r.Layout
	}
	last := d.History[len(d.History)-1]
	if last.Layout.Version != d.Layout.Layout.Version || !last.Layout.Equal(d.Layout.Layout) || !slices.Equal(last.Ever, d.Layout.Ever) {
		v.add("the layout %+v is not the last of the history, %+v", d.Layout, last)
	}
	if d.Audits < len(d.History) {
		v.add("%d layouts, but %d audit entries", len(d.History), d.Audits)
	}
}

// leased is an era of a room.
type leased struct {
	ledger.Era
	room allocator.Room
}

func (e leased) String() string {
	return fmt.Sprintf("room %s version %d [%d, %d)", e.room, e.Version, e.First, e.End)
}

// eras returns all eras of a tag in a room, by version, the current one last.
func (v *verifier) eras(tag allocator.Tag, room allocator.Room) (all []leased) {
	for _, e := range v.dump.Eras[tag][room] {
		all = append(all, leased{e, room})
	}
	if e := v.dump.Marks[tag][room].Era; e.Version != 0 {
		all = append(all, leased{e, room})
	}
	return all
}

// tag checks the marks and eras of a tag.
func (v *verifier) tag(tag allocator.Tag) {
	var all []leased
	for room, mark := range v.dump.Marks[tag] {
		if !slices.Contains(v.dump.Layout.Ever, room) {
			v.add("tag %s has a mark of room %s, which never was", tag, room)
		}
		if mark.Next < mark.Era.End {
			v.add("tag %s room %s: next %d below the era's end %d", tag, room, mark.Next, mark.Era.End)
		}
		eras := v.eras(tag, room)
		for i, e := range eras {
			l, ok := v.layouts[e.Version]
			r, in := l.Ranges[room]
			switch {
			case !ok || !in:
				v.add("tag %s: %v: there is no such layout, or the room is not in it", tag, e)
				continue
			case !r.Contains(e.First%l.Boundary) || !r.Contains((e.End-1)%l.Boundary):
				v.add("tag %s: %v does not begin and end with an ID of %v mod %d", tag, e, r, l.Boundary)
			}
			if i > 0 && (e.Version <= eras[i-1].Version || e.First < eras[i-1].End || e.Stamp.Revision <= eras[i-1].Stamp.Revision) {
				v.add("tag %s: %v does not follow %v", tag, e, eras[i-1])
			}
			all = append(all, e)
		}
	}
	for room := range v.dump.Eras[tag] {
		if _, ok := v.dump.Marks[tag][room]; !ok {
			v.add("tag %s room %s has eras but no mark", tag, room)
		}
	}
	for i, a := range all {
		for _, b := range all[i+1:] {
			if id, ok := v.common(a, b); ok {
				v.add("tag %s: %v and %v may both have leased %d", tag, a, b, id)
			}
		}
	}
}

// common returns an ID that both eras may have leased, if there is one. Eras
// of one boundary are compared exactly: within the interval that they share,
// by the residues that they share. Eras of different boundaries must not share
// an interval at all, and the protocol sees to that: the later one began at a
// floor above the earlier one's end.
func (v *verifier) common(a, b leased) (int64, bool) {
	first, end := max(a.First, b.First), min(a.End, b.End)
	if first >= end {
		return 0, false
	}
	la, lb := v.layouts[a.Version], v.layouts[b.Version]
	if la.Boundary != lb.Boundary || la.Boundary == 0 {
		return first, true
	}
	both, ok := la.Ranges[a.room].Intersect(lb.Ranges[b.room])
	if !ok {
		return 0, false
	}
	shared := allocator.Layout{Boundary: la.Boundary, Ranges: map[allocator.Room]allocator.Range{"both": both}}
	seg, err := shared.Segment("both", first, 1, end)
	return seg.First, err == nil
}

// issued checks the segments that were issued of a tag: each lies in an era of
// its room, and no two share an ID.
func (v *verifier) issued(tag allocator.Tag, rooms map[allocator.Room][]allocator.Segment) {
	seen := make(map[int64]allocator.Room)
	for room, segments := range rooms {
		eras := v.eras(tag, room)
		sorted := slices.SortedFunc(slices.Values(segments), func(a, b allocator.Segment) int { return cmp.Compare(a.First, b.First) })
		for i, s := range sorted {
			if err := s.Validate(); err != nil {
				v.add("tag %s room %s: %v", tag, room, err)
				continue
			}
			l := v.layouts[s.Version]
			if l.Boundary != s.Boundary || l.Ranges[room] != s.Range {
				v.add("tag %s room %s: segment %v is not of layout %v", tag, room, s, l)
			}
			// Within an era a segment is an interval of the room's IDs, so
			// segments are disjoint where their intervals are; and eras are
			// disjoint, which was shown above.
			if !slices.ContainsFunc(eras, func(e leased) bool {
				return e.Version == s.Version && e.First <= s.First && s.Last() < e.End
			}) {
				v.add("tag %s room %s: segment %v lies in no era of %v", tag, room, s, eras)
			}
			if i > 0 && s.First <= sorted[i-1].Last() {
				v.add("tag %s room %s: segments %v and %v overlap", tag, room, sorted[i-1], s)
			}
			// The slow, obvious way besides, while there are few.
			if s.Count > 10_000 || len(seen) > 1_000_000 {
				continue
			}
			for id := range s.IDs() {
				if other, twice := seen[id]; twice {
					v.add("tag %s: ID %d was issued by room %s and by room %s", tag, id, other, room)
				}
				seen[id] = room
			}
		}
	}
}
