package room_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// says returns which of parts err's message lacks, empty when none.
func says(err error, parts ...string) string {
	msg := status.Convert(err).Message()
	for _, part := range parts {
		if !strings.Contains(msg, part) {
			return fmt.Sprintf("message %q does not say %q", msg, part)
		}
	}
	return ""
}

// issued collects all IDs that a test gets, to be checked at its end.
type issued struct {
	testing.TB
	room allocator.Room
	tag  allocator.Tag
	last int64
	runs []allocator.Run
}

// add takes the runs that one instance gave to one caller. The caller waits for each
// answer before it asks again, so the runs must grow.
func (s *issued) add(runs ...*marchv1.Run) {
	for _, r := range runs {
		if r.GetFirst() <= s.last || r.GetCount() < 1 {
			s.Errorf("room %s tag %s: run %v after %d", s.room, s.tag, r, s.last)
		}
		s.last = r.GetFirst() + r.GetCount() - 1
		s.runs = append(s.runs, allocator.Run{First: r.GetFirst(), Count: r.GetCount()})
	}
}

func (s *issued) addID(id int64) { s.add(&marchv1.Run{First: id, Count: 1}) }

// verify checks the whole cluster: every ID was issued once, lies in an era of
// its room, and in the room's range of the layout of that era.
func (c *cluster) verify(all ...*issued) {
	c.Helper()
	layouts, _, err := ledgertest.Stored(bg, c.Open(c), "default")
	if err != nil {
		c.Fatalf("layouts: %v", err)
	}
	eras, err := ledgertest.Eras(bg, c.Open(c), "default")
	if err != nil {
		c.Errorf("eras: %v", err)
	}
	segments := make(ledgertest.Issued)
	for _, s := range all {
		for _, r := range s.runs {
			// A run may join the end of one era to the beginning of the next.
			for r.Count > 0 {
				l, end, ok := under(layouts, eras[s.tag][s.room], r.First)
				if !ok {
					c.Errorf("room %s tag %s: %v was issued and never leased: %v", s.room,
						s.tag, r, eras[s.tag][s.room])
					break
				}
				n := min(r.Count, end-r.First)
				segments.Add(s.tag, s.room, allocator.Segment{
					Version: l.Version, Boundary: l.Boundary, Range: l.Ranges[s.room], First: r.First, Count: n,
				})
				r.First, r.Count = r.First+n, r.Count-n
			}
		}
	}
	ledgertest.CheckCluster(c, c.Open(c), "default", segments)
}

// under returns the layout that an ID was leased under, and where its era ends.
func under(layouts map[int64]allocator.Layout, eras []record.Era, id int64) (l allocator.Layout, end int64, ok bool) {
	for _, e := range eras {
		if e.First <= id && id < e.End {
			return layouts[e.Version], e.End, true
		}
	}
	return allocator.Layout{}, 0, false
}

// took fails the test when more than most passed since start.
func took(tb testing.TB, what string, start time.Time, most time.Duration) {
	tb.Helper()
	if passed := time.Since(start); passed > most {
		tb.Errorf("%s took %v, want at most %v", what, passed, most)
	}
}

func contains(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
