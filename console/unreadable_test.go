package console_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// Before, one unreadable value left the consoles without a list, a plan or a page. Now they
// show the readable values, and name the keys of the others.
func TestListsNameWhatIsUnreadable(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "good"})
		const prefix, ulid = "/march/default/", "01ARZ3NDEKTSV4RRFFQ69G5FAV"
		for _, key := range []string{
			"tags/Bad Name", "tags/bad", "rooms/a/newer", "rooms/stray", "marks/a/good",
			"migrations/" + ulid, "audit/" + ulid, "migration",
		} {
			c.Corrupt(store.OpPut(prefix+key, []byte(`{"format":99,"build":"v9.9.9"}`)))
		}
		named := func(what string, err error, list []*marchv1.Unreadable, want ...string) {
			t.Helper()
			var keys []string
			for _, u := range list {
				keys = append(keys, strings.TrimPrefix(u.GetKey(), prefix))
				if u.GetWhy() == "" || strings.Contains(u.GetWhy(), u.GetKey()) {
					t.Errorf("%s: %v", what, u)
				}
			}
			slices.Sort(keys)
			if slices.Sort(want); err != nil || !slices.Equal(keys, want) {
				t.Errorf("%s: %q, want %q; %v", what, keys, want, err)
			}
		}
		tags, err := c.ListTags(bg, &marchv1.ListTagsRequest{})
		if named("tags", err, tags.GetUnreadable(), "tags/Bad Name", "tags/bad"); len(tags.GetTags()) != 1 {
			t.Errorf("%v", tags)
		}
		var found *marchv1.SearchTagsResponse
		testcluster.Await(t, "the tags are read", func() bool {
			found, err = c.SearchTags(bg, &marchv1.SearchTagsRequest{})
			return err != nil || found.GetAsOf() != nil
		})
		named("search", err, found.GetUnreadable(), "tags/Bad Name", "tags/bad", "marks/a/good")
		instances, err := c.ListInstances(bg, &marchv1.ListInstancesRequest{})
		named("instances", err, instances.GetUnreadable(), "rooms/a/newer", "rooms/stray")
		if list := instances.GetInstances(); len(list) != 1 || list[0].GetName() != "newer" ||
			!strings.Contains(list[0].GetUnreadable(), "v9.9.9") || list[0].GetStarted() != nil {
			t.Errorf("%v", instances)
		}
		migrations, err := c.ListMigrations(bg, &marchv1.ListMigrationsRequest{})
		named("migrations", err, migrations.GetUnreadable(), "migrations/"+ulid)
		audit, err := c.ListAudit(bg, &marchv1.ListAuditRequest{})
		if named("audit", err, audit.GetUnreadable(), "audit/"+ulid); len(audit.GetEntries()) != 2 {
			t.Errorf("%v", audit)
		}
		layouts, err := c.ListLayouts(bg, &marchv1.ListLayoutsRequest{})
		named("layouts", err, layouts.GetUnreadable())
		overview, err := c.GetOverview(bg, &marchv1.GetOverviewRequest{})
		named("overview", err, overview.GetUnreadable(), "rooms/a/newer", "rooms/stray", "migration")
		problems := func(o *marchv1.GetOverviewResponse) (all string) {
			for _, p := range o.GetProblems() {
				all += p.GetWhat() + "\n"
			}
			return all
		}
		for _, key := range []string{"rooms/a/newer", "rooms/stray", "migration"} {
			if all := problems(overview); !strings.Contains(all, "key "+prefix+key+": ") {
				t.Errorf("the problems are without %s:\n%s", key, all)
			}
		}
		// Before, a reference to a missing migration failed the whole overview.
		c.Corrupt(store.OpPut(prefix+"migration", []byte(`{"format":2,"name":"01ARZ3NDEKTSV4RRFFQ69G5FAX"}`)))
		gone, err := c.GetOverview(bg, &marchv1.GetOverviewRequest{})
		named("overview", err, gone.GetUnreadable(), "rooms/a/newer", "rooms/stray", "migration")
		if all := problems(gone); !strings.Contains(all, "01ARZ3NDEKTSV4RRFFQ69G5FAX does not exist") {
			t.Errorf("problems:\n%s", all)
		}
		c.Corrupt(store.OpPut(prefix+"migration", []byte(`{"format":99}`)))
		plan, err := c.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: quarter()})
		named("plan", err, plan.GetPlan().GetUnreadable(),
			"rooms/a/newer", "rooms/stray")
		cost, err := c.CountPlanCost(bg, &marchv1.CountPlanCostRequest{Plan: plan.GetPlan(),
			Wait: durationpb.New(5 * time.Second)})
		named("cost", err, cost.GetUnreadable(), "tags/Bad Name", "tags/bad", "marks/a/good")
		if got := plan.GetPlan().GetInstances(); !slices.Equal(got, []string{"a/newer"}) {
			t.Errorf("%q must report", got)
		}
		for path, says := range map[string]string{
			"/": "rooms/stray", "/instances": "rooms/a/newer", "/tags": "tags/Bad Name", "/audit": "audit/" + ulid,
			"/migrations": "migrations/" + ulid,
		} {
			if code, page := c.get(path); code != 200 || !strings.Contains(page, "Left out") && path != "/" &&
				path != "/instances" || !strings.Contains(page, says) {
				t.Errorf("%s: %d, without %s\n%s", path, code, says, page)
			}
		}
	})
}

// If the history is damaged, Decode names the damaged layout that the answer needs. A tag
// that never existed is not found, unlike a tag that was deleted.
func TestDecodeInADamagedHistory(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "order"})
		must(c.room("a", "host-1").Next(bg, &marchv1.NextRequest{Tag: "order"}))(t)
		l := c.Ledger()
		for upper := int64(20); upper < 22; upper++ {
			record := must(l.Refresh(bg))(t)
			next := record.Layout
			next.Ranges = map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: upper}}
			must(admin.New(l, admin.DefaultConfig()).ChangeLayout(bg, record, next, "test"))(t)
		}
		const key = "/march/default/layouts/0000000000000000001"
		c.Corrupt(store.OpPut(key, []byte(`{"format":99,"build":"v9.9.9"}`)))
		d, err := c.Decode(bg, &marchv1.DecodeRequest{Tag: "order", Id: 1})
		if bad := d.GetUnreadable(); err != nil || d.GetOrigin() != nil || !slices.Equal(d.GetRooms(), []string{"a"}) ||
			len(bad) != 1 || bad[0].GetKey() != key || !strings.Contains(bad[0].GetWhy(), "v9.9.9") {
			t.Errorf("%v, %v", d, err)
		}
		if code, page := c.get("/decode?tag=order&id=1"); code != 200 || !strings.Contains(page, key) ||
			strings.Contains(page, "No room was ever") {
			t.Errorf("%d: %s", code, page)
		}
		_, err = c.Decode(bg, &marchv1.DecodeRequest{Tag: "nosuch", Id: 1})
		want{codes.NotFound, "not_found", []string{"nosuch", "march tag create nosuch"}}.check(t, "an unknown tag", err)
		if code, page := c.get("/decode?tag=nosuch&id=1"); code != 200 ||
			!strings.Contains(page, "Tag: there is none of this name") {
			t.Errorf("%d: %s", code, page)
		}
		must(c.DeleteTag(bg, &marchv1.DeleteTagRequest{Name: "order"}))(t)
		if _, err := c.Decode(bg, &marchv1.DecodeRequest{Tag: "order", Id: 1_000_000}); err != nil {
			t.Errorf("of a deleted tag: %v", err)
		}
	})
}

// An instance's registration may be unreadable, for example if a newer version wrote it.
// A migration waits for such an instance as for one that has not reported, until an
// operator goes on without it.
func TestMigrateWaitsForUnreadable(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		const stray = "/march/default/rooms/a/Bad Name"
		w.Corrupt(store.OpPut("/march/default/rooms/a/newer", []byte(`{"format":99}`)))
		w.Corrupt(store.OpPut(stray, []byte("x")))
		m := w.apply(n, quarter(), 0)
		m = w.follow(n, m.GetId(), "waiting", waits)
		if q := m.GetWaiting(); len(q) != 1 || q[0].GetInstance() != "a/newer" || q[0].GetSilentSince() != nil {
			t.Errorf("waiting: %v", q)
		}
		stays(w, n, m.GetId(), 1)
		without := &marchv1.ContinueMigrationRequest{Id: m.GetId(), Without: []string{"a/newer"}}
		must(n.ContinueMigration(bg, without))(t)
		w.ends(n, m.GetId(), "done")
		if _, err := n.ForgetInstance(bg, &marchv1.ForgetInstanceRequest{Room: "a", Name: "newer"}); err != nil {
			t.Error(err)
		}
		w.Corrupt(store.Op{Delete: stray})
		w.holds(quarter(), 3)
	})
}
