package console

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Before, a console with a clock a day ahead forgot every instance that was silent for
// 15 s, and consoles went on with each other's notes. Now each console counts by itself and
// does not use the clocks of instances or of other consoles.
func TestForgetSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.join("a", "gone", time.Minute)
		b.beating(b.join("a", "lives", time.Minute))
		for _, ago := range []time.Duration{-48 * time.Hour, 48 * time.Hour} { // by their clocks
			name := fmt.Sprintf("at%d", ago/time.Hour)
			b.join("b", allocator.Instance(name), time.Minute)
			key := "/march/default/alive/b/" + name
			v, _ := b.Mem.Value(key)
			from := time.Now().UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano)
			to := time.Now().Add(ago).UTC().Format(time.RFC3339Nano)
			b.Mem.Corrupt(store.Op{Put: &store.Put{Key: key, Value: []byte(strings.ReplaceAll(string(v), from, to))}})
		}
		first := b.console()
		if got := b.registered(first); got != "a/gone a/lives b/at-48 b/at48" {
			t.Errorf("at first: %s", got)
		}
		b.looks(20*time.Second, first)
		if got := b.registered(first); got != "a/gone! a/lives b/at-48! b/at48!" {
			t.Errorf("after 20 s: %s", got)
		}
		b.looks(forgetAfter-time.Minute, first)
		second := b.console()
		b.looks(30*time.Second, first, second)
		if got := b.registered(first); got != "a/gone! a/lives b/at-48! b/at48!" {
			t.Errorf("before an hour has passed: %s", got)
		}
		b.looks(time.Minute, second) // the first console no longer looks
		if got := b.registered(second); got != "a/gone! a/lives b/at-48! b/at48!" {
			t.Errorf("the second console took over the count of the first: %s", got)
		}
		b.looks(forgetAfter, second)
		if got := b.registered(second); got != "a/lives" {
			t.Errorf("after an hour: %s", got)
		}
		entries, _, err := b.Admin.Audits(bg, "", 3)
		if err != nil || len(entries) != 3 || entries[2].Action != "forget instance" ||
			!strings.Contains(entries[2].Actor, "silent for 1h") {
			t.Errorf("audit: %+v, %v", entries, err)
		}
		if keys := b.Mem.Keys("/march/default/silent"); len(keys) > 0 {
			t.Errorf("written: %v", keys)
		}
	})
}

// While a console does not look, etcd does not answer or nothing can be written, the console
// hears of no instance. After that it begins the count anew.
func TestSilenceIsCountedWithoutABreak(t *testing.T) {
	for _, pause := range []string{"it did not look", "etcd did not answer", "nothing could be written"} {
		t.Run(pause, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				b.join("a", "silent", time.Minute)
				conn := b.Mem.Open()
				s := b.consoleOver(conn)
				b.looks(forgetAfter-5*time.Minute, s)
				fails := func(looks int) (err error) {
					for range looks {
						err = errors.Join(err, s.forgetSilent(bg))
						time.Sleep(silenceEvery)
					}
					return err
				}
				switch pause {
				case "it did not look":
					time.Sleep(time.Minute)
				case "etcd did not answer":
					conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.NoLeader} })
					if fails(6) == nil {
						t.Error("without an etcd")
					}
				case "nothing could be written":
					conn.Fate(func(txn store.Txn) (fate ledgertest.Fate) {
						if ledgertest.Writes(txn) {
							fate.Name = ledgertest.NotDone
						}
						return fate
					})
					if fails(60) == nil {
						t.Error("the console did not try to forget the instance")
					}
				}
				conn.Fate(nil)
				b.looks(forgetAfter-10*time.Minute, s)
				if got := b.registered(s); got != "a/silent!" {
					t.Errorf("after the break and nearly an hour: %s", got)
				}
				b.looks(20*time.Minute, s)
				if got := b.registered(s); got != "" {
					t.Errorf("an hour after the break: %s", got)
				}
			})
		})
	}
}

// Many instances send heartbeats less often, and a console waits for them longer. It goes on
// doing so for a while after there are fewer.
func TestSilenceAmongMany(t *testing.T) {
	h := &heartbeats{}
	many := make([]record.Instance, 1000)
	for i := range many {
		many[i] = record.Instance{Room: "a", Name: allocator.Instance(fmt.Sprint("i", i))}
	}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	silent := func(list []record.Instance, after time.Duration) bool {
		for d := h.looked.Sub(start) + silenceEvery; !h.looked.IsZero() && d < after; d += silenceEvery {
			h.note(list, start.Add(d), start.Add(d))
		}
		at := start.Add(after)
		return !h.note(list, at, at)[0].Alive
	}
	for _, step := range []struct {
		instances int
		after     time.Duration
		silent    bool
	}{{1000, 0, false}, {1000, 149 * time.Second, false}, {1000, 150 * time.Second, true}} {
		if got := silent(many[:step.instances], step.after); got != step.silent {
			t.Errorf("%d instances, after %v: silent %v", step.instances, step.after, got)
		}
	}
	h = &heartbeats{}
	if silent(many, 0) || silent(many[:1], 100*time.Second) || !silent(many[:1], 150*time.Second) {
		t.Error("wrong for an instance that was one of many and sends its next heartbeat after 50 s")
	}
	for _, r := range many[:1] {
		r.Beat = "new"
		at := start.Add(time.Hour)
		h.note([]record.Instance{r}, at, at)
		for d := range 2 {
			at = at.Add(time.Duration(d) * silenceEvery)
			h.note([]record.Instance{r}, at, at)
		}
		at = at.Add(silenceEvery / 2)
		if h.note([]record.Instance{r}, at, at)[0].Alive {
			t.Error("an instance that is one of few is not silent after 15 s")
		}
	}
}

// No console is elected to make moves. Two that try at once make each move once, and
// neither takes the other's move for an error.
func TestTwoConsolesMakeEachMoveOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		m := b.migrate(0)
		consoles := []*Server{b.console(), b.console(), b.console()}
		for range 5 {
			var work sync.WaitGroup
			for _, s := range consoles {
				work.Go(func() {
					if _, err := s.driveOnce(bg); err != nil {
						t.Errorf("step: %v", err)
					}
				})
			}
			work.Wait()
		}
		m = b.read(m.ID)
		if m.State != record.Done || m.Reached != 2 || m.Error != "" || len(m.Log) != 4 {
			t.Errorf("migration %+v", m)
		}
		stored, err := b.Admin.Ledger.Refresh(bg)
		if err != nil || stored.Layout.Version != 3 {
			t.Errorf("layout %v, %v", stored, err)
		}
		entries, _, err := b.Admin.Audits(bg, "", 10)
		if err != nil || len(entries) != 6 { // init, a tag, start, two moves, the end
			t.Errorf("audit: %+v, %v", entries, err)
		}
	})
}

// Before, the hold of a silent instance was counted from times in etcd, so a console with a
// fast clock made the next move too early. A console that has just started waits no less
// than a console that saw everything.
func TestHoldIsCountedByEachConsole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.join("a", "silent", time.Minute)
		first := b.console()
		b.steps(30*time.Second, first)
		m := b.migrate(2 * time.Minute)
		b.steps(119*time.Second, first)
		second := b.console()
		if m = b.read(m.ID); m.Reached != 1 {
			t.Fatalf("after less than the hold: %d moves", m.Reached)
		}
		b.steps(119*time.Second, second)
		if m = b.read(m.ID); m.Reached != 1 {
			t.Fatalf("after less than the hold, as the second console counts: %d moves", m.Reached)
		}
		b.steps(5*time.Second, second)
		if m = b.read(m.ID); m.Reached != 2 {
			t.Errorf("after the hold: %d moves", m.Reached)
		}
		b.steps(2*time.Minute, second)
		if m = b.read(m.ID); m.State != record.Done {
			t.Errorf("after the hold once more: %s", m.State)
		}
	})
}

// Before, an operator's order to go on without an instance held for all later moves and
// for all later processes of the same name.
func TestWithoutIsForOneProcessAndOneMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.join("a", "one", time.Hour)
		s := b.console()
		m := b.migrate(0)
		b.steps(5*time.Second, s)
		list, err := s.instances(bg)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		m = b.read(m.ID)
		said := record.Waiver{Instance: "a/one", Incarnation: list[0].Incarnation, Reached: m.Reached}
		for what, w := range map[string]record.Waiver{
			"another process": {Instance: said.Instance, Incarnation: "another", Reached: said.Reached},
			"another move":    {Instance: said.Instance, Incarnation: said.Incarnation, Reached: said.Reached - 1},
			"another name":    {Instance: "a/two", Incarnation: said.Incarnation, Reached: said.Reached},
		} {
			m, err = b.Admin.UpdateMigration(bg, b.read(m.ID), "", "", func(m *record.Migration) error {
				m.Without = []record.Waiver{w}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			b.steps(5*time.Second, s)
			if m = b.read(m.ID); m.Reached != 1 {
				t.Fatalf("%s: it went on", what)
			}
		}
		b.join("a", "one", time.Hour) // a restart, which reports no layout on behalf of the old process
		if _, err = b.Admin.UpdateMigration(bg, m, "", "", func(m *record.Migration) error {
			m.Without = []record.Waiver{said}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		b.steps(5*time.Second, s)
		if m = b.read(m.ID); m.Reached != 1 {
			t.Error("it went on without the process that was restarted")
		}
	})
}

// A migration can never go on if its layout was replaced, by a recover or by hand. Before,
// it waited for an operator's abort: a chaos run of a minute with a restore and no operator
// ended with the migration under way. Now it ends where it stands, paused or not, and says
// why.
func TestMigrationOfAReplacedLayout(t *testing.T) {
	for _, paused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t)
			b.join("a", "one", time.Hour)
			s := b.console()
			m := b.migrate(0)
			b.steps(2*time.Second, s)
			if paused {
				if _, err := b.Admin.UpdateMigration(bg, b.read(m.ID), "pause", "test",
					func(m *record.Migration) error {
						m.State = record.Paused
						return nil
					}); err != nil {
					t.Fatal(err)
				}
			}
			from := must(b.Admin.Ledger.Refresh(bg))(t)
			must(b.Admin.ChangeLayout(bg, from, b.layout(60), "an operator"))(t)
			if _, err := s.ledger.Refresh(bg); err != nil { // a running console has a watch for this
				t.Fatal(err)
			}
			b.steps(2*time.Second, s) // a/one lost residues and has not reported: the migration does not wait for it
			m = b.read(m.ID)
			shown, err := s.showMigration(bg, m)
			if err != nil || m.State != record.Aborted || m.Error != "" ||
				!strings.Contains(shown.GetNoWayBack(), "layout is version 3") {
				t.Errorf("paused %v: %+v, shown %v, %v", paused, m, shown, err)
			}
			if m := b.migrate(0); m.State != record.Running {
				t.Error("the migration keeps another one from beginning")
			}
		})
	}
}

// A console no longer shows an error that has ended.
func TestMigrationGoesOnAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.join("a", "one", time.Hour)
		s := b.console()
		m := b.migrate(0)
		key := "/march/default/layout"
		good, _ := b.Mem.Value(key)
		b.Mem.Corrupt(store.Op{Put: &store.Put{Key: key, Value: []byte("{")}})
		if _, err := s.driveOnce(bg); err == nil {
			t.Error("the migration went on under a layout that cannot be read")
		}
		if m = b.read(m.ID); !strings.Contains(m.Error, key) {
			t.Errorf("migration %+v", m)
		}
		b.Mem.Corrupt(store.Op{Put: &store.Put{Key: key, Value: good}})
		b.steps(2*time.Second, s)
		if m = b.read(m.ID); m.Error != "" || m.Reached != 1 {
			t.Errorf("migration %+v", m)
		}
	})
}

// How long a tag's IDs last comes from what its rooms have left, and from their rates. A room
// without a rate has no end.
func TestForecastSaysHowLongIDsLast(t *testing.T) {
	f := tagForecast{
		TagForecast: admin.TagForecast{
			Before: map[allocator.Room]int64{"a": 1000, "b": 1000, "gone": 60},
			Rooms:  map[allocator.Room]admin.RoomForecast{"a": {Left: 500}, "b": {Left: 900}},
		},
		rooms: []allocator.Room{"a", "b"},
		rates: map[allocator.Room]float64{"a": 10, "gone": 2},
	}
	cost := f.cost()
	if before, after := cost.GetLastsBefore().AsDuration(),
		cost.GetLastsAfter().AsDuration(); before != 30*time.Second || after != 50*time.Second {
		t.Errorf("the tag lasts %v, then %v; want 30s, of the room that goes, then 50s", before, after)
	}
	a, b := cost.GetForecasts()[0], cost.GetForecasts()[1]
	if before, after := a.GetLastsBefore().AsDuration(), a.GetLastsAfter().AsDuration(); before != 100*time.Second ||
		after != 50*time.Second {
		t.Errorf("room a lasts %v, then %v; want 100s, then 50s", before, after)
	}
	if b.LastsBefore != nil || b.LastsAfter != nil {
		t.Errorf("room b, which issues nothing: %v, %v", b.LastsBefore, b.LastsAfter)
	}
}

// An outage, and a console's restart, rewrote the time of a death, and showed the dead as up for some seconds. What
// counts its silence for a migration begins anew all the same.
func TestDeathOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	var h heartbeats
	died := when.Add(-time.Hour)
	records := []record.Instance{{Room: "a", Name: "dead", Beat: "1", LastSeen: died},
		{Room: "a", Name: "lives", Beat: "0", LastSeen: when}}
	look := func(second int) (dead, lives instance) {
		at := when.Add(time.Duration(second) * time.Second)
		records[1].Beat = fmt.Sprint(second)
		list := h.note(records, at, at)
		return list[0], list[1]
	}
	for second := 0; second < 20; second += 5 {
		look(second)
	}
	if dead, lives := look(20); dead.Alive || !dead.Died.Equal(died) || !dead.SilentSince.Equal(when) || !lives.Alive {
		t.Errorf("after 20 s: %+v", dead)
	}
	back := when.Add(2 * time.Minute) // it did not look in between
	if dead, lives := look(120); dead.Alive || !dead.Died.Equal(died) || !dead.SilentSince.Equal(back) || !lives.Alive {
		t.Errorf("after an outage: %+v", dead)
	}
	records[0].Beat = "2"
	if dead, _ := look(125); !dead.Alive || !dead.Died.IsZero() {
		t.Errorf("it beats again: %+v", dead)
	}
}

// Before, a console that had just started, or saw etcd again, showed an instance that had died long ago as up for three
// intervals of heartbeats.
func TestDeadInstanceIsNotShownAsUpByAConsoleThatBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		died := time.Now()
		b.join("a", "dead", time.Minute)
		b.beating(b.join("a", "lives", time.Minute))
		time.Sleep(time.Hour + 12*time.Second)
		s := b.console()
		dead := must(s.instances(bg))(t)
		now := time.Now()
		b.Corrupt(record.Keys("").Worker(record.WorkerID{Bits: 3}), record.Worker{
			Room: "a", Instance: "dead", Incarnation: dead[0].Incarnation, From: now.UnixMilli(),
			Until: now.Add(time.Hour).UnixMilli(), Clock: now.UnixMilli(), Stamp: record.Stamp{Epoch: "e", Revision: 1},
		}.Encode())
		shown := func(what, want string) {
			t.Helper()
			rooms := must(s.ListRooms(bg, nil))(t)
			list := must(s.ListInstances(bg, &marchv1.ListInstancesRequest{}))(t)
			got := fmt.Sprint(rooms.GetRooms()[0].GetAlive(), " of ", rooms.GetRooms()[0].GetInstances())
			for _, i := range list.GetInstances() {
				state := map[bool]string{true: "alive", false: "silent"}[i.GetAlive()]
				if i.GetUnknown() {
					state = "unknown"
				}
				got += " " + i.GetName() + ":" + state
			}
			workers := must(s.ListWorkers(bg, &marchv1.ListWorkersRequest{}))(t)
			got += ", dead's worker " + api.Word(workers.GetWorkers()[0].GetState())
			if got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		shown("at first", "1 of 2 dead:unknown lives:alive, dead's worker unknown")
		list := must(s.instances(bg))(t)
		f := findings{instances: list}
		f.sample = next(sample{}, list, make([]answer, 2), time.Now())
		if all := f.instanceProblemsOf(list[0]); len(all) != 1 || !all[0].GetSince().AsTime().Equal(died) ||
			!strings.Contains(all[0].GetWhat(), "not known yet whether it runs") {
			t.Errorf("its problems: %v, want one since %v", all, died)
		}
		b.looks(20*time.Second, s)
		shown("after three intervals", "1 of 2 dead:silent lives:alive, dead's worker silent")

		late := b.join("a", "late", time.Minute)
		ctx, stop := context.WithCancel(bg)
		var work sync.WaitGroup
		work.Go(func() {
			if err := late.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		b.looks(20*time.Second, s)
		stop()
		work.Wait()
		shown("while it beats", "2 of 3 dead:silent late:alive lives:alive, dead's worker silent")
		time.Sleep(2 * time.Minute) // the console does not see etcd
		shown("after an outage", "1 of 3 dead:silent late:unknown lives:alive, dead's worker silent")
	})
}
