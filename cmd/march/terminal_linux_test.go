package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal returns a terminal on which a text was typed.
func terminal(t *testing.T, typed string) *os.File {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	fd := int(keyboard.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	if _, err := keyboard.WriteString(typed); err != nil {
		t.Fatal(err)
	}
	return tty
}

// On a terminal recover asks one question for each lost instance, if a mirror saw all, and none
// otherwise. It prints the flags; an answer that is neither yes nor no ends it. With --yes it asks nothing.
func TestRecoverAsksIfTheMachineIsOff(t *testing.T) {
	t.Parallel()
	s := &scenario{processCluster: newProcessCluster(t)}
	s.init()
	s.start(consoleName, "--mirror-tags=100")
	s.issue(10)
	s.do("announced", nil)
	s.age()
	s.mirrored()
	s.signal("b-0", syscall.SIGKILL)
	const question = "Is the machine of b/b-0 off, for good?"
	recoverOn := func(typed string, flags ...string) (string, int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "march", append([]string{"recover", "--etcd", s.etcd.Endpoint,
			"--quiet", "--wait", "0s", "--timeout", "20s"}, flags...)...)
		cmd.Dir, cmd.Stdin = s.dir, terminal(t, typed)
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return s.normal(string(out)), cmd.ProcessState.ExitCode()
	}
	for _, test := range []struct {
		name, typed string
		mirrorless  bool
		flags       []string
		questions   int
		code        int
		want        []string
	}{
		{"no mirror saw all", "", true, []string{"--no-mirror=" + s.address(consoleName)}, 0, exitFailed,
			[]string{"--stopped b/b-0 if its machine is off, otherwise --without b/b-0", "--margin STEPS"}},
		{"JSON is for programs", "", false, []string{"--output=json"}, 0, exitFailed, []string{`"done":false`}},
		{"neither yes nor no", "later\n", false, nil, 1, exitFailed,
			[]string{"not done", "nothing is changed yet"}},
		{"it may run", "n\n", false, nil, 1, exitOK,
			[]string{"without  b/b-0", "next  the same with --yes --without b/b-0", "nothing is changed yet",
				"before <time>: an instance that was left out may issue until then"}},
		{"named", "", false, []string{"--stopped=b/b-0"}, 0, exitOK,
			[]string{"without  b/b-0", "nothing is changed yet"}},
		{"it is off", "y\n", false, nil, 1, exitOK, []string{"next  the same with --yes --stopped b/b-0",
			"nothing is changed yet", "before <time>: clocks may differ until then"}},
		{"no question with --yes", "", false, []string{"--yes"}, 0, exitFailed,
			[]string{"--stopped b/b-0 if its machine is off, otherwise --without b/b-0", "nothing is changed yet"}},
		{"as it said", "", false, []string{"--yes", "--stopped=b/b-0"}, 0, exitOK,
			[]string{"without  b/b-0", "epoch  <id>", "before <time>: clocks may differ until then"}},
	} {
		was := s.value("epoch")
		var out string
		var code int
		s.until("the mirror saw the beat that etcd has", func() bool { // a beat may have been written just now
			out, code = recoverOn(test.typed, test.flags...)
			return test.mirrorless || !strings.Contains(out, "no mirror saw all")
		})
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: it does not say %q:\n%s", test.name, want, out)
			}
		}
		if n := strings.Count(out, question); n != test.questions || code != test.code {
			t.Errorf("%s: %d questions, exit code %d; want %d, %d:\n%s", test.name, n, code,
				test.questions, test.code, out)
		}
		if changed := s.value("epoch") != was; changed != strings.Contains(out, "epoch  <id>") {
			t.Errorf("%s: the epoch changed: %v", test.name, changed)
		}
	}
	s.leases()
}
