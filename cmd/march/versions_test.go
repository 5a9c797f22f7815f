//go:build live

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/internal/overlay"
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
