package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// process is this program as one process of a measurement. It says that it is ready, answers
// the commands that it reads, and ends when its standard input does.
type process struct {
	p       *part
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
	ids     marchv1.IDServiceClient
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

// start starts a process of this program, which ends with the part, and waits until it is ready. env is added
// to this program's environment.
func (p *part) start(env []string, args ...string) *process {
	c := &process{p: p, cmd: exec.CommandContext(p.ctx, must(os.Executable()), args...)}
	c.cmd.Stderr = os.Stderr
	c.cmd.Env = append(os.Environ(), env...)
	c.in = must(c.cmd.StdinPipe())
	c.out = json.NewDecoder(must(c.cmd.StdoutPipe()))
	p.check(c.cmd.Start())
	p.Cleanup(func() { _ = c.close() })
	c.Address = c.read().Address
	return c
}

func (c *process) read() (r reply) {
	if err := c.out.Decode(&r); err != nil {
		c.p.Fatalf("%v: %v", c.cmd.Args[1:], err)
	}
	if r.Error != "" {
		c.p.Fatalf("%v: %s", c.cmd.Args[1:], r.Error)
	}
	return r
}

// ask sends a command and returns the answer.
func (c *process) ask(command string) reply {
	_, err := fmt.Fprintln(c.in, command)
	c.p.check(err)
	return c.read()
}

// resident returns how much memory the process has, in bytes.
func (c *process) resident() int64 { return must(memory(c.cmd.Process.Pid, "VmRSS:")) }

// client returns a client of the room that the process is.
func (c *process) client() marchv1.IDServiceClient {
	if c.ids == nil {
		c.ids = marchv1.NewIDServiceClient(c.p.dial(c.Address))
	}
	return c.ids
}

// memory returns an amount of memory that the system tells of a process, in bytes.
func memory(pid int, what string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, what); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("no " + what)
}

// close ends the process. It may be called again.
func (c *process) close() error {
	_ = c.in.Close()
	return c.cmd.Wait()
}

// child runs this program as one process of a measurement.
func child(name string, args []string) error {
	kinds := map[string]func([]string) (address string, answer func(command string) reply, end func() error, err error){
		"child-room": childRoom, "child-attack": childAttack, "child-etcd": childEtcd,
	}
	if kinds[name] == nil {
		return fmt.Errorf("unknown: %s", name)
	}
	address, answer, end, err := kinds[name](args)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(reply{Address: address}); err != nil {
		return err
	}
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		if err := out.Encode(answer(commands.Text())); err != nil {
			return err
		}
	}
	return end()
}
