//go:build unix

package proc_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/march-id/march/cmd/chaos/internal/proc"
	"github.com/march-id/march/internal/testcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a shell script.
func start(t *testing.T, p *proc.Process, piped bool, script string) {
	t.Helper()
	if err := p.Start(proc.Command{Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"WORD=env"},
		Piped: piped}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
}

// await waits until the log has a text.
func await(t *testing.T, p *proc.Process, want string) {
	t.Helper()
	testcluster.Await(t, fmt.Sprintf("the log has %q", want), func() bool {
		b, err := os.ReadFile(p.Log())
		return err == nil && strings.Contains(string(b), want)
	})
}

// The output of a process is kept over all its starts, however it ends.
func TestLifeOfAProcess(t *testing.T) {
	for _, piped := range []bool{false, true} {
		p := proc.New(t.TempDir(), "p")
		if p.Running() || p.Pid() != 0 || p.How() != "" {
			t.Errorf("before its start: running %v, pid %d, how %q", p.Running(), p.Pid(), p.How())
		}
		<-p.Ended()
		start(t, p, piped, "echo first $WORD; exec sleep 1000")
		await(t, p, "first env")
		if !p.Running() || p.Pid() == 0 {
			t.Error("it does not run")
		}
		if err := p.Start(proc.Command{Path: "/bin/sh"}); err == nil {
			t.Error("it was started twice")
		}
		if err := p.Kill(); err != nil || p.Running() || p.How() != "signal: killed" {
			t.Errorf("killed: %v, running %v, how %q", err, p.Running(), p.How())
		}
		start(t, p, piped, "trap 'echo ends; exit 0' TERM; echo second; while :; do sleep 0.01; done")
		await(t, p, "second")
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		if err := p.Stop(30 * time.Second); err != nil || p.How() != "exit status 0" {
			t.Errorf("stopped: %v, how %q", err, p.How())
		}
		await(t, p, "ends")
		await(t, p, "first")
	}
}

func TestOneThatDoesNotStop(t *testing.T) {
	p := proc.New(t.TempDir(), "p")
	start(t, p, false, "trap '' TERM QUIT; echo deaf; while :; do sleep 0.01; done")
	await(t, p, "deaf")
	if err := p.Stop(10 * time.Millisecond); err == nil || p.Running() {
		t.Errorf("stopped: %v, running %v", err, p.Running())
	}
}

// A limit keeps a process from writing its files. Its log is still written if it is piped.
// The limit can be removed again.
func TestLimitFiles(t *testing.T) {
	p := proc.New(t.TempDir(), "p")
	file := t.TempDir() + "/file"
	start(t, p, true, "trap '' XFSZ; while :; do if echo 0123456789 2>/dev/null >"+file+"; then echo yes; else echo "+
		"no; fi; sleep 0.01; done")
	await(t, p, "yes")
	if err := p.LimitFiles(3); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no limits on this system")
	} else if err != nil {
		t.Fatal(err)
	}
	await(t, p, "no")
	if err := p.LimitFiles(proc.Unlimited); err != nil {
		t.Fatal(err)
	}
	await(t, p, "no\nyes")
}
