package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestReport: testdata/run.json is what `go test -json` printed for packages that fail, panic, hang, do not
// compile, are not there, fail without a failed test, have no tests, and pass.
func TestReport(t *testing.T) {
	t.Parallel()
	in, err := os.Open("testdata/run.json")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	want, err := os.ReadFile("testdata/report.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	r := newReport(&got)
	if err := r.read(in); err != nil {
		t.Fatal(err)
	}
	if r.end(2 * time.Second) {
		t.Error("it is good")
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestVerdict: a run is good if a test passed, and nothing failed or broke off.
func TestVerdict(t *testing.T) {
	t.Parallel()
	const (
		pass = `{"Action":"pass","Package":"p","Test":"T"}` + "\n"
		skip = `{"Action":"skip","Package":"p","Test":"U"}` + "\n"
		end  = `{"Action":"pass","Package":"p"}` + "\n"
	)
	for in, want := range map[string]struct {
		good bool
		sum  string
	}{
		pass + end:        {true, "1 passed, 0 failed in 0s\n"},
		pass + skip + end: {true, "1 passed, 0 failed in 0s\nNOT RUN: 1 test (no reason given)\n"},
		skip + end:        {false, "0 passed, 0 failed in 0s\n"},
		pass:              {false, "0 passed, 0 failed; beside them 1 packages failed in 0s\n"},
		"":                {false, "0 passed, 0 failed in 0s\n"},
		"go: no go.mod\n": {false, "go: no go.mod\n"},
		pass + `{"Action":"fail","Package":"p"}` + "\n": {false, "; beside them 1 packages failed in 0s\n"},
	} {
		var got bytes.Buffer
		r := newReport(&got)
		if err := r.read(strings.NewReader(in)); err != nil {
			t.Errorf("%q: %v", in, err)
		}
		if good := r.end(0); good != want.good || !strings.Contains(got.String(), want.sum) {
			t.Errorf("%q: good %v\n%s", in, good, got.String())
		}
	}
}
