//go:build live

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/march-id/march/allocator/ledger/store"
)

// prints runs a program, and checks its exit code and that it prints texts. It returns what it printed.
func (v *versions) prints(program string, args []string, code int, texts ...string) string {
	v.Helper()
	out, err := command(v.T, v.dir, append([]string{program}, args...)...)
	if (err == nil) != (code == exitOK) {
		v.Errorf("%s %v: %v; want exit code %d\n%s", filepath.Base(program), args, err, code, out)
	}
	for _, text := range texts {
		if !strings.Contains(string(out), text) {
			v.Errorf("%s %v does not print %q:\n%s", filepath.Base(program), args, text, out)
		}
	}
	return string(out)
}

// recovery are the arguments of a recover.
func (v *versions) recovery(flags ...string) []string {
	return append([]string{"recover", "--etcd", v.etcd.Endpoint, "--wait", "0s"}, flags...)
}

// journal returns the journal of an instance.
func (v *versions) journal(name string) string {
	v.Helper()
	files, err := filepath.Glob(filepath.Join(v.dir, "journal", "*", roomOf(name), name+".journal"))
	if err != nil || len(files) != 1 {
		v.Fatalf("journals of %s: %v, %v", name, files, err)
	}
	return files[0]
}

// leaving stops an instance in good order, and returns its last registration.
func (v *versions) leaving(name string) (key string, last []byte) {
	v.Helper()
	key = "/march/default/rooms/" + roomOf(name) + "/" + name
	at, err := v.store.Txn(v.Context(), store.Txn{Then: []store.Op{store.OpGet(key)}})
	if err != nil {
		v.Fatal(err)
	}
	v.signal(name, syscall.SIGTERM)
	for change := range v.store.Watch(v.Context(), []store.Interval{{Key: key}}, at.Revision+1) {
		if change.Err != nil {
			v.Fatal(change.Err)
		}
		for _, kv := range change.KVs {
			if kv.ModRevision == 0 {
				return key, last
			}
			last = kv.Value
		}
	}
	v.Fatal("the watch ended")
	return key, nil
}

// machineID has a client of CosId take a machine ID, of residues that the layout reserves for them.
func (v *versions) machineID(console string) {
	v.Helper()
	v.file("target.json", `{"boundary":100, "rooms":{"a":{"lower":0,"upper":45}, "b":{"lower":50,"upper":100}},
		"reserved":{"cosid":{"lower":45,"upper":50}}}`)
	target, plan := filepath.Join(v.dir, "target.json"), filepath.Join(v.dir, "plan.json")
	does(v.T, "migrate", "plan", "--target", target, "--out", plan, "--console", console)
	does(v.T, "migrate", "apply", plan, "--yes", "--console", console)
	door := v.address("door")
	v.startAs("march", "a-1", "--cosid", door, "--cosid-machines", "cosid")
	url := "http://" + door +
		"/machines/shop?machineBit=10&instanceId=10.0.0.7:8080&stable=false&safeGuardDuration=PT5M"
	r, err := http.NewRequestWithContext(v.Context(), http.MethodPost, url, http.NoBody)
	if err != nil {
		v.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		v.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), `"machineId":`) {
		v.Fatalf("%v: %s", err, text)
	}
	v.signal("a-1", syscall.SIGTERM)
}

// An instance was killed, started again, and stopped in good order. Its last registration covers the
// killed process. A recover asks nothing of it where an instance of this version saw the leave. Where
// one of the previous version did, only a store with that registration tells, and only this version's
// recover. An instance of the previous version covers nothing.
func TestPreviousVersionCovers(t *testing.T) {
	t.Parallel()
	previous := buildPrevious(t)
	const killed = "missing   a/a-0, process "
	for _, test := range []struct {
		name, leaver, witness string
		covers, tells         bool // the registration of the killed process; the witness of it
	}{
		{"both of this version", "march", "march", true, true},
		{"the leaver", "march", previous, true, false},
		{"the witness", previous, "march", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := newVersionsOf(t, previous)
			v.replace("b-0", test.witness)
			v.replace("a-0", test.leaver)
			v.signal("a-0", syscall.SIGKILL)
			v.startAs(test.leaver, "a-0")
			v.issue(3_000)
			key, last := v.leaving("a-0")
			if covers := strings.Contains(string(last), `"covers":["`); covers != test.covers {
				t.Errorf("%s; it covers the killed process: want %v", last, test.covers)
			}
			v.age()
			runs(t, "march", "halt", "--etcd", v.etcd.Endpoint, "--yes")
			asks := func(program string, want bool) {
				t.Helper()
				code := exitOK
				if want {
					code = exitFailed
				}
				out := v.prints(program, v.recovery(), code, "1 instance left in good order")
				if strings.Contains(out, killed) != want {
					t.Errorf("recover of %s asks for the killed process: want %v\n%s", program, want, out)
				}
			}
			asks("march", !test.tells)
			asks(previous, !test.tells)
			v.txn(store.OpPut(key, last)) // as a backup from before the registration was deleted has it
			asks("march", !test.covers)
			asks(previous, !test.tells)
		})
	}
}

// TestPreviousVersionFormats holds the table of docs/upgrade.md against the previous version: what
// it does with each format that march cluster upgrade turns on.
func TestPreviousVersionFormats(t *testing.T) {
	t.Parallel()
	previous := buildPrevious(t)
	v := newVersionsOf(t, previous)
	_, address := v.console("march")
	operate := func(args ...string) { v.Helper(); does(t, append(args, "--console", address)...) }
	operate("tag", "create", "event", "--kind", "time", "--preset", "cosid")
	operate("tag", "create", "gone")
	operate("tag", "create", "later")
	v.replace("a-0", "march")
	timed := make(map[string]string)
	times := func(names ...string) { // time-ordered IDs
		t.Helper()
		for _, name := range names {
			ids := runs(t, "march", "id", "next", "event", "--count", "50", "--room", v.address(name))
			for id := range strings.Lines(ids) {
				if by, twice := timed[id]; twice {
					t.Errorf("%s came from %s and from %s", id, by, name)
				}
				timed[id] = name
			}
		}
	}
	times("a-0", "b-0")
	for _, tag := range []string{"gone", "later"} {
		runs(t, previous, "id", "next", tag, "--room", v.address("a-0"))
	}
	operate("tag", "delete", "gone", "--yes")
	if now := v.value("tags/gone"); now != "" {
		t.Errorf("a tombstone before the upgrade: %s", now)
	}
	runs(t, previous, "verify", "--etcd", v.etcd.Endpoint)
	s := &scenario{processCluster: v.processCluster}
	s.do("age", nil)
	s.do("backup", nil)
	old, err := os.ReadFile(v.journal("b-0"))
	if err != nil {
		t.Fatal(err)
	}
	v.file("b-0.journal", string(old))

	// The upgrade does not wait for an instance that an operator had the cluster forget.
	v.signal("b-0", syscall.SIGSTOP)
	operate("instance", "forget", "b", "b-0", "--yes")
	operate("cluster", "upgrade", "--yes")
	v.signal("b-0", syscall.SIGCONT)
	v.logged("b-0", "layout refused")
	times("a-0")
	v.refused("b-0", "format 3; this program knows format 2")

	for key, want := range map[string]string{"tags/gone": `"deleted":`, "tags/later": ``, "tags/order": ``} {
		if now := v.value(key); !strings.Contains(now, want) || want != "" && !strings.HasPrefix(now, `{"format":6,`) {
			t.Errorf("%s: %s", key, now)
		}
	}
	operate("tag", "delete", "later", "--yes")
	operate("tag", "skip", "order", "--to", "200000")
	v.lease("a-0")
	times("a-0")
	const damaged, layout = "format 6; this program knows format 2", "layout: format 3; this program knows format 2"
	_, older := v.console(previous)
	for _, tag := range []string{"gone", "later", "order"} {
		v.prints(previous, []string{"tag", "show", tag, "--console", older}, exitFailed, "tags/"+tag+": "+damaged)
	}
	operates := func(code int, args ...string) {
		t.Helper()
		v.prints(previous, append(args, "--console", older), code)
	}
	operates(exitFailed, "tag", "create", "gone")
	operates(exitFailed, "migrate", "plan", "--move", "a:40-50=b")
	operates(exitFailed, "tag", "create", "timed", "--kind", "time", "--preset", "cosid")
	operates(exitFailed, "tag", "delete", "event")
	operates(exitOK, "tag", "create", "old")
	operates(exitOK, "tag", "update", "old", "--max-step", "200000")
	operates(exitFailed, "tag", "delete", "old")
	v.prints(previous, []string{"layout", "show", "--console", older}, exitOK, layout)
	unknown := func(out string, prefixes ...string) {
		t.Helper()
		for _, prefix := range prefixes {
			if !strings.Contains(out, prefix) {
				t.Errorf("verify of the previous version says nothing of %s:\n%s", prefix, out)
			}
		}
		for line := range strings.Lines(out) {
			if slices.ContainsFunc(prefixes, func(of string) bool { return strings.Contains(line, of) }) &&
				!strings.Contains(line, "not a key of this program; it stops nothing") {
				t.Error(line)
			}
		}
	}
	unknown(v.prints(previous, []string{"verify", "--etcd", v.etcd.Endpoint}, exitFailed, layout,
		"tags/gone: "+damaged, "tags/later: "+damaged, "tags/order: "+damaged))
	v.prints(previous, v.recovery("--yes"), exitFailed, "the layout in etcd cannot be read")

	// A journal of this version has the formats, from its first lease under them on.
	const unread = `unknown field "formats"`
	v.prints(previous, v.recovery("--journal", v.journal("a-0")), exitFailed, unread)
	v.prints("march", v.recovery("--journal", "b-0.journal"), exitOK, "answered  b/b-0")
	v.signal("a-0", syscall.SIGKILL)
	p := beginAs(t, v.dir, nil, previous, "room", "a", "--name", "a-0", "--etcd", v.etcd.Endpoint, "--grpc",
		v.address("a-0"), "--http", "", "--journal", filepath.Join(v.dir, "journal"))
	if err := p.await(patience(t), unread); err != nil {
		t.Error(err)
	}
	<-p.done
	v.start("a-0")
	v.lease("a-0")

	// A recover with a margin writes in which periods it counts.
	v.signal("b-0", syscall.SIGKILL)
	runs(t, "march", "halt", "--etcd", v.etcd.Endpoint, "--yes")
	runs(t, "march", v.recovery("--yes", "--without", "b/b-0", "--margin", "3")...)
	const epoch = `fields that this program does not know: "margin_ends"`
	v.prints(previous, []string{"verify", "--etcd", v.etcd.Endpoint}, exitFailed, "epoch: "+epoch)
	v.prints(previous, []string{"status", "--console", older}, exitOK, epoch)
	operates(exitFailed, "migrate", "plan", "--move", "a:40-50=b")
	operates(exitFailed, "tag", "delete", "event")
	v.lease("a-0")

	// A store from before the upgrade. The recover of the previous version takes it, without the formats:
	// both versions lease. This version's recover turns the formats on again.
	s.do("restore", nil)
	v.until("leasing is halted", v.halted)
	runs(t, previous, v.recovery("--yes", "--without", "b/b-0")...)
	v.leases("a-0")
	v.startAs(previous, "b-0")
	v.leases("b-0")
	runs(t, previous, "verify", "--etcd", v.etcd.Endpoint)
	runs(t, "march", "halt", "--etcd", v.etcd.Endpoint, "--yes")
	runs(t, "march", v.recovery("--yes")...)
	var now struct{ Formats int }
	if err := json.Unmarshal([]byte(v.value("layout")), &now); err != nil || now.Formats != 2 {
		t.Errorf("%v, %s", err, v.value("layout"))
	}
	v.leases("a-0")
	v.refused("b-0", "the epoch in etcd cannot be used")

	v.signal("b-0", syscall.SIGKILL)
	operate("instance", "forget", "b", "b-0", "--yes") // a migration would wait for it
	v.machineID(address)
	unknown(v.prints(previous, []string{"verify", "--etcd", v.etcd.Endpoint}, exitFailed),
		"/clients/a/10/", "/windows/a/10/")
	t.Logf("%d IDs, none twice", v.unique())
}
