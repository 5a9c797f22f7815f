package main

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

//go:embed march.pml workers.pml lives.pml order.pml
var models embed.FS

// checker runs spin in folders of its own below dir.
type checker struct {
	dir     string
	memory  int // megabytes for each run
	timeout time.Duration
}

// outcome is the result of one run, as spin prints it.
type outcome struct {
	violated bool // an assertion, the model's only kind of error
	complete bool // every reachable state was met
	states   int64
	memory   int64 // megabytes
	took     time.Duration
}

// check makes spin write a checker of the model with r's options, and runs it.
func (c *checker) check(ctx context.Context, r run) (outcome, error) {
	dir := c.folder(r)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return outcome{}, err
	}
	model, err := models.ReadFile(r.file)
	if err != nil {
		return outcome{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, r.file), model, 0o600); err != nil {
		return outcome{}, err
	}
	if _, err := execute(ctx, dir, "spin", append(r.defines(), "-a", r.file)...); err != nil {
		return outcome{}, err
	}
	args := []string{"-O1", "-w", "-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE", "-DVECTORSZ=512",
		fmt.Sprintf("-DMEMLIM=%d", c.memory)}
	if r.kind != holds && !r.deep {
		args = append(args, "-DBFS")
	}
	if _, err := execute(ctx, dir, "gcc", append(args, "-o", "pan", "pan.c")...); err != nil {
		return outcome{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	start := time.Now()
	// -E: a process that cannot go on is no error; -n: no list of unreached code.
	said, err := execute(ctx, dir, "./pan", "-E", "-n", "-m100000")
	if ctx.Err() != nil {
		return outcome{took: time.Since(start)}, fmt.Errorf("it did not end within %v", c.timeout)
	}
	o, parseErr := parse(said)
	o.took = time.Since(start)
	if parseErr != nil {
		return o, fmt.Errorf("%w (%w)", parseErr, err)
	}
	return o, nil
}

func (c *checker) folder(r run) string { return filepath.Join(c.dir, r.kind+"-"+r.name) }

// replay prints the steps by which r issues an ID twice.
func (c *checker) replay(ctx context.Context, name string, stdout io.Writer) error {
	r, err := find(name)
	if err != nil {
		return err
	}
	o, err := c.check(ctx, r)
	if err != nil {
		return err
	}
	if !o.violated {
		return fmt.Errorf("%s %s issues no ID twice: there is nothing to replay", r.kind, r.name)
	}
	// Spin's exit code is that of the assertion that fails.
	said, err := execute(ctx, c.folder(r), "spin", append(r.defines(), "-t", "-T", "-B", r.file)...)
	if !bytes.Contains(said, []byte("assertion violated")) {
		return fmt.Errorf("the trail does not lead to the assertion: %w\n%s", err, said)
	}
	_, err = fmt.Fprintf(stdout, "%s %s: %s\n\n%s", r.kind, r.name, r.what, said)
	return err
}

var (
	statesLine = regexp.MustCompile(`(?m)^\s*([0-9.e+]+) states, stored`)
	memoryLine = regexp.MustCompile(`(?m)^\s*([0-9.]+)\s+(?:total actual memory usage|memory used for hash table)`)
	totalLine  = regexp.MustCompile(`(?m)^\s*([0-9.]+)\s+total actual memory usage`)
	errorsLine = regexp.MustCompile(`errors: ([0-9]+)`)
)

// parse reads a checker's output. Its error says why the output is no result.
func parse(said []byte) (outcome, error) {
	var o outcome
	found := errorsLine.FindSubmatch(said)
	states := statesLine.FindSubmatch(said)
	if found == nil || states == nil {
		return o, fmt.Errorf("the checker printed no result: %s", said)
	}
	n, err := strconv.ParseFloat(string(states[1]), 64) // 1.2e+08, when there are many
	if err != nil {
		return o, fmt.Errorf("states: %w", err)
	}
	o.states = int64(n)
	memory := totalLine.FindSubmatch(said)
	if memory == nil {
		memory = memoryLine.FindSubmatch(said)
	}
	if memory != nil {
		mb, err := strconv.ParseFloat(string(memory[1]), 64)
		if err != nil {
			return o, fmt.Errorf("memory: %w", err)
		}
		o.memory = int64(mb)
	}
	o.violated = bytes.Contains(said, []byte("assertion violated"))
	if failed := string(found[1]) != "0"; failed != o.violated {
		return o, fmt.Errorf("an error other than the assertion: %s", said)
	}
	o.complete = !o.violated && !bytes.Contains(said, []byte("Search not completed")) &&
		!bytes.Contains(said, []byte("max search depth too small"))
	return o, nil
}

// execute runs a program in dir and returns what it printed.
func execute(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return out, nil
}
