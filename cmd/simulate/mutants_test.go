package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each mistake says what it breaks and how it is found, and fits the code.
func TestMistakesAreTheEdits(t *testing.T) {
	all, err := readMistakes()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../..")
	if _, err := together(all); err != nil {
		t.Error(err)
	}
	for _, m := range all {
		pkg := m.pkg == ""
		if m.breaks == "" || len(m.edits) == 0 || pkg != (m.test == "") || pkg != (m.because == "") {
			t.Errorf("%+v: want what it breaks, edits, and a test with its package and why the simulation "+
				"cannot see it, or none of these", m)
		}
		if m.test != "" && !isTest(t, m.pkg, m.test) {
			t.Errorf("%s: %s has no test %s", m.name, m.pkg, m.test)
		}
	}
}

// isTest reports whether a package has a test of a name, which is a regular expression.
func isTest(t *testing.T, pkg, name string) bool {
	files, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file) //nolint:gosec // of this repository
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^func ` + name + `\(`).Match(text) {
			return true
		}
	}
	return false
}

// The page on the proof names commands that exist, and as many mistakes as there are.
func TestProofPage(t *testing.T) {
	all, err := readMistakes()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../..")
	read := func(file string) string {
		text, err := os.ReadFile(file) //nolint:gosec // of this repository
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page, makefile := read("docs/proof.md"), read("Makefile")
	if want := fmt.Sprintf("| %d mistakes, all found", len(all)); !strings.Contains(page, want) {
		t.Errorf("docs/proof.md has another number of mistakes; want %q", want)
	}
	commands := regexp.MustCompile("`(make|go test) ([^`]+)`").FindAllStringSubmatch(page, -1)
	for _, c := range commands {
		words := strings.Fields(c[2])
		switch {
		case c[1] == "make" && !strings.Contains(makefile, "\n"+words[0]+":"):
			t.Errorf("make has no target %s", words[0])
		case c[1] == "go test" && (len(words) != 3 || words[1] != "-run" || !isTest(t, words[0], words[2])):
			t.Errorf("go test %s: no such test", c[2])
		}
	}
	if len(commands) < 10 {
		t.Errorf("docs/proof.md has %d commands", len(commands))
	}
	for _, m := range regexp.MustCompile(`\]\((\.\./[^)#]+)`).FindAllStringSubmatch(page, -1) {
		if _, err := os.Stat(filepath.Join("docs", m[1])); err != nil {
			t.Error(err)
		}
	}
}

func TestFound(t *testing.T) {
	for _, c := range []struct {
		said, by, how string
		seed          int
	}{
		{"--- FAIL: TestSimulation (0.51s)\n    sim_test.go:119: seed 7:\n          at 3.5s: DUPLICATE: tag order: " +
			"ID 5\n          at 4s: other\n", "seed 7", "DUPLICATE: tag order: ID 5", 7},
		{"--- FAIL: TestX (0.00s)\n    --- FAIL: TestX/part (0.00s)\n        x_test.go:3: 5, want 4\n",
			"TestX/part", "5, want 4", 0},
		{"--- FAIL: TestX (0.00s)\n    x_test.go:9: a.txt:4: still running after 50s\n" +
			"    x_test.go:9: a.txt:4: still running after 1m0s\n" +
			"    x_test.go:9: a.txt:4: still running after 1h0m1.5s\n\n    x_test.go:3: 5, want 4\n",
			"TestX", "5, want 4", 0},
		{"--- FAIL: TestX (0.00s)\n    x_test.go:9: \n          a.txt:4:\n          run\n", "TestX", "a.txt:4:", 0},
		{"panic: broken\n\ngoroutine 7 [running]:\n", "", "panic: broken", 0},
	} {
		by, how, seed := found(c.said)
		if by != c.by || how != c.how || seed != c.seed {
			t.Errorf("%q: got %q, %q, %d", c.said, by, how, seed)
		}
	}
}

func TestSelected(t *testing.T) {
	all := []mistake{{name: "no-mark"}, {name: "no-floor"}, {name: "no-beat"}}
	if _, err := selected(all, "no such"); err == nil {
		t.Error("a mistake that does not exist was found")
	}
	if two, err := selected(all, "no-floor,no-mark"); err != nil || len(two) != 2 || two[0].name != "no-mark" ||
		two[1].name != "no-floor" {
		t.Errorf("two of them: %v, %v", two, err)
	}
}
