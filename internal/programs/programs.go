// Package programs finds the programs that tests need beside Go. All are in programs.txt, which
// `make test` and .ci/run read, too: they install what is missing, or say how.
package programs

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

//go:embed programs.txt
var list string

// Find returns the path of a program of the list. Where it is missing the test is skipped, in words
// that `make test` counts; with STRICT=1 or CI=true the test fails.
func Find(tb testing.TB, name string) string {
	tb.Helper()
	path, tests := find(list, name)
	switch {
	case tests == "":
		tb.Fatalf("programs.txt does not have %s", name)
	case path == "":
		missing := "NOT RUN: " + tests + " (" + name + " is missing)"
		if os.Getenv("STRICT") != "" || os.Getenv("CI") == "true" {
			tb.Fatal(missing)
		}
		tb.Skip(missing)
	}
	return path
}

// All reports whether a run has all variants of each claim, as that of .ci/run does: make test LIVE=1.
func All() bool { return os.Getenv("LIVE") != "" }

// OnlyInAll skips a test that takes long, or needs more programs, unless a run has all variants. `make test` counts it.
func OnlyInAll(tb testing.TB, tests string) {
	tb.Helper()
	if !All() {
		tb.Skip("NOT RUN: tests " + tests + " (make test LIVE=1 runs them)")
	}
}

// find returns the path of a program by one of its names, "" where it is missing, and which tests need it.
func find(list, name string) (path, tests string) {
	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(strings.TrimSpace(line), " | ")
		places := strings.Split(fields[1], ", ")
		if !slices.Contains(places, name) || filepath.IsAbs(name) {
			continue
		}
		for _, place := range places {
			if path = look(place); path != "" {
				break
			}
		}
		return path, fields[5]
	}
	return "", ""
}

// look returns the path of a program by its name or by a pattern of its path, "" for none. Of several
// it is the last one, PostgreSQL's newest version.
func look(place string) string {
	if !filepath.IsAbs(place) {
		path, _ := exec.LookPath(place)
		return path
	}
	found, _ := filepath.Glob(place)
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}
