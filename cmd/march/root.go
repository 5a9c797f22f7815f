package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/words"
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
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	return (&common{stdout: stdout, stderr: stderr}).root()
}

func (c *common) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "march",
		Short: "Unique 64-bit IDs in several rooms at once",
		Long: `March issues unique 64-bit integer IDs in several rooms (datacenters) at once.
Each room issues only IDs with lower <= id mod boundary < upper. Rooms share
one etcd and serve from memory.

Flags for addresses, paths and servers are settings: they can also be set in the
environment (--console as MARCH_CONSOLE) and in a YAML file named by --config or
MARCH_CONFIG (console: HOST:PORT). A flag wins over the
environment, the environment over the file, the file over the context in use
(march context). Flags for one run of a command (--count, --to) are flags only.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed,
2 wrong usage (a flag, argument, setting or value that is not allowed), 3 not
found, 4 conflict or exists already, 5 unavailable.`,
		Example: `  march dev                          a whole cluster here, to try things
  march id next order --count 10     ten IDs
  march layout show                  the rooms and their ranges`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return settle(cmd, c) },
		RunE:              help,
		Args:              noArgs,
	}
	root.Version = versionText()
	root.SetVersionTemplate("march {{.Version}}\n")
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.StringVar(&c.config, "config", "", "YAML file with settings, named as the flags are")
	flags.StringVar(&c.context, "context", "", "the context whose settings to use; see 'march context'")
	_ = root.RegisterFlagCompletionFunc("context", func(cmd *cobra.Command, _ []string,
		begin string) ([]string, cobra.ShellCompDirective) {
		return contextNames(cmd, nil, begin)
	})
	flags.StringVar(&c.logLevel, "log-level", "", "lowest level to log: trace, debug, info, warn, error, "+
		"off (default info; warn for dev)")
	addOptions(root, option{"log-format", oneOf(&c.logFormat, "text", "json"), "text or json"})
	root.AddCommand(
		newDev(c), newRoom(c), newConsole(c),
		newID(c), newKey(c), newTag(c), newLayout(c), newInstance(c), newWorker(c), newCluster(c), newMigrate(c),
		newApply(c), newExport(c), newStatus(c), newDoctor(c), newDebug(c), newAudit(c),
		newVerify(c), newPolicy(c), newToken(c), newEtcd(c), newHalt(c),
		newRecover(c), newConfig(c),
		newBench(c), newVersion(c), newMan(),
	)
	root.AddCommand(newContext(c, root))
	acceptGone(root)
	decimals(root)
	root.SetHelpCommand(newHelp(root))
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" { // cobra's own: it takes any argument for help
			cmd.RunE, cmd.Args = help, noArgs
			for _, shell := range cmd.Commands() {
				shell.Args = noArgs
			}
		}
	}
	return root
}

// decimal is a flag of whole numbers. Those of pflag take 010 for 8.
type decimal struct{ pflag.Value }

func (d decimal) Set(text string) error {
	if _, err := words.Parse(text, 64); err != nil {
		return err
	}
	return d.Value.Set(text)
}

// decimals makes the flags of whole numbers decimal.
func decimals(cmd *cobra.Command) {
	for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if strings.HasPrefix(f.Value.Type(), "int") {
				f.Value = decimal{f.Value}
			}
		})
	}
	for _, child := range cmd.Commands() {
		decimals(child)
	}
}

// newHelp is `march help COMMAND`. It refuses words that are not commands.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usageError{allocator.Errorf(allocator.Invalid, "there is no command %q; see `%s --help`",
					strings.Join(args, " "), cmd.CommandPath())}
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string,
			begin string) (names []string, _ cobra.ShellCompDirective) {
			if cmd, _, err := root.Find(args); err == nil {
				for _, child := range cmd.Commands() {
					if child.IsAvailableCommand() && strings.HasPrefix(child.Name(), begin) {
						names = append(names, cobra.CompletionWithDesc(child.Name(), child.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
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
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
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

// version is set by `make dist`: -ldflags "-X main.version=v1.2.3".
var version string

// build returns this program's version: what `make dist` set, or the module's, or the
// commit it was built from, or "devel".
func build() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return s.Value[:12]
		}
	}
	return "devel"
}

// versionText returns the version as `march version` and `march --version` print it.
func versionText() string {
	return fmt.Sprintf("%s (%s, %s/%s)", build(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newVersion(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return c.print(map[string]string{
				"version": build(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
			}, func(w *tabwriter.Writer) { _, _ = fmt.Fprintf(w, "march %s\n", versionText()) })
		},
	}
	c.outputFlag(cmd)
	return cmd
}

// newMan is hidden: only packaging needs it. Operators have `march help`.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the man pages to a directory",
		Args:   exactly("a directory"),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return allocator.Errorf(allocator.Invalid, "directory: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // its date is the day on which the page was made
			hostFlags(root)
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "March " + build(),
				Manual: "March"}, args[0])
		},
	}
}

// hostFlags replaces the defaults that depend on the host by words, so that a page is the same on any host.
func hostFlags(cmd *cobra.Command) {
	if f := cmd.PersistentFlags().Lookup("name"); f != nil && cmd.Name() == "room" {
		f.DefValue = "the host's name"
	}
	for _, child := range cmd.Commands() {
		hostFlags(child)
	}
}
