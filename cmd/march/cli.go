package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/march/internal/contexts"
)

// All commands share these helpers: the flag -o, the call of a console, the printed answer,
// the question to the operator, and the line of progress.

// outputFlag gives cmd and its children -o.
func (c *common) outputFlag(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVarP(&c.output, "output", "o", "text", "text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// checkOutput checks -o before anything is done.
func (c *common) checkOutput() error {
	if c.output != "text" && c.output != "json" {
		return usageError{allocator.Errorf(allocator.Invalid, "output: %q; allowed: text, json", c.output)}
	}
	return nil
}

// callConsole checks -o and calls a console.
func callConsole(cmd *cobra.Command, c *common, t *target, use func(context.Context, marchv1.ConsoleServiceClient) error) error {
	if err := c.checkOutput(); err != nil {
		return err
	}
	return t.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
		return use(ctx, marchv1.NewConsoleServiceClient(conn))
	})
}

// unreadable is a message that names the keys which could not be read.
type unreadable interface{ GetUnreadable() []*marchv1.Unreadable }

// passedOver adds the unreadable keys of a page to those of the pages before. Two
// pages may both name a key that lies between them.
func passedOver(all []*marchv1.Unreadable, page unreadable) []*marchv1.Unreadable {
	for _, u := range page.GetUnreadable() {
		if !slices.ContainsFunc(all, func(a *marchv1.Unreadable) bool { return a.GetKey() == u.GetKey() }) {
			all = append(all, u)
		}
	}
	return all
}

// print writes a message as JSON, or as the function text writes it. If the message
// has no list of problems, print names its unreadable keys on stderr.
func (c *common) print(m proto.Message, text func(w *tabwriter.Writer)) error {
	listed := false
	if l, ok := m.(interface{ GetProblems() []*marchv1.Problem }); ok {
		listed = len(l.GetProblems()) > 0
	}
	if u, ok := m.(unreadable); ok && !listed {
		for _, u := range u.GetUnreadable() {
			_, _ = fmt.Fprintf(c.stderr, "left out, because it cannot be read: key %q: %s\n", u.GetKey(), u.GetWhy())
		}
	}
	if c.output == "json" {
		b, err := marshalWords(m)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.stdout, "%s\n", b)
		return err
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// interactive reports whether stdin is a terminal, so that questions can be asked.
func interactive() bool { return term.IsTerminal(int(os.Stdin.Fd())) }

// ask asks a question on the terminal. Its error is a usageError if there is no
// terminal, and Refused if the answer is not yes.
func ask(ctx context.Context, c *common, question string) error {
	if !interactive() {
		return cannotAsk()
	}
	_, _ = fmt.Fprintf(c.stderr, "%s [y/N] ", question)
	line, err := readLine(ctx, os.Stdin)
	if err != nil {
		_, _ = fmt.Fprintln(c.stderr)
		return err
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return allocator.Errorf(allocator.Refused, "not done")
	}
	return nil
}

func cannotAsk() error {
	return usageError{allocator.Errorf(allocator.Invalid, "cannot ask for confirmation here: give --yes to do it without asking")}
}

// readLine returns the next line, or the text before the end of the input. If ctx
// ends first it returns ctx's error. Then a goroutine waits for the line until the
// process ends, because a read of stdin cannot be stopped.
func readLine(ctx context.Context, in io.Reader) (string, error) {
	type answer struct {
		line string
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		line, err := bufio.NewReader(in).ReadString('\n')
		read <- answer{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case a := <-read:
		if errors.Is(a.err, io.EOF) {
			a.err = nil
		}
		return a.line, a.err
	}
}

// progress shows on stderr how far a command is: a terminal has one line that changes,
// other outputs a new line each time. Several goroutines may use it.
type progress struct {
	c     *common
	tty   bool
	every time.Duration // how often a line comes at most

	mu    sync.Mutex
	shown string
	next  time.Time // when a line is due again
}

// newProgress returns a progress for commands that usually end soon: without a terminal the
// first line comes after five seconds, so most runs have none.
func newProgress(c *common) *progress {
	p := newProgressAtOnce(c, 5*time.Second)
	if !p.tty {
		p.next = time.Now().Add(p.every)
	}
	return p
}

// newProgressAtOnce returns a progress with a first line at once. Without a terminal, every is
// the time between lines.
func newProgressAtOnce(c *common, every time.Duration) *progress {
	p := &progress{c: c, tty: term.IsTerminal(int(os.Stderr.Fd())), every: every}
	if p.tty {
		p.every = 200 * time.Millisecond
	}
	return p
}

// tick shows a line if one is due.
func (p *progress) tick(line func() string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); !now.Before(p.next) {
		p.next = now.Add(p.every)
		p.show(line())
	}
}

// say shows a line, unless the same line is shown already.
func (p *progress) say(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(line)
}

// show is say, with the lock held.
func (p *progress) show(line string) {
	switch {
	case line == p.shown:
	case p.tty:
		_, _ = fmt.Fprint(p.c.stderr, "\r\x1b[K"+line)
	default:
		_, _ = fmt.Fprintln(p.c.stderr, line)
	}
	p.shown = line
}

// end removes the line from a terminal.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tty && p.shown != "" {
		_, _ = fmt.Fprint(p.c.stderr, "\r\x1b[K")
	}
}

// newContext is `march context`. root has all other commands: a context may have the settings of
// those that call servers.
func newContext(c *common, root *cobra.Command) *cobra.Command {
	cmd := group("context", "Name clusters, and choose the one that commands call",
		newContextAdd(c, root), newContextList(c),
		changeContexts(c, "use NAME", "Make a context the one that commands have; - for none", func(f *contexts.File, name string) error {
			return f.Use(strings.TrimPrefix(name, "-"))
		}),
		changeContexts(c, "remove NAME", "Remove a context", (*contexts.File).Remove),
		newContextShow(c))
	cmd.Long = `Name clusters, and choose the one that commands call. A context is a named set
of settings, such as --console and --room. Commands have the settings of the
context in use, of the one that MARCH_CONTEXT names, or of the one that
--context names. Servers have none.

A flag wins over --context, --context over the environment, the environment over
the file of --config, and that over MARCH_CONTEXT and the context in use.
` + "`march config print COMMAND`" + ` shows where each value comes from. The contexts are
in march/contexts.json in your directory of settings; only you can read it.`
	c.outputFlag(cmd)
	return cmd
}

// withContexts reads the contexts, has use change them, and stores them if it did.
func withContexts(use func(f *contexts.File) (changed bool, err error)) error {
	path, err := contexts.Path()
	if err != nil {
		return err
	}
	f, err := contexts.Load(path)
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
func changeContexts(c *common, use, short string, change func(*contexts.File, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: exactly("a context's name"), ValidArgsFunction: contextNames,
		RunE: func(_ *cobra.Command, args []string) error {
			return withContexts(func(f *contexts.File) (bool, error) {
				if err := change(f, args[0]); err != nil {
					return false, err
				}
				inUse := "no context is in use"
				if f.Current != "" {
					inUse = "context " + f.Current + " is in use"
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
		_ = withContexts(func(f *contexts.File) (bool, error) {
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
		Example: `  march context add prod --console console.prod:7001 --room room.prod:7010 --use`,
		Args:    exactly("a context's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			settings := make(contexts.Settings)
			var err error
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if of := known[f.Name]; of != nil && cmd.LocalNonPersistentFlags().Lookup(f.Name) == f {
					settings[f.Name] = f.Value.String()
					err = errors.Join(err, (setting{values: []string{f.Value.String()}}).set(f.Name, of))
				}
			})
			if err == nil && len(settings) == 0 {
				err = allocator.Errorf(allocator.Invalid, "a context needs a setting, such as --console HOST:PORT; see `%s --help`", cmd.CommandPath())
			}
			if err != nil {
				return usageError{err}
			}
			return withContexts(func(f *contexts.File) (bool, error) {
				if err := f.Add(args[0], settings); err != nil {
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
	cmd.Flags().BoolVar(&inUse, "use", false, "make it the one that commands have")
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

// isServer reports whether a command is a server: contexts are for those that call servers.
func isServer(cmd *cobra.Command) bool {
	return slices.Contains([]string{"march dev", "march room", "march console"}, cmd.CommandPath())
}

func newContextList(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the contexts; the one in use has a star",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			return withContexts(func(f *contexts.File) (bool, error) {
				if c.output == "json" {
					return false, json.NewEncoder(c.stdout).Encode(f)
				}
				w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
				_, _ = fmt.Fprintln(w, "IN USE\tNAME\tCONSOLE\tROOM")
				for _, name := range f.Names() {
					star := ""
					if name == f.Current {
						star = "*"
					}
					_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", star, name, cmp.Or(f.Contexts[name]["console"], "-"), cmp.Or(f.Contexts[name]["room"], "-"))
				}
				return false, w.Flush()
			})
		},
	}
}

func newContextShow(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "show [NAME]",
		Short: "Show the settings of a context, by default of the one in use",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exactly("a context's name")(cmd, args)
			}
			return nil
		},
		ValidArgsFunction: contextNames,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			return withContexts(func(f *contexts.File) (bool, error) {
				name := cmp.Or(strings.Join(args, ""), c.context, f.Current)
				if name == "" {
					return false, allocator.Errorf(allocator.NotFound, "no context is in use; choose one with `march context use`")
				}
				settings, err := f.Get(name)
				if err != nil {
					return false, err
				}
				if c.output == "json" {
					return false, json.NewEncoder(c.stdout).Encode(map[string]any{"name": name, "settings": settings})
				}
				w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
				_, _ = fmt.Fprintf(w, "context\t%s\n", name)
				for _, setting := range sortedKeys(settings) {
					_, _ = fmt.Fprintf(w, "%s\t%s\n", setting, printable(settings[setting]))
				}
				return false, w.Flush()
			})
		},
	}
}
