package ledger_test

import (
	"errors"
	"testing"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
)

// A process that begins while the identity cannot be read can show all that there is,
// and change nothing.
func TestDamagedIdentityStopsChangesOnly(t *testing.T) {
	c, _ := damagedCluster(t)
	c.Corrupt("identity", []byte("garbage"))
	l := ledgertest.Open(t, c.Mem.Open())
	damaged := func(what string, err error) {
		t.Helper()
		if key, is := errors.AsType[*record.KeyError](err); !is || key.Key != prefix+"identity" {
			t.Errorf("%s: %v", what, err)
		}
	}
	instances, _, err := manage(l).Instances(bg, "")
	if err != nil || len(instances) != 2 {
		t.Errorf("%v, %v", instances, err)
	}
	layouts, _, err := manage(l).Layouts(bg, 0, 10)
	if err != nil || len(layouts) != 3 {
		t.Errorf("%v, %v", layouts, err)
	}
	tag, err := manage(l).Tag(bg, "u")
	if err != nil {
		t.Errorf("%v, %v", tag, err)
	}
	if _, _, err := manage(l).ActiveMigration(bg); err != nil {
		t.Error(err)
	}
	if _, _, err := manage(l).Audits(bg, "", 10); err != nil {
		t.Error(err)
	}
	if _, err := manage(l).Settings(bg); err != nil {
		t.Error(err)
	}
	_, err = l.UUID(bg)
	damaged("uuid", err)
	_, err = l.Refresh(bg)
	damaged("refresh", err)
	damaged("delete", manage(l).DeleteTag(bg, "u", "ann"))
	damaged("forget", manage(l).Forget(bg, "a", "one", "ann"))
	_, err = manage(l).UpdateSettings(bg, func(*record.ClusterSettings) error { return nil }, "ann")
	damaged("settings", err)
	_, err = manage(l).CreateTag(bg, "w", record.TagSettings{}, "ann")
	if err == nil {
		t.Error("a tag was created")
	}
	_, err = manage(l).UpdateMigration(bg, record.Migration{}, "", "ann", func(*record.Migration) error { return nil })
	damaged("migration", err)
}
