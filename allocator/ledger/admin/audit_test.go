package admin_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// TestAudits: pages of any size have all entries, the newest first, however
// they are spread over time.
func TestAudits(t *testing.T) {
	c := memcluster.New(t, "10 a=0-5 b=5-10")
	first := c.Mem.Keys(prefix + "audit/")
	value, _ := c.Mem.Value(first[0])
	now, k := time.Now(), byte(0)
	add := func(at time.Time, many int) {
		for range many {
			var id ulid.ULID
			if err := id.SetTime(ulid.Timestamp(at)); err != nil {
				t.Fatal(err)
			}
			k++
			id[14], id[15] = k, byte(many)
			c.Mem.Corrupt(store.Op{Put: &store.Put{Key: prefix + "audit/" + id.String(), Value: value}})
		}
	}
	for ago, many := range map[time.Duration]int{
		-time.Hour: 3, // a clock that is ahead
		0:          5, time.Millisecond: 2, 3 * time.Millisecond: 7, time.Second: 1, time.Minute: 250, time.Hour: 10,
		time.Hour + time.Second: 240,
		24 * time.Hour:          1, 365 * 24 * time.Hour: 120, 20 * 365 * 24 * time.Hour: 2,
	} {
		add(now.Add(-ago), many)
	}
	add(time.UnixMilli(0), 1)
	for at := range 200 { // and spread evenly
		add(now.Add(-48*time.Hour-time.Duration(at)*time.Minute), 1)
	}
	want := c.Mem.Keys(prefix + "audit/")
	slices.Sort(want)
	slices.Reverse(want)
	for _, n := range []int{1, 7, 50, 100, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			var got []string
			for before := ""; ; {
				page, _, err := c.Admin.Audits(bg, before, n)
				if err != nil || len(page) > n {
					t.Fatalf("%d entries, %v", len(page), err)
				}
				for _, e := range page {
					got = append(got, prefix+"audit/"+e.ID)
					before = e.ID
				}
				if len(page) < n {
					break
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
