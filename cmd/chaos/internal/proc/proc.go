// Package proc runs the processes of a chaos run. It starts, kills, stops and continues
// them, keeps the output of each in a file, and leaves none behind.
package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Process is a program that may run, and may be started again. Its methods are safe for
// concurrent use.
type Process struct {
	// Name names its log: Name.log.
	Name string
	log  string

	mu struct {
		sync.Mutex
		cmd   *exec.Cmd     // nil before the first start
		ended chan struct{} // closed when cmd ended
	}
}

// New returns a process with its log in dir.
func New(dir, name string) *Process {
	return &Process{Name: name, log: filepath.Join(dir, name+".log")}
}

// Log returns the path of its log: the stderr of all its starts.
func (p *Process) Log() string { return p.log }

// Command is a program to start.
type Command struct {
	Path string
	Args []string
	// Env is added to this program's environment.
	Env []string
	// Piped sends its log through a pipe, so that a limit of LimitFiles does not apply to the
	// log.
	Piped bool
}

// Start starts the process. It must not run.
func (p *Process) Start(c Command) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return fmt.Errorf("%s runs already", p.Name)
	}
	if err := os.MkdirAll(filepath.Dir(p.log), 0o750); err != nil {
		return err
	}
	// A file and no pipe: it keeps the lines that the process wrote before it was killed.
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if c.Piped {
		piped := struct{ io.Writer }{log} // no *os.File, which the process would get directly
		cmd.Stdout, cmd.Stderr = piped, piped
	}
	cmd.SysProcAttr = attributes()
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", p.Name, err), log.Close())
	}
	ended := make(chan struct{})
	p.mu.cmd, p.mu.ended = cmd, ended
	go func() { // ends with the process; Stop and Kill wait for it
		_ = cmd.Wait() // until all its output is in the log
		_ = log.Close()
		close(ended)
	}()
	return nil
}

// running is for callers that hold mu.
func (p *Process) running() bool {
	if p.mu.cmd == nil {
		return false
	}
	select {
	case <-p.mu.ended:
		return false
	default:
		return true
	}
}

// Running reports whether it runs, even stopped by SIGSTOP.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running()
}

// Ended returns a channel that is closed when the last started program has ended.
func (p *Process) Ended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.ended == nil {
		ended := make(chan struct{})
		close(ended)
		return ended
	}
	return p.mu.ended
}

// Pid returns the process's number; 0 if it does not run.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return 0
	}
	return p.mu.cmd.Process.Pid
}

// How returns how it ended, empty while it runs.
func (p *Process) How() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.cmd == nil || p.running() {
		return ""
	}
	return p.mu.cmd.ProcessState.String()
}

// Signal sends a signal, or does nothing if the process does not run.
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	if err := p.mu.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill kills it and waits for its end.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	<-p.Ended()
	return err
}

// Stop asks it to end and waits. If it takes too long, Stop kills it and returns an error.
func (p *Process) Stop(within time.Duration) error {
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.Ended():
		return nil
	case <-time.After(within):
	}
	_ = p.Signal(syscall.SIGQUIT) // its log then shows where it hangs
	select {
	case <-p.Ended():
	case <-time.After(time.Second):
	}
	return errors.Join(fmt.Errorf("%s did not end within %v of SIGTERM", p.Name, within), p.Kill())
}

// LimitFiles keeps the process from writing files beyond a number of bytes; Unlimited removes
// the limit.
func (p *Process) LimitFiles(bytes uint64) error {
	pid := p.Pid()
	if pid == 0 {
		return fmt.Errorf("%s does not run", p.Name)
	}
	return limitFiles(pid, bytes)
}

// Unlimited is no limit.
const Unlimited = ^uint64(0)
