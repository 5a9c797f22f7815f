package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/internal/overlay"
	"github.com/march-id/march/internal/sim/steady"
)

// gate runs test programs that were built with all edits. The simulation is built steady, too,
// so that it finds a mistake each time or never.
type gate struct {
	dir     string // of the programs
	seeds   int
	timeout time.Duration
}

// fate is the outcome of a mistake.
type fate struct {
	caught bool
	by     string // a seed, or a test
	how    string // the first finding
	seed   int    // of the simulation
	took   time.Duration
	said   []byte
}

const simulation = "./internal/sim"

// build builds the programs that todo needs.
func (g gate) build(ctx context.Context, todo []mistake) error {
	all := append(switches(), edits...)
	packages := make(map[string]bool) // empty for the simulation
	for _, m := range todo {
		packages[m.pkg] = true
	}
	for pkg := range packages {
		var err error
		if pkg == "" {
			err = steady.Build(ctx, simulation, g.program(simulation), all...)
		} else {
			err = overlay.BuildTests(ctx, pkg, g.program(pkg), all)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (g gate) program(pkg string) string { return filepath.Join(g.dir, path.Base(pkg)+".test") }

// all makes each mistake, one after the other: the simulation uses all processors by itself.
func (g gate) all(ctx context.Context, todo []mistake) ([]fate, error) {
	fates := make([]fate, len(todo))
	for i, m := range todo {
		var err error
		if fates[i], err = g.make(ctx, m); err != nil {
			return nil, err
		}
	}
	return fates, nil
}

// make makes one mistake.
func (g gate) make(ctx context.Context, m mistake) (fate, error) {
	if m.pkg != "" {
		return g.run(ctx, m.name, m.pkg, "-test.run", "^"+m.test+"$")
	}
	run := func(flag string, n int) (fate, error) {
		return g.run(ctx, m.name, simulation, "-test.run", "^TestSimulation$", flag, strconv.Itoa(n), "-with", m.with)
	}
	if m.seed > 0 {
		if f, err := run("-seed", m.seed); err != nil || f.caught {
			return f, err
		}
	}
	return run("-seeds", g.seeds)
}

// control runs everything that caught a mistake, without a mistake: it must pass.
func (g gate) control(ctx context.Context, todo []mistake, fates []fate) error {
	most := make(map[string]int) // by the fault that the seeds have
	for i, m := range todo {
		if m.pkg == "" {
			most[m.with] = max(most[m.with], fates[i].seed)
			continue
		}
		if f, err := g.make(ctx, mistake{pkg: m.pkg, test: m.test}); err != nil || f.caught {
			return fmt.Errorf("without a mistake: %s: %w%s", f.by, err, f.said)
		}
	}
	// A few seeds of each kind: CI runs more of all kinds, without the tag.
	for with, seed := range most {
		g.seeds = min(seed+1, 20)
		if f, err := g.make(ctx, mistake{with: with}); err != nil || f.caught {
			return fmt.Errorf("without a mistake: -with %q: %s: %w%s", with, f.by, err, f.said)
		}
	}
	return nil
}

// run runs a program with one mistake in it.
func (g gate) run(ctx context.Context, name, pkg string, args ...string) (fate, error) {
	bounded, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	cmd := exec.CommandContext(bounded, g.program(pkg), args...) //nolint:gosec // just built
	cmd.Dir, cmd.Env = pkg, append(os.Environ(), "MARCH_MUTANT="+name)
	if pkg == simulation {
		cmd.Env = append(steady.Env(), "MARCH_MUTANT="+name)
	}
	start := time.Now()
	said, err := cmd.CombinedOutput()
	f := fate{took: time.Since(start), said: said, by: "-", how: "NOTHING: it lives"}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return f, context.Cause(ctx)
	case bounded.Err() != nil:
		return f, nil
	case err == nil && strings.Contains(string(said), "no tests to run"):
		return f, fmt.Errorf("%s %v: no such test", pkg, args)
	case err == nil:
		return f, nil
	case !errors.As(err, &exit):
		return f, err
	case !strings.Contains(string(said), "--- FAIL: ") && !strings.Contains(string(said), "panic: "):
		return f, fmt.Errorf("%s %v: %w: %s", pkg, args, err, said) // it tested nothing
	}
	f.caught = true
	f.by, f.how, f.seed = found(string(said))
	return f, nil
}

var (
	seedLine = regexp.MustCompile(`seed ([0-9]+):\n\s*(?:at [^ ]+: )?(.*)`)
	testLine = regexp.MustCompile(`--- FAIL: ([^ ]+)[^\n]*\n\s*(?:[^ ]+\.go:[0-9]+: )?(.*)`)
)

// found reads the output of a failed test: its seed or name, and its first finding.
func found(said string) (by, how string, seed int) {
	if m := seedLine.FindStringSubmatch(said); m != nil {
		seed, _ = strconv.Atoi(m[1])
		return "seed " + m[1], short(m[2]), seed
	}
	// The first line of the first test that is not part of another: its parts come after it.
	for rest := said; ; {
		m := testLine.FindStringSubmatchIndex(rest)
		if m == nil {
			break
		}
		by, how = rest[m[2]:m[3]], short(rest[m[4]:m[5]])
		if rest = rest[m[4]:]; !strings.HasPrefix(how, "--- FAIL: ") {
			break
		}
	}
	if i := strings.Index(said, "panic: "); i >= 0 {
		how, _, _ = strings.Cut(said[i:], "\n")
		how = short(how)
	}
	return by, how, 0
}

// short cuts a line to what fits into a table.
func short(line string) string {
	const most = 110
	if line = strings.TrimSpace(line); len(line) > most {
		line = line[:most-3] + "..."
	}
	return line
}
