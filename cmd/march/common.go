package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
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

func (e usageError) Unwrap() error { return e.error }

// The errors of commands, by their kinds.
func usagef(format string, args ...any) error { return usageError{invalidf(format, args...)} }
func invalidf(format string, args ...any) error {
	return allocator.Errorf(allocator.Invalid, format, args...)
}
func refusedf(format string, args ...any) error {
	return allocator.Errorf(allocator.Refused, format, args...)
}

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
	within         *within   // march dev, of a server in its process; nil for one of its own

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
		return usagef("unknown command %q%s; see `%s --help`", args[0], like, cmd.CommandPath())
	}
	return usagef("takes no arguments, got %q; see `%s --help`", args[0], cmd.CommandPath())
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
		return usagef("takes %s, got %d arguments; see `%s --help`",
			strings.Join(names, " and "), len(args), cmd.CommandPath())
	}
}

// logger returns the logger of a server; level is its level when none was set.
func (c *common) logger(level hclog.Level) hclog.Logger {
	if c.logLevel != "" {
		level = hclog.LevelFromString(c.logLevel)
	}
	return hclog.New(&hclog.LoggerOptions{
		Name: "march", Level: level, Output: c.stderr, JSONFormat: c.logFormat == "json",
		TimeFormat: "2006-01-02T15:04:05.000Z07:00",
	})
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

// All commands share these helpers: the flag -o, the call of a console, the printed answer,
// the question to the operator, and the line of progress.

// outputFlag gives cmd and its children -o.
func (c *common) outputFlag(cmd *cobra.Command) *cobra.Command {
	return addOptions(cmd, option{"output,o", oneOf(&c.output, "text", "json"), "text or json"})
}

func callConsole(ctx context.Context, to *target,
	use func(context.Context, marchv1.ConsoleServiceClient) error) error {
	return to.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		return use(ctx, marchv1.NewConsoleServiceClient(conn))
	})
}

func askConsole[Q, A any](ctx context.Context, to *target, request Q, call consoleCall[Q, A]) (answer A, err error) {
	err = callConsole(ctx, to, func(ctx context.Context, s marchv1.ConsoleServiceClient) (err error) {
		answer, err = call(s, ctx, request)
		return err
	})
	return answer, err
}

// unreadable is a message that names the keys which could not be read.
type unreadable interface{ GetUnreadable() []*marchv1.Unreadable }

// distinct removes the keys that are in a list already: two pages may both name a key that lies between them.
func distinct(list []*marchv1.Unreadable) []*marchv1.Unreadable {
	known := make(map[string]bool)
	return slices.DeleteFunc(list, func(u *marchv1.Unreadable) bool {
		was := known[u.GetKey()]
		known[u.GetKey()] = true
		return was
	})
}

// print writes a message, or another value, as JSON, or as the function text writes it. If it is a message
// without a list of problems, print names its unreadable keys on stderr.
func (c *common) print(m any, text func(w *tabwriter.Writer)) error {
	listed := false
	if l, ok := m.(interface{ GetProblems() []*marchv1.Problem }); ok {
		listed = len(l.GetProblems()) > 0
	}
	if u, ok := m.(unreadable); ok && !listed {
		for _, u := range u.GetUnreadable() {
			put(c.stderr, "left out, because it cannot be read: key %q: %s\n", u.GetKey(), u.GetWhy())
		}
	}
	if message, ok := m.(proto.Message); ok && c.output == "json" {
		b, err := marshal(message)
		if err != nil {
			return err
		}
		m = json.RawMessage(b)
	}
	if c.output == "json" {
		e := json.NewEncoder(c.stdout)
		e.SetEscapeHTML(false)
		return e.Encode(m)
	}
	return aligned(c.stdout, text)
}

// aligned writes a text whose columns are parted by tabs.
func aligned(out io.Writer, text func(w *tabwriter.Writer)) error {
	w := tabwriter.NewWriter(lines{out}, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// interactive reports whether stdin is a terminal, so that questions can be asked.
func interactive() bool { return term.IsTerminal(int(os.Stdin.Fd())) }

// destroys has a command that cannot be undone ask before it runs, or need --yes where there is no terminal.
// question returns what it asks, empty where nothing is lost.
func destroys(c *common, cmd *cobra.Command,
	question func(ctx context.Context, args []string) (string, error)) *cobra.Command {
	var yes bool
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if yes {
			return run(cmd, args)
		}
		asked, err := question(cmd.Context(), args)
		if err == nil && asked != "" {
			err = ask(cmd.Context(), c, asked)
		}
		if err != nil {
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

// ask asks a question on the terminal. Its error is a usageError if there is no
// terminal, and Refused if the answer is not yes.
func ask(ctx context.Context, c *common, question string) error {
	if !interactive() {
		return cannotAsk()
	}
	answer, err := answerTo(ctx, c, question+" [y/N]")
	if err == nil && answer != "y" && answer != "yes" {
		err = errNotDone
	}
	return err
}

var errNotDone = &allocator.Error{Kind: allocator.Refused, Msg: "not done"}

// answerTo shows a question on the terminal, and returns the answer in lower case.
func answerTo(ctx context.Context, c *common, question string) (string, error) {
	_, _ = fmt.Fprint(c.stderr, printableLines(question)+" ")
	line, err := readLine(ctx, os.Stdin)
	if err != nil {
		put(c.stderr, "\n")
	}
	return strings.ToLower(strings.TrimSpace(line)), err
}

func cannotAsk() error {
	return usagef("cannot ask for confirmation here: give --yes to do it without asking")
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

// soon is how long commands take that show no progress without a terminal.
const soon = 5 * time.Second

// newProgress returns a progress. Without a terminal, first is when its first line may come, and every the time between
// lines: most commands end before the first one.
func newProgress(c *common, first, every time.Duration) *progress {
	if term.IsTerminal(int(os.Stderr.Fd())) {
		return &progress{c: c, tty: true, every: 200 * time.Millisecond}
	}
	return &progress{c: c, every: every, next: time.Now().Add(first)}
}

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
	line = printable(line)
	switch {
	case line == p.shown:
	case p.tty:
		_, _ = fmt.Fprint(p.c.stderr, "\r\x1b[K"+line)
	default:
		put(p.c.stderr, "%s\n", line)
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

// selfName returns how this program was called, for examples. A program that `go run` built is in
// a temporary directory, and gone once it has ended.
func selfName() string {
	if path, err := os.Executable(); err == nil && strings.Contains(path, "go-build") {
		return "go run ./cmd/march"
	}
	return os.Args[0]
}

// problemsText lists the problems, each with its start, its remedy and the command.
func problemsText(w io.Writer, problems []*marchv1.Problem) {
	_, _ = io.WriteString(w, problem.Lines(problems, printable))
}
