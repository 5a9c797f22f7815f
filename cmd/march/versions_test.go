package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/store"
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
		edits = append(edits, overlay.Edit{File: filepath.Join("..", "..", "allocator", "ledger", "record", e.file), From: e.from, To: e.to})
	}
	file, err := overlay.Write(dir, edits)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "next")
	args := []string{"build", "-buildvcs=false", "-overlay", file, "-o", program, "."}
	cmd := exec.CommandContext(t.Context(), "go", args...) //nolint:gosec // the project's own
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return program
}

// versions is a cluster in which two versions of the program run.
type versions struct {
	*matrix
	writer   string // the program that writes newField; empty if none of the two does
	consoles int
}

// hasField checks whether a value has the field of the next version.
func (v *versions) hasField(t *testing.T, key string, want bool) {
	t.Helper()
	if value := v.value(t, key); v.writer != "" && strings.Contains(value, newField) != want {
		t.Errorf("%s: %s; want the next version's field: %v", key, value, want)
	}
}

func (v *versions) begin(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p, err := startProcess(v.dir, nil, program, append(args, "--etcd", v.etcd.Endpoint, "--http", "")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p.ready(t)
}

func (v *versions) end(t *testing.T, p *process) {
	t.Helper()
	if code, err := p.stop(patience(t), syscall.SIGTERM); err != nil || code != exitOK {
		_, stderr := p.output()
		t.Errorf("%s: exit code %d, %v\n%s", p.cmd, code, err, stderr)
	}
}

// replace starts a room's process again as another version, under its name.
func (v *versions) replace(t *testing.T, i int, program string) {
	t.Helper()
	v.end(t, v.rooms[i])
	room := []string{"a", "b"}[i]
	journal := filepath.Join(v.dir, "journal")
	v.rooms[i] = v.begin(t, program, "room", room, "--name", room+"-0", "--grpc", v.address(i), "--journal", journal)
	v.next(t, 3_000)
}

// console starts a console and returns its address.
func (v *versions) console(t *testing.T, program string) (*process, string) {
	t.Helper()
	v.consoles++
	address := v.address(10 + v.consoles)
	return v.begin(t, program, "console", "--grpc", address), address
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
func (v *versions) migrate(t *testing.T, begins, ends, move string) {
	t.Helper()
	l, err := ledger.New(v.store, ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	loses, _, _ := strings.Cut(move, ":")
	late, err := l.Join(t.Context(), ledger.Registration{Room: allocator.Room(loses), Name: "late", Hold: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	first, address := v.console(t, begins)
	plan := filepath.Join(v.dir, "plan.json")
	does(t, "migrate", "plan", "--move", move, "--out", plan, "--console", address)
	var begun struct{ ID string }
	stdout, _ := does(t, "migrate", "apply", plan, "--yes", "--detach", "-o", "json", "--console", address)
	if err := json.Unmarshal([]byte(stdout), &begun); err != nil || begun.ID == "" {
		t.Fatalf("%v: %s", err, stdout)
	}
	v.end(t, first)
	key := "migrations/" + begun.ID
	v.hasField(t, key, begins == v.writer)
	second, address := v.console(t, ends)
	if err := late.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := poll(patience(t), func() bool { return strings.Contains(v.value(t, key), `"state":"done"`) }); err != nil {
		t.Fatalf("the migration does not end: %v\n%s", err, v.value(t, key))
	}
	v.hasField(t, key, true)
	v.next(t, 3_000)
	does(t, "tag", "update", "order", "--max-skew", strconv.Itoa(1_000_000+v.consoles), "--console", address)
	if ends == v.writer {
		v.hasField(t, "tags/order", true)
	}
	v.next(t, 3_000)
	v.end(t, second)
}

// TestTwoVersions runs this version beside the next one, which adds a field to every
// value that may have one: rooms are upgraded one after the other and go back again,
// with migrations in between that one version begins and the other ends. No ID comes
// twice, and the field stays in what this version wrote again. Unknown fields were
// refused everywhere, so an upgrade had to stop the whole cluster.
func TestTwoVersions(t *testing.T) {
	t.Parallel()
	next := buildNext(t)
	v := &versions{matrix: newMatrix(t, false), writer: next}
	v.next(t, 300)
	for _, step := range []struct{ to, first, second string }{
		{next, "a:40-50=b", "b:40-45=a"}, {"march", "b:45-50=a", "a:40-50=b"},
	} {
		v.replace(t, 0, step.to)
		v.migrate(t, next, "march", step.first)
		v.replace(t, 1, step.to)
		v.migrate(t, "march", next, step.second)
		for _, room := range []string{"a", "b"} {
			v.hasField(t, "rooms/"+room+"/"+room+"-0", step.to == next)
		}
		for _, key := range []string{"epoch", "layout"} {
			if strings.Contains(v.value(t, key), `"new"`) {
				t.Errorf("%s: %s", key, v.value(t, key))
			}
		}
	}
	v.hasField(t, "tags/order", true)
	v.verify(t, next)
	v.future(t)
	t.Logf("%d IDs, none twice", len(v.ids))
}

// verify runs the check of the cluster in both versions.
func (v *versions) verify(t *testing.T, other string) {
	t.Helper()
	stdout, stderr := does(t, "verify", "--etcd", v.etcd.Endpoint)
	if !strings.Contains(stdout, "nothing wrong") {
		t.Errorf("verify:\n%s%s", stdout, stderr)
	}
	if out := runs(t, other, "verify", "--etcd", v.etcd.Endpoint); !strings.Contains(out, "nothing wrong") {
		t.Errorf("verify of the other version:\n%s", out)
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
func (v *versions) future(t *testing.T) {
	t.Helper()
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	for _, key := range []string{"tags/future", "rooms/b/future", "migrations/" + id} {
		op := store.Op{Put: &store.Put{Key: "/march/default/" + key, Value: []byte(`{"format":9,"build":"v9.9.9"}`)}}
		if _, err := v.store.Txn(t.Context(), store.Txn{Then: []store.Op{op}}); err != nil {
			t.Fatal(err)
		}
	}
	_, address := v.console(t, "march")
	for key, args := range map[string][]string{
		"tags/future": {"tag", "list"}, "rooms/b/future": {"instance", "list"}, "migrations/" + id: {"migrate", "list"},
	} {
		says := "/march/default/" + key + ": format 9, written by version v9.9.9"
		// The list of instances has it among its problems, the others on stderr.
		if stdout, stderr := does(t, append(args, "--console", address)...); !strings.Contains(strings.ReplaceAll(stdout+stderr, `"`, ""), says) {
			t.Errorf("march %v: %s%s", args, stdout, stderr)
		}
		says = `"unreadable":[{"key":"/march/default/` + key
		if stdout, _ := does(t, append(args, "-o", "json", "--console", address)...); !strings.Contains(stdout, says) {
			t.Errorf("march %v: %s", args, stdout)
		}
	}
	does(t, "status", "--console", address)
	does(t, "migrate", "plan", "--move", "a:30-40=b", "--console", address)
	v.next(t, 3_000)
	for _, args := range [][]string{
		{"id", "next", "future", "--room", v.address(0)}, {"tag", "show", "future", "--console", address},
		{"migrate", "status", id, "--console", address},
	} {
		_, stderr, code := march(t, args...)
		if code != exitFailed || !strings.Contains(stderr, "format 9, written by version v9.9.9") {
			t.Errorf("march %v: exit code %d, %s", args, code, stderr)
		}
	}
}
