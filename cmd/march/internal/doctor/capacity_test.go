package doctor_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/march/internal/doctor"
)

func TestCapacities(t *testing.T) {
	f := cluster(func(d *marchv1.DiagnoseResponse) {
		d.Etcd.Size = 1 << 30 // one member is fuller than the others
		d.Settings = []*marchv1.Setting{{Name: "max-tags", Value: "1000"}}
	})
	f.Overview.Ever = []string{"a", "b", "c"}
	f.TagsRead, f.TagsTotal = true, 250
	f.Slices = []*marchv1.WorkerSlice{{Bits: 10, Room: "a", Lower: 100, Upper: 200, Live: 40}}
	limit, start, end, bits := int64(1100), int64(100), int64(20991231_0000), int32(41)
	f.Tags = []*marchv1.TagSummary{
		{Tag: &marchv1.Tag{Name: "idle", Start: &start, Limit: &limit}, Used: 0.9, Marks: []*marchv1.Mark{{Next: 500}, {Next: 1000}}},
		{Tag: &marchv1.Tag{Name: "late", Start: &start, Limit: &limit}, Used: 0.1, Lasts: durationpb.New(48 * time.Hour), Rate: 5},
		{Tag: &marchv1.Tag{Name: "soon", Start: &start, Limit: &limit}, Used: 0.2, Lasts: durationpb.New(time.Hour)},
		{Tag: &marchv1.Tag{Name: "event", Time: &marchv1.TimeTag{TimeBits: bits, Unit: durationpb.New(time.Millisecond)}}, Used: 0.5},
		{Tag: &marchv1.Tag{Name: "never", Start: &start, Limit: &limit}, Used: 0, Lasts: &durationpb.Duration{Seconds: 315_000_000_000}},
		{Tag: &marchv1.Tag{Name: "daily", Start: &start, Limit: &end, Period: &marchv1.Period{
			Current: "2026-11-24", First: 20261124_0000, End: 20261125_0000, Ends: timestamppb.New(sent),
		}}, Used: 0.25, Marks: []*marchv1.Mark{{Next: 20261124_2500}}, Rate: 3},
	}
	got := doctor.Capacities(f, sent)
	var names []string
	for _, c := range got {
		names = append(names, c.What)
	}
	want := []string{
		"bytes in etcd", "rooms", "tags", "workers of 10 bits in room a",
		"IDs of tag soon", "IDs of tag late", "IDs of tag idle", "time of tag event", "IDs of tag daily in period 2026-11-24", "IDs of tag never",
	}
	if !slices.Equal(names, want) {
		t.Fatalf("got %q, want %q", names, want)
	}
	if e := got[0]; e.Used != 1<<30 || e.Of != 2<<30 || e.Share != 0.5 || e.Note != "its keys are bounded: it has room for at least 174762 more tags" {
		t.Errorf("etcd: %+v", e)
	}
	if r, n, w := got[1], got[2], got[3]; r.Used != 3 || r.Of != 64 || n.Share != 0.25 || w.Share != 0.4 {
		t.Errorf("rooms %+v, tags %+v, workers %+v", r, n, w)
	}
	if s, i := got[4], got[6]; !s.Full.Equal(sent.Add(time.Hour)) || i.Full != nil || i.Used != 900 || i.Of != 1000 {
		t.Errorf("soon %+v, idle %+v", s, i)
	}
	if e, n := got[7], got[9]; e.Used != 1<<40 || e.Of != 1<<41 || n.Full != nil {
		t.Errorf("event %+v, never %+v", e, n)
	}
	if d := got[8]; d.Used != 2500 || d.Of != 10_000 || d.Share != 0.25 || d.Note != "3 IDs a second, the next period begins at "+sent.UTC().Format(time.RFC3339) {
		t.Errorf("daily %+v", d)
	}
}
