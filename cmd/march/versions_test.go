package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/overlay"
	"github.com/march-id/march/internal/programs"
)

// newField is what the next version of the program adds to every value that may
// have fields of a newer version, as it is written.
const newField = `"new":"<of the next version>"`

// nextVersion is how the next version differs from this one: a text of a source file
// and what takes its place. A text that is not there exactly once fails the test.
var nextVersion = []struct{ file, from, to string }{
	{"codec.go", "type kept struct {\n", "type kept struct {\n	New string `json:\"new,omitempty\"`\n"},
	{"codec.go", "func Encode(v Value) []byte {\n", `func (k *kept) next() { k.New = "<of the next version>" }

func Encode(v Value) []byte {
	if k, is := v.(interface{ next() }); is {
		k.next()
	}
	return asRead(v)
}

func asRead(v Value) []byte {
`},
	{"codec.go", "bytes.Equal(Encode(v), b)", "bytes.Equal(asRead(v), b)"},
	{"codec.go", "return same(b, Encode(v))", "return same(b, asRead(v))"},
}

// buildNext builds the next version and returns the program.
func buildNext(t *testing.T) string {
	t.Helper()
	programs.OnlyInAll(t, "of two versions")
	dir := t.TempDir()
	var edits []overlay.Edit
	for _, e := range nextVersion {
		edits = append(edits, overlay.Edit{File: filepath.Join("..", "..", "allocator", "ledger", "record", e.file),
			From: e.from, To: e.to})
	}
	file, err := overlay.Write(dir, edits)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "next")
	args := []string{"build", "-buildvcs=false", "-overlay", file, "-o", program, "."}
	cmd := exec.CommandContext(t.Context(), "go", args...) //nolint:gosec // the project's own
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")        // as a release is built
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return program
}

// versions is a cluster in which two versions of the program run.
type versions struct {
	*processCluster
	writer   string // the program that writes newField; empty if none of the two does
	consoles int
}

func newVersions(t *testing.T, writer string) *versions {
	t.Helper()
	v := &versions{processCluster: newProcessCluster(t), writer: writer}
	v.init()
	v.issue(300)
	return v
}

// newVersionsOf is a cluster that another version of the program made.
func newVersionsOf(t *testing.T, program string) *versions {
	t.Helper()
	v := &versions{processCluster: newProcessCluster(t)}
	console, address := v.console(program)
	layout := filepath.Join(v.dir, "layout.json")
	if err := os.WriteFile(layout,
		[]byte(`{"boundary":100,"rooms":{"a":{"lower":0,"upper":50},"b":{"lower":50,"upper":100}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	runs(t, program, "layout", "init", layout, "--console", address)
	runs(t, program, "tag", "create", "order", "--max-step", "100000", "--console", address)
	v.signal(console, syscall.SIGTERM)
	v.startAs(program, "a-0")
	v.startAs(program, "b-0")
	v.issue(300)
	return v
}

// hasField checks whether a value has the field of the next version.
func (v *versions) hasField(key string, want bool) {
	v.Helper()
	if value := v.value(key); v.writer != "" && strings.Contains(value, newField) != want {
		v.Errorf("%s: %s; want the next version's field: %v", key, value, want)
	}
}

// replace starts an instance again as another version, under its name.
func (v *versions) replace(name, program string) {
	v.Helper()
	v.signal(name, syscall.SIGTERM)
	v.startAs(program, name)
	v.issue(3_000)
}

// console starts a console, and returns its name and its address.
func (v *versions) console(program string) (name, address string) {
	v.Helper()
	v.consoles++
	name = fmt.Sprintf("%s-%d", consoleName, v.consoles)
	v.startAs(program, name)
	return name, v.address(name)
}

// does runs a command that must succeed, and returns what it wrote.
func does(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, code := march(t, args...)
	if code != exitOK {
		t.Errorf("march %v: exit code %d\n%s%s", args, code, stdout, stderr)
	}
	return stdout, stderr
}

// migrate moves the border of the two rooms. One console begins the migration, which
// waits for an instance of the room that loses residues, and stops; another one ends
// it.
func (v *versions) migrate(begins, ends, move string) {
	v.Helper()
	loses, _, _ := strings.Cut(move, ":")
	late, err := v.admin.Ledger.Join(v.Context(), ledger.Registration{Room: allocator.Room(loses),
		Name: "late", Hold: time.Hour})
	if err != nil {
		v.Fatal(err)
	}
	first, address := v.console(begins)
	plan := filepath.Join(v.dir, "plan.json")
	does(v.T, "migrate", "plan", "--move", move, "--out", plan, "--console", address)
	var begun struct{ ID string }
	stdout, _ := does(v.T, "migrate", "apply", plan, "--yes", "--detach", "-o", "json", "--console", address)
	if err := json.Unmarshal([]byte(stdout), &begun); err != nil || begun.ID == "" {
		v.Fatalf("%v: %s", err, stdout)
	}
	v.signal(first, syscall.SIGTERM)
	key := "migrations/" + begun.ID
	v.hasField(key, begins == v.writer)
	second, address := v.console(ends)
	if err := late.Leave(v.Context()); err != nil {
		v.Fatal(err)
	}
	v.until("the migration ends", func() bool { return strings.Contains(v.value(key), `"state":"done"`) })
	v.hasField(key, true)
	v.issue(3_000)
	does(v.T, "tag", "update", "order", "--max-skew", strconv.Itoa(1_000_000+v.consoles), "--console", address)
	if ends == v.writer {
		v.hasField("tags/order", true)
	}
	v.issue(3_000)
	v.signal(second, syscall.SIGTERM)
}

// TestTwoVersions runs this version beside the next one, which adds a field to every
// value that may have one: rooms are upgraded one after the other and go back again,
// with migrations in between that one version begins and the other ends. No ID comes
// twice, and the field stays in what this version wrote again. Unknown fields were
// refused everywhere, so an upgrade had to stop the whole cluster.
func TestTwoVersions(t *testing.T) {
	t.Parallel()
	next := buildNext(t)
	v := newVersions(t, next)
	for _, step := range []struct{ to, first, second string }{
		{next, "a:40-50=b", "b:40-45=a"}, {"march", "b:45-50=a", "a:40-50=b"},
	} {
		v.replace("a-0", step.to)
		v.migrate(next, "march", step.first)
		v.replace("b-0", step.to)
		v.migrate("march", next, step.second)
		for _, room := range []string{"a", "b"} {
			v.hasField("rooms/"+room+"/"+room+"-0", step.to == next)
		}
		for _, key := range []string{"epoch", "layout"} {
			if strings.Contains(v.value(key), `"new"`) {
				t.Errorf("%s: %s", key, v.value(key))
			}
		}
	}
	v.hasField("tags/order", true)
	v.verify(next)
	v.future()
	t.Logf("%d IDs, none twice", v.unique())
}

// verify runs the check of the cluster in both versions.
func (v *versions) verify(other string) {
	v.Helper()
	stdout, stderr := does(v.T, "verify", "--etcd", v.etcd.Endpoint)
	if !strings.Contains(stdout, "nothing wrong") {
		v.Errorf("verify:\n%s%s", stdout, stderr)
	}
	if out := runs(v.T, other, "verify", "--etcd", v.etcd.Endpoint); !strings.Contains(out, "nothing wrong") {
		v.Errorf("verify of the other version:\n%s", out)
	}
}

// runs runs a command of another version, which must succeed.
func runs(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput() //nolint:gosec // a test built it
	if err != nil {
		t.Errorf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// future puts values of a format that neither version knows: lists name them, only
// what needs one of them fails.
func (v *versions) future() {
	v.Helper()
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	for _, key := range []string{"tags/future", "rooms/b/future", "migrations/" + id} {
		v.put(key, `{"format":9,"build":"v9.9.9"}`)
	}
	_, address := v.console("march")
	for key, args := range map[string][]string{
		"tags/future": {"tag", "list"}, "rooms/b/future": {"instance", "list"}, "migrations/" + id: {"migrate", "list"},
	} {
		says := "/march/default/" + key + ": format 9, written by version v9.9.9"
		// The list of instances has it among its problems, the others on stderr.
		if stdout, stderr := does(v.T, append(args, "--console", address)...); !strings.Contains(
			strings.ReplaceAll(stdout+stderr, `"`, ""), says) {
			v.Errorf("march %v: %s%s", args, stdout, stderr)
		}
		says = `"unreadable":[{"key":"/march/default/` + key
		if stdout, _ := does(v.T, append(args, "-o", "json", "--console",
			address)...); !strings.Contains(stdout, says) {
			v.Errorf("march %v: %s", args, stdout)
		}
	}
	does(v.T, "status", "--console", address)
	does(v.T, "migrate", "plan", "--move", "a:30-40=b", "--console", address)
	v.issue(3_000)
	for _, test := range []struct {
		code int // to a caller the room is unavailable: nothing that it sends mends the value
		args []string
	}{
		{exitUnavailable, []string{"id", "next", "future", "--room", v.address("a-0")}},
		{exitFailed, []string{"tag", "show", "future", "--console", address}},
		{exitFailed, []string{"migrate", "status", id, "--console", address}},
	} {
		_, stderr, code := march(v.T, test.args...)
		if code != test.code || !strings.Contains(stderr, "format 9, written by version v9.9.9") {
			v.Errorf("march %v: exit code %d, %s", test.args, code, stderr)
		}
	}
}

// previous is the program of the version before this one, for all tests that run it.
var previous struct {
	sync.Mutex
	program string
}

// buildPrevious builds march from the commit that testdata/previous names, once for all tests, and returns
// the program. It skips the test where that commit is not to be had: in a shallow clone, or an unpacked archive.
func buildPrevious(t *testing.T) string {
	t.Helper()
	programs.OnlyInAll(t, "of two versions")
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "testdata", "previous"))
	if err != nil {
		t.Fatal(err)
	}
	commit := ""
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			commit += strings.TrimSpace(line)
		}
	}
	if out, err := runIn(t, root, programs.Find(t, "git"), "cat-file", "-e", commit+"^{commit}"); err != nil {
		t.Logf("%v\n%s", err, out)
		t.Skipf("NOT RUN: tests of two versions (git cannot read the commit %s, which testdata/previous names: "+
			"git fetch --unshallow, or git fetch origin %[1]s)", commit)
	}
	previous.Lock()
	defer previous.Unlock()
	if previous.program != "" {
		return previous.program
	}
	dir, err := os.MkdirTemp(os.Getenv("XDG_STATE_HOME"), "previous-") // it goes when all tests have ended
	if err != nil {
		t.Fatal(err)
	}
	archive, source, program := filepath.Join(dir, "source.tar"), filepath.Join(dir, "source"),
		filepath.Join(dir, "previous")
	if err := os.Mkdir(source, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		in   string
		args []string
	}{
		{root, []string{"git", "archive", "--output", archive, commit}},
		{source, []string{"tar", "-xf", archive}},
		{source, []string{"go", "build", "-buildvcs=false", "-o", program, "./cmd/march"}},
	} {
		if out, err := runIn(t, step.in, step.args...); err != nil {
			t.Fatalf("%v: %v\n%s", step.args, err, out)
		}
	}
	previous.program = program
	return program
}

// runIn runs a program in a folder.
func runIn(t *testing.T, dir string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...) //nolint:gosec // buildPrevious's
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0") // what it builds is a release
	return cmd.CombinedOutput()
}

// TestPreviousVersion runs this version beside the one that testdata/previous names, as
// that one was built. Rooms of the previous version are upgraded in either order and go
// back again; in between, one version begins a migration and the other ends it. No ID
// comes twice, and each version's commands work with the other's servers.
func TestPreviousVersion(t *testing.T) {
	t.Parallel()
	previous := buildPrevious(t)
	v := newVersionsOf(t, previous)
	v.recovers(previous)
	for _, order := range [][]string{{"a-0", "b-0"}, {"b-0", "a-0"}} {
		v.replace(order[0], previous)
		v.replace(order[1], previous)
		v.replace(order[0], "march")
		v.migrate(previous, "march", "a:40-50=b")
		v.replace(order[1], "march")
		v.migrate("march", previous, "b:40-50=a")
	}
	console, address := v.console("march")
	runs(t, previous, "status", "--console", address)
	runs(t, previous, "tag", "show", "order", "--console", address)
	v.signal(console, syscall.SIGTERM)
	for line := range strings.Lines(runs(t, previous, "id", "next", "order", "--count", "300",
		"--room", v.address("a-0"))) {
		id, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			t.Error(err)
		}
		v.runs["order"] = append(v.runs["order"], issuedRun{id, 1, "a-0, asked by the previous version"})
	}
	v.verify(previous)
	v.reserves(previous)
	v.upgrades(previous)
	t.Logf("%d IDs, none twice", v.unique())
}

// recovers restores a backup and recovers with each version, while an instance of each runs, and again
// from the journal of an instance of the other version that was killed and leased since. No instance is
// called missing, the marks that one of them leased are raised, and all go on.
func (v *versions) recovers(previous string) {
	v.Helper()
	v.replace("a-0", "march")
	s := &scenario{processCluster: v.processCluster}
	raised := regexp.MustCompile(`raised +2 marks`)
	for _, step := range []struct{ by, name, program, next string }{
		{previous, "a-0", "march", previous}, {"march", "b-0", previous, "march"},
	} {
		for _, killed := range []bool{false, true} {
			s.do("age", nil)
			s.do("backup", nil)
			v.lease()
			flags := []string{"--yes"}
			if killed {
				v.signal(step.name, syscall.SIGKILL)
				flags = append(flags, "--journal", v.journal(step.name))
			}
			s.do("restore", nil)
			v.until("leasing is halted", v.halted)
			out := runs(v.T, step.by, v.recovery(flags...)...)
			if !raised.MatchString(out) || strings.Contains(out, "without ") {
				v.Errorf("recover by %s, killed %v:\n%s", step.by, killed, out)
			}
			if killed { // it goes on with the journal of the other version
				v.startAs(step.next, step.name)
			}
			v.leases()
		}
	}
	v.verify(previous)
}

// reserves reserves a range while an instance of the previous version runs. That version
// does not know reserved ranges, and must not issue their IDs: it leases nothing, says why,
// issues what it holds, and goes on once it is upgraded.
func (v *versions) reserves(previous string) {
	v.Helper()
	v.replace("a-0", previous)
	console, address := v.console("march")
	target, plan := filepath.Join(v.dir, "target.json"), filepath.Join(v.dir, "reserve.json")
	if err := os.WriteFile(target,
		[]byte(`{"boundary":100,"rooms":{"a":{"lower":0,"upper":50},"b":{"lower":50,"upper":90}},"reserved":{"elsewhere":{"lower":90,"upper":100}}}`), 0o600); err != nil {
		v.Fatal(err)
	}
	does(v.T, "migrate", "plan", "--target", target, "--out", plan, "--console", address)
	does(v.T, "migrate", "apply", plan, "--yes", "--console", address)

	says := "fields that this program does not know"
	v.logged("a-0", says)
	v.issue(10, "a-0") // which it holds
	out, err := runIn(v.T, v.dir, previous, "verify", "--etcd", v.etcd.Endpoint)
	if err == nil || !strings.Contains(string(out), says) ||
		!strings.Contains(string(out), "use the version of the program that wrote it") {
		v.Errorf("verify of the previous version: %v\n%s", err, out)
	}
	if out, _ := does(v.T, "layout", "show", "--console", address); !strings.Contains(out, "reserved: elsewhere") {
		v.Errorf("the layout is\n%s", out)
	}
	v.issue(3_000, "b-0")
	v.replace("a-0", "march")
	// The previous version reads a layout again once the one before it has no reserved range either.
	for _, change := range [][]string{{"--release", "elsewhere"}, {"--move", "a:49-50=b"}} {
		does(v.T, append([]string{"migrate", "plan", "--out", plan, "--console", address}, change...)...)
		does(v.T, "migrate", "apply", plan, "--yes", "--console", address)
	}
	v.signal(console, syscall.SIGTERM)
}

// upgrades turns on the formats that the previous version does not know. That is refused while
// an instance of that version is registered, silent or not. Afterwards such an instance leases
// nothing and says why, nor does that version recover the cluster.
func (v *versions) upgrades(previous string) {
	v.Helper()
	v.replace("a-0", previous)
	console, address := v.console("march")
	layout := v.value("layout")
	upgrade := func(code int, args ...string) string {
		v.Helper()
		stdout, stderr, got := march(v.T, append(append([]string{"cluster", "upgrade"}, args...),
			"--console", address)...)
		if got != code {
			v.Fatalf("march cluster upgrade %v: exit code %d\n%s%s", args, got, stdout, stderr)
		}
		return stdout + stderr
	}
	v.signal("a-0", syscall.SIGKILL) // it stays registered
	says := "a/a-0 (build "
	for _, args := range [][]string{nil, {"--yes"}, {"--yes", "-o", "json"}} {
		if out := upgrade(exitFailed, args...); !strings.Contains(out, says) ||
			!strings.Contains(out, "upgrade it first") {
			v.Errorf("march cluster upgrade %v:\n%s", args, out)
		}
	}
	v.start("a-0")
	v.issue(3_000)
	if out := upgrade(exitOK); !strings.Contains(out, "nothing was changed: --yes turns 2 on") {
		v.Errorf("march cluster upgrade:\n%s", out)
	}
	if out, _, _ := march(v.T, "doctor", "--console", address); !strings.Contains(out, "all instances know 2") {
		v.Errorf("doctor:\n%s", out)
	}
	if now := v.value("layout"); now != layout {
		v.Errorf("the layout is %s; want %s", now, layout)
	}
	if out := upgrade(exitOK, "--yes"); !strings.Contains(out, "formats 2 are turned on") {
		v.Errorf("march cluster upgrade --yes:\n%s", out)
	}
	if out := upgrade(exitOK, "--yes"); !strings.Contains(out, "knows none above 2") {
		v.Errorf("march cluster upgrade --yes, again:\n%s", out)
	}
	if out, _ := does(v.T, "audit", "list", "--console", address); strings.Count(out, "upgrade formats") != 1 {
		v.Errorf("audit:\n%s", out)
	}
	v.issue(3_000)

	v.signal("a-0", syscall.SIGTERM)
	// Without a journal: the previous version cannot read that of this one.
	old := beginAs(v.T, v.dir, nil, previous, "room", "a", "--name", "a-0", "--etcd", v.etcd.Endpoint,
		"--grpc", v.address("a-0"), "--http", "")
	v.servers["a-0"] = old
	v.logged("a-0", "format 3")
	if err := v.take("a-0", "order", 1); err == nil {
		v.Error("the previous version issues IDs after the upgrade")
	}
	out, err := runIn(v.T, v.dir, previous, "recover", "--etcd", v.etcd.Endpoint, "--yes", "--wait", "0s")
	if err == nil {
		v.Errorf("recover of the previous version:\n%s", out)
	}
	v.issue(3_000, "b-0")
	if _, err := old.stop(patience(v.T), syscall.SIGKILL); err != nil {
		v.Error(err)
	}
	v.start("a-0")
	v.issue(3_000)
	v.signal(console, syscall.SIGTERM)
}

// prints runs a program, and checks its exit code and that it prints texts. It returns what it printed.
func (v *versions) prints(program string, args []string, code int, texts ...string) string {
	v.Helper()
	out, err := runIn(v.T, v.dir, append([]string{program}, args...)...)
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
				!strings.Contains(line, "not a key of this program; it stops nothing") { // its words, not this one's
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
