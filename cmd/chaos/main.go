package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"

	"github.com/march-id/march/allocator"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "etcd" { // it has flags of its own
		etcdmain.Main(os.Args[1:])
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	err := newRoot(os.Stdout, os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	os.Exit(exitCode(err))
}

// failure is a verdict: the program worked, and March or the run failed.
type failure struct{ error }

// Unwrap returns what failed.
func (f failure) Unwrap() error { return f.error }

func exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case allocator.KindOf(err) == allocator.Invalid && !errors.As(err, new(failure)):
		return exitUsage
	}
	return exitFailed
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	cfg := config{stdout: stdout, stderr: stderr}
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Torture March, and check every ID that it issued",
		Long: `Torture March: run a three-member etcd, rooms and consoles as processes
here, call them, kill, stop and cut them off from each other in a seeded order, migrate all
the while, then heal everything and check every ID that was issued and what etcd
kept. Nothing outside of the run's directory is touched; no root is needed.

Exit codes: 0 passed, 1 failed or weak (too little happened to show anything), 2
wrong usage.`,
		Example: `  chaos --time 10m
  chaos --time 60s --seed 7 --dir run
  chaos check run`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cfg.run(cmd.Context())
		},
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			if !cmd.Flags().Changed("seed") {
				cfg.seed = rand.Uint64N(1_000_000)
			}
		},
	}
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return allocator.Errorf(allocator.Invalid, "%w", err)
	})
	shared := cmd.PersistentFlags()
	flags := cmd.Flags()
	flags.DurationVar(&cfg.time, "time", time.Minute, "how long to torture, 10s to 24h")
	shared.Uint64Var(&cfg.seed, "seed", 0, "the seed of the schedule (default a random one)")
	shared.StringVar(&cfg.dir, "dir", "", "the run's directory, which must be empty or new (default a temporary one, "+
		"which is kept where the run failed)")
	shared.IntVar(&cfg.rate, "rate", 120_000, "how many IDs a second callers ask for, in all, 1000 to 10000000")
	shared.StringVar(&cfg.march, "march", "", "the program march, built with -tags chaos (default one that is "+
		"built for the run)")
	flags.StringVar(&cfg.previous, "previous", "", "another build of march, with -tags chaos, too, with which rooms "+
		"and consoles start: each upgrade of a run goes from one build to the other, or back (default all are of one)")
	shared.StringVarP(&cfg.output, "output", "o", outputText, "how to print what became of a run: text or json")
	flags.StringSliceVar(&cfg.only, "only", nil, "only these kinds of faults, separated by commas; "+
		"see the command faults")
	cmd.AddCommand(newFaults(stdout), newCheck(&cfg), newMatrix(&cfg))
	cmd.InitDefaultCompletionCmd()
	return cmd
}

func none(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return allocator.Errorf(allocator.Invalid, "argument %q; allowed: none", args[0])
	}
	return nil
}

func newFaults(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "faults", Short: "List the kinds of faults", Args: none,
		RunE: func(*cobra.Command, []string) error {
			for _, f := range allFaults() {
				if _, err := fmt.Fprintf(stdout, "%-36s %s\n", f.kind, f.what); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// config is the command line.
type config struct {
	time           time.Duration
	seed           uint64
	dir            string
	march          string
	previous       string // another build, or empty
	rate           int
	only           []string
	output         string
	cell           *cell // the only action of a run of the matrix
	stdout, stderr io.Writer
}

func (c *config) validate() error {
	switch {
	case c.time < 10*time.Second || c.time > 24*time.Hour:
		return allocator.Errorf(allocator.Invalid, "time: %v; allowed: 10s to 24h", c.time)
	case c.rate < 1_000 || c.rate > 10_000_000:
		return allocator.Errorf(allocator.Invalid, "rate: %d; allowed: 1000 to 10000000", c.rate)
	}
	if err := c.validateOutput(); err != nil {
		return err
	}
	_, err := deck(c.only)
	return err
}

// run makes a run in its directory.
func (c *config) run(ctx context.Context) (err error) {
	if err := c.validate(); err != nil {
		return err
	}
	temporary := c.dir == ""
	if err := c.directory(); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(c.stderr, "seed %d, %v, in %s\n", c.seed, c.time, c.dir)
	err = c.torture(ctx)
	if err == nil && temporary {
		return os.RemoveAll(c.dir)
	}
	if err != nil {
		_, _ = fmt.Fprintf(c.stderr, "what happened is in %s; again: chaos%s\n", c.dir, c.again())
	}
	return err
}

// again returns the flags for the same faults.
func (c *config) again() string {
	flags := fmt.Sprintf(" --time %v --seed %d --rate %d", c.time, c.seed, c.rate)
	if len(c.only) > 0 {
		flags += fmt.Sprintf(" --only %q", strings.Join(c.only, ","))
	}
	if c.previous != "" {
		flags += " --previous " + c.previous
	}
	return flags
}

// directory makes the run's directory.
func (c *config) directory() (err error) {
	if c.dir == "" {
		c.dir, err = os.MkdirTemp("", "march-chaos-")
		return err
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	return emptyDir(c.dir)
}

func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return allocator.Errorf(allocator.Invalid, "dir: %s is not empty; allowed: a new or an empty directory", dir)
	}
	return nil
}

// logger opens the log of this program itself.
func (c *config) logger() (hclog.Logger, io.Closer, error) {
	file, err := os.Create(filepath.Join(c.dir, "chaos.log"))
	if err != nil {
		return nil, nil, err
	}
	return hclog.New(&hclog.LoggerOptions{Name: "chaos", Output: file, Level: hclog.Debug, TimeFormat: "15:04:05.000"}),
		file, nil
}

// joined joins names to a list for people.
func joined(names []string) string { return strings.Join(names, ", ") }
