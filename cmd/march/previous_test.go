//go:build live

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/march-id/march/internal/programs"
)

// buildPrevious builds march from the commit that testdata/previous names, and returns the
// program. It skips the test where that commit is not to be had: in a shallow clone, or an
// unpacked archive.
func buildPrevious(t *testing.T) string {
	t.Helper()
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
	if out, err := command(t, root, programs.Find(t, "git"), "cat-file", "-e", commit+"^{commit}"); err != nil {
		t.Logf("%v\n%s", err, out)
		t.Skipf("NOT RUN: tests of two versions (git cannot read the commit %s, which testdata/previous names: "+
			"git fetch --unshallow, or git fetch origin %[1]s)", commit)
	}
	dir := t.TempDir()
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
		if out, err := command(t, step.in, step.args...); err != nil {
			t.Fatalf("%v: %v\n%s", step.args, err, out)
		}
	}
	return program
}

// command runs a program in a folder.
func command(t *testing.T, dir string, args ...string) ([]byte, error) {
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
	if testing.Short() {
		t.Skip("it builds march from another commit")
	}
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
	out, err := command(v.T, v.dir, previous, "verify", "--etcd", v.etcd.Endpoint)
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
	out, err := command(v.T, v.dir, previous, "recover", "--etcd", v.etcd.Endpoint, "--yes", "--wait", "0s")
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
