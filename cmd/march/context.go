package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
)

// newContext is `march context`. root has all other commands: a context may have the settings of
// those that call servers.
func newContext(c *common, root *cobra.Command) *cobra.Command {
	cmd := group("context", "Name clusters, and choose the one that commands call",
		newContextAdd(c, root), newContextList(c),
		changeContexts(c, "use NAME",
			"Make a context the one in use; - for none", func(f *contextFile, name string) error {
				return f.Use(strings.TrimPrefix(name, "-"))
			}),
		changeContexts(c, "remove NAME", "Remove a context", (*contextFile).Remove),
		newContextShow(c))
	cmd.Long = `Name clusters, and choose the one that commands call. A context is a named set
of settings, such as --console and --room. Commands have the settings of the
context in use, of the one that MARCH_CONTEXT names, or of the one that
--context names. Servers have none. Every ` + "`march dev`" + ` has a context, dev:PORT, while it
runs: it is in use where you chose none, and of several the oldest is.

A flag wins over --context, --context over the environment, the environment over
the file of --config, and that over MARCH_CONTEXT and the context in use.
` + "`march config print COMMAND`" + ` shows where each value comes from. The contexts are
in march/contexts.json in your directory of settings; only you can read it.`
	return c.outputFlag(cmd)
}

// inContext is an output of a command that was called with --context: the commands of March that it names as a next
// step have the context, too. They are in backquotes, or the command of a problem in JSON.
type inContext struct {
	io.Writer
	context string
}

// Write implements io.Writer.
func (o inContext) Write(b []byte) (int, error) {
	_, err := io.WriteString(o.Writer, nextCommands.ReplaceAllStringFunc(string(b), func(named string) string {
		begin, verb, _ := strings.Cut(named, "march ")
		if slices.Contains(servers, verb) {
			return named
		}
		return begin + "march --context " + o.context + " " + verb
	}))
	return len(b), err
}

var nextCommands = regexp.MustCompile("(?:`|\"command\": ?\")march [a-z]+")

// withContexts reads the contexts, has use change them, and stores them if it did.
func withContexts(use func(f *contextFile) (changed bool, err error)) error {
	path, err := contextsPath()
	if err != nil {
		return err
	}
	f, err := loadContexts(path)
	if err != nil {
		return err
	}
	changed, err := use(f)
	if err == nil && changed {
		err = f.Save(path)
	}
	return err
}

// changeContexts is a command that changes one context.
func changeContexts(c *common, use, short string, change func(*contextFile, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: exactly("a context's name"), ValidArgsFunction: contextNames,
		RunE: func(_ *cobra.Command, args []string) error {
			return withContexts(func(f *contextFile) (bool, error) {
				if err := change(f, args[0]); err != nil {
					return false, err
				}
				inUse := "no context is in use"
				if name := f.InUse(); name != "" {
					inUse = "context " + name + " is in use"
				}
				_, err := fmt.Fprintln(c.stdout, inUse)
				return true, err
			})
		},
	}
}

// contextNames completes the name of a context.
func contextNames(_ *cobra.Command, args []string, begin string) (names []string, _ cobra.ShellCompDirective) {
	if len(args) == 0 {
		_ = withContexts(func(f *contextFile) (bool, error) {
			names = slices.DeleteFunc(f.Names(), func(name string) bool { return !strings.HasPrefix(name, begin) })
			return false, nil
		})
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func newContextAdd(c *common, root *cobra.Command) *cobra.Command {
	var inUse bool
	known := make(map[string]*pflag.Flag) // the settings of commands that call servers
	cmd := &cobra.Command{
		Use:     "add NAME",
		Short:   "Add a context with the settings that are given as flags",
		Example: `  march context add prod --console one.prod:7001,two.prod:7001 --room room.prod:7010 --etcd etcd-1.prod:2379 --use`,
		Args:    exactly("a context's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := make(map[string]string)
			var err error
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if of := known[f.Name]; of != nil && cmd.LocalNonPersistentFlags().Lookup(f.Name) == f {
					text, wrong := forAnyFolder(f.Name, f.Value.String())
					given[f.Name] = text
					err = errors.Join(err, wrong, (value{Values: []string{text}}).set(f.Name, of))
				}
			})
			if err == nil && len(given) == 0 {
				err = allocator.Errorf(allocator.Invalid,
					"a context needs a setting, such as --console HOST:PORT; see `%s --help`", cmd.CommandPath())
			}
			if err != nil {
				return usageError{err}
			}
			return withContexts(func(f *contextFile) (bool, error) {
				if err := f.Add(args[0], given); err != nil {
					return false, err
				}
				if inUse {
					f.Current = args[0]
				}
				_, err := fmt.Fprintf(c.stdout, "context %s added\n", args[0])
				return true, err
			})
		},
	}
	cmd.Flags().BoolVar(&inUse, "use", false, "also make it the context in use")
	var visit func(*cobra.Command)
	visit = func(of *cobra.Command) {
		of.PersistentFlags().VisitAll(func(f *pflag.Flag) {
			if known[f.Name] == nil && f.Name != "output" && of != root {
				known[f.Name] = f
				cmd.Flags().String(f.Name, "", f.Usage)
			}
		})
		for _, child := range of.Commands() {
			if !isServer(child) {
				visit(child)
			}
		}
	}
	visit(root)
	return cmd
}

// forAnyFolder returns the value of a setting in a context, which counts wherever a command is called: a file has its
// whole path. Its error is Invalid, for an address that is none.
func forAnyFolder(setting, text string) (string, error) {
	switch {
	case setting == "console" || setting == "room":
		for address := range strings.SplitSeq(text, ",") {
			if err := api.CheckAddress(setting, address); err != nil {
				return text, err
			}
		}
	case text != "" && isFile.MatchString(setting), setting == "audit-log" && text != "stdout":
		return filepath.Abs(text)
	}
	return text, nil
}

// isFile matches the settings that are files.
var isFile = regexp.MustCompile(`-(ca|cert|key|file)$`)

func newContextList(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the contexts; the one in use has a star",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return withContexts(func(f *contextFile) (bool, error) {
				all := contextFile{Current: f.InUse(), Contexts: f.All()}
				return false, c.print(all, func(w *tabwriter.Writer) {
					table(w, "IN USE\tNAME\tCONSOLE\tROOM", f.Names(), func(name string) []any {
						star := " "
						if name == all.Current {
							star = "*"
						}
						return []any{star, name, all.Contexts[name]["console"], all.Contexts[name]["room"]}
					})
				})
			})
		},
	}
}

func newContextShow(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "show [NAME]",
		Short: "Show the settings of a context, by default of the one in use",
		Args:  between(0, "a context's name"), ValidArgsFunction: contextNames,
		RunE: func(_ *cobra.Command, args []string) error {
			return withContexts(func(f *contextFile) (bool, error) {
				name := cmp.Or(strings.Join(args, ""), c.context, f.InUse())
				if name == "" {
					return false, allocator.Errorf(allocator.NotFound,
						"no context is in use; choose one with `march context use`")
				}
				settings, err := f.Get(name)
				if err != nil {
					return false, err
				}
				return false, c.print(map[string]any{"name": name, "settings": settings}, func(w *tabwriter.Writer) {
					_, _ = fmt.Fprintf(w, "context\t%s\n", name)
					for _, setting := range sortedKeys(settings) {
						_, _ = fmt.Fprintf(w, "%s\t%s\n", setting, printable(settings[setting]))
					}
				})
			})
		},
	}
}
