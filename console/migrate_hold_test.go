package console_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// join registers an instance that holds for so long, and never sends a
// heartbeat.
func (w *world) join(in allocator.Room, name allocator.Instance, hold time.Duration) *ledger.Instance {
	w.Helper()
	i, err := w.admin.Join(bg, ledger.Registration{Room: in, Name: name, Address: "127.0.0.1:1", Hold: hold})
	if err != nil {
		w.Fatal(err)
	}
	return i
}

// TestMigrateOwnHold has a silent instance waited for as long as it may go on by
// its own word, where the migration's hold is shorter; the log then names it.
func TestMigrateOwnHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgertest.StartEtcd(t).Store, "default", halves())
	n := w.node()
	const hold = 1500 * time.Millisecond
	w.join("a", "p", hold)
	m, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: w.plan(n, quarter())})
	if err != nil || m.GetMigration().GetHold().AsDuration() != 0 {
		t.Fatalf("apply: %v, %v", m, err)
	}
	end := w.ends(n, m.GetMigration().GetId(), "done")
	if gap := end.GetMoves()[1].GetMade().AsTime().Sub(end.GetMoves()[0].GetMade().AsTime()); gap < hold {
		t.Errorf("the instance's hold is %v, but the second move came after %v", hold, gap)
	}
	said := false
	for _, line := range end.GetLog() {
		said = said || strings.Contains(line.GetText(), "goes on without a/p, silent since")
	}
	if !said {
		t.Errorf("the log does not name who was missing: %v", end.GetLog())
	}
	w.holds(quarter(), 3)
}

// TestMigrateClientsOfTheGone: clients of an instance that stopped before the
// migration have segments of it all the same.
func TestMigrateClientsOfTheGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgertest.StartEtcd(t).Store, "default", halves())
	n := w.node()
	if err := w.join("a", "gone", 10*time.Minute).Leave(bg); err != nil {
		t.Fatal(err)
	}
	m := w.apply(n, quarter(), 0)
	move := w.ends(n, m.GetId(), "done").GetMoves()[0]
	if got := move.GetClientsUntil().AsTime().Sub(move.GetMade().AsTime()); got < 10*time.Minute {
		t.Errorf("clients are said to have IDs for %v; the instance's hold was 10 minutes", got)
	}
}

// TestMigrateClientsOfTheLeaving: so they have of one that stops once the migration
// has begun, before the move that its room loses by.
func TestMigrateClientsOfTheLeaving(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgertest.StartEtcd(t).Store, "default", halves())
	n := w.node()
	leaving := w.join("a", "leaving", 5*time.Hour)
	n.on(func(what string) verdict {
		if what == "move" {
			return refuse
		}
		return pass
	})
	m := w.apply(n, quarter(), 0)
	if err := leaving.Leave(bg); err != nil {
		t.Fatal(err)
	}
	n.on(nil)
	move := w.ends(n, m.GetId(), "done").GetMoves()[0]
	if got := move.GetClientsUntil().AsTime().Sub(move.GetMade().AsTime()); got < 5*time.Hour || got > 5*time.Hour+time.Minute {
		t.Errorf("clients are said to have IDs for %v; the instance's hold was 5 hours", got)
	}
}

// TestMigrateClientsUntil tells until when clients may use what instances leased
// to them before these reported.
func TestMigrateClientsUntil(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgertest.StartEtcd(t).Store, "default", halves())
	n := w.node()
	p, q := w.join("a", "p", time.Hour), w.join("a", "q", 2*time.Hour)
	w.join("b", "loses-nothing", 7*time.Hour)
	m := w.apply(n, quarter(), 0)
	w.follow(n, m.GetId(), "waits", func(m *marchv1.Migration) bool { return len(m.GetWaiting()) == 2 })
	if err := p.Serve(bg, 2); err != nil {
		t.Fatal(err)
	}
	m = w.follow(n, m.GetId(), "waits for one", func(m *marchv1.Migration) bool { return len(m.GetWaiting()) == 1 })
	if until := m.GetMoves()[0].GetClientsUntil(); until != nil {
		t.Errorf("until %v, before all reported", until.AsTime())
	}
	reported := time.Now()
	if err := q.Serve(bg, 2); err != nil {
		t.Fatal(err)
	}
	end := w.ends(n, m.GetId(), "done")
	until := end.GetMoves()[0].GetClientsUntil().AsTime()
	if from := reported.Add(2*time.Hour - time.Second); until.Before(from) || until.After(time.Now().Add(2*time.Hour)) {
		t.Errorf("until %v, want the longer hold, 2 h, after the report at %v", until, reported)
	}
	if expand := end.GetMoves()[1]; expand.GetClientsUntil() != nil {
		t.Errorf("the expand, by which nobody lost, says %v", expand)
	}
}

// TestForgetSilent has consoles forget an instance that has been silent for a
// day, and only such a one.
func TestForgetSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ledgertest.StartEtcd(t).Store, "default", halves())
	store := w.open(t)
	w.join("a", "long", time.Second)
	w.join("a", "short", time.Second)
	w.puppet("a", "alive", true)
	names := func() (all []string) {
		instances, err := w.admin.Instances(bg, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range instances {
			all = append(all, fmt.Sprintf("%s noted %t", i.ID(), !i.SilentSince.IsZero()))
		}
		return all
	}
	n := w.node()
	await(t, "the silent are noted", func() bool {
		return fmt.Sprint(names()) == "[a/alive noted false a/long noted true a/short noted true]"
	})
	list, err := n.ListInstances(bg, &marchv1.ListInstancesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list.GetInstances() {
		if (i.GetSilentSince() == nil) != (i.GetName() == "alive") || i.GetName() != "alive" && i.GetHold().AsDuration() != time.Second {
			t.Errorf("%v", i)
		}
	}

	// A day goes by for one of them.
	for name, ago := range map[string]time.Duration{"long": 25 * time.Hour, "short": 23 * time.Hour} {
		key := "/march/default/silent/a/" + name
		there, err := store.Txn(bg, ledger.Txn{Then: []ledger.Op{{Get: &ledger.Get{Interval: ledger.Interval{Key: key}}}}})
		if err != nil || len(there.Got[0]) != 1 {
			t.Fatalf("%v, %v", there, err)
		}
		was := string(there.Got[0][0].Value)
		_, from, _ := strings.Cut(was, `"since":"`)
		from, _, _ = strings.Cut(from, `"`)
		value := strings.Replace(was, from, time.Now().Add(-ago).UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano), 1)
		if _, err := store.Txn(bg, ledger.Txn{Then: []ledger.Op{{Put: &ledger.Put{Key: key, Value: []byte(value)}}}}); err != nil {
			t.Fatal(err)
		}
	}
	// A driver looks every 10 s.
	for deadline := time.Now().Add(30 * time.Second); fmt.Sprint(names()) != "[a/alive noted false a/short noted true]"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v", names())
		}
	}
	r, err := n.ListAudit(bg, &marchv1.ListAuditRequest{PageSize: 1})
	if err != nil || len(r.GetEntries()) != 1 {
		t.Fatalf("%v, %v", r, err)
	}
	if e := r.GetEntries()[0]; e.GetAction() != "forget instance" || e.GetObject() != "rooms/a/long" || !strings.Contains(e.GetActor(), "silent since") || e.GetFrom() == "" {
		t.Errorf("audit: %v", e)
	}
	ledgertest.CheckCluster(w, w.open(w), w.name, nil)
}
