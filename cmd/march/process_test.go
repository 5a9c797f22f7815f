package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a program that a test runs in the background.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended and all its output was read
	mu   struct {
		sync.Mutex
		stdout, stderr bytes.Buffer
	}
}

// processes skips a test that runs the program as processes when the tests are to be short, as
// under the race detector: the servers' own packages have tests for it.
func processes(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it starts processes")
	}
}

// startProcess starts a program; env is added to this program's.
func startProcess(dir string, env []string, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = dir, append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.writer(&p.mu.stdout), p.writer(&p.mu.stderr)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// begin starts march; it is killed when the test ends.
func begin(t *testing.T, dir string, env []string, args ...string) *process {
	t.Helper()
	return beginAs(t, dir, env, "march", args...)
}

// beginAs is begin with another program.
func beginAs(t *testing.T, dir string, env []string, program string, args ...string) *process {
	t.Helper()
	processes(t)
	p, err := startProcess(dir, env, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// ready waits until a server prints that it is ready.
func (p *process) ready(t *testing.T) *process {
	t.Helper()
	if err := p.await(patience(t), "ready"); err != nil {
		t.Fatal(err)
	}
	return p
}

// output returns what the process has written to stdout and to stderr.
func (p *process) output() (stdout, stderr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.stdout.String(), p.mu.stderr.String()
}

type lockedWriter struct {
	mu sync.Locker
	to *bytes.Buffer
}

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

func (p *process) writer(to *bytes.Buffer) lockedWriter { return lockedWriter{&p.mu, to} }

// await waits until the process has written text that matches the expression.
func (p *process) await(deadline time.Time, expression string) error {
	re := regexp.MustCompile(expression)
	said := func() bool {
		stdout, stderr := p.output()
		return re.MatchString(stdout) || re.MatchString(stderr)
	}
	err := poll(deadline, func() bool {
		select {
		case <-p.done:
			return true
		default:
			return said()
		}
	})
	if said() {
		return nil
	}
	stdout, stderr := p.output()
	if err == nil {
		err = errors.New("it ended")
	}
	return fmt.Errorf("%s: waiting for %q: %w\n%s%s", p.cmd, expression, err, stdout, stderr)
}

// stop sends a signal, waits for the end, and returns the exit code; -1 when
// the signal ended it.
func (p *process) stop(deadline time.Time, signal syscall.Signal) (int, error) {
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(time.Until(deadline)):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // makes it print where it hangs
		select {
		case <-p.done:
		case <-time.After(time.Second):
			_ = p.cmd.Process.Kill()
			<-p.done
		}
		_, stderr := p.output()
		return 0, fmt.Errorf("%s: still running after %v\n%s", p.cmd, signal, stderr)
	}
}

// poll calls done until it returns true, and rarely if that takes long: other tests need the processors.
func poll(deadline time.Time, done func() bool) error {
	for pause := time.Millisecond; !done(); pause = min(2*pause, 30*time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("not within the test's time")
		}
		time.Sleep(pause)
	}
	return nil
}

// patience is how long a test waits for what takes milliseconds on an idle machine: so long that only what hangs
// reaches it, on a machine, too, whose disk takes a second for each write of etcd. The test's own deadline may come
// before.
func patience(t *testing.T) time.Time {
	t.Helper()
	deadline := time.Now().Add(10 * time.Minute)
	if end, ok := t.Deadline(); ok && end.Add(-5*time.Second).Before(deadline) {
		deadline = end.Add(-5 * time.Second)
	}
	return deadline
}

// basePorts hands out base ports for march dev, each only once in this test program.
var basePorts struct {
	sync.Mutex
	next int
}

// freeBase returns a base port at which all ports of march dev are free. They lie below those
// that systems hand out to clients. Each test program begins its search somewhere else.
func freeBase() (int, error) {
	const first, last, ports = 12000, 31900, 100
	basePorts.Lock()
	defer basePorts.Unlock()
	if basePorts.next == 0 {
		basePorts.next = first + os.Getpid()%((last-first)/ports)*ports
	}
	for range (last - first) / ports {
		base := basePorts.next
		if basePorts.next += ports; basePorts.next > last {
			basePorts.next = first
		}
		if allFree(base, portLast+1) {
			return base, nil
		}
	}
	return 0, errors.New("no base port with free ports above it")
}

func allFree(base, n int) bool {
	for port := base; port < base+n; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}

// devCluster is a running march dev.
type devCluster struct {
	*process
	base int
}

// startDev starts march dev and waits until it is ready.
func startDev(t *testing.T, base int, args ...string) *devCluster {
	t.Helper()
	d := beginDev(t, base, args...)
	if err := d.await(patience(t), "March is running"); err != nil {
		t.Fatal(err)
	}
	return d
}

// beginDev starts march dev; it is killed when the test ends.
func beginDev(t *testing.T, base int, args ...string) *devCluster {
	t.Helper()
	args = append([]string{"dev", "--base-port", fmt.Sprint(base)}, args...)
	env := append(settingsIn(t), "TMPDIR="+t.TempDir())
	return &devCluster{process: begin(t, "", env, args...), base: base}
}

// settingsIn returns the environment of processes with a directory of settings of their own: the context
// of a march dev there is for no other test's commands.
func settingsIn(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	return []string{"XDG_CONFIG_HOME=" + dir, "HOME=" + dir}
}

func (d *devCluster) address(offset int) string { return fmt.Sprintf("127.0.0.1:%d", d.base+offset) }

// march runs a march command to its end.
func march(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return marchWith(t, nil, args...)
}

// marchWith is march with an environment, which is added to this program's.
func marchWith(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	processes(t)
	args = append([]string{"march"}, args...)
	stdout, stderr, code, err := runLine(t.Context(), "", append(os.Environ(), env...), args...)
	if err != nil {
		t.Fatal(err)
	}
	return stdout, stderr, code
}
