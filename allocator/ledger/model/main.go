// Command model checks four models with spin: march.pml, of how March leases IDs,
// workers.pml, of the windows of worker numbers, lives.pml, of names that are used
// again after their tag was deleted, and order.pml, of the order of a tag's calls in a
// room. It searches all states of some configurations, in which no ID, and no tick of a
// number, may be issued twice, and no ID out of order. It also runs mutants and limits,
// which are broken on purpose: in each of them that must happen, or a number be used out
// of its slice. It prints a table, and exits
// with 1 if any run did not end as it must, or met fewer states than are recorded for
// it. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	if code := exitCode(); code != 0 {
		os.Exit(code)
	}
}

// exitCode runs what the command line asks for, and returns the exit code.
func exitCode() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := command(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	default:
		_, _ = fmt.Fprintln(os.Stderr, "model:", err)
		return 1
	}
}

var errUsage = errors.New("wrong usage")

func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("model", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "leave out the largest configurations; all mutants and limits run")
	part := flags.String("part", "1/1", "run all configurations, but only this `part` of the mutants and limits: 2/3 is the "+
		"second of three")
	only := flags.String("only", "", "run only the configuration, mutant or limit with this `name`")
	replay := flags.String("replay", "",
		"run the mutant or limit with this `name` and print, step by step, how an ID is issued twice")
	memory := flags.Int("memory", 4000, "megabytes that one run may use; one that needs more fails")
	atOnce := flags.Int("at-once", runtime.NumCPU(), "how many runs to do at once")
	timeout := flags.Duration("timeout", 5*time.Minute, "how long one run may take; one that needs longer fails")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage // the flag package has printed the reason
	}
	var of, parts int
	if n, _ := fmt.Sscanf(*part, "%d/%d", &of, &parts); n != 2 || of < 1 || of > parts {
		_, _ = fmt.Fprintln(stderr, "model: -part 1/3, 2/3 or 3/3, say")
		return errUsage
	}
	if flags.NArg() > 0 || *memory < 1 || *atOnce < 1 || *timeout <= 0 {
		_, _ = fmt.Fprintln(stderr, "model: no arguments but flags; -memory, -at-once and -timeout above 0")
		return errUsage
	}
	dir, err := os.MkdirTemp("", "march-model-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c := checker{dir: dir, memory: *memory, timeout: *timeout}
	if *replay != "" {
		return c.replay(ctx, *replay, stdout)
	}
	todo, err := selected(*only, *quick)
	if err != nil {
		return err
	}
	broken, all := 0, len(todo)
	todo = slices.DeleteFunc(todo, func(r run) bool {
		if r.kind != holds && *only == "" {
			broken++
			return broken%parts != of-1
		}
		return false
	})
	if err := c.all(ctx, todo, *atOnce, stdout, stderr); err != nil || len(todo) == all {
		return err
	}
	_, err = fmt.Fprintf(stdout, "NOT RUN: the other %d mutants and limits; make model runs all\n", all-len(todo))
	return err
}

// selected returns the runs that the flags choose.
func selected(only string, quick bool) ([]run, error) {
	if only != "" {
		r, err := find(only)
		return []run{r}, err
	}
	var todo []run
	for _, r := range runs {
		if !quick || !r.large {
			todo = append(todo, r)
		}
	}
	return todo, nil
}

// all performs some runs at once and prints the table, in the order of the runs. Its error says
// how many did not end as they must.
func (c *checker) all(ctx context.Context, todo []run, atOnce int, stdout, stderr io.Writer) error {
	said := make([]ended, len(todo))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	var progress sync.Mutex // guards the lines on stderr
	done := 0
	for i, r := range todo {
		group.Go(func() error {
			o, err := c.check(ctx, r)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			said[i] = ended{outcome: o, verdict: r.verdict(o, err)}
			progress.Lock()
			defer progress.Unlock()
			done++
			_, _ = fmt.Fprintf(stderr, "%d of %d  %s %s: %s\n", done, len(todo), r.kind, r.name, r.what)
			if v := said[i].verdict; v != "" {
				_, _ = fmt.Fprintf(stderr, "   FAILED: %s\n", v)
			} else {
				_, _ = fmt.Fprintf(stderr, "   %s after %d states, %.1f s\n", r.result(v), o.states, o.took.Seconds())
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return show(todo, said, stdout)
}

// ended is a run with its outcome. verdict says what is wrong with that; empty if nothing is.
type ended struct {
	outcome
	verdict string
}

// show prints the table.
func show(todo []run, said []ended, stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "KIND\tNAME\tRESULT\tSTATES\tAT LEAST\tTIME\tMEMORY")
	failed := 0
	for i, r := range todo {
		o := said[i]
		if o.verdict != "" {
			failed++
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%.1f s\t%d MB\n", r.kind, r.name, r.result(o.verdict), o.states,
			r.states, o.took.Seconds(), o.memory)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d runs did not end as they must", failed, len(todo))
	}
	_, err := fmt.Fprintf(stdout, "\nAll %d runs ended as they must.\n", len(todo))
	return err
}
