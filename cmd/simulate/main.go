// Command simulate runs the simulation of package sim so that every seed goes the
// same way each time, to the last line of its schedule: see package steady. Its command
// mutants shows that the simulation finds mistakes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/march-id/march/internal/sim/steady"
)

func main() { os.Exit(exitCode(os.Args[1:])) }

func exitCode(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := func() error { return simulate(ctx, args) }
	if len(args) > 0 && args[0] == "mutants" {
		run = func() error { return mutants(ctx, args[1:], os.Stdout) }
	}
	err := run()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	case errors.Is(err, errSaid):
		return 1
	case err != nil:
		_, _ = fmt.Fprintln(os.Stderr, "simulate:", err)
		return 1
	}
	return 0
}

// The reasons of these errors are printed.
var errUsage, errSaid = errors.New("wrong usage"), errors.New("a seed failed")

// parse reads flags, and refuses other arguments.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return errUsage
	}
	if flags.NArg() > 0 {
		_, _ = fmt.Fprintln(os.Stderr, flags.Name()+": no arguments but flags")
		return errUsage
	}
	return nil
}

func simulate(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	seed := flags.Int64("seed", -1, "run this seed alone, and print its schedule")
	seeds := flags.Int("seeds", 1000, "how many seeds to run")
	with := flags.String("with", "", "a `fault` that every seed has: by which something is found sooner")
	logs := flags.Bool("logs", false, "with -seed, print what the processes log, too")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *seeds < 1 {
		_, _ = fmt.Fprintln(os.Stderr, "simulate: -seeds 1 or more")
		return errUsage
	}
	dir, err := os.MkdirTemp("", "march-simulate-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "sim.test")
	if err := steady.Build(ctx, simulation, program); err != nil {
		return err
	}
	run := []string{"-test.v", "-test.timeout=0", "-with", *with}
	if *seed >= 0 {
		run = append(run, "-test.run=^TestSimulation$", "-seed", strconv.FormatInt(*seed, 10),
			fmt.Sprintf("-logs=%v", *logs))
	} else {
		run = append(run, "-test.run=^(TestSimulation|TestReplay)$", "-seeds", strconv.Itoa(*seeds))
	}
	cmd := exec.CommandContext(ctx, program, run...) //nolint:gosec // just built
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "internal/sim", steady.Env(), os.Stdout, os.Stderr
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return errSaid
	}
	return err
}
