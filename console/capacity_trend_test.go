package console

import (
	"slices"
	"strings"
	"testing"
	"time"

	marchv1 "github.com/march-id/march/api/march/v1"
)

var measuredSince = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// measuredFor returns those of a cluster that a console measured for some hours. Each hour etcd
// grew by 1 MiB, after what it needed first.
func measuredFor(hours int) (capacityFacts, time.Time) {
	f := capacityFacts{Quota: 2 << 30, Ever: 2, TagsRead: true, TagsTotal: 250, MaxTags: 1000,
		Trends: trends{}}
	f.Slices = []*marchv1.WorkerSlice{{Bits: 10, Room: "a", Lower: 100, Upper: 200, Live: 40}}
	now := measuredSince
	for minute := range hours*60 + 1 {
		now = measuredSince.Add(time.Duration(minute) * time.Minute)
		f.EtcdSize = int64(100<<20 + minute<<20/60)
		if minute < 120 { // the first history
			f.EtcdSize -= int64(120-minute) << 18
		}
		f.measureEtcd(now)
		if minute%60 == 0 {
			f.Trends = f.Trends.note(now, tagsKind, map[string]int64{allTags: f.TagsTotal})
		}
		live := map[string]int64{workersOf("a", 10): 40 + int64(minute%7)} // some come and go
		f.Trends = f.Trends.note(now, workersKind, live)
	}
	return f, now
}

func (f *capacityFacts) measureEtcd(now time.Time) {
	f.Trends = f.Trends.note(now, etcdKind, map[string]int64{etcdBytes: f.EtcdSize})
}

func capacityIn(t *testing.T, list []*marchv1.Capacity, what string) *marchv1.Capacity {
	t.Helper()
	i := slices.IndexFunc(list, func(c *marchv1.Capacity) bool { return c.GetWhat() == what })
	if i < 0 {
		t.Fatalf("nothing is said of %s: %v", what, list)
	}
	return list[i]
}

// TestGrowth: what grows is full on a date, what does not has none, and nothing is said too
// early.
func TestGrowth(t *testing.T) {
	f, now := measuredFor(26)
	list := f.list(now)
	etcd := capacityIn(t, list, "bytes in etcd")
	left := (2048 - 126) * time.Hour // MiB, at one an hour
	if got := etcd.GetFull().AsTime().Sub(now); (got - left).Abs() > left/20 {
		t.Errorf("etcd is full in %v, want %v: %v", got, left, etcd)
	}
	if etcd.GetMeasured().AsDuration() != 26*time.Hour || list[0] != etcd {
		t.Errorf("etcd: %v", etcd)
	}
	for _, what := range []string{"tags", "workers of 10 bits in room a"} {
		if c := capacityIn(t, list, what); c.Growth == nil || c.GetGrowth() != 0 || c.GetFull() != nil {
			t.Errorf("%s does not grow: %v", what, c)
		}
	}

	f, now = measuredFor(5)
	for _, c := range f.list(now) {
		if c.GetKind() != marchv1.CapacityKind_CAPACITY_KIND_ROOMS && (c.Growth != nil || c.GetFull() != nil ||
			!strings.Contains(c.GetNote(), "6 hours after")) {
			t.Errorf("after five hours: %v", c)
		}
	}
}

// TestGrowthAnew: a database that was defragmented is measured anew.
func TestGrowthAnew(t *testing.T) {
	f, now := measuredFor(26)
	f.EtcdSize = 50 << 20
	for minute := range 8 * 60 {
		now = now.Add(time.Minute)
		f.measureEtcd(now)
		if minute == 5*60 {
			if c := capacityIn(t, f.list(now), "bytes in etcd"); c.Growth != nil {
				t.Errorf("five hours after it was defragmented: %v", c)
			}
		}
	}
	if c := capacityIn(t, f.list(now), "bytes in etcd"); c.Growth == nil ||
		c.GetGrowth() != 0 || c.GetFull() != nil {
		t.Errorf("etcd does not grow: %v", c)
	}
}

// TestGrowthOfWeeks: a console that runs for long remembers the last two weeks.
func TestGrowthOfWeeks(t *testing.T) {
	f, now := measuredFor(2)
	f.Trends = nil
	for hour := range 60 * 24 {
		now = measuredSince.Add(time.Duration(hour) * time.Hour)
		f.EtcdSize = int64(1<<20) * int64(min(hour, 30*24)) // it grew for 30 days, and then no more
		f.measureEtcd(now)
	}
	c := capacityIn(t, f.list(now), "bytes in etcd")
	if c.Growth == nil || c.GetGrowth() != 0 || c.GetMeasured().AsDuration() > 15*24*time.Hour {
		t.Errorf("etcd has not grown for a month: %v", c)
	}
}
