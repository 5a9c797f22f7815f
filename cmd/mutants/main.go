// Command mutants shows that the simulation finds mistakes. It builds the real code
// with the mistakes of a list, makes one of them at a time (MARCH_MUTANT), and runs
// seeds of the simulation until a check fails. A mistake that the simulation cannot see
// by its nature has a test that sees it. The command prints the check or test that
// caught each mistake, and exits with 1 if a mistake is not caught.
//
// The mistakes are not in the code itself: edits.go has the lines to replace while the program
// is built. One program has all mistakes, so that it is built once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() { os.Exit(exitCode(os.Args[1:])) }

func exitCode(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := command(ctx, args, os.Stdout, os.Stderr); {
	case errors.Is(err, errUsage):
		return 2
	case err != nil && !errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprintln(os.Stderr, "mutants:", err)
		return 1
	}
	return 0
}

var errUsage = errors.New("wrong usage")

func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("only", "", "make only the mistakes with these `names` (A,B), and print all that was said")
	seeds := flags.Int("seeds", 1000, "how many seeds to run at most for one mistake")
	timeout := flags.Duration("timeout", 3*time.Minute, "how long one mistake may live")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage // the flag package has printed the reason
	}
	if flags.NArg() > 0 || *seeds < 1 || *timeout <= 0 {
		_, _ = fmt.Fprintln(stderr, "mutants: no arguments but flags; -seeds and -timeout above 0")
		return errUsage
	}
	todo, err := selected(*only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "march-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	g := gate{dir: dir, seeds: *seeds, timeout: *timeout}
	if err := g.build(ctx, todo); err != nil {
		return err
	}
	start := time.Now()
	fates, err := g.all(ctx, todo)
	if err != nil {
		return err
	}
	if *only != "" {
		for _, f := range fates {
			_, _ = fmt.Fprintf(stdout, "%s\n", f.said)
		}
	}
	lived := show(stdout, todo, fates)
	if lived > 0 {
		return fmt.Errorf("%d of %d mistakes were not found", lived, len(todo))
	}
	if err := g.control(ctx, todo, fates); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "\nAll %d mistakes were found, in %.0f s, by checks that pass without them.\n",
		len(todo), time.Since(start).Seconds())
	return err
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
