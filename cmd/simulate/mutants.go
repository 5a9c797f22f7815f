package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/march-id/march/internal/overlay"
	"github.com/march-id/march/internal/sim/steady"
)

// mutants shows that the simulation finds mistakes. It builds the real code with the mistakes of mistakes/,
// makes one of them at a time, and runs seeds of the simulation until a check fails. A mistake that the
// simulation cannot see by its nature has a test that sees it. The command prints the check or test that
// caught each mistake, and fails if a mistake is not caught.
func mutants(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("simulate mutants", flag.ContinueOnError)
	only := flags.String("only", "", "make only the mistakes with these `names` (A,B), and print all that was said")
	part := flags.String("part", "1/1", "make only this `part` of the mistakes: 2/3 is the second of three")
	seeds := flags.Int("seeds", 1000, "how many seeds to run at most for one mistake")
	timeout := flags.Duration("timeout", 3*time.Minute, "how long one mistake may live")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *seeds < 1 || *timeout <= 0 {
		_, _ = fmt.Fprintln(os.Stderr, "simulate: -seeds and -timeout above 0")
		return errUsage
	}
	all, err := readMistakes()
	if err != nil {
		return err
	}
	todo, err := selected(all, *only)
	if err != nil {
		return err
	}
	var of, parts int
	if n, _ := fmt.Sscanf(*part, "%d/%d", &of, &parts); n != 2 || of < 1 || of > parts {
		_, _ = fmt.Fprintln(os.Stderr, "simulate: -part 1/3, 2/3 or 3/3, say")
		return errUsage
	}
	left := len(todo)
	todo = slices.Collect(func(yield func(mistake) bool) {
		for i := of - 1; i < left && yield(todo[i]); i += parts {
		}
	})
	left -= len(todo)
	dir, err := os.MkdirTemp("", "march-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	g := gate{dir: dir, seeds: *seeds, timeout: *timeout}
	if err := g.build(ctx, all, todo); err != nil {
		return err
	}
	start := time.Now()
	fates := make([]fate, len(todo))
	for i, m := range todo { // one after the other: the simulation uses all processors by itself
		if fates[i], err = g.make(ctx, m); err != nil {
			return err
		}
	}
	if *only != "" {
		for _, f := range fates {
			_, _ = fmt.Fprintf(stdout, "%s\n", f.said)
		}
	}
	if lived := show(stdout, todo, fates); lived > 0 {
		return fmt.Errorf("%d of %d mistakes were not found", lived, len(todo))
	}
	if err := g.control(ctx, todo, fates); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stdout, "\nAll %d mistakes were found, in %.0f s, by checks that pass without them.\n",
		len(todo), time.Since(start).Seconds())
	if left > 0 {
		_, _ = fmt.Fprintf(stdout, "NOT RUN: the other %d mistakes; make mutants makes all\n", left)
	}
	return nil
}

// show prints the table, and returns how many mistakes were not caught.
func show(to io.Writer, todo []mistake, fates []fate) (lived int) {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "MISTAKE\tSECONDS\tFOUND BY\tWHICH SAID")
	for i, m := range todo {
		f := fates[i]
		if !f.caught {
			lived++
		}
		_, _ = fmt.Fprintf(table, "%s\t%.1f\t%s\t%s\n", m.name, f.took.Seconds(), f.by, f.how)
	}
	_ = table.Flush() // to a file that other processes also write to
	return lived
}

// gate runs test programs that were built with all mistakes. The simulation is built steady, too,
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

// build builds the programs that todo needs, with all mistakes.
func (g gate) build(ctx context.Context, all, todo []mistake) error {
	edits, err := together(all)
	if err != nil {
		return err
	}
	built := make(map[string]bool)
	for _, m := range todo {
		switch {
		case built[m.pkg]:
		case m.pkg == "" || m.pkg == simulation: // seeds of it, or another test
			err = steady.Build(ctx, simulation, g.program(simulation), edits...)
			built[""], built[simulation] = true, true
		default:
			err = overlay.BuildTests(ctx, m.pkg, g.program(m.pkg), edits)
		}
		if err != nil {
			return err
		}
		built[m.pkg] = true
	}
	return nil
}

func (g gate) program(pkg string) string { return filepath.Join(g.dir, path.Base(pkg)+".test") }

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
	// What a script printed begins with a line of its own, which has the script's file and line.
	testLine = regexp.MustCompile(`--- FAIL: ([^ ]+)[^\n]*\n\s*(?:[^ ]+\.go:[0-9]+: \s*)?(.*)`)
	// A script says so by the clock of its bubble, which runs ahead.
	inBubble = regexp.MustCompile(`(?m)^.*: still running after \S+\n+`)
)

// found reads the output of a failed test: its seed or name, and its first finding.
func found(said string) (by, how string, seed int) {
	if m := seedLine.FindStringSubmatch(said); m != nil {
		seed, _ = strconv.Atoi(m[1])
		return "seed " + m[1], short(m[2]), seed
	}
	said = inBubble.ReplaceAllString(said, "")
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
