package programs

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestList: each line has all that .ci/programs and Find take from it.
func TestList(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(strings.TrimSpace(line), " | ")
		if len(fields) != 6 || slices.Contains(fields, "") {
			t.Errorf("%q: %d fields; want 6", line, len(fields))
			continue
		}
		name, _, _ := strings.Cut(fields[1], ", ")
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		who, needs := fields[0], strings.HasPrefix(fields[5], "tests ")
		if !slices.Contains([]string{"test", "live", "ci", "doors"}, who) || needs != (who == "test" || who == "live") {
			t.Errorf("%q: %s %s", line, who, fields[5])
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %v", seen)
	}
}

// TestFind: a program is found by a name or by a path, where it has several by the last of them.
func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, file := range []string{"14 x/initdb", "15/initdb"} {
		path := filepath.Join(dir, file)
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := "# x\ntest | go-of-no-name, go | go | go | go | tests of Go\n" +
		"live | no-such-initdb, " + dir + "/*/initdb | a b | - | - | tests of data\n" +
		"live | no-such-program, " + dir + "/none | a | b | c | tests of nothing\n"
	if path, tests := find(list, "go-of-no-name"); filepath.Base(path) != "go" || tests != "tests of Go" {
		t.Errorf("go: %q, %q", path, tests)
	}
	if path, tests := find(list, "no-such-initdb"); path != dir+"/15/initdb" || tests != "tests of data" {
		t.Errorf("initdb: %q, %q", path, tests)
	}
	if path, tests := find(list, "no-such-program"); path != "" || tests != "tests of nothing" {
		t.Errorf("no-such-program: %q, %q", path, tests)
	}
	if path, tests := find(list, "go"); filepath.Base(path) != "go" || tests != "tests of Go" {
		t.Errorf("go by its second name: %q, %q", path, tests)
	}
	if path, tests := find(list, "no-such-name"); path != "" || tests != "" {
		t.Errorf("what the list does not have: %q, %q", path, tests)
	}
}

// TestMissing: on a machine that has none of them and cannot install any, .ci/programs lists what is missing and how to
// install it, and the tests run all the same; not so with STRICT or CI, or for a name that the list lacks.
func TestMissing(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for _, tool := range strings.Fields("bash dirname grep paste sort") {
		path, err := exec.LookPath(tool)
		if err == nil {
			err = os.Symlink(path, filepath.Join(bin, tool))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func(setting string, wanted ...string) (printed string, code int) {
		cmd := exec.CommandContext(t.Context(), "bash", append([]string{"../../.ci/programs"}, wanted...)...)
		cmd.Env = []string{"PATH=" + bin, setting}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	const list = `These programs are missing:
  curl                     tests of the documents
  spin                     the model
To install them:
  Debian, Ubuntu           sudo apt-get install -y --no-install-recommends curl spin
  Fedora                   sudo dnf install -y curl
  macOS                    brew install curl spin
`
	for setting, want := range map[string]string{
		"":         "All that does not need curl spin runs; the last lines say what did not.\n",
		"STRICT=1": "Nothing runs without curl spin, as STRICT or CI is set.\n",
		"CI=true":  "Nothing runs without curl spin, as STRICT or CI is set.\n",
	} {
		got, code := run(setting, "curl", "spin")
		if got != list+want || (code == 0) != (setting == "") {
			t.Errorf("%q: exit code %d:\n%s", setting, code, got)
		}
	}
	if got, code := run("", "spin", "spinn"); got != "programs.txt does not have spinn\n" || code != 1 {
		t.Errorf("a name that the list lacks: exit code %d:\n%s", code, got)
	}
}
