package main

import (
	"bufio"
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
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// All commands share these helpers: the flag -o, the call of a console, the printed answer,
// the question to the operator, and the line of progress.

// outputFlag gives cmd and its children -o.
func (c *common) outputFlag(cmd *cobra.Command) *cobra.Command {
	return addOptions(cmd, option{"output,o", oneOf(&c.output, "text", "json"), "text or json"})
}

// caller is a target, which is dialled for one call, or a link to one.
type caller interface {
	call(ctx context.Context, use func(context.Context, *grpc.ClientConn) error) error
}

func callConsole(ctx context.Context, to caller,
	use func(context.Context, marchv1.ConsoleServiceClient) error) error {
	return to.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		return use(ctx, marchv1.NewConsoleServiceClient(conn))
	})
}

func askConsole[Q, A any](ctx context.Context, to caller, request Q, call consoleCall[Q, A]) (answer A, err error) {
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
// without a list of problems, print names its unreadable keys on stderr. Before text writes a message, its texts lose
// the characters that cannot be printed: none of a server's becomes two lines.
func (c *common) print(m any, text func(w *tabwriter.Writer)) error {
	if message, ok := m.(proto.Message); ok {
		c.clean(message)
	}
	listed := false
	if l, ok := m.(interface{ GetProblems() []*marchv1.Problem }); ok {
		listed = len(l.GetProblems()) > 0
	}
	if u, ok := m.(unreadable); ok && !listed {
		for _, u := range u.GetUnreadable() {
			_, _ = fmt.Fprintf(c.stderr, "left out, because it cannot be read: key %q: %s\n", u.GetKey(), u.GetWhy())
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
	w := tabwriter.NewWriter(lines{c.stdout}, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// clean has a message's texts without the characters that cannot be printed, unless it is shown as JSON.
func (c *common) clean(m proto.Message) {
	if c.output != "json" {
		mapTexts(m.ProtoReflect(), printable)
	}
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
		_, _ = fmt.Fprintln(c.stderr)
	}
	return strings.ToLower(strings.TrimSpace(line)), err
}

func cannotAsk() error {
	return usageError{allocator.Errorf(allocator.Invalid,
		"cannot ask for confirmation here: give --yes to do it without asking")}
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
