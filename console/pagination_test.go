package console_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// Layouts and audit entries of the largest cluster come in pages that clients can take,
// however large a page they ask for. No entry is missing.
func TestPagesAreBounded(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		l := c.Ledger()
		from, err := l.Refresh(bg)
		if err != nil {
			t.Fatal(err)
		}
		const versions, most = 240, 1 << 20
		for version := int64(2); version <= versions; version++ {
			to := allocator.Layout{Boundary: 1000 + version, Ranges: make(map[allocator.Room]allocator.Range)}
			for k := range int64(allocator.MaxRooms - len(from.Ever)) {
				to.Ranges[allocator.Room(fmt.Sprintf("%063d", k))] = allocator.Range{Lower: k, Upper: k + 1}
			}
			if version > 2 {
				to.Ranges = from.Layout.Ranges
			}
			if from, err = admin.New(l, admin.DefaultConfig()).ChangeLayout(bg, from, to, "somebody"); err != nil {
				t.Fatal(err)
			}
		}
		type page interface {
			proto.Message
			GetNextPageToken() string
		}
		pages := func(what string, list func(token string) (answer page, items int, err error)) {
			t.Helper()
			all, n := 0, 0
			for token := ""; ; n++ {
				answer, items, err := list(token)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if size := proto.Size(answer); size > most+most/10 || items == 0 {
					t.Errorf("%s: a page of %d in %d bytes", what, items, size)
				}
				all += items
				if token = answer.GetNextPageToken(); token == "" {
					break
				}
			}
			if all != versions || n == 0 {
				t.Errorf("%s: %d on %d pages, want %d on several", what, all, n+1, versions)
			}
		}
		pages("layouts", func(token string) (page, int, error) {
			r, err := c.ListLayouts(bg, &marchv1.ListLayoutsRequest{PageSize: 1000, PageToken: token})
			return r, len(r.GetLayouts()), err
		})
		pages("audit", func(token string) (page, int, error) {
			r, err := c.ListAudit(bg, &marchv1.ListAuditRequest{PageSize: 1000, PageToken: token})
			return r, len(r.GetEntries()), err
		})
	})
}
