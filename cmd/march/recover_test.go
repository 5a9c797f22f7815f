package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// TestRestoreMatrix follows the procedure of docs/restore.md with real processes and a real
// etcd of one member that really goes back: rooms that live on, that were killed
// and start again with their journals, and without; and a backup restored with
// and without a raised revision, and into an etcd cluster with another ID, and
// the member's data directory copied back, started as it is and by
// --force-new-cluster. In every cell leasing is halted before anything is leased,
// and after the recover no ID comes twice.
//
// The exceptions are as docs/restore.md says: into another etcd cluster nobody
// writes, and a copied directory that nobody remembers more than is not to be
// seen. There the rooms start after the recover.
func TestRestoreMatrix(t *testing.T) {
	for _, rooms := range []string{"alive", "restarted with journal", "restarted without journal"} {
		for _, how := range []restore{
			{name: "plain"}, {name: "bumped", bump: 1_000_000_000}, {name: "new token", token: "another"},
			{name: "data copied back", copied: true}, {name: "data copied back, new cluster forced", copied: true, force: true},
		} {
			if testing.Short() && (how.bump > 0 || how.copied && !how.force) {
				continue // these take the same ways through the program as their neighbours
			}
			t.Run(rooms+", "+how.name, func(t *testing.T) {
				t.Parallel()
				m := newMatrix(t, rooms == "restarted without journal")
				for range 3 {
					m.next(t, 300)
				}
				m.age(t)
				backup := how.backup(t, m.etcd)
				m.move(t)
				for range 5 {
					m.next(t, 2_000) // more than was held: leases that the backup does not know
				}
				if rooms != "alive" {
					m.kill()
				}
				how.restore(t, m.etcd, backup)
				seen := how.token == "" && !(how.copied && rooms == "restarted without journal")
				switch {
				case rooms == "alive":
					m.next(t, 10) // of what they hold
				case seen:
					m.start(t)
				}
				if seen {
					if err := poll(patience(t), func() bool { return m.halted(t) }); err != nil {
						t.Fatalf("the restore was not seen: %v", err)
					}
				}
				m.recover(t, rooms, how.token != "")
				if rooms != "alive" && !seen {
					m.start(t)
				}
				if err := poll(patience(t), func() bool { return m.leases(t) }); err != nil {
					t.Fatalf("rooms do not lease after the recover: %v", err)
				}
				m.next(t, 10_000)
				stdout, stderr, code := march(t, "verify", "--etcd", m.etcd.Endpoint)
				if code != exitOK {
					t.Errorf("verify: exit code %d\n%s%s", code, stdout, stderr)
				}
				if m.halted(t) {
					t.Error("halted again after the recover")
				}
				t.Logf("%d IDs, none twice", len(m.ids))
			})
		}
	}
}

// restore is a way in which etcd goes back in time.
type restore struct {
	name          string
	token         string
	bump          uint64
	copied, force bool
}

func (r restore) backup(t *testing.T, etcd *ledgertest.Etcd) string {
	t.Helper()
	if r.copied {
		return etcd.CopyData(t)
	}
	return etcd.Backup(t)
}

func (r restore) restore(t *testing.T, etcd *ledgertest.Etcd, backup string) {
	t.Helper()
	if r.copied {
		etcd.PutBack(t, backup, r.force)
	} else {
		etcd.Restore(t, backup, r.bump, r.token)
	}
}

// matrix is a cluster of two rooms, each in a process of its own.
type matrix struct {
	etcd    *ledgertest.Etcd
	store   store.Store
	base    int
	dir     string
	without bool // journals
	moved   bool // to a layout that the backup does not know
	rooms   []*process
	ids     map[string]bool
}

func newMatrix(t *testing.T, without bool) *matrix {
	t.Helper()
	m := &matrix{etcd: ledgertest.StartEtcd(t), dir: t.TempDir(), without: without, ids: make(map[string]bool)}
	m.store = m.etcd.Store(t)
	var err error
	if m.base, err = freeBase(); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.New(m.store, ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	layout, err := allocator.EqualLayout(100, []allocator.Room{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.New(l, admin.DefaultConfig()).Init(t.Context(), layout, "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.New(l, admin.DefaultConfig()).CreateTag(t.Context(), "order", record.DefaultTag(), "test"); err != nil {
		t.Fatal(err)
	}
	m.start(t)
	return m
}

// move makes a layout that the backup does not know, and waits until both rooms
// serve it.
func (m *matrix) move(t *testing.T) {
	t.Helper()
	m.moved = true
	l, err := ledger.New(m.store, ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	from, err := l.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	to := allocator.Layout{Boundary: 90, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 50, Upper: 90}, "b": {Lower: 5, Upper: 50}}}
	if _, err := admin.New(l, admin.DefaultConfig()).ChangeLayout(t.Context(), from, to, "test"); err != nil {
		t.Fatal(err)
	}
	if err := poll(patience(t), func() bool {
		return strings.Contains(m.value(t, "rooms/a/a-0"), `"version":"2"`) && strings.Contains(m.value(t, "rooms/b/b-0"), `"version":"2"`)
	}); err != nil {
		t.Fatalf("layout 2 is not served: %v", err)
	}
}

func (m *matrix) address(i int) string { return fmt.Sprintf("127.0.0.1:%d", m.base+i) }

// start starts the rooms' processes. It does not wait for them to be ready: they
// are not while leasing is halted.
func (m *matrix) start(t *testing.T) {
	t.Helper()
	m.rooms = nil
	for i, room := range []string{"a", "b"} {
		journal := filepath.Join(m.dir, "journal")
		if m.without {
			journal = "off"
		}
		p := begin(t, m.dir, nil, "room", room, "--etcd", m.etcd.Endpoint, "--name", room+"-0",
			"--grpc", m.address(i), "--http", "", "--journal", journal)
		m.rooms = append(m.rooms, p)
		p.ready(t)
	}
}

func (m *matrix) kill() {
	for _, p := range m.rooms {
		_ = p.cmd.Process.Signal(syscall.SIGKILL)
		<-p.done
	}
}

// tryNext asks each room for n IDs, and reports whether all were given.
func (m *matrix) tryNext(t *testing.T, n int) bool {
	t.Helper()
	all := true
	for i := range m.rooms {
		stdout, stderr, code := march(t, "id", "next", "order", "--count", strconv.Itoa(n), "--room", m.address(i))
		if code != exitOK {
			t.Logf("room %d: exit code %d, %s", i, code, stderr)
			all = false
		}
		for id := range strings.Lines(stdout) {
			if m.ids[id] {
				t.Errorf("room %d: ID %s was issued twice", i, strings.TrimSpace(id))
			}
			m.ids[id] = true
		}
	}
	return all
}

// leases asks each room for IDs, and reports whether both have leased in the epoch in
// force: for up to half a second after a recover they do not know of it.
func (m *matrix) leases(t *testing.T) bool {
	t.Helper()
	var in struct{ Epoch string }
	if err := json.Unmarshal([]byte(m.value(t, "epoch")), &in); err != nil || in.Epoch == "" {
		return false
	}
	return m.tryNext(t, 10_000) && strings.Contains(m.value(t, "marks/a/order"), in.Epoch) && strings.Contains(m.value(t, "marks/b/order"), in.Epoch)
}

// next is tryNext until all are given: a machine that is busy may break a connection.
func (m *matrix) next(t *testing.T, n int) {
	t.Helper()
	if err := poll(patience(t), func() bool { return m.tryNext(t, n) }); err != nil {
		t.Errorf("not all of %d IDs were given: %v", n, err)
	}
}

// age makes etcd's raft log one of a cluster that is not just born, and has the
// beat say so: a log that is restored must not be past it at once.
func (m *matrix) age(t *testing.T) {
	t.Helper()
	do := func(op store.Op) {
		if _, err := m.store.Txn(t.Context(), store.Txn{Then: []store.Op{op}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1_000 {
		do(store.Op{Put: &store.Put{Key: "other", Value: fmt.Append(nil, i)}})
	}
	do(store.Op{Delete: "/march/default/beat"})
	if err := poll(patience(t), func() bool { return m.value(t, "beat") != "" }); err != nil {
		t.Fatalf("no beat: %v", err)
	}
}

func (m *matrix) value(t *testing.T, key string) string {
	t.Helper()
	answer, err := m.store.Txn(t.Context(), store.Txn{Then: []store.Op{{Get: &store.Get{Interval: store.Interval{Key: "/march/default/" + key}}}}})
	if err != nil || len(answer.Got[0]) == 0 {
		return ""
	}
	return string(answer.Got[0][0].Value)
}

func (m *matrix) halted(t *testing.T) bool { return strings.Contains(m.value(t, "epoch"), `"halted"`) }

// recover runs the runbook's commands, on another etcd cluster perhaps.
func (m *matrix) recover(t *testing.T, rooms string, elsewhere bool) {
	t.Helper()
	args := []string{"recover", "--etcd", m.etcd.Endpoint, "--quiet", "--wait", "2s", "--timeout", "20s"}
	if rooms != "alive" && elsewhere && !m.without { // they could not start there, and are known by their journals
		files, err := filepath.Glob(filepath.Join(m.dir, "journal", "*", "*", "*.journal"))
		if err != nil || len(files) != 2 {
			t.Fatalf("journals: %v, %v", files, err)
		}
		for _, file := range files {
			args = append(args, "--journal", file)
		}
	}
	var before string
	if err := poll(patience(t), func() bool { before = m.value(t, "epoch"); return before != "" }); err != nil {
		t.Fatal(err)
	}
	if rooms == "alive" && m.moved { // they know a layout that the backup does not
		stdout, stderr, code := march(t, append(args, "--yes")...)
		if code != exitFailed || !strings.Contains(stdout, "boundary 90 -> 100") || !strings.Contains(stderr, "--layout known") || m.value(t, "epoch") != before {
			t.Errorf("without a choice of layout: exit code %d\n%s%s", code, stdout, stderr)
		}
		args = append(args, "--layout", "known")
	}
	if m.without && rooms != "alive" {
		stdout, stderr, code := march(t, append(args, "--yes")...)
		if code != exitFailed || !strings.Contains(stdout, "missing") || !strings.Contains(stderr, "did not answer") || m.value(t, "epoch") != before {
			t.Errorf("without journals: exit code %d\n%s%s", code, stdout, stderr)
		}
		args = append(args, "--without", "a/a-0,b/b-0")
	}
	stdout, stderr, code := march(t, args...)
	if code != exitOK || !strings.Contains(stdout, "nothing is done yet") || m.value(t, "epoch") != before {
		t.Errorf("dry run: exit code %d\n%s%s", code, stdout, stderr)
	}
	args = append(args, "--yes")
	stdout, stderr, code = march(t, args...)
	if code != exitOK || !strings.Contains(stdout, "epoch ") {
		t.Fatalf("recover: exit code %d\n%s%s", code, stdout, stderr)
	}
	if named := strings.Contains(stdout, "missing"); named {
		t.Errorf("recover:\n%s", stdout)
	}
}

// A look that finds instances missing exits with 1, says what to do by flags that there
// are, and logs no error: it printed the halt that the operator had made as one.
func TestRecoverLooks(t *testing.T) {
	t.Parallel()
	m := newMatrix(t, true)
	m.next(t, 10)
	m.kill()
	if stdout, stderr, code := march(t, "halt", "--etcd", m.etcd.Endpoint, "--yes"); code != exitOK || stderr != "" {
		t.Errorf("halt: exit code %d\n%s%s", code, stdout, stderr)
	}
	look := []string{"recover", "--etcd", m.etcd.Endpoint, "--quiet", "--margin", "1"}
	stdout, stderr, code := march(t, look...)
	if code != exitFailed || strings.Count(stdout, "missing ") != 2 || !strings.Contains(stdout, "nothing is done yet") ||
		!strings.HasPrefix(stderr, "march recover: 2 instances did not answer") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("a look: exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, yes := range []string{"--yes=false", "--yes"} {
		stdout, stderr, code = march(t, append(look, "--wait", "0s", "--without", "a/a-0,b/b-0", yes)...)
		if code != exitOK || stderr != "" {
			t.Errorf("recover %s: exit code %d\n%s%s", yes, code, stdout, stderr)
		}
	}
}

// Every flag that recover's errors name is one of its own.
func TestRecoverNamesItsFlags(t *testing.T) {
	files, err := filepath.Glob("../../allocator/ledger/recovery/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	cmd, named := newRecover(&common{}), 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range regexp.MustCompile("[ (]--([a-z][a-z-]*)").FindAllStringSubmatch(string(text), -1) {
			named++
			if cmd.Flag(flag[1]) == nil {
				t.Errorf("%s names --%s, which recover lacks", file, flag[1])
			}
		}
	}
	if named < 5 {
		t.Errorf("%d flags are named", named)
	}
}

// Where journals are by default.
func TestJournalDir(t *testing.T) {
	for _, test := range []struct{ set, state, xdg, home, want string }{
		{"off", "/s", "/x", "/h", ""},
		{"/j", "/s", "/x", "/h", "/j"},
		{"", "/s:/t", "/x", "/h", "/s"},
		{"", "", "/x", "/h", "/x/march"},
		{"", "", "relative", "/h", "/h/.local/state/march"},
		{"", "", "", "/h", "/h/.local/state/march"},
	} {
		t.Setenv("STATE_DIRECTORY", test.state)
		t.Setenv("XDG_STATE_HOME", test.xdg)
		t.Setenv("HOME", test.home)
		if got, err := journalDir(test.set); err != nil || got != test.want {
			t.Errorf("%+v: %q, %v", test, got, err)
		}
	}
	t.Setenv("HOME", "")
	_ = os.Unsetenv("HOME")
	if _, err := journalDir(""); allocator.KindOf(err) != allocator.Invalid || !slices.Contains(strings.Fields(err.Error()), "--journal") {
		t.Errorf("without a home: %v", err)
	}
}
