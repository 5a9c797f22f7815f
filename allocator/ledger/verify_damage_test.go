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
	"github.com/march-id/march/allocator/plan"
)

// damaged are all kinds of key: what verify says that each stops where it cannot be
// read, what it stops in truth, and the repair. The keys are those of damagedCluster.
var damaged = []struct {
	key   string
	stops string    // as verify says it
	lease [3]bool   // whether instance a/one leases of tag t, of tag u, and b/two of tag t
	next  string    // as verify says it
	undo  damageFix // following that, all is well
}{
	{"identity", "all leasing, in every room, and every change by a console; no process starts", [3]bool{},
		"put the value of a backup back", putBack},
	{"epoch", "all leasing, in every room;", [3]bool{}, "`march recover`", recovers},
	{"layout", "all leasing, in every room;", [3]bool{}, "`march recover`", recovers},
	{"beat", "all leasing, in every room, and every change by a console", [3]bool{}, "`march recover`", recovers},
	{"beat", "all leasing, in every room, and every change by a console", [3]bool{},
		"if etcd was certainly not restored, delete the key", deletes},
	{"settings", "all leasing, in every room;", [3]bool{}, `put {"format":2,"journal":"required","nonce":""} there`,
		puts(`{"format":2,"journal":"required","nonce":""}`)},
	{"layouts/0000000000000000003", "all leasing", [3]bool{}, "put the value of key layout there", copies("layout")},
	{"layouts/0000000000000000002", "all leasing", [3]bool{}, "put the value of a backup back", putBack},
	{"layouts/0000000000000000001", "`march id decode` for IDs that were leased under it", [3]bool{true, true, true},
		"put the value of a backup back", putBack},
	{"answered", "nothing; instances that have not entered the epoch", [3]bool{true, true, true}, "leave it", recovers},
	{"tags/t", "leasing of tag t, in every room", [3]bool{false, true, false},
		"put the value back that the audit has for it: `march audit list -o json --to tags/t`", putBack},
	{"marks/a/t", "leasing of tag t in room a", [3]bool{false, true, true}, `put {"format":2,"next":"N"} there`,
		puts(`{"format":2,"next":"5000000"}`)},
	{"rooms/a/one", "leasing by instance a/one, its heartbeats", [3]bool{false, false, true},
		"`march instance forget a one`", forgets},
	{"alive/a/one", "nothing; instance a/one writes it again, if it runs",
		[3]bool{true, true, true}, "if it stays", beats},
	{"consoles/" + oldID, "nothing; `march recover` asks this console only if it is named",
		[3]bool{true, true, true}, "delete the key", deletes},
	{"machines/10/0000000000000000007", "machine ID 10/7 of CosId's clients", [3]bool{true, true, true},
		"put the value of a backup back", putBack},
	{"migration", "migrations: the one that is under way does not go on", [3]bool{true, true, true},
		`put {"format":2,"name":"ID"} there`, deletes},
	{"migrations/" + oldID, "nothing; lists pass it over", [3]bool{true, true, true},
		"leave it, or delete the key", deletes},
	{"audit/" + oldID, "nothing; lists pass it over", [3]bool{true, true, true},
		"leave it, or delete the key", deletes},
	{"nonsense", "nothing; lists name it", [3]bool{true, true, true},
		"delete the key, if no newer version of March wrote it", deletes},
}

// damageFix does what verify says about a damaged key, which had a value.
type damageFix func(t *testing.T, c *cluster, living []*process, key string, was []byte)

func putBack(_ *testing.T, c *cluster, _ []*process, key string, was []byte) { c.Corrupt(key, was) }
func deletes(_ *testing.T, c *cluster, _ []*process, key string, _ []byte)   { c.Corrupt(key, nil) }
func puts(value string) damageFix {
	return func(_ *testing.T, c *cluster, _ []*process, key string, _ []byte) { c.Corrupt(key, []byte(value)) }
}

func copies(from string) damageFix {
	return func(_ *testing.T, c *cluster, _ []*process, key string, _ []byte) { c.Corrupt(key, c.Value(from)) }
}

func recovers(_ *testing.T, c *cluster, living []*process, _ string, _ []byte) { c.mustRecover(living) }

func forgets(t *testing.T, c *cluster, living []*process, _ string, _ []byte) {
	if err := c.Admin.Forget(bg, "a", "one", "ann"); err != nil {
		t.Fatal(err)
	}
	beats(t, c, living, "", nil)
}

func beats(t *testing.T, _ *cluster, living []*process, _ string, _ []byte) {
	if err := living[0].Beat(bg); err != nil {
		t.Fatal(err)
	}
}

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

// Verify reads every kind of key. Of one that cannot be read it says what that stops,
// which is what it stops, and what to do, which helps.
func TestVerifySaysWhatDamageStops(t *testing.T) {
	for _, test := range damaged {
		t.Run(fmt.Sprint(test.key, " ", test.next), func(t *testing.T) {
			c, living := damagedCluster(t)
			was, _ := c.Mem.Value(prefix + test.key)
			c.Corrupt(test.key, []byte("garbage"))
			report, err := verify.Run(bg, ledgertest.Open(t, c.Mem.Open()).Cluster(), verify.Options{})
			if err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, problem := range report.Problems { // others may follow from it
				if strings.HasPrefix(problem, "key "+prefix+test.key+":") {
					said = problem
				}
			}
			if !strings.Contains(said, "; it stops "+test.stops) || !strings.Contains(said, "; next: ") ||
				!strings.Contains(said, test.next) {
				t.Errorf("verify says %q, without %q or %q", report.Problems, test.stops, test.next)
			}
			for i, lease := range []struct {
				p   *process
				tag allocator.Tag
			}{{living[0], "t"}, {living[0], "u"}, {living[1], "t"}} {
				lease.p.Ledger.Uncheck()
				if _, err := lease.p.TryLease(lease.tag, 10); (err == nil) != test.lease[i] {
					t.Errorf("%s/%s leases of %s: %v, want %v", lease.p.Room(), lease.p.Name(),
						lease.tag, err, test.lease[i])
				}
			}
			test.undo(t, c, living, test.key, was)
			for _, p := range living {
				p.hear()
				for _, tag := range []allocator.Tag{"t", "u"} {
					if _, err := p.TryLease(tag, 10); err != nil {
						t.Errorf("%s does not lease of %s after the repair: %v", p.id(), tag, err)
					}
				}
			}
			verified(t, c)
		})
	}
}

// A migration that is under way, and cannot be read, or is not there, stops all others.
func TestVerifyMigrationUnderWay(t *testing.T) {
	start := func(t *testing.T) (*cluster, record.Migration) {
		c := newCluster(t, "100 a=0-50 b=50-100")
		from, err := c.Admin.Ledger.Refresh(bg)
		if err != nil {
			t.Fatal(err)
		}
		to := ledgertest.Lay(t, "100 a=0-50 b=55-100")
		m, err := c.Admin.StartMigration(bg, from, record.Migration{From: from.Layout, Target: to,
			Moves: record.MovesOf(plan.Move{Kind: plan.Retract, Layout: to})}, "ann")
		if err != nil {
			t.Fatal(err)
		}
		verified(t, c)
		return c, m
	}
	for _, test := range []struct {
		name string
		do   func(c *cluster, m record.Migration)
		says string
	}{
		{"damaged", func(c *cluster, m record.Migration) { c.Corrupt("migrations/"+m.ID, []byte("x")) },
			"it stops migrations: this one is under way and does not go on, and no other starts"},
		{"gone", func(c *cluster, m record.Migration) { c.Corrupt("migrations/"+m.ID, nil) },
			"it stops migrations: none goes on, and no other starts; next: delete the key"},
		{"ended", func(c *cluster, m record.Migration) {
			value := c.Value("migration")
			if _, err := c.Admin.UpdateMigration(bg, m, "end migration", "ann", func(m *record.Migration) error {
				m.State = record.Aborted
				return nil
			}); err != nil {
				c.Fatalf("%v", err)
			}
			c.Corrupt("migration", value)
		}, "it stops migrations: none goes on, and no other starts; next: delete the key"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, m := start(t)
			test.do(c, m)
			report, err := verify.Run(bg, ledgertest.Open(t, c.Mem.Open()).Cluster(), verify.Options{})
			if err != nil || len(report.Problems) != 1 || !strings.Contains(report.Problems[0], test.says) ||
				!strings.Contains(report.Problems[0], m.ID) {
				t.Errorf("%v: %q", err, report.Problems)
			}
			c.Corrupt("migrations/"+m.ID, nil)
			c.Corrupt("migration", nil)
			verified(t, c)
		})
	}
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
