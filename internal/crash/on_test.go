//go:build chaos

package crash

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A child process of this test passes a point three times, and dies the second time.
func TestHere(t *testing.T) {
	if os.Getenv(variable) != "" {
		for range 3 {
			_, _ = os.Stdout.WriteString("passing\n")
			Here(AfterLease)
			Here(BeforeLease)
		}
		return
	}
	child := exec.Command(os.Args[0], "-test.run=^TestHere$")
	child.Env = append(os.Environ(), variable+"="+AfterLease+":2")
	var stdout, stderr strings.Builder
	child.Stdout, child.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := child.Run(); !errors.As(err, &exit) {
		t.Fatalf("the child ended with %v", err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("the child ended with %v, want SIGKILL", exit)
	}
	if got := strings.Count(stdout.String(), "passing"); got != 2 {
		t.Errorf("it passed the point %d times, want 2", got)
	}
	if got, want := stderr.String(), "crash point after-lease\n"; got != want {
		t.Errorf("it said %q, want %q", got, want)
	}
}

func TestParse(t *testing.T) {
	for _, bad := range []string{"x", "after-lease", "after-lease:", "after-lease:0",
		"after-lease:-1", "nowhere:1", ":1"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	for _, p := range Points() {
		d, err := parse(p.Name + ":3")
		if err != nil || d.due(p.Name) || d.due("other") || d.due(p.Name) || !d.due(p.Name) || d.due(p.Name) {
			t.Errorf("%s: not at the third passing alone (%v)", p.Name, err)
		}
	}
	if d, err := parse(""); err != nil || d.due("") {
		t.Errorf("with nothing set: %v", err)
	}
}
