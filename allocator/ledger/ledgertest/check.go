package ledgertest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
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
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// What operators have (march verify) sees it too.
	report, err := l.Verify(ctx, nil)
	if err != nil {
		tb.Errorf("check of cluster %s: %v", cluster, err)
	}
	for _, problem := range report.Problems {
		tb.Errorf("check of cluster %s: verify: %s", cluster, problem)
	}
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
	v := &verifier{dump: d, layouts: make(map[int64]allocator.Layout), problems: d.Problems()}
	for _, r := range d.History {
		v.layouts[r.Layout.Version] = r.Layout
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

// lost reports whether a version was lost when etcd went back in time.
func (v *verifier) lost(version int64) bool {
	return slices.ContainsFunc(v.dump.History, func(r ledger.LayoutRecord) bool {
		return r.Lost != 0 && r.Lost <= version && version < r.Layout.Version
	})
}

// eras returns all eras of a tag in a room, by version, the current one last.
func (v *verifier) eras(tag allocator.Tag, room allocator.Room) []ledger.Era {
	all := slices.Clone(v.dump.Eras[tag][room])
	if e := v.dump.Marks[tag][room].Era; e.Version != 0 {
		all = append(all, e)
	}
	return all
}

// covered checks that a segment lies in eras. Within an era a segment is an
// interval of the room's IDs, so segments are disjoint where their intervals are;
// and eras are disjoint, which was shown before. What was issued in a stretch
// that was lost is only known to lie in it, and a chain may have joined it to
// what it held from before.
func (v *verifier) covered(tag allocator.Tag, room allocator.Room, s allocator.Segment, eras []ledger.Era) {
	for part := s; part.Count > 0; {
		i := slices.IndexFunc(eras, func(e ledger.Era) bool {
			return e.First <= part.First && part.First < e.End && (e.Version == part.Version || v.lost(e.Version))
		})
		if i < 0 {
			v.add("tag %s room %s: segment %v lies in no era of %v", tag, room, s, eras)
			return
		}
		if l := v.layouts[s.Version]; !v.lost(eras[i].Version) && (l.Boundary != s.Boundary || l.Ranges[room] != s.Range) {
			v.add("tag %s room %s: segment %v is not of layout %v", tag, room, s, l)
		}
		n := sort.Search(int(part.Count), func(k int) bool { return part.At(int64(k)) >= eras[i].End })
		_, part = part.Split(int64(n))
	}
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
			v.covered(tag, room, s, eras)
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
