package ledgertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
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

// CheckCluster verifies a whole cluster. The keys in etcd must fit together, must show
// that no ID can have been leased twice, and must cover every segment that was issued.
// Tests above the ledger end with it.
func CheckCluster(tb TB, etcd store.Store, cluster string, issued Issued) {
	tb.Helper()
	cfg := ledger.DefaultConfig()
	cfg.Cluster, cfg.TryTimeout = cluster, time.Minute // the machine may be busy
	l, err := ledger.New(etcd, cfg)
	if err != nil {
		tb.Fatalf("check of cluster %s: %v", cluster, err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// The operators' check (march verify) sees it too.
	report, err := verify.Run(ctx, l.Cluster(), verify.Options{})
	if err != nil {
		tb.Errorf("check of cluster %s: %v", cluster, err)
	}
	for _, problem := range report.Problems {
		tb.Errorf("check of cluster %s: verify: %s", cluster, problem)
	}
	problems, err := Uncovered(ctx, etcd, cluster, issued)
	if err != nil {
		tb.Errorf("check of cluster %s: %v", cluster, err)
	}
	for _, problem := range problems {
		tb.Errorf("check of cluster %s: %s", cluster, problem)
	}
}

// AllEras is every era that the marks ever had, in order.
type AllEras map[allocator.Tag]map[allocator.Room][]record.Era

// Eras returns all eras, from the history of the marks: each mark keeps the latest
// only. Of what was compacted it has what the marks keep.
func Eras(ctx context.Context, etcd store.Store, cluster string) (AllEras, error) {
	keys, err := record.NewKeys(cluster)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	marks := store.Prefix(keys.All(record.Marks))
	if c, ok := etcd.(*Conn); ok { // which keeps what was compacted
		return c.m.eras(keys, marks), nil
	}
	answer, err := etcd.Txn(ctx, store.Txn{Then: []store.Op{{Get: &store.Get{Interval: marks}}}})
	if err != nil {
		return nil, err
	}
	all := make(AllEras)
	last := int64(0)
	for _, kv := range answer.Got[0] {
		last = max(last, kv.ModRevision)
		if e, err := keys.Entry(kv); err == nil {
			all.Add(e.Tag, e.Room, *e.Mark)
		}
	}
	if last == 0 {
		return all, nil
	}
	for change := range etcd.Watch(ctx, []store.Interval{marks}, 1) {
		if errors.Is(change.Err, store.ErrCompacted) {
			break
		}
		if change.Err != nil {
			return nil, change.Err
		}
		for _, kv := range change.KVs {
			if e, err := keys.Entry(kv); err == nil && e.Mark != nil {
				all.Add(e.Tag, e.Room, *e.Mark)
			}
			if kv.ModRevision >= last {
				last = 0
			}
		}
		if last == 0 {
			break
		}
	}
	return all, nil
}

// eras returns all eras, from every value that marks had.
func (m *Fake) eras(keys record.Keys, marks store.Interval) AllEras {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(AllEras)
	for key, versions := range m.mu.data.versions {
		if !in(marks, key) {
			continue
		}
		for _, v := range versions {
			if e, err := keys.Entry(store.KV{Key: key, Value: v.value, ModRevision: v.rev}); !v.deleted &&
				err == nil {
				all.Add(e.Tag, e.Room, *e.Mark)
			}
		}
	}
	return all
}

// Add adds the eras of a mark that was seen. An era grows from mark to mark, and
// begins where it began.
func (a AllEras) Add(tag allocator.Tag, room allocator.Room, mark record.Mark) {
	if a[tag] == nil {
		a[tag] = make(map[allocator.Room][]record.Era)
	}
	for _, e := range mark.Eras {
		known := a[tag][room]
		i := slices.IndexFunc(known, func(k record.Era) bool {
			return k.Version == e.Version && k.Epoch == e.Epoch && k.First == e.First
		})
		if i < 0 {
			a[tag][room] = append(known, e)
		} else {
			known[i].End = max(known[i].End, e.End)
		}
	}
}

// Uncovered returns what is wrong with segments that were issued: those that lie in no era, and IDs that were issued
// twice.
func Uncovered(ctx context.Context, etcd store.Store, cluster string, issued Issued) ([]string, error) {
	eras, err := Eras(ctx, etcd, cluster)
	if err != nil {
		return nil, err
	}
	v := &verifier{eras: eras}
	if v.layouts, v.next, err = Stored(ctx, etcd, cluster); err != nil {
		return nil, err
	}
	epochs := make(map[string]bool)
	for _, rooms := range eras {
		for _, eras := range rooms {
			for _, e := range eras {
				epochs[e.Epoch] = true
			}
		}
	}
	v.epochs = len(epochs)
	for tag, rooms := range issued {
		v.issued(tag, rooms)
	}
	return v.problems, nil
}

type verifier struct {
	eras     AllEras
	epochs   int // how many epochs the eras are of
	layouts  map[int64]allocator.Layout
	next     map[MarkOf]int64
	problems []string
}

// MarkOf names a mark.
type MarkOf struct {
	Tag  allocator.Tag
	Room allocator.Room
}

// Stored returns the history of layouts, by version, and how far marks are. Keys that cannot be read are verify's.
func Stored(ctx context.Context, etcd store.Store,
	cluster string) (layouts map[int64]allocator.Layout, next map[MarkOf]int64, err error) {
	keys, err := record.NewKeys(cluster)
	if err != nil {
		return nil, nil, err
	}
	answer, err := etcd.Txn(ctx, store.Txn{Then: []store.Op{{Get: &store.Get{Interval: store.Prefix(string(keys))}}}})
	if err != nil {
		return nil, nil, err
	}
	layouts, next = make(map[int64]allocator.Layout), make(map[MarkOf]int64)
	for _, kv := range answer.Got[0] {
		switch e, err := keys.Entry(kv); {
		case err != nil:
		case e.Mark != nil:
			next[MarkOf{e.Tag, e.Room}] = e.Mark.Next
		case e.Kind == record.Layouts:
			layouts[e.Layout.Layout.Version] = e.Layout.Layout
		}
	}
	return layouts, next, nil
}

func (v *verifier) add(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

// covered checks that a segment lies in eras. Within an era a segment is an
// interval of the room's IDs, so segments are disjoint where their intervals are;
// and eras are disjoint, which was shown before. A chain may have joined what was
// issued before a restore to what was issued after it.
func (v *verifier) covered(tag allocator.Tag, room allocator.Room, s allocator.Segment) {
	eras := v.eras[tag][room]
	for part := s; part.Count > 0; {
		i := slices.IndexFunc(eras, func(e record.Era) bool {
			return e.First <= part.First && part.First < e.End && e.Version == part.Version
		})
		var end int64
		switch l := v.layouts[s.Version]; {
		case i < 0:
			if end = v.lostUpTo(tag, room, part.First); end == 0 {
				v.add("tag %s room %s: segment %v lies in no era of %v", tag, room, s, eras)
				return
			}
		// else it is older than the history
		case l.Version != 0 && (l.Boundary != s.Boundary || l.Ranges[room] != s.Range):
			v.add("tag %s room %s: segment %v is not of layout %v", tag, room, s, l)
			return
		default:
			end = eras[i].End
		}
		n := sort.Search(int(part.Count), func(k int) bool { return part.At(int64(k)) >= end })
		_, part = part.Split(int64(n))
	}
}

// lostUpTo returns the end of the stretch around an ID that may have been leased in
// a history that was lost: between the eras of two epochs, or above the last era
// and below what the mark was raised to. It is 0 where there is no such.
func (v *verifier) lostUpTo(tag allocator.Tag, room allocator.Room, id int64) int64 {
	eras := slices.SortedFunc(slices.Values(v.eras[tag][room]), func(a, b record.Era) int {
		return cmp.Compare(a.First, b.First)
	})
	i := slices.IndexFunc(eras, func(e record.Era) bool { return e.End > id })
	switch {
	case i < 0 && id < v.next[MarkOf{tag, room}]:
		return v.next[MarkOf{tag, room}]
	case i > 0 && id < eras[i].First && eras[i-1].Epoch != eras[i].Epoch, i == 0 && id < eras[0].First && v.epochs > 1:
		return eras[i].First
	}
	return 0
}

// issued checks the segments that were issued of a tag: each lies in an era of
// its room, and no two share an ID.
func (v *verifier) issued(tag allocator.Tag, rooms map[allocator.Room][]allocator.Segment) {
	seen := make(map[int64]allocator.Room)
	for room, segments := range rooms {
		sorted := slices.SortedFunc(slices.Values(segments), func(a, b allocator.Segment) int {
			return cmp.Compare(a.First, b.First)
		})
		for i, s := range sorted {
			if err := s.Validate(); err != nil {
				v.add("tag %s room %s: %v", tag, room, err)
				continue
			}
			v.covered(tag, room, s)
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
