package admin_test

import (
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
)

// older makes a cluster as the version before did, with an instance of that version.
func older(t *testing.T) *ledgertest.Fake {
	t.Helper()
	m := ledgertest.NewFake(t)
	a := admin.New(ledgertest.Open(t, m.Open()), admin.Config{Formats: 1})
	if _, err := a.Init(bg, ledgertest.Lay(t, "10 a=0-5 b=5-10"), "me"); err != nil {
		t.Fatal(err)
	}
	join(t, m)
	return m
}

func join(t *testing.T, m *ledgertest.Fake) {
	t.Helper()
	l := ledgertest.Open(t, m.Open())
	if _, err := l.Join(bg, ledger.Registration{Room: "a", Name: "a1", Build: "v1"}); err != nil {
		t.Fatal(err)
	}
}

func valueOf(m *ledgertest.Fake, key string) string {
	value, _ := m.Value(prefix + key)
	return string(value)
}

// Formats stay on over a recover in a store that has forgotten them: an instance remembers
// them, or the history does. A layout without them is refused.
func TestFormatsNeverFall(t *testing.T) {
	for _, remembers := range []bool{true, false} {
		m := older(t)
		a := manage(ledgertest.Open(t, m.Open()))
		before := valueOf(m, "layout")
		if _, err := a.Upgrade(bg, "ann"); err != nil {
			t.Fatal(err)
		}
		m.Corrupt(store.Op{Delete: prefix + "rooms/a/a1"})
		cfg := recovery.Config{Actor: "ann", Apply: true}
		if remembers { // the store is that of before
			m.Corrupt(store.OpPut(prefix+"layout", []byte(before)),
				store.Op{Delete: prefix + "layouts/0000000000000000002"})
			uuid, err := a.Ledger.UUID(bg)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Memories = []record.Memory{{UUID: uuid, Room: "a", Name: "a1", Incarnations: []string{"x"}, Version: 2,
				Formats: 2}}
		} else { // a program of the version before wrote this
			now := strings.Replace(strings.Replace(before, `"version":"1"`, `"version":"3"`, 1), `"version":1`, `"version":3`, 1)
			m.Corrupt(store.OpPut(prefix+"layout", []byte(now)),
				store.OpPut(prefix+"layouts/0000000000000000003", []byte(now)))
			_, err := ledgertest.Open(t, m.Open()).Refresh(bg)
			ledgertest.WantKind(t, err, allocator.Refused, "its formats, 1, are below those of the layout before it, 2")
		}
		if _, err := recovery.Run(bg, ledgertest.Open(t, m.Open()), cfg); err != nil {
			t.Fatal(err)
		}
		if stored, err := ledgertest.Open(t, m.Open()).Refresh(bg); err != nil || !stored.Upgraded() {
			t.Errorf("after a recover: %+v, %v", stored, err)
		}
	}
}
