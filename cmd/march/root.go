package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
)

// Exit codes, as `march help` has them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitUnavailable = 5
)

// usageError is an error of the command line itself.
type usageError struct{ error }

func exitCode(err error) int {
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	switch allocator.KindOf(err) {
	case allocator.NotFound:
		return exitNotFound
	case allocator.Conflict, allocator.Exists:
		return exitConflict
	case allocator.Unavailable:
		return exitUnavailable
	}
	// cobra's own errors of the command line have no type.
	if strings.HasPrefix(err.Error(), "unknown command") || strings.HasPrefix(err.Error(), "required flag") {
		return exitUsage
	}
	return exitFailed
}

// common is what all commands share: the global flags.
type common struct {
	output    string
	config    string
	logLevel  string
	logFormat string

	stdout, stderr io.Writer
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	c := &common{stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:   "march",
		Short: "Unique 64-bit IDs in several rooms at once",
		Long: `March issues unique 64-bit integer IDs in several rooms (datacenters) at once.
Each room issues only IDs with lower <= id mod boundary < upper. Rooms share
one etcd and serve from memory.

Every flag can also be set in the environment (--console as MARCH_CONSOLE) and
in a YAML file named by --config (console: HOST:PORT). A flag wins over the
environment, the environment over the file.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed,
2 wrong usage, 3 not found, 4 conflict or exists already, 5 unavailable.`,
		Example: `  march dev                          a whole cluster here, to try things
  march id next order --count 10     ten IDs
  march layout show                  who issues what`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return settle(cmd, c) },
		RunE:              help,
		Args:              noArgs,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{allocator.Errorf(allocator.Invalid, "%w; see `%s --help`", err, cmd.CommandPath())}
	})
	flags := root.PersistentFlags()
	flags.StringVar(&c.config, "config", "", "YAML file with settings, named as the flags are")
	flags.StringVar(&c.logLevel, "log-level", "", "least level to log: trace, debug, info, warn, error, off (default info; warn for dev)")
	flags.StringVar(&c.logFormat, "log-format", "text", "text or json")
	root.AddCommand(
		newDev(c), newRoom(c), newConsole(c),
		newID(c), newTag(c), newLayout(c), newInstance(c),
		newVersion(c),
	)
	return root
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// group is a command that only has others.
func group(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, RunE: help, Args: noArgs}
	cmd.AddCommand(children...)
	return cmd
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		like := ""
		cmd.SuggestionsMinimumDistance = 2
		if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
			like = " (did you mean " + strings.Join(names, " or ") + "?)"
		}
		return usageError{allocator.Errorf(allocator.Invalid, "unknown command %q%s; see `%s --help`", args[0], like, cmd.CommandPath())}
	}
	return usageError{allocator.Errorf(allocator.Invalid, "takes no arguments, got %q; see `%s --help`", args[0], cmd.CommandPath())}
}

// exactly demands arguments by name.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return usageError{allocator.Errorf(allocator.Invalid, "takes %s, got %d arguments; see `%s --help`", strings.Join(names, " and "), len(args), cmd.CommandPath())}
	}
}

// logger returns the logger of a server; usual is its level when none was set.
func (c *common) logger(usual hclog.Level) (hclog.Logger, error) {
	level := usual
	if c.logLevel != "" {
		if level = hclog.LevelFromString(c.logLevel); level == hclog.NoLevel {
			return nil, usageError{allocator.Errorf(allocator.Invalid, "log-level: %q; allowed: trace, debug, info, warn, error, off", c.logLevel)}
		}
	}
	if c.logFormat != "text" && c.logFormat != "json" {
		return nil, usageError{allocator.Errorf(allocator.Invalid, "log-format: %q; allowed: text, json", c.logFormat)}
	}
	return hclog.New(&hclog.LoggerOptions{
		Name: "march", Level: level, Output: c.stderr, JSONFormat: c.logFormat == "json",
		TimeFormat: "2006-01-02T15:04:05.000Z07:00",
	}), nil
}

// ignoreCanceled makes a command that was told to stop succeed.
func ignoreCanceled(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
