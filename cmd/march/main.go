// Command march is all of March in one binary: a whole cluster for development
// (dev), the servers (room, console) and the operators' commands.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/march-id/march/internal/words"
)

func main() { os.Exit(execute(os.Args[1:])) }

// execute runs a command line and returns its exit code. The first SIGINT or SIGTERM
// stops the command in good order, a second one stops it at once.
func execute(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	c := &common{stdout: os.Stdout, stderr: os.Stderr, commands: (*common).root}
	root := c.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	if msg := err.Error(); msg != "" {
		_, _ = fmt.Fprintf(c.stderr, "%s: %s\n", cmd.CommandPath(), setIn(msg))
	}
	return exitCode(err)
}

var errInterrupted = errors.New("interrupted")

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
	addOptions(root, option{"log-level", logLevel(&c.logLevel), "lowest level to log: trace, debug, info, warn, " +
		"error, off (default info; warn for dev)"},
		option{"log-format", oneOf(&c.logFormat, "text", "json"), "text or json"})
	root.AddCommand(newDev(c), newRoom(c), newConsole(c), newID(c), newKey(c), newTag(c), newLayout(c), newInstance(c),
		newWorker(c), newCluster(c), newMigrate(c), newApply(c), newExport(c), newStatus(c), newDoctor(c), newDebug(c),
		newAudit(c), newVerify(c), newPolicy(c), newToken(c), newCerts(c), newEtcd(c), newHalt(c), newRecover(c),
		newConfig(c), newBench(c), newVersion(c), newMan())
	root.AddCommand(newContext(c, root))
	acceptGone(root)
	decimals(root)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() { // cobra's own take any argument for help
		switch cmd.Name() {
		case "completion":
			cmd.RunE, cmd.Args = help, noArgs
			for _, shell := range cmd.Commands() {
				shell.Args = noArgs
			}
		case "help":
			cmd.RunE, cmd.Long = helpOf, ""
		}
	}
	return root
}

// wholeNumber is a flag of whole numbers. Those of pflag take 010 for 8.
type wholeNumber struct{ pflag.Value }

func (d wholeNumber) Set(text string) error {
	if _, err := words.Parse(text, 64); err != nil {
		return err
	}
	return d.Value.Set(text)
}

// decimals makes the flags of whole numbers decimal.
func decimals(root *cobra.Command) {
	for _, cmd := range tree(root) {
		for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) {
				if strings.HasPrefix(f.Value.Type(), "int") {
					f.Value = wholeNumber{f.Value}
				}
			})
		}
	}
}

// tree returns a command and all below it.
func tree(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, child := range cmd.Commands() {
		all = append(all, tree(child)...)
	}
	return all
}

// helpOf is `march help COMMAND`. It refuses words that are not commands.
func helpOf(cmd *cobra.Command, args []string) error {
	of, rest, err := cmd.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return usagef("there is no command %q; see `%s --help`", strings.Join(args, " "), of.CommandPath())
	}
	of.InitDefaultHelpFlag()
	return of.Help()
}

func newVersion(c *common) *cobra.Command {
	row := callRow{use: "version", short: "Print the version of this program"}
	cmd := command(row, noArgs, func(*cobra.Command, []string) error {
		return c.print(map[string]string{
			"version": build(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
		}, func(w *tabwriter.Writer) { put(w, "march %s\n", versionText()) })
	})
	return c.outputFlag(cmd)
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
				return invalidf("directory: %w", err)
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
func hostFlags(root *cobra.Command) {
	for _, cmd := range tree(root) {
		if f := cmd.PersistentFlags().Lookup("name"); f != nil && cmd.Name() == "room" {
			f.DefValue = "the host's name"
		}
	}
}
