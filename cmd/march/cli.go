package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
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
// other outputs a new line each time.
type progress struct {
	c     *common
	tty   bool
	shown string
	next  time.Time // when due reports true again
}

func newProgress(c *common) *progress {
	p := &progress{c: c, tty: term.IsTerminal(int(os.Stderr.Fd()))}
	if !p.tty {
		p.next = time.Now().Add(p.pace())
	}
	return p
}

// pace is how often the line changes at most.
func (p *progress) pace() time.Duration {
	if p.tty {
		return 200 * time.Millisecond
	}
	return 5 * time.Second
}

// due reports whether it is time for a line, at that pace.
func (p *progress) due() bool {
	now := time.Now()
	if now.Before(p.next) {
		return false
	}
	p.next = now.Add(p.pace())
	return true
}

// say shows a line, unless the same line is shown already.
func (p *progress) say(line string) {
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
	if p.tty && p.shown != "" {
		_, _ = fmt.Fprint(p.c.stderr, "\r\x1b[K")
	}
}
