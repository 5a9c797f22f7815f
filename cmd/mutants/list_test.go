package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/march-id/march/internal/overlay"
)

// The list has exactly the mistakes that the edits make, and the edits fit the code.
func TestMistakesAreTheEdits(t *testing.T) {
	t.Chdir("../..")
	if _, err := overlay.Write(t.TempDir(), append(switches(), edits...)); err != nil {
		t.Error(err)
	}
	edited := make(map[string]bool)
	for _, e := range edits {
		for _, call := range regexp.MustCompile(`\bmuta(?:nt|ted)\("([a-z-]+)"`).FindAllStringSubmatch(e.To, -1) {
			edited[call[1]] = true
		}
	}
	listed := make(map[string]bool)
	for _, m := range mistakes {
		if m.name == "" || m.what == "" || listed[m.name] || (m.pkg == "") != (m.test == "") ||
			(m.pkg == "") != (m.because == "") {
			t.Errorf("%+v: want a name of its own, what it is, and a test with its package and why the simulation "+
				"cannot see it, or none of these", m)
		}
		if m.test != "" && !isTest(t, m.pkg, m.test) {
			t.Errorf("%s: %s has no test %s", m.name, m.pkg, m.test)
		}
		if listed[m.name] = true; !edited[m.name] {
			t.Errorf("%s is in no edit", m.name)
		}
	}
	for name := range edited {
		if !listed[name] {
			t.Errorf("%s is edited and not listed", name)
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

func TestFound(t *testing.T) {
	for _, c := range []struct {
		said, by, how string
		seed          int
	}{
		{"--- FAIL: TestSimulation (0.51s)\n    sim_test.go:119: seed 7:\n          at 3.5s: DUPLICATE: tag order: " +
			"ID 5\n          at 4s: other\n", "seed 7", "DUPLICATE: tag order: ID 5", 7},
		{"--- FAIL: TestX (0.00s)\n    --- FAIL: TestX/part (0.00s)\n        x_test.go:3: 5, want 4\n",
			"TestX/part", "5, want 4", 0},
		{"panic: broken\n\ngoroutine 7 [running]:\n", "", "panic: broken", 0},
	} {
		by, how, seed := found(c.said)
		if by != c.by || how != c.how || seed != c.seed {
			t.Errorf("%q: got %q, %q, %d", c.said, by, how, seed)
		}
	}
}

func TestSelected(t *testing.T) {
	if _, err := selected("no such"); err == nil {
		t.Error("a mistake that does not exist was found")
	}
	if two, err := selected("no-floor,no-mark"); err != nil || len(two) != 2 || two[0].name != "no-mark" ||
		two[1].name != "no-floor" {
		t.Errorf("two of them: %v, %v", two, err)
	}
}
