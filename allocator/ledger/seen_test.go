package ledger_test

import (
	"fmt"
	"testing"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// A leave covers up to 100 earlier processes of its instance. Of these an instance notes only those
// that it knows: others would push processes out of its list that recover must ask.
func TestCoveredProcessesTakeNoPlace(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	shown := func(revision int64, v record.Registration) {
		p.Watched([]store.KV{{Key: prefix + "rooms/b/i1", Value: record.Encode(&v), ModRevision: revision}})
	}
	shown(c.Mem.Revision()+1, record.Registration{Incarnation: "known", Address: "i1.test:1"})
	covers := []string{"known"}
	for k := range 99 {
		covers = append(covers, fmt.Sprint("unknown", k))
	}
	shown(c.Mem.Revision()+2, record.Registration{Incarnation: "leaver", Address: "i1.test:1", Leaving: true,
		Covers: covers})
	left := make(map[string]bool)
	for _, s := range p.Memory(bg, record.Question{}).Seen {
		if s.Name == "i1" && s.Room == "b" {
			left[s.Incarnation] = s.Left != 0
		}
	}
	if len(left) != 2 || !left["known"] || !left["leaver"] {
		t.Errorf("noted, and whether they left: %v", left)
	}
}
