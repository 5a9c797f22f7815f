package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// A command that makes one call of a console is a row: its use names the arguments and the flags that must be given,
// arguments and flags are fields of the request, and the answer is printed. A command with a life of its own is
// written out.
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

// newRow returns the command of a row: run comes after the fields of the request are set.
func newRow(r callRow, request proto.Message, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: r.use, Short: r.short, Long: r.long, Example: r.example}
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
	if cmd.Args = between(least, names...); len(names) == 0 {
		cmd.Args = noArgs
	}
	for _, f := range r.flags {
		f.add(cmd, request)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
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
	}
	return cmd
}

// newCall returns the command of a row that makes a call. part is what of the answer is printed, and text writes it.
func newCall[Q, A, M proto.Message](c *common, t *target, r callRow, request Q, call consoleCall[Q, A], part func(A) M,
	text func(*tabwriter.Writer, M)) *cobra.Command {
	cmd := newRow(r, request, func(cmd *cobra.Command, args []string) error {
		return callConsole(cmd.Context(), t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			answer, err := call(s, ctx, request)
			again := r.again
			for n := 1; err == nil && again != nil; n++ {
				pause := again(n, answer)
				if pause == 0 {
					break
				}
				select {
				case <-time.After(pause):
					answer, err = call(s, ctx, request)
				case <-ctx.Done():
					if again = nil; n > 1 { // the first answer is better than none
						err = ctx.Err()
					}
				}
			}
			if err != nil {
				return err
			}
			c.sayNotes(answer)
			m := part(answer)
			return c.print(m, func(w *tabwriter.Writer) {
				if r.done != "" {
					_, _ = fmt.Fprintln(w, filled(r.done, args))
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
		_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words,
			cobra.ShellCompDirectiveNoFileComp))
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
		_, _ = fmt.Fprintf(c.stderr, "changed; these instances did not answer, or did not apply the change within "+
			"3 s, and may still issue the IDs that they hold: %s\n", printable(strings.Join(a.GetBehind(), ", ")))
	}
	if a, ok := answer.(interface{ GetEffects() []string }); ok {
		for _, effect := range a.GetEffects() {
			_, _ = fmt.Fprintln(c.stderr, printable(effect))
		}
	}
	if a, ok := answer.(interface{ GetRisk() string }); ok && a.GetRisk() != "" {
		_, _ = fmt.Fprintln(c.stderr, printable(a.GetRisk()))
	}
}
