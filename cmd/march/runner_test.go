package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A commandRunner is a process of march that runs one command line after another. The tests run 1,300 command lines,
// and a process for each costs 0.1 s of a processor: 300 packages are initialized in new pages of memory. In a runner
// a command has its own directory, environment, output and exit code, as a process has. Servers are processes of
// their own, and so is what reads standard input or takes a signal.
type commandRunner struct {
	cmd    *exec.Cmd
	dir    string // of its files: stdout, stderr
	lines  io.WriteCloser
	codes  *json.Decoder
	closed func() error
}

// commandLine is what a runner runs: an exit code is the answer to each.
type commandLine struct {
	Dir  string
	Env  []string // the whole environment
	Args []string // the first is the program's name
}

// programsOfRunners are what a runner runs.
var programsOfRunners = map[string]func(args []string) int{"march": execute, "http": httpClient}

// runnerProgram is the name under which this test program is a runner.
const runnerProgram = "march-runner"

// runnerMain runs the command lines of descriptor 3, and writes their exit codes to descriptor 4.
func runnerMain() {
	lines, codes := json.NewDecoder(os.NewFile(3, "lines")), json.NewEncoder(os.NewFile(4, "codes"))
	for {
		var line commandLine
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			return
		} else if err = errors.Join(err, line.run(os.Args[1], codes)); err != nil {
			panic(err)
		}
	}
}

// run runs a command line, whose output it writes to files in a directory.
func (line commandLine) run(files string, codes *json.Encoder) (err error) {
	os.Clearenv()
	for _, setting := range line.Env {
		name, value, _ := strings.Cut(setting, "=")
		_ = os.Setenv(name, value)
	}
	if err := os.Chdir(line.Dir); err != nil {
		return err
	}
	if os.Stdout, err = os.Create(filepath.Join(files, "stdout")); err != nil {
		return err
	}
	if os.Stderr, err = os.Create(filepath.Join(files, "stderr")); err != nil {
		return err
	}
	code := programsOfRunners[line.Args[0]](line.Args[1:])
	return errors.Join(os.Stdout.Close(), os.Stderr.Close(), codes.Encode(code))
}

// runners are the processes that wait for a command line.
var runners struct {
	sync.Mutex
	idle []*commandRunner
}

// startRunner starts a process of march that runs command lines.
func startRunner() (r *commandRunner, err error) {
	r = &commandRunner{}
	if r.dir, err = os.MkdirTemp("", "march-runner-"); err != nil {
		return nil, err
	}
	theirs, lines, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	codes, toCodes, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	r.cmd = exec.Command(runnerProgram, r.dir)
	r.cmd.ExtraFiles, r.cmd.Stderr = []*os.File{theirs, toCodes}, os.Stderr
	r.lines, r.codes, r.closed = lines, json.NewDecoder(codes), codes.Close
	return r, errors.Join(r.cmd.Start(), theirs.Close(), toCodes.Close())
}

// run runs a command line to its end. A command that ends the process, as one that panics does, has the process' exit
// code, and the runner is of no use any more.
func (r *commandRunner) run(ctx context.Context, line commandLine) (stdout, stderr string, code int, err error) {
	stop := context.AfterFunc(ctx, func() { _ = r.cmd.Process.Kill() })
	defer stop()
	if err = json.NewEncoder(r.lines).Encode(line); err == nil {
		err = r.codes.Decode(&code)
	}
	if err != nil {
		_ = r.cmd.Wait()
		code = r.cmd.ProcessState.ExitCode()
	}
	out, outErr := os.ReadFile(filepath.Join(r.dir, "stdout"))
	errs, errsErr := os.ReadFile(filepath.Join(r.dir, "stderr"))
	if err == nil && stop() {
		runners.Lock()
		runners.idle = append(runners.idle, r)
		runners.Unlock()
	} else {
		_ = r.end()
	}
	return string(out), string(errs), code, errors.Join(outErr, errsErr, ctx.Err())
}

// end ends the process, which waits for a command line.
func (r *commandRunner) end() error {
	_ = r.lines.Close()
	_ = r.cmd.Wait()
	return errors.Join(r.closed(), os.RemoveAll(r.dir))
}

// endRunners ends the processes that wait for a command line: all, after the tests.
func endRunners() {
	for _, r := range runners.idle {
		_ = r.end()
	}
}

// serverCommands are the commands that change what a whole process has, or that etcd's server is a part of.
var serverCommands = []string{"dev", "room", "console"}

// runLine runs a command line to its end. The error is only of the machine.
func runLine(ctx context.Context, dir string, env []string, args ...string) (stdout, stderr string, code int,
	err error) {
	if len(args) > 1 && slices.Contains(serverCommands, args[1]) {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		var out, errs strings.Builder
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &out, &errs
		if err = cmd.Run(); cmd.ProcessState == nil {
			return "", "", 0, err
		}
		return out.String(), errs.String(), cmd.ProcessState.ExitCode(), nil
	}
	if dir == "" {
		if dir, err = os.Getwd(); err != nil {
			return "", "", 0, err
		}
	}
	var r *commandRunner
	runners.Lock()
	if n := len(runners.idle); n > 0 {
		r, runners.idle = runners.idle[n-1], runners.idle[:n-1]
	}
	runners.Unlock()
	if r == nil {
		if r, err = startRunner(); err != nil {
			return "", "", 0, err
		}
	}
	return r.run(ctx, commandLine{Dir: dir, Env: env, Args: args})
}

// A runner gives each command line what a process has, and nothing of the one before.
func TestRunner(t *testing.T) {
	processes(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "march.yaml"), []byte("timeout: 7s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ dir, env, args, prints string }{
		{dir, "", "config print id next --config march.yaml", "7s"},
		{"", "", "config print id next --config march.yaml", "no such file"},
		{"", "MARCH_TIMEOUT=9s", "config print id next", "environment MARCH_TIMEOUT"},
		{"", "", "config print id next", "timeout          5s"},
		{"", "", "id nothing", "march id"},
	} {
		args, env := append([]string{"march"}, strings.Fields(test.args)...), append(os.Environ(), test.env)
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		var out, errs strings.Builder
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = test.dir, env, &out, &errs
		_ = cmd.Run()
		stdout, stderr, code, err := runLine(t.Context(), test.dir, env, args...)
		if err != nil {
			t.Fatal(err)
		}
		if stdout != out.String() || stderr != errs.String() || code != cmd.ProcessState.ExitCode() {
			t.Errorf("%s: %d\n%s%s\nas a process of its own: %d\n%s%s", test.args, code, stdout, stderr,
				cmd.ProcessState.ExitCode(), &out, &errs)
		}
		if !strings.Contains(stdout+stderr, test.prints) {
			t.Errorf("%s prints no %q:\n%s%s", test.args, test.prints, stdout, stderr)
		}
	}
}
