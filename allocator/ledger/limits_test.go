package ledger_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/internal/programs"
)

// TestKeysInLimitsDoc fills a cluster with as many keys of each kind as it can, and finds the
// bounds in docs/limits.md. Where these are many, only LIVE=1 fills the cluster, as .ci/run does; otherwise
// the numbers of the code count.
func TestKeysInLimitsDoc(t *testing.T) {
	content, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := record.NewKeys("default")
	if err != nil {
		t.Fatal(err)
	}
	layouts, migrations := latest(record.MaxLayouts), latest(record.MaxMigrations)
	audit, machines := latest(record.MaxAudits), thousands(machine.Most)+" for each room and width"
	tokens := latest(record.MaxTokens) + " of a room"
	if programs.All() {
		layouts, migrations = fillHistory(t)
		audit, machines, tokens = fillAudit(t), fillMachines(t), fillTokens(t)
	}
	filled := map[string]string{
		"layouts/": layouts, "migrations/": migrations, "audit/": audit, "refusals/": audit,
		"oldest/": "one for each ring of the audit, `audit` and `refusals`", "clients/": machines,
		"tags/": fillTags(t), "marks/": fillMarks(t),
		"rooms/": fillInstances(t, "rooms/"), "alive/": fillInstances(t, "alive/"), "windows/": fillWorkers(t),
		"consoles/": fillConsoles(t), "kept/": tokens,
		"workers/": "as many as there were before formats 2", "machines/": "as many as there were before formats 2",
		"holders/": "one for each tag with a strict order and each room, never deleted",
		"orders/":  "one for each tag with a strict order over all rooms, never deleted",
	}
	for _, key := range keys.Known() {
		kind := strings.TrimPrefix(key, prefix)
		want := "one key"
		if strings.HasSuffix(kind, "/") {
			want = filled[kind]
		}
		if row := "\n| `" + kind + "` | " + want + " |"; !strings.Contains(string(content), row) {
			t.Errorf("docs/limits.md does not have the row %s", strings.TrimSpace(row))
		}
	}
}

// thousands writes a number as documents do.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for k := len(text) - 3; k > 0; k -= 3 {
		text = text[:k] + "," + text[k:]
	}
	return text
}

// count returns how many keys of a kind a cluster has.
func (c *cluster) count(kind string) int { return len(c.Mem.Keys(prefix + kind)) }

// latest is a bound in words.
func latest(n int) string { return "the latest " + thousands(n) }

func fillTokens(t *testing.T) string {
	t.Helper()
	c, dir := newCluster(t, "100 a=0-50 b=50-100"), t.TempDir()
	for n := range record.MaxTokens + 10 {
		p := c.process()
		var err error
		if p.Instance, err = p.Ledger.Join(bg, ledger.Registration{Room: "a", Name: allocator.Instance(fmt.Sprint(n)),
			Journal: dir}); err != nil {
			t.Fatal(err)
		}
		source, _, err := p.Source(bg, "t")
		if err != nil {
			t.Fatal(err)
		}
		seg, err := source.Lease(bg, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Keep(bg, []ledger.Rest{{Source: source, Segments: []allocator.Segment{seg}}}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Leave(bg), p.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.count("kept/"); n != record.MaxTokens {
		t.Errorf("%d tokens, want %d", n, record.MaxTokens)
	}
	return latest(record.MaxTokens) + " of a room"
}

func fillConsoles(t *testing.T) string {
	t.Helper()
	c := newCluster(t, "100 a=0-50 b=50-100")
	for range record.MaxConsoles + 10 {
		if err := c.Admin.Announce(bg, ulid.Make().String(), "h:7001"); err != nil {
			t.Fatal(err)
		}
	}
	c.Check()
	return latest(c.count("consoles/"))
}

func fillHistory(t *testing.T) (layouts, migrations string) {
	t.Helper()
	c := newCluster(t, "100 a=0-50 b=50-100")
	for i := range max(record.MaxLayouts, record.MaxMigrations) + 10 {
		migrate(t, c, fmt.Sprintf("100 a=0-%d b=50-100", 40+i%7))
	}
	c.Check()
	return latest(c.count("layouts/")), latest(c.count("migrations/"))
}

// fillAudit begins with old entries. Of several processes that write, each counts the entries
// only from time to time.
func fillAudit(t *testing.T) string {
	t.Helper()
	c := newCluster(t, "100 a=0-50 b=50-100")
	entry, _ := c.Mem.Value(c.Mem.Keys(prefix + "audit/")[0])
	var old []store.Op
	for i := range record.MaxAudits {
		old = append(old, store.Op{Put: &store.Put{Key: fmt.Sprintf("%saudit/00000000%018d", prefix, i), Value: entry}})
	}
	for page := range slices.Chunk(old, store.MaxOps) {
		c.Mem.Corrupt(page...)
	}
	others := []*ledger.Ledger{c.Admin.Ledger, ledgertest.Open(t, c.Mem.Open()), ledgertest.Open(t, c.Mem.Open())}
	for i := range 60 {
		name := allocator.Tag(fmt.Sprint("t", i))
		if _, err := manage(others[i%len(others)]).CreateTag(bg, name, record.DefaultTag(), "test"); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.count("audit/"); got > record.MaxAudits || got < record.MaxAudits-2*record.AuditReserve {
		t.Errorf("%d audit entries, want about %d and no more", got, record.MaxAudits)
	}
	return latest(record.MaxAudits)
}

func fillTags(t *testing.T) string {
	t.Helper()
	c := newCluster(t, "100 a=0-50 b=50-100")
	before := c.count("tags/")
	for range 2 {
		c.Tag("x", func(*record.TagSettings) {})
		if n := c.count("tags/"); n != before+1 {
			t.Errorf("%d keys, want %d", n, before+1)
		}
		if err := c.Admin.DeleteTag(bg, "x", "test"); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.count("tags/"); n != before {
		t.Errorf("%d keys after the tag was deleted, want %d", n, before)
	}
	return "one for each tag; `--max-tags`"
}

func fillMarks(t *testing.T) string {
	t.Helper()
	c := newCluster(t, "100 a=0-50 b=50-100")
	rooms := []*process{c.start("a"), c.start("b")}
	for i := range 2 * record.MaxEras {
		c.Move(fmt.Sprintf("100 a=0-%d b=50-100", 40+i%7))
		c.Tag("x", func(*record.TagSettings) {}) // again, after its deletion
		for _, p := range rooms {
			p.Lease(10)
			if _, err := p.TryLease("x", 10); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Admin.DeleteTag(bg, "x", "test"); err != nil {
			t.Fatal(err)
		}
	}
	if n, want := c.count("marks/"), 2*len(rooms); n != want {
		t.Errorf("%d keys, want %d", n, want)
	}
	return fmt.Sprintf("one for each tag and room that ever were, each with the latest %d eras", len(c.Mark("a").Eras))
}

func fillInstances(t *testing.T, kind string) string {
	t.Helper()
	c := newCluster(t, "100 a=0-50 b=50-100")
	for range 3 {
		p := c.startAs("a", "one")
		if err := p.Beat(bg); err != nil {
			t.Fatal(err)
		}
	}
	other := c.startAs("b", "one")
	if err := other.Beat(bg); err != nil {
		t.Fatal(err)
	}
	if n := c.count(kind); n != 2 {
		t.Errorf("%d keys of 2 instances", n)
	}
	if err := other.Leave(bg); err != nil {
		t.Fatal(err)
	}
	if n := c.count(kind); n != 1 {
		t.Errorf("%d keys of 1 instance", n)
	}
	return "one for each instance, until it leaves or is forgotten"
}

func fillWorkers(t *testing.T) string {
	t.Helper()
	const bits = 3
	c := newCluster(t, "100 a=0-50 b=50-100")
	for _, room := range []allocator.Room{"a", "b"} {
		for i := range 1 << bits {
			p := c.start(room)
			workers, err := worker.New(p.Instance, worker.DefaultConfig())
			if err != nil {
				t.Fatal(err)
			}
			_, err = workers.Take(bg, worker.Request{Bits: bits, Tick: time.Millisecond})
			if busy := (*worker.BusyError)(nil); err != nil && (i < 1<<bits/2 || !errors.As(err, &busy)) {
				t.Fatal(err)
			}
		}
	}
	if n := c.count("windows/"); n != 1<<bits {
		t.Errorf("%d keys of %d workers", n, 1<<bits)
	}
	return "one for each number of a width that a room ever used, 2^bits at most for each room"
}

func fillMachines(t *testing.T) string {
	t.Helper()
	c := newCluster(t, "10000 a=0-10")
	layout := ledgertest.Lay(t, "10000 a=0-10")
	layout.Reserved = map[allocator.Room]allocator.Range{"machines": {Lower: 10, Upper: 10_000}}
	c.MoveTo(layout)
	machines := machine.New(c.Admin.Ledger, "a", "machines")
	for i := range machine.Most + 1 {
		client := machine.Client{Namespace: "test", Instance: fmt.Sprint(i)}
		_, _, err := machines.Distribute(bg, client, machine.MaxBits, machine.Forever)
		if i < machine.Most && err != nil || i == machine.Most && !errors.Is(err, machine.ErrOverflow) {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	return thousands(c.count("clients/")) + " for each room and width"
}
