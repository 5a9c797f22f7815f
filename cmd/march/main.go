// Command march is all of March in one binary: a whole cluster for development
// (dev), the servers (room, console) and the operators' commands.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run(os.Args[1:])) }

// run runs a command line and returns its exit code. The first SIGINT or SIGTERM
// stops the command in good order, a second one stops it at once.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	root := newRoot(os.Stdout, os.Stderr)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	if msg := err.Error(); msg != "" {
		_, _ = fmt.Fprintf(os.Stderr, "%s: %s\n", cmd.CommandPath(), msg)
	}
	return exitCode(err)
}

var errInterrupted = errors.New("interrupted")
