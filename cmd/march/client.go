package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/user"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/problem"
)

// target is a server that a command calls.
type target struct {
	what    string // "console" or "room": also the flag
	address string
	timeout time.Duration
	secure  clientTLS
	purpose string // what the calls are for, after the caller's name in the audit

	network  connector           // nil is net.Dialer's
	given    *api.Credentials    // what secure asks for; nil before it was opened
	instance record.SeenInstance // that must answer; without a name any server may
	witness  bool                // a console that recover asks for its mirror: others may answer
}

const (
	defaultConsole = "127.0.0.1:7001" // where march dev has it
	defaultRoom    = "127.0.0.1:7010"
)

// connector connects to an address, HOST:PORT.
type connector func(ctx context.Context, address string) (net.Conn, error)

// target returns a target whose flags set the rest.
func (c *common) target() *target { return &target{network: c.network} }

func (t *target) flags(cmd *cobra.Command, what, address string) *cobra.Command {
	t.what = what
	addOptions(cmd, t.secure.options("")...)
	usage := "the " + what + "'s gRPC address, HOST:PORT; of several, A,B, the first that answers"
	return addOptions(cmd, option{what, usually(&t.address, address), usage},
		option{"timeout", usually(&t.timeout, 5*time.Second), "how long to wait for an answer"})
}

// call connects and calls use with a context that ends after the timeout.
func (t *target) call(ctx context.Context, use func(context.Context, *grpc.ClientConn) error) error {
	l, err := t.dial()
	if err != nil {
		return err
	}
	defer l.close()
	return l.call(ctx, use)
}

// link is a connection to a target.
type link struct {
	target *target
	conn   *grpc.ClientConn
	failed atomic.Pointer[net.OpError] // why the last attempt to connect failed
}

// dial returns a link. It does not connect yet.
func (t *target) dial() (*link, error) {
	addresses := strings.Split(t.address, ",")
	for _, address := range addresses {
		if err := api.CheckAddress(t.what, address); err != nil {
			return nil, usageError{err}
		}
	}
	if t.timeout <= 0 {
		return nil, usageError{allocator.Errorf(allocator.Invalid, "timeout: %v; allowed: above 0", t.timeout)}
	}
	l := &link{target: t}
	// The dialer also resolves names, so that an error names the address and the
	// cause.
	given, err := t.credentials()
	if err != nil {
		return nil, usageError{err}
	}
	options := given.Options()
	if t.instance.Name != "" {
		options = given.InstanceOptions(string(t.instance.Room), string(t.instance.Name))
	}
	conn, err := api.Dial("several:///", append(options, grpc.WithContextDialer(l.connect),
		grpc.WithResolvers(inOrder(addresses)))...)
	if err != nil {
		return nil, usageError{allocator.Errorf(allocator.Invalid, "%s: %w", t.what, err)}
	}
	l.conn = conn
	return l, nil
}

// inOrder has gRPC connect to the first of some addresses that answers. The certificate must name that address.
func inOrder(addresses []string) resolver.Builder {
	all := make([]resolver.Address, len(addresses))
	for k, address := range addresses {
		all[k] = resolver.Address{Addr: address, ServerName: address}
	}
	r := manual.NewBuilderWithScheme("several")
	r.InitialState(resolver.State{Addresses: all})
	return r
}

// credentials returns what the flags ask for.
func (t *target) credentials() (api.Credentials, error) {
	if t.given == nil {
		given, err := t.secure.Credentials()
		if err != nil {
			return given, err
		}
		t.given = &given
	}
	return *t.given, nil
}

func (t *target) connect(ctx context.Context, address string) (net.Conn, error) {
	if t.network != nil {
		return t.network(ctx, address)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

func (l *link) close() { _ = l.conn.Close() }

func (l *link) connect(ctx context.Context, address string) (net.Conn, error) {
	conn, err := l.target.connect(ctx, address)
	var why *net.OpError
	if errors.As(err, &why) {
		l.failed.Store(why)
	}
	return conn, err
}

// call calls use with a context that ends after the timeout. Its error is
// Unavailable when the server did not answer.
func (l *link) call(ctx context.Context, use func(context.Context, *grpc.ClientConn) error) error {
	t := l.target
	bounded, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, api.ActorHeader,
		whoami()+t.purpose), t.timeout)
	defer cancel()
	err := use(bounded, l.conn)
	if err == nil || ctx.Err() != nil {
		return err
	}
	connected := l.conn.GetState() == connectivity.Ready
	why := l.failed.Load()
	switch {
	case !connected && why != nil:
		return allocator.Errorf(allocator.Unavailable, "no answer from the %s: %w%s", t, why.Err, t.hint())
	case errors.Is(err, context.DeadlineExceeded):
		return allocator.Errorf(allocator.Unavailable, "no answer from the %s within %v (--timeout)", t, t.timeout)
	case status.Code(err) == codes.Unimplemented:
		return allocator.Errorf(allocator.Refused, "%s%s is not a %s: %w", t.address, t.flag(), t.what, err)
	case !connected && allocator.KindOf(err) == allocator.Unavailable:
		return allocator.Errorf(allocator.Unavailable, "no answer from the %s: %w%s", t, err, t.hint())
	}
	return err
}

func (t *target) String() string { return t.what + " at " + t.address + t.flag() }

// flag returns the flag that names the target; an instance that recover asks has none.
func (t *target) flag() string {
	if t.instance.Name != "" {
		return ""
	}
	return " (--" + t.what + ")"
}

// hint says what to do: it names the program that usually listens at the default address.
func (t *target) hint() string {
	switch {
	case t.address == defaultRoom || t.address == defaultConsole:
		return "; is `march dev` running?"
	case t.what == "console" && !t.witness:
		return ". " + problem.Plain(problem.New(problem.NoConsole, "", time.Time{}))
	}
	return ""
}

// whoami returns user@host, for the audit.
func whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
