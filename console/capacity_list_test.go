package console

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// TestCapacityList: what runs out comes first, the soonest at the top; the rest by its share.
func TestCapacityList(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	limit, start, end, bits := int64(1100), int64(100), int64(20991231_0000), int32(41)
	f := capacityFacts{
		Ever: 3, EtcdSize: 1 << 30, Quota: 2 << 30, TagsRead: true, TagsTotal: 250, MaxTags: 1000, AsOf: now,
		Trends: trends{},
		Rooms: []*marchv1.RoomStatus{
			{Name: "a", Reserve: durationpb.New(10 * time.Minute), ReserveTag: "order"},
			{Name: "b", Reserve: durationpb.New(5 * time.Minute), ReserveTag: "stock",
				EtcdAwaySince: timestamppb.New(now)},
			{Name: "c"}, // no tag is in use there
		},
		Slices: []*marchv1.WorkerSlice{{Bits: 10, Room: "a", Lower: 100, Upper: 200, Live: 40}},
		Certificates: []processCertificate{{Process: "a/one", CertificateStatus: &marchv1.CertificateStatus{
			Setting: "etcd-cert", Subject: "CN=one", Ends: timestamppb.New(now.Add(24 * time.Hour)),
		}}},
		Tags: []*marchv1.TagSummary{
			{Tag: &marchv1.Tag{Name: "idle", Start: &start, Limit: &limit}, Used: 0.9,
				Marks: []*marchv1.Mark{{Next: 500}, {Next: 1000}}},
			{Tag: &marchv1.Tag{Name: "late", Start: &start, Limit: &limit}, Used: 0.1,
				Lasts: durationpb.New(48 * time.Hour), Rate: 5},
			{Tag: &marchv1.Tag{Name: "soon", Start: &start, Limit: &limit}, Used: 0.2,
				Lasts: durationpb.New(time.Hour)},
			{Tag: &marchv1.Tag{Name: "event", Time: &marchv1.TimeTag{TimeBits: bits,
				Unit: durationpb.New(time.Millisecond)}}, Used: 0.5},
			{Tag: &marchv1.Tag{Name: "never", Start: &start, Limit: &limit}, Used: 0,
				Lasts: &durationpb.Duration{Seconds: 315_000_000_000}},
			{Tag: &marchv1.Tag{Name: "daily", Start: &start, Limit: &end, Period: &marchv1.Period{
				Current: "2026-11-24", First: 20261124_0000, End: 20261125_0000, Ends: timestamppb.New(now),
			}}, Used: 0.24, Marks: []*marchv1.Mark{{Next: 20261124_2400}}, Rate: 3},
		},
	}
	got := f.list(now)
	names, of := make([]string, 0, len(got)), make(map[string]*marchv1.Capacity)
	for _, c := range got {
		names = append(names, c.GetWhat())
		of[c.GetWhat()] = c
	}
	want := []string{
		"IDs in memory of room b", "IDs of tag soon", "certificate of a/one (--etcd-cert)", "IDs of tag late",
		"IDs of tag idle", "time of tag event", "bytes in etcd", "workers of 10 bits in room a", "tags",
		"IDs of tag daily in period 2026-11-24",
		"rooms", "IDs in memory of room a", "IDs of tag never",
	}
	if !slices.Equal(names, want) {
		t.Fatalf("got %q, want %q", names, want)
	}
	if e := of["bytes in etcd"]; e.GetUsed() != 1<<30 || e.GetOf() != 2<<30 || e.GetShare() != 0.5 ||
		e.GetNote() != "its keys are bounded: it has room for at least 174762 more tags; "+
			"its growth is known 6 hours after the console starts" {
		t.Errorf("etcd: %v", e)
	}
	if r, n, w := of["rooms"], of["tags"], of["workers of 10 bits in room a"]; r.GetUsed() != 3 || r.GetOf() != 64 ||
		n.GetShare() != 0.25 || w.GetShare() != 0.4 || w.GetRoom() != "a" {
		t.Errorf("rooms %v, tags %v, workers %v", r, n, w)
	}
	if s, i := of["IDs of tag soon"], of["IDs of tag idle"]; !s.GetFull().AsTime().Equal(now.Add(time.Hour)) ||
		s.GetTag() != "soon" || i.GetFull() != nil || i.GetUsed() != 900 || i.GetOf() != 1000 {
		t.Errorf("soon %v, idle %v", s, i)
	}
	if a, b := of["IDs in memory of room a"], of["IDs in memory of room b"]; a.GetFull() != nil ||
		a.GetNote() != "10 min without etcd; tag order runs out first" ||
		!b.GetFull().AsTime().Equal(now.Add(5*time.Minute)) {
		t.Errorf("with etcd %v, without %v", a, b)
	}
	if e, n := of["time of tag event"], of["IDs of tag never"]; e.GetUsed() != 1<<40 ||
		e.GetOf() != 1<<41 || n.GetFull() != nil {
		t.Errorf("event %v, never %v", e, n)
	}
	if d := of["IDs of tag daily in period 2026-11-24"]; d.GetUsed() != 2400 || d.GetOf() != 10_000 ||
		d.GetShare() != 0.24 || d.GetNote() != "3 IDs a second at the recent peak, the next period begins at "+
		now.Format(time.RFC3339) {
		t.Errorf("daily %v", d)
	}
	if c := of["certificate of a/one (--etcd-cert)"]; c.GetNote() != "CN=one" || c.GetProcess() != "a/one" {
		t.Errorf("certificate %v", c)
	}
}
