package ledger_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
)

// damagedCluster is a cluster with a key of each kind: two rooms, three layouts, the
// tags t and u.
func damagedCluster(t *testing.T) (c *cluster, living []*process) {
	c = newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("u", func(*record.TagSettings) {})
	c.Move("100 a=0-50 b=55-100")
	c.Move("100 a=0-50 b=50-100")
	c.Corrupt("machines/10/0000000000000000007", record.Machine{Namespace: "ns", Instance: "h:1", Last: 1}.Encode())
	living = []*process{c.startAs("a", "one"), c.startAs("b", "two")}
	for _, p := range living {
		for _, tag := range []allocator.Tag{"t", "u"} {
			if _, err := p.TryLease(tag, 10); err != nil {
				t.Fatal(err)
			}
		}
	}
	return c, living
}

// With etcd far away each round trip counts: a small cluster takes few.
func TestVerifyRoundTrips(t *testing.T) {
	c, _ := damagedCluster(t)
	conn, trips := c.Mem.Open(), 0
	conn.Fate(func(store.Txn) (fate ledgertest.Fate) {
		trips++
		return fate
	})
	report, err := verify.Run(bg, ledgertest.Open(t, conn).Cluster(), verify.Options{})
	if err != nil || len(report.Problems) > 0 || report.Marks != 4 || report.Instances != 2 {
		t.Errorf("%v %+v", err, report)
	}
	if trips >= 8 {
		t.Errorf("%d round trips, want less than 8", trips)
	}
	t.Logf("%d round trips", trips)
}

// Of long lists each key is read once, whatever the size of a page, and each that
// cannot be read is named.
func TestVerifyLongLists(t *testing.T) {
	for _, page := range []int64{1, 2, 3, 7, 1000} {
		m, l, _ := verifyCluster(t)
		const n, bad = 50, 17
		kinds := []string{"rooms/a/i", "rooms/b/i", "alive/a/i", "consoles/0000000000000000000000",
			"audit/0000000000000000000000",
			"migrations/0000000000000000000000"}
		for i := range n {
			for _, kind := range kinds {
				value := map[string]string{
					"rooms":    `{"format":2,"incarnation":"i","address":"x","build":"b","version":"2","started":"2026-01-01T00:00:00Z","hold":"10m0s"}`,
					"alive":    `{"format":2,"incarnation":"i","counter":"1","time":"2026-01-01T00:00:00Z","nonce":"n"}`,
					"consoles": `{"format":2,"address":"h:7001","time":"2026-01-01T00:00:00Z"}`,
					"audit":    `{"format":2,"time":"2026-01-01T00:00:00Z","actor":"ann","action":"x","object":"y"}`,
				}[strings.Split(kind, "/")[0]]
				switch {
				case i == bad:
					value = "garbage"
				case value == "": // a migration
					value = migrationText
				}
				set(m, fmt.Sprintf("%s%04d", kind, i), value)
			}
		}
		report, err := verify.Run(t.Context(), l.Cluster(), verify.Options{PageSize: page})
		if err != nil || report.Instances != 2*n || len(report.Problems) != len(kinds) {
			t.Errorf("page %d: %v %+v", page, err, report)
		}
		for _, kind := range kinds {
			key := fmt.Sprintf("key %s%s%04d: ", prefix, kind, bad)
			if !strings.Contains(strings.Join(report.Problems, "\n"), key) {
				t.Errorf("page %d: it does not say %s", page, key)
			}
		}
	}
}

const migrationText = `{"format":2,"state":"done","from":{"version":"1","boundary":"10","rooms":{"a":{"lower":"0","upper":"5"}}},` +
	`"target":{"version":"2","boundary":"10","rooms":{"a":{"lower":"0","upper":"5"}}},"moves":[],"reached":0,"hold":"0s","log":[],` +
	`"actor":"ann","created":"2026-01-01T00:00:00Z","updated":"2026-01-01T00:00:00Z","nonce":"n"}`
