package ledger_test

import (
	"context"
	"errors"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

// Over an etcd with the users of `march etcd roles`: two recovers and a restart halt nothing, nor does
// an instance that a recover left out, where etcd has all its leases. If etcd's history is compacted, that
// instance halts leasing, as it may not raise the other room's mark; the recover that the halt names ends
// the halt for good.
func TestRecoversOverEtcdWithRoles(t *testing.T) {
	const password = "secret"
	keys, etcd := record.Keys(prefix), ledgertest.StartEtcd(t)
	for _, role := range []record.Role{keys.OperatorRole(), keys.RoomRole("a", false), keys.RoomRole("b", false)} {
		etcd.Etcdctl(t, password, role.Commands(true)...)
		etcd.Etcdctl(t, password, "etcdctl user add "+role.Name, "etcdctl user grant-role "+role.Name+" "+role.Name)
	}
	defer etcd.RequireCredentials(t)()
	read := func() (string, error) { return password, nil }
	as := func(user string) *ledger.Ledger {
		return ledgertest.Open(t, etcd.StoreOf(t, "march-default-"+user, read))
	}
	operator := manage(as("operator"))
	if _, err := operator.Init(bg, ledgertest.Lay(t, "100 a=0-50 b=50-100"), "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := operator.CreateTag(bg, "t", record.DefaultTag(), "test"); err != nil {
		t.Fatal(err)
	}
	dir, live := t.TempDir(), map[allocator.Room]*ledger.Instance{}
	start := func(room allocator.Room) {
		if was := live[room]; was != nil {
			_ = was.Close()
		}
		i, err := as("room-"+string(room)).Join(bg, ledger.Registration{Room: room, Name: "one", Address: string(room),
			Journal: dir})
		if err != nil {
			t.Fatal(err)
		}
		live[room] = i
	}
	defer func() {
		for _, i := range live {
			_ = i.Close()
		}
	}()
	lease := func(room allocator.Room, n int64) error {
		source, _, err := live[room].Source(bg, "t")
		if err == nil {
			_, err = source.Lease(bg, n)
		}
		return err
	}
	recovers := func(change ...func(*recovery.Config)) {
		t.Helper()
		cfg := recovery.Config{Actor: "ann", Apply: true, Ask: func(ctx context.Context, s record.SeenInstance,
			q record.Question, use record.UseMarks) (record.Memory, error) {
			m := live[s.Room].Memory(ctx, q)
			return m, use(m.Room, m.Marks)
		}}
		for _, f := range change {
			f(&cfg)
		}
		if r, err := recovery.Run(bg, as("operator"), cfg); err != nil {
			t.Fatalf("recover: %+v, %v", r, err)
		}
	}
	start("a")
	start("b")
	if err := errors.Join(lease("b", 10), lease("a", 1000)); err != nil {
		t.Fatal(err)
	}
	recovers()
	start("a") // it meets the first epoch, and leases nothing under it
	recovers()
	start("a")
	if err := errors.Join(lease("a", 10), lease("b", 10), lease("a", 1000)); err != nil {
		t.Fatalf("after two recovers and restarts: %v", err)
	}

	leavesOut := func() {
		recovers(without("a/one", "b/one"), margin(0), func(cfg *recovery.Config) { cfg.Ask = asking(nil) })
	}
	leavesOut()
	start("a")
	start("b")
	if err := errors.Join(lease("b", 10), lease("a", 1000)); err != nil {
		t.Fatalf("after a recover that left them out, of a store that has all their leases: %v", err)
	}
	leavesOut()
	start("b")
	root := etcd.StoreOf(t, "root", func() (string, error) { return "root", nil })
	etcd.Compact(t, root) // so that etcd has no more how far the marks were then
	start("a")
	err := lease("a", 10)
	ledgertest.WantKind(t, err, allocator.WentBack, "may not write /march/default/marks/b/t",
		"the way out: `march recover` while this process runs")
	recovers()
	start("a")
	start("b")
	if err := errors.Join(lease("b", 10), lease("a", 10)); err != nil {
		t.Fatalf("after the recover that the halt names: %v", err)
	}
}
