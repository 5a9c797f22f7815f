package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// process is this program as one process of a measurement. It says that it is ready, answers
// the commands that it reads, and ends when its standard input does.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	Address string
}

// reply is the answer of a process.
type reply struct {
	Address   string `json:",omitempty"`
	Error     string `json:",omitempty"`
	Heap      uint64 `json:",omitempty"` // bytes in use after a collection, stacks included
	P99, P999 time.Duration
	Calls     int
	// of an attacker, since it began
	Sent, Answered int64 `json:",omitempty"`
}

// startChild starts a process and waits until it is ready. env is added to this program's
// environment.
func startChild(ctx context.Context, env []string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self, args...)}
	p.cmd.Stderr = os.Stderr
	p.cmd.Env = append(os.Environ(), env...)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready, err := p.read()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", args[0], err), p.close())
	}
	p.Address = ready.Address
	return p, nil
}

func (p *process) read() (r reply, err error) {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, err
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

// ask sends a command and returns the answer.
func (p *process) ask(command string) (reply, error) {
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		return reply{}, err
	}
	return p.read()
}

// resident returns how much memory the process has, in bytes.
func (p *process) resident() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("no VmRSS")
}

func (p *process) close() error {
	_ = p.in.Close()
	return p.cmd.Wait()
}
