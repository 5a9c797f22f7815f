package ledger_test

import (
	"testing"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
)

// A lease tells of settings that a watch missed.
func TestLeaseTellsOfNewSettings(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a := c.start("a")
	var told []ledger.TagChange
	a.OnTag(func(change ledger.TagChange) { told = append(told, change) })
	a.Lease(10)
	a.Lease(10)
	if len(told) > 0 {
		t.Fatalf("told %v of nothing", told)
	}
	c.Update("t", func(s *record.TagSettings) { s.Reserve = "1h0m0s" })
	a.Lease(10)
	if len(told) != 1 || told[0].Name != "t" || told[0].Settings.Reserve != "1h0m0s" {
		t.Errorf("told %v, want once of a reserve of an hour", told)
	}
	c.Check()
}
