// Testreport reads what `go test -json` prints, and prints it for a person: a line for each package,
// the output of failed tests whole, the slowest tests, how many passed, and how many did not run and
// why. It exits with 1 if a test or a package failed, and if no test passed.
//
//	go test -json ./... | go run ./internal/testreport
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	began := time.Now()
	r := newReport(os.Stdout)
	err := r.read(os.Stdin)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if good := r.end(time.Since(began)); err != nil || !good {
		os.Exit(1)
	}
}

// event is a line of `go test -json`: see `go doc test2json`. That of a build has an ImportPath and no Package.
type event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
	Elapsed                                                float64 // seconds
}

type pkg struct {
	output strings.Builder // of no test
	tests  []*test         // in the order in which they began
}

type test struct {
	name    string
	output  strings.Builder
	ended   string // pass, fail or skip; "" while it runs
	elapsed float64
	parent  bool // it has subtests, which count instead
}

// report is what a run came to so far.
type report struct {
	out            io.Writer
	packages       map[string]*pkg   // those that run
	builds         map[string]string // what the compiler and vet printed
	passed, failed int               // tests
	broken         int               // packages that failed, though none of their tests did
	notRun         map[string]int    // tests, by the reason
	slow           []test            // with the package before the name
}

func newReport(out io.Writer) *report {
	return &report{out: out, packages: make(map[string]*pkg), builds: make(map[string]string),
		notRun: make(map[string]int)}
}

// read reads a run to its end, and prints each package when that has ended.
func (r *report) read(in io.Reader) error {
	for lines := bufio.NewReader(in); ; {
		line, err := lines.ReadString('\n')
		var e event
		switch {
		case line == "":
		case json.Unmarshal([]byte(line), &e) != nil:
			_, _ = io.WriteString(r.out, line)
		case e.Action == "build-output":
			r.builds[e.ImportPath] += e.Output
		case e.Package != "":
			r.add(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// add takes an event of a package.
func (r *report) add(e event) {
	p := r.packages[e.Package]
	if p == nil {
		p = &pkg{}
		r.packages[e.Package] = p
	}
	output := &p.output
	var t *test
	if e.Test != "" {
		t = p.test(e.Test)
		output = &t.output
	}
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") { // that it runs, pauses and goes on
			output.WriteString(e.Output)
		}
	case "pass", "fail", "skip":
		if t != nil {
			t.ended, t.elapsed = e.Action, e.Elapsed
			return
		}
		r.finish(e, p)
		delete(r.packages, e.Package)
	}
}

// test returns a test of the package, which begins with its first event.
func (p *pkg) test(name string) *test {
	parent := name[:max(strings.LastIndexByte(name, '/'), 0)]
	for _, t := range slices.Backward(p.tests) {
		if t.name == name {
			return t
		}
		if t.name == parent {
			t.parent = true
		}
	}
	t := &test{name: name}
	p.tests = append(p.tests, t)
	return t
}

// finish prints a package that has ended, and counts its tests.
func (r *report) finish(e event, p *pkg) {
	failed := r.failed
	for _, t := range p.tests {
		switch {
		case t.ended == "pass" && !t.parent:
			r.passed++
		case t.ended == "skip":
			r.notRun[t.reason()]++
		case t.ended == "fail" || t.ended == "" && e.Action == "fail":
			if !t.parent {
				r.failed++
			}
			_, _ = io.WriteString(r.out, t.output.String())
		}
		if !t.parent {
			r.slow = append(r.slow, test{name: e.Package + " " + t.name, elapsed: t.elapsed})
		}
	}
	switch {
	case e.Action == "fail":
		if failed == r.failed {
			r.broken++
		}
		_, _ = io.WriteString(r.out, r.builds[e.FailedBuild]+p.output.String())
	case e.Action == "pass":
		for line := range strings.Lines(p.output.String()) {
			if strings.HasPrefix(line, "ok ") {
				_, _ = io.WriteString(r.out, line)
			}
		}
	}
}

var logLine = regexp.MustCompile(`(?m)^ *[^ :]+\.go:\d+: (.*)$`)

// reason returns why a test was skipped, as it stands after "NOT RUN: 1 test". Package programs writes
// "NOT RUN: tests of the page (chromium is missing)", other tests "needs more memory".
func (t *test) reason() string {
	lines := logLine.FindAllStringSubmatch(t.output.String(), -1)
	if len(lines) == 0 {
		return "(no reason given)"
	}
	for _, line := range slices.Backward(lines) { // cleanups may log after it
		if of, ok := strings.CutPrefix(line[1], "NOT RUN: tests "); ok {
			return of
		}
	}
	return "(" + lines[len(lines)-1][1] + ")"
}

// end prints the sum, and reports whether all that ran is good.
func (r *report) end(took time.Duration) bool {
	for _, name := range slices.Sorted(maps.Keys(r.packages)) { // go test ended before they did
		_, _ = fmt.Fprintf(r.out, "FAIL\t%s [did not end]\n", name)
		r.broken++
	}
	slices.SortStableFunc(r.slow, func(a, b test) int { return cmp.Compare(b.elapsed, a.elapsed) })
	for i, t := range r.slow[:min(len(r.slow), 10)] {
		if t.elapsed < 1 {
			break
		}
		if i == 0 {
			_, _ = fmt.Fprintln(r.out, "\nThe slowest:")
		}
		_, _ = fmt.Fprintf(r.out, "%7.1fs  %s\n", t.elapsed, t.name)
	}
	sum := fmt.Sprintf("%d passed, %d failed", r.passed, r.failed)
	if r.broken > 0 {
		sum += fmt.Sprintf("; beside them %d packages failed", r.broken)
	}
	_, _ = fmt.Fprintf(r.out, "\n%s in %v\n", sum, took.Round(time.Second))
	for _, why := range slices.Sorted(maps.Keys(r.notRun)) {
		tests := "tests"
		if r.notRun[why] == 1 {
			tests = "test"
		}
		_, _ = fmt.Fprintf(r.out, "NOT RUN: %d %s %s\n", r.notRun[why], tests, why)
	}
	return r.failed == 0 && r.broken == 0 && r.passed > 0
}
