package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/user"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/setting"
)

// Each command is a row. One that makes a call of a console is no more: its use names the arguments and the flags that
// must be given, arguments and flags are fields of the request, and the answer is printed.
type callRow struct {
	use, short, long, example string
	flags                     []rowFlag
	// ask is the question before a call that cannot be undone, and done what is printed after it; %s are the arguments.
	ask, done string
	// again returns after which pause the call is to be made again, because the n-th answer has not all; 0 for none.
	again func(n int, answer proto.Message) time.Duration
}

// rowFlag is a flag that sets a field of the request. Its name may have a letter behind a comma.
type rowFlag struct{ field, name, standard, usage string }

// arguments are what stands in a row's use: the argument in words, and the field of the request.
var arguments = map[string]struct{ words, field string }{
	"TAG": {"a tag", "name"}, "ROOM": {"a room", "room"}, "INSTANCE": {"an instance", "name"},
	"[ID]": {"a migration's ID", "id"}, "[TEXT]": {"a text", "search"},
}

type consoleCall[Q, A any] func(marchv1.ConsoleServiceClient, context.Context, Q, ...grpc.CallOption) (A, error)

// command returns the command of a row that makes no call.
func command(r callRow, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{Use: r.use, Short: r.short, Long: r.long, Example: r.example, Args: args, RunE: run}
}

// newRow returns the command of a row: run comes after the fields of the request are set.
func newRow(r callRow, request proto.Message, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	least, names, needed := 0, []string{}, []string{}
	var fields []setting.Setting
	for _, word := range strings.Fields(r.use)[1:] {
		if argument, ok := arguments[word]; ok {
			field := argument.field
			if f := request.ProtoReflect().Descriptor().Fields().ByName("tag"); f != nil && f.Message() != nil {
				field = "tag." + field // a request with the whole tag
			} else if f != nil {
				field = "tag"
			}
			names, fields = append(names, argument.words), append(fields, setting.Of(request, field, ""))
			if !strings.HasPrefix(word, "[") {
				least++
			}
		} else if flag, ok := strings.CutPrefix(word, "--"); ok {
			needed = append(needed, flag)
		}
	}
	allowed := between(least, names...)
	if len(names) == 0 {
		allowed = noArgs
	}
	cmd := command(r, allowed, func(cmd *cobra.Command, args []string) error {
		for _, flag := range needed {
			if err := required(cmd, flag); err != nil {
				return err
			}
		}
		for i, arg := range args[:min(len(args), len(fields))] { // run reads those that are no fields
			if err := fields[i].Set(request, arg); err != nil {
				return usageError{err}
			}
		}
		return run(cmd, args)
	})
	for _, f := range r.flags {
		f.add(cmd, request)
	}
	return cmd
}

// newCall returns the command of a row that makes a call. part is what of the answer is printed, and text writes it.
func newCall[Q, A, M proto.Message](c *common, t *target, r callRow, request Q, call consoleCall[Q, A], part func(A) M,
	text func(*tabwriter.Writer, M)) *cobra.Command {
	cmd := newRow(r, request, func(cmd *cobra.Command, args []string) error {
		return callConsole(cmd.Context(), t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			answer, err := call(s, ctx, request)
			for n := 1; err == nil && r.again != nil; n++ {
				after := r.again(n, answer)
				if after == 0 || !store.Sleep(ctx, after) && n == 1 { // the first answer is better than none
					break
				}
				answer, err = call(s, ctx, request)
			}
			if err != nil {
				return err
			}
			c.sayNotes(answer)
			m := part(answer)
			return c.print(m, func(w *tabwriter.Writer) {
				if r.done != "" {
					put(w, "%s\n", filled(r.done, args))
					return
				}
				text(w, m)
			})
		})
	})
	if r.ask != "" {
		return destroys(c, cmd, func(_ context.Context, args []string) (string, error) {
			return filled(r.ask, args), nil
		})
	}
	return cmd
}

// filled returns a text with the arguments in it.
func filled(text string, args []string) string {
	for _, arg := range args {
		text = strings.Replace(text, "%s", arg, 1)
	}
	return text
}

// whole is the part of an answer that is printed, where that is all.
func whole[A any](answer A) A { return answer }

// allPages is the call of a list that comes in pages, and makes them one; enough, if there is one, says when to stop.
func allPages[Q, A proto.Message](call consoleCall[Q, A], enough func(A) bool) consoleCall[Q, A] {
	return func(s marchv1.ConsoleServiceClient, ctx context.Context, request Q,
		_ ...grpc.CallOption) (list A, err error) {
		q := request.ProtoReflect()
		q.Set(q.Descriptor().Fields().ByName("page_size"), protoreflect.ValueOfInt32(1000))
		if list, err = call(s, ctx, request); err != nil {
			return list, err
		}
		m := list.ProtoReflect()
		fields := m.Descriptor().Fields()
		next, keys := fields.ByName("next_page_token"), fields.ByName("unreadable")
		for m.Has(next) && (enough == nil || !enough(list)) {
			q.Set(q.Descriptor().Fields().ByName("page_token"), m.Get(next))
			page, err := call(s, ctx, request)
			if err != nil {
				return list, err
			}
			m.Clear(next)
			proto.Merge(list, page)
			if u, ok := any(list).(unreadable); ok {
				m.Mutable(keys).List().Truncate(len(distinct(u.GetUnreadable())))
			}
		}
		m.Clear(next)
		return list, nil
	}
}

// settingFlag is a field of a message as a flag.
type settingFlag struct {
	setting.Setting
	of proto.Message
}

func (f settingFlag) Set(text string) error { return f.Setting.Set(f.of, text) }
func (f settingFlag) String() string        { return "" }

// addSetting adds the flag of a setting; a letter is its short form.
func addSetting(cmd *cobra.Command, of proto.Message, s setting.Setting, name, standard string) {
	name, letter, _ := strings.Cut(name, ",")
	f := cmd.Flags().VarPF(settingFlag{s, of}, name, letter, s.Help)
	if f.DefValue = standard; s.Type() == "bool" {
		f.NoOptDefVal = "true"
	}
	if words := s.Choices(); words != nil {
		_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
}

// rowFlags are the fields of a request as flags.
func rowFlags(settings []setting.Setting) (flags []rowFlag) {
	for _, s := range settings {
		flags = append(flags, rowFlag{s.Path, settingName(s), s.Default(), s.Help})
	}
	return flags
}

// add adds the flag. Where its default is not that of the message, the request has it.
func (f rowFlag) add(cmd *cobra.Command, request proto.Message) {
	s := setting.Of(request, f.field, f.usage)
	addSetting(cmd, request, s, f.name, f.standard)
	if f.standard != "" && s.Choices() == nil {
		if err := s.Set(request, f.standard); err != nil {
			panic(err)
		}
	}
}

// sayNotes prints what an answer says besides: the instances that have not yet applied a change of a tag, what the
// change does, and what may come again.
func (c *common) sayNotes(answer any) {
	if a, ok := answer.(interface{ GetBehind() []string }); ok && len(a.GetBehind()) > 0 {
		put(c.stderr, "changed; these instances did not answer, or did not apply the change within "+
			"3 s, and may still issue the IDs that they hold: %s\n", strings.Join(a.GetBehind(), ", "))
	}
	if a, ok := answer.(interface{ GetEffects() []string }); ok {
		for _, effect := range a.GetEffects() {
			put(c.stderr, "%s\n", effect)
		}
	}
	if a, ok := answer.(interface{ GetRisk() string }); ok && a.GetRisk() != "" {
		put(c.stderr, "%s\n", a.GetRisk())
	}
}

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

	conn   *grpc.ClientConn             // nil before dial: each call has a connection of its own then
	failed *atomic.Pointer[net.OpError] // why the last attempt to connect failed
}

const (
	defaultConsole = "127.0.0.1:7001" // where march dev has it
	defaultRoom    = "127.0.0.1:7010"
)

// connector connects to an address, HOST:PORT.
type connector func(ctx context.Context, address string) (net.Conn, error)

// target returns a target whose flags set the rest.
func (c *common) target() *target {
	return &target{network: c.network, secure: clientTLS{filesTLS: tls13}}
}

func (t *target) flags(cmd *cobra.Command, what, address string) *cobra.Command {
	t.what = what
	addSettings(cmd, &t.secure)
	usage := "the " + what + "'s gRPC address, HOST:PORT; of several, A,B, the first that answers"
	return addOptions(cmd, option{what, usually(&t.address, address), usage},
		option{"timeout", usually(&t.timeout, 5*time.Second), "how long to wait for an answer"})
}

// dial returns a target whose calls share a connection. It does not connect yet.
func (t *target) dial() (*target, error) {
	addresses := strings.Split(t.address, ",")
	for _, address := range addresses {
		if err := api.CheckAddress(t.what, address); err != nil {
			return nil, usageError{err}
		}
	}
	if t.timeout <= 0 {
		return nil, usagef("timeout: %v; allowed: above 0", t.timeout)
	}
	shared := *t
	l := &shared
	l.failed = &atomic.Pointer[net.OpError]{}
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
		return nil, usagef("%s: %w", t.what, err)
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

func (t *target) connect(ctx context.Context, address string) (conn net.Conn, err error) {
	if t.network != nil {
		conn, err = t.network(ctx, address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	var why *net.OpError
	if errors.As(err, &why) && t.failed != nil {
		t.failed.Store(why)
	}
	return conn, err
}

func (t *target) close() { _ = t.conn.Close() }

// call calls use with a context that ends after the timeout. Its error is
// Unavailable when the server did not answer.
func (t *target) call(ctx context.Context, use func(context.Context, *grpc.ClientConn) error) error {
	if t.conn == nil {
		l, err := t.dial()
		if err != nil {
			return err
		}
		defer l.close()
		return l.call(ctx, use)
	}
	bounded, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, api.ActorHeader,
		whoami()+t.purpose), t.timeout)
	defer cancel()
	err := use(bounded, t.conn)
	if err == nil || ctx.Err() != nil {
		return err
	}
	connected := t.conn.GetState() == connectivity.Ready
	why := t.failed.Load()
	switch {
	case !connected && why != nil:
		return allocator.Errorf(allocator.Unavailable, "no answer from the %s: %w%s", t, why.Err, t.hint())
	case errors.Is(err, context.DeadlineExceeded):
		return allocator.Errorf(allocator.Unavailable, "no answer from the %s within %v (--timeout)", t, t.timeout)
	case status.Code(err) == codes.Unimplemented:
		return refusedf("%s%s is not a %s: %w", t.address, t.flag(), t.what, err)
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
