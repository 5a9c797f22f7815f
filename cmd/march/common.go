package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/smallfile"
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

// Unwrap returns the error itself.
func (e usageError) Unwrap() error { return e.error }

// finding is a problem that a check found: the command worked, and its result is
// negative.
type finding struct{ error }

// Unwrap returns the problem.
func (f finding) Unwrap() error { return f.error }

func exitCode(err error) int {
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	if errors.As(err, new(finding)) {
		return exitFailed
	}
	switch allocator.KindOf(err) {
	case allocator.Invalid:
		return exitUsage
	case allocator.NotFound:
		return exitNotFound
	case allocator.Conflict, allocator.Exists:
		return exitConflict
	case allocator.Unavailable:
		return exitUnavailable
	}
	return exitFailed
}

// common is what all commands share: the global flags.
type common struct {
	output    string
	config    string
	context   string
	logLevel  string
	logFormat string

	levelFixed   bool // the level is from a flag or the environment
	contextNamed bool // the context is from its flag
	checkOnly    bool // a server checks its settings, and does not start

	stdout, stderr io.Writer
	network        connector // to servers; nil is net.Dialer's

	// commands returns all commands, with their flags bound to c: the settings of one are those of a run of it.
	commands func(c *common) *cobra.Command
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// group is a command that only has subcommands.
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
		return usageError{allocator.Errorf(allocator.Invalid, "unknown command %q%s; see `%s --help`",
			args[0], like, cmd.CommandPath())}
	}
	return usageError{allocator.Errorf(allocator.Invalid, "takes no arguments, got %q; see `%s --help`",
		args[0], cmd.CommandPath())}
}

// exactly demands arguments by name.
func exactly(names ...string) cobra.PositionalArgs { return between(len(names), names...) }

// atLeast demands arguments by name; there may be more.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		return exactly(names...)(cmd, args[:min(len(args), len(names))])
	}
}

// between demands arguments by name, of which those beyond least may be missing.
func between(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= len(names) {
			return nil
		}
		return usageError{allocator.Errorf(allocator.Invalid, "takes %s, got %d arguments; see `%s --help`",
			strings.Join(names, " and "), len(args), cmd.CommandPath())}
	}
}

// logger returns the logger of a server; usual is its level when none was set.
func (c *common) logger(usual hclog.Level) (hclog.Logger, error) {
	level := usual
	if c.logLevel != "" {
		var err error
		if level, err = parseLevel(c.logLevel); err != nil {
			return nil, usageError{err}
		}
	}
	return hclog.New(&hclog.LoggerOptions{
		Name: "march", Level: level, Output: c.stderr, JSONFormat: c.logFormat == "json",
		TimeFormat: "2006-01-02T15:04:05.000Z07:00",
	}), nil
}

// stopped turns the error of a server into success if the server was told to stop.
// Also a start then fails, for that reason alone.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || allocator.KindOf(err) == allocator.Unavailable) {
		return nil
	}
	return err
}

// release is the number of this version: CHANGELOG.md begins with it, and `make dist` takes it from here.
const release = "v0.2.0"

// version is set by `make dist`: -ldflags "-X main.version=v1.2.3".
var version string

// build returns this program's version: what `make dist` set, or the number with the commit that it was built from.
func build() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if ok && info.Main.Version == release { // go install
		return release
	}
	if ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return release + "-dev." + s.Value[:12]
			}
		}
	}
	return release + "-dev"
}

func versionText() string {
	return fmt.Sprintf("%s (%s, %s/%s)", build(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// readBounded reads the file that a setting or an argument names, or standard input for "-", of up to most bytes. Its
// error is Invalid.
func readBounded(setting, path string, most int64) ([]byte, error) {
	var content []byte
	var err error
	if path == "-" {
		content, err = smallfile.ReadAll(setting, path, os.Stdin, most)
	} else {
		content, err = smallfile.Read(setting, path, most)
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimPrefix(content, []byte("\uFEFF")), nil // some editors begin a file with it
}
