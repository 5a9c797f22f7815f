package admin_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

// announce has a process of a console look at its key, and fails the test if it cannot.
func announce(t *testing.T, a *admin.Admin, process string) {
	t.Helper()
	if err := a.Announce(bg, process, "h:7001"); err != nil {
		t.Fatal(err)
	}
}

// processes returns the processes of consoles that the store has.
func processes(m *ledgertest.Fake) (all []string) {
	for _, key := range m.Keys(prefix + "consoles/") {
		all = append(all, strings.TrimPrefix(key, prefix+"consoles/"))
	}
	return all
}

// A console writes its key only where the formats of generation 2 are turned on: an older build's verify
// does not know it.
func TestConsoleIsFoundOnceFormatsAreOn(t *testing.T) {
	m := older(t)
	a, process := manage(ledgertest.Open(t, m.Open())), ulid.Make().String()
	announce(t, a, process)
	if found := processes(m); len(found) != 0 {
		t.Fatalf("under the formats of before: %v", found)
	}
	if _, err := a.Upgrade(bg, "ann"); err != nil {
		t.Fatal(err)
	}
	announce(t, a, process)
	if found := processes(m); !slices.Equal(found, []string{process}) {
		t.Errorf("consoles %v, want %s", found, process)
	}
	if err := a.Retire(bg, process); err != nil || len(processes(m)) != 0 {
		t.Errorf("after its end: %v, %v", processes(m), err)
	}
}

// A key stays fresh while its console runs, and is there again at once after a restore forgot it.
func TestConsoleKeepsItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := withConsoles(t)
		announce(t, a, livingConsole)
		was := m.Revision()
		time.Sleep(59 * time.Second)
		if announce(t, a, livingConsole); m.Revision() != was {
			t.Error("it writes a key again that is not a minute old")
		}
		time.Sleep(time.Second)
		if announce(t, a, livingConsole); m.Revision() == was {
			t.Error("it does not write a key again that is a minute old")
		}
		m.Corrupt(store.Op{Delete: prefix + "consoles/" + livingConsole})
		announce(t, a, livingConsole)
		if found := processes(m); !slices.Equal(found, []string{livingConsole}) {
			t.Errorf("consoles %v after a restore forgot it", found)
		}
	})
}

// The key of a console that ended goes after an hour, but not while leasing is halted: recover may
// still ask there.
func TestConsoleThatEnded(t *testing.T) {
	for _, halted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m, a := withConsoles(t)
			const ended = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
			announce(t, a, ended)
			if halted {
				if _, err := a.Ledger.Halt(bg, "ann", "a restore"); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Hour)
			announce(t, a, livingConsole)
			if found := processes(m); !slices.Equal(found, []string{ended, livingConsole}) {
				t.Errorf("halted %v: consoles %v after an hour", halted, found)
			}
			time.Sleep(time.Minute)
			announce(t, a, livingConsole)
			if found := processes(m); slices.Contains(found, ended) != halted {
				t.Errorf("halted %v: consoles %v after more than an hour", halted, found)
			}
		})
	}
}

const livingConsole = "01ARZ3NDEKTSV4RRFFQ69G5FAW"

func withConsoles(t *testing.T) (*ledgertest.Fake, *admin.Admin) {
	t.Helper()
	m := ledgertest.NewFake(t)
	a := manage(ledgertest.Open(t, m.Open()))
	if _, err := a.Init(bg, ledgertest.Lay(t, "10 a=0-5 b=5-10"), "me"); err != nil {
		t.Fatal(err)
	}
	return m, a
}
