package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/words"
	"github.com/march-id/march/room"
)

func newHalt(c *common) *cobra.Command {
	cluster := defaultCluster()
	var why string
	cmd := command(callRow{
		use: "halt", short: "Halt leasing in all rooms, before etcd is restored from a backup",
		long: `Halt leasing in all rooms on purpose: before etcd is restored from a backup, or
moved. Rooms go on issuing the IDs that they hold, about ten minutes' worth of a
busy tag, and lease none until ` + "`march recover`" + ` has begun a new
epoch. Tags with a strict order stop within their tenure_hold.`,
		example: `  march halt --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379 --why "restore of last night's backup"`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error {
		return withCluster(cmd, c, &cluster, func(l *ledger.Ledger) error {
			h, err := l.Halt(cmd.Context(), whoami(), why)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.stdout, "halted   by %s at %s: %s\nnext     stop etcd, restore it, start it; then "+
				"`march recover`\nmeanwhile rooms issue the IDs that they hold, and lease none; tags with a strict "+
				"order stop within their tenure_hold\n", excerpt(h.By),
				h.Time.Format(time.RFC3339), excerpt(h.Why))
			return err
		})
	})
	cmd.Aliases = []string{"fence"}
	addSettings(cmd, &cluster)
	cmd.Flags().StringVar(&why, "why", "march halt", "the reason, which rooms show while they lease nothing")
	return destroys(c, cmd, func(context.Context, []string) (string, error) {
		return "Halt leasing in all rooms until `march recover`?", nil
	})
}

// withCluster calls use with a cluster's ledger. Its commands speak with etcd themselves, so that
// they need no console: they are for times when servers may be down.
func withCluster(cmd *cobra.Command, c *common, cluster *clusterFlags, use func(*ledger.Ledger) error) error {
	l, err := cluster.Open(cmd.Context(), c.logger(hclog.Error))
	if err != nil {
		return err
	}
	return errors.Join(use(l), l.Close())
}

type recoverFlags struct {
	cluster   clusterFlags
	secure    clientTLS
	consoles  []string
	Yes       bool          `flag:"yes,y" help:"recover, and ask nothing; without it recover only says what it would do"`
	Quiet     bool          `flag:"quiet,q" help:"no progress lines"`
	Without   []string      `flag:"without" help:"instances to go on without, ROOM/INSTANCE, separated by commas"`
	Stopped   []string      `flag:"stopped" help:"instances to go on without, as in --without, whose machines are certainly off by now: then time-ordered IDs go on within a minute"`
	Skip      []string      `flag:"skip-tag" help:"tags with a mark that cannot be read, to leave as they are, separated by commas"`
	Journals  repeated      `flag:"journal" help:"a journal of an instance that does not run, FILE; may be given more than once"`
	Mirrors   repeated      `flag:"mirror" help:"the file in which a console kept what it saw of etcd, FILE; may be given more than once"`
	NoMirrors []string      `flag:"no-mirror" help:"consoles and files to leave out, by the names that recover prints, separated by commas"`
	Layout    string        `flag:"layout" help:"the layout to go on with if an instance knows a later one than etcd: known (the instance's), stored (etcd's) or FILE"`
	Wait      time.Duration `flag:"wait" help:"how long to wait, before leasing is halted, for instances that etcd has forgotten to register again"`
	Margin    int64         `flag:"margin" help:"how many steps of each tag to leave free for instances that recover goes on without (default 2 for each of them if a console saw all that it leased; otherwise it must be given)"`
	Timeout   time.Duration `flag:"timeout" help:"how long an instance may take to begin its answer, and to go on with it"`
}

func newRecover(c *common) *cobra.Command {
	f := recoverFlags{cluster: defaultCluster(), Wait: 5 * time.Second, Timeout: 5 * time.Second,
		secure: clientTLS{filesTLS: tls13}}
	cmd := command(callRow{
		use: "recover", short: "Begin to lease again after etcd was restored or rebuilt, or after march halt",
		long: `Begin to lease again after etcd went back in time. Without --yes nothing is changed: recover
shows what it would do, and which instances did not answer.

Recover asks every instance that it can learn of for its leases. Then it halts
leasing, asks again, raises the marks that are higher in an instance's memory
than in etcd, and begins a new epoch. After a recover has failed, run it again.

Recover names each instance that does not answer. If such an instance does not
run but its journal is there, give the journal (--journal). Otherwise stop the
instance for good, then go on without it: with --stopped if its machine is off,
otherwise with --without. On a terminal recover asks which one it is, unless --yes
is given, and prints the flags. What the instance leased since the backup is
taken from what consoles saw of etcd. Recover finds the consoles by itself, and
asks further ones (--console, --mirror). Where no console saw all, it does not
guess: give a margin (--margin).`,
		example: `  march recover --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379
  march recover --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379 --without eu-1/host-7 --yes`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error {
		cfg, err := f.config(cmd.Flags().Changed("margin"))
		if err != nil {
			return err
		}
		given, err := f.secure.Credentials()
		if err != nil {
			return usageError{err}
		}
		return withCluster(cmd, c, &f.cluster, func(l *ledger.Ledger) error {
			// Only over TLS an instance proves its name. Without, another process may listen at its address.
			cfg.Ask, cfg.Named = askInstance(f.Timeout, given), given.TLS != nil
			if err := f.witnesses(&cfg, given); err != nil {
				return err
			}
			line := newProgress(c, 0, time.Second)
			if !f.Quiet {
				cfg.Progress = func(p recovery.Progress) { line.tick(func() string { return recoverLine(p) }) }
			}
			var decided []string
			if interactive() && !f.Yes && c.output != "json" {
				cfg.Off = func(ctx context.Context, r *recovery.Report, lost recovery.Lost) (bool, error) {
					line.end()
					off, err := askIfOff(ctx, c, r, lost)
					flag := "--without"
					if off {
						flag = "--stopped"
					}
					decided = append(decided, flag+" "+string(lost.ID))
					return off, err
				}
			}
			report, err := recovery.Run(cmd.Context(), l, cfg)
			line.end()
			// A recover that fails has a report, too: it names the instances that do not answer.
			printErr := c.print(recoverReport(report), func(w *tabwriter.Writer) { recoverText(w, report) })
			if printErr != nil {
				return errors.Join(err, printErr)
			}
			if err == nil && !f.Yes && len(decided) > 0 {
				_, err = fmt.Fprintf(c.stdout, "next     the same with --yes %s\n", strings.Join(decided, " "))
			}
			return err
		})
	})
	addSettings(cmd, &f.cluster)
	c.outputFlag(cmd)
	addFlags(cmd, &f)
	addOptions(cmd, option{"console", &f.consoles,
		"consoles to ask what they saw of etcd, HOST:PORT, separated by commas"})
	addSettings(cmd, &f.secure)
	cmd.PersistentFlags().Lookup("token-file").Usage += " to instances that have a policy: an admin's"
	return cmd
}

// instanceIDs reads the names of a flag.
func instanceIDs(flag string, names []string) (ids []record.InstanceID, err error) {
	for _, name := range names {
		in, instance, _ := strings.Cut(name, "/")
		r, roomErr := allocator.ParseRoom(in)
		i, instanceErr := allocator.ParseInstance(instance)
		if err := errors.Join(roomErr, instanceErr); err != nil {
			return nil, usagef("%s: %q; allowed: ROOM/INSTANCE", flag, name)
		}
		ids = append(ids, ledger.Registration{Room: r, Name: i}.ID())
	}
	return ids, nil
}

// config checks the settings. Its errors are usage errors, and those of journals and
// layouts that cannot be read.
func (f *recoverFlags) config(margin bool) (recovery.Config, error) {
	cfg := recovery.Config{Actor: whoami(), Apply: f.Yes, Wait: f.Wait}
	var err error
	if cfg.Without, err = instanceIDs("without", f.Without); err != nil {
		return cfg, err
	}
	if cfg.Stopped, err = instanceIDs("stopped", f.Stopped); err != nil {
		return cfg, err
	}
	for _, name := range f.Skip {
		tag, err := allocator.ParseTag(name)
		if err != nil {
			return cfg, usageError{err}
		}
		cfg.Skip = append(cfg.Skip, tag)
	}
	if f.Wait < 0 || f.Margin < 0 || f.Timeout <= 0 {
		return cfg, usagef("wait: %v, margin: %d, timeout: %v; allowed: 0s or more, 0 or more, above 0s", f.Wait,
			f.Margin, f.Timeout)
	}
	if margin { // also if it is 0, which is not the default
		cfg.Margin = &f.Margin
	}
	switch choice := recovery.LayoutChoice(f.Layout); choice {
	case recovery.LayoutUndecided, recovery.LayoutKnown, recovery.LayoutStored:
		cfg.Layout = choice
	default:
		given, err := readLayout("layout", f.Layout)
		if err != nil {
			return cfg, err
		}
		if cfg.Given, err = api.LayoutFromProto(given); err != nil {
			return cfg, err
		}
		cfg.Layout = recovery.LayoutGiven
	}
	for _, path := range f.Journals {
		m, err := ledger.ReadJournal(path)
		if err != nil {
			return cfg, err
		}
		cfg.Memories = append(cfg.Memories, m)
	}
	return cfg, nil
}

// witnesses adds the mirrors to ask. The console of a context need not answer, as it may be down
// like etcd; a file must be there.
func (f *recoverFlags) witnesses(cfg *recovery.Config, given api.Credentials) error {
	for _, address := range f.consoles {
		cfg.Witnesses = append(cfg.Witnesses,
			recovery.Witness{Name: address, Ask: askMirrorAt(address, f.Timeout, given)})
	}
	for _, path := range f.Mirrors {
		m, err := mirror.ReadFile(path)
		if err != nil {
			return err
		}
		cfg.Witnesses = append(cfg.Witnesses, recovery.Witness{Name: path, Ask: m.Asked, Needed: true})
	}
	cfg.Console = func(address string) recovery.AskMirror { return askMirrorAt(address, f.Timeout, given) }
	cfg.NoMirrors = f.NoMirrors
	return nil
}

// askMirrorAt returns the function that asks a console for what it saw.
func askMirrorAt(address string, timeout time.Duration, given api.Credentials) recovery.AskMirror {
	return func(ctx context.Context, q mirror.Question, use func(mirror.Part) error) (a mirror.Answer, err error) {
		t := &target{what: "console", given: &given, address: address, timeout: longestAnswer, witness: true}
		err = t.callInParts(ctx, timeout, func(ctx context.Context, conn *grpc.ClientConn, each onePart) (err error) {
			a, err = console.AskMirror(ctx, conn, q, func(p mirror.Part) error {
				return each(func() error { return use(p) })
			})
			return err
		})
		return a, err
	}
}

// askIfOff asks the operator the one question about an instance that did not answer.
func askIfOff(ctx context.Context, c *common, r *recovery.Report, lost recovery.Lost) (off bool, err error) {
	put(c.stderr, "%s did not answer: %s\n", lost.ID, excerpt(lost.Why))
	if !lost.Beat.IsZero() {
		put(c.stderr, "its last heartbeat was at %s\n", utc(lost.Beat))
	}
	for _, m := range r.Mirrors {
		put(c.stderr, "%s %s\n", m.Name, sawText(m))
	}
	if lost.Answers {
		return false, ask(ctx, c, "Go on without what its earlier process leased?")
	}
	answer, err := answerTo(ctx, c, fmt.Sprintf("Is the machine of %s off, for good? y: time-ordered IDs go on within "+
		"a minute; n: they wait until it can issue none any more [y/n]", lost.ID))
	switch {
	case err != nil:
	case answer == "y" || answer == "yes":
		off = true
	case answer != "n" && answer != "no":
		err = errNotDone
	}
	return off, err
}

// recoverLine is the line that shows how far a recover is.
func recoverLine(p recovery.Progress) string {
	switch {
	case p.Of > 0:
		return fmt.Sprintf("%s: %d of %d", p.Doing, p.Done, p.Of)
	case p.Done > 0:
		return fmt.Sprintf("%s: %d", p.Doing, p.Done)
	}
	return p.Doing
}

// askInstance returns the function that asks an instance for its memory.
func askInstance(timeout time.Duration, given api.Credentials) recovery.Ask {
	return func(ctx context.Context, s record.SeenInstance, q record.Question,
		use record.UseMarks) (m record.Memory, err error) {
		t := &target{what: "room", given: &given, instance: s, address: s.Address, timeout: longestAnswer}
		err = t.callInParts(ctx, timeout, func(ctx context.Context, conn *grpc.ClientConn, each onePart) (err error) {
			m, err = room.AskMarks(ctx, conn, q, func(in allocator.Room, marks []record.RememberedMark) error {
				return each(func() error { return use(in, marks) })
			})
			return err
		})
		return m, err
	}
}

// onePart is to store one part of an answer.
type onePart func(store func() error) error

// callInParts is call, with a timeout that counts for the start of the answer, and for each of its parts: there may
// be many.
func (t *target) callInParts(ctx context.Context, timeout time.Duration,
	use func(context.Context, *grpc.ClientConn, onePart) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(timeout, func() {
		cancel(allocator.Errorf(allocator.Unavailable, "no answer within %v (--timeout)", timeout))
	})
	defer late.Stop()
	err := t.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		return use(ctx, conn, func(store func() error) error {
			late.Stop() // the store has its own time-outs
			defer late.Reset(timeout)
			return store()
		})
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return err
}

// longestAnswer bounds one instance's whole answer.
const longestAnswer = 10 * time.Minute

// recoverText writes what recover did, or would do.
func recoverText(w io.Writer, r *recovery.Report) {
	if r.UUID == "" { // recover failed before it had read which cluster it is
		return
	}
	field(w, "cluster", excerpt(r.UUID))
	if r.Halt.By != "" {
		put(w, "halted\tby %s at %s: %s\n", excerpt(r.Halt.By), r.Halt.Time.Format(time.RFC3339), excerpt(r.Halt.Why))
	}
	if !r.Beat.IsZero() {
		put(w, "etcd\tits data is of %s or later\n", r.Beat.Format(time.RFC3339))
	}
	for _, id := range r.Answered {
		field(w, "answered", id)
	}
	missingText(w, r.Missing)
	for _, m := range r.Mirrors {
		put(w, "mirror\t%s %s\n", m.Name, sawText(m))
	}
	for _, jump := range r.Jumps {
		put(w, "jump\tonly a mirror knows mark %s: more than max_jump\n", jump)
	}
	if n := len(r.LeftBefore); n > 0 {
		put(w, "left\t%s left in good order before the backup\n", words.Counted(n, "instance"))
	}
	for _, why := range r.Unreadable {
		field(w, "unreadable", excerpt(why.Error()))
	}
	layoutChanges(w, r)
	tags := func(list []allocator.Tag, format string) {
		if n := len(list); n > 0 {
			put(w, format, words.Counted(n, "tag"), list[:min(n, 10)])
		}
	}
	tags(r.AtLimit, "limit\tthe margin takes %s to the limit, the first ones %s: raise their limits, or give a "+
		"smaller --margin\n")
	tags(r.BeyondPeriod, "period\tthe margin leaves no ID of %s in the present period, the first ones %s: they issue "+
		"none until a period begins in which it does; to avoid that, start the missing instances, give their "+
		"journals, or give a smaller --margin\n")
	if r.Hourly {
		put(w, "period\tinstances of older versions keep to the margins of tags with a period only where all clocks "+
			"are right within an hour; once all have this version: `march cluster upgrade`\n")
	}
	tags(r.PutBack, "tags\tthe store has forgotten %s that mirrors saw, the first ones %s: they are deleted ones now "+
		"(`march tag list --deleted`); create again those that are in use\n")
	if r.Machines > 0 {
		put(w, "machines\t%s of CosId's clients put back, as mirrors saw them\n", words.Counted(r.Machines, "machine "+
			"ID"))
	}
	// The margins of all recovers add up: each takes IDs from every tag for good.
	if r.Margin > 0 {
		put(w, "margin\t%s of each tag, %d in all recovers\n", words.Counted(r.Margin, "step"), r.Total)
	}
	if r.Epoch != "" {
		put(w, "raised\t%s\nlayout\tversion %d\nepoch\t%s\ntook\t%v from the halt to the new epoch\n",
			words.Counted(r.Raised, "mark"), r.Layout.Version, r.Epoch, r.Halted.Round(time.Millisecond))
	} else {
		put(w, "would\traise %s (higher in an instance's memory than in etcd); nothing is changed yet\n",
			words.Counted(r.Higher, "mark"))
	}
	if r.NotBefore.After(time.Now()) {
		put(w, "workers\tnone is taken for time-ordered IDs before %s: %s\n", utc(r.NotBefore), r.Waits)
	}
}

// missingText writes the processes that did not answer; those of one name that are missing for one reason in a line.
func missingText(w io.Writer, missing []recovery.Missing) {
	for len(missing) > 0 {
		m, same := missing[0], 1
		for same < len(missing) && missing[same].ID == m.ID && missing[same].Why == m.Why {
			same++
		}
		last := m.Beat
		for _, other := range missing[1:same] {
			if other.Beat.After(last) {
				last = other.Beat
			}
		}
		missing = missing[same:]
		state, process, beat := "missing", "", ""
		if m.Without {
			state = "without"
		}
		if same > 1 {
			process = fmt.Sprintf(", %d processes", same)
		} else if m.Incarnation != "" {
			process = fmt.Sprintf(", process %.8s", m.Incarnation)
		}
		if !last.IsZero() {
			beat = ", last heartbeat at " + utc(last)
		}
		put(w, "%s\t%s%s%s: %s\n", state, m.ID, process, beat, excerpt(m.Why))
	}
}

// sawText says what a mirror saw and until when, with the gaps between its connections to etcd.
func sawText(m recovery.Witnessed) string {
	switch n := len(m.Views); {
	case m.Err != nil:
		return "is no witness: " + excerpt(m.Err.Error())
	case n == 0:
		return "has not seen all of etcd"
	case n == 1:
		return fmt.Sprintf("saw all until %s (revision %d)", utc(m.Views[0].Until), m.Views[0].Reach)
	default:
		last, before := m.Views[n-1], m.Views[n-2]
		return fmt.Sprintf("saw all until %s (revision %d), and nothing from %s to %s", utc(last.Until), last.Reach,
			utc(before.Until), utc(last.Began))
	}
}

// utc prints a time to the ms, as IDs have it.
func utc(t time.Time) string { return t.UTC().Format(timeid.Format) }

// layoutChanges prints which ranges differ from those of the latest known layout.
func layoutChanges(w io.Writer, r *recovery.Report) {
	if r.Layout.Ranges == nil || r.Known.Ranges == nil || r.Layout.Equal(r.Known) {
		return
	}
	put(w, "ranges\tcompared with layout version %d, which an instance knows:\n", r.Known.Version)
	if r.Known.Boundary != r.Layout.Boundary {
		put(w, "\tboundary %d -> %d\n", r.Known.Boundary, r.Layout.Boundary)
	}
	rooms := append(r.Known.Rooms(), r.Layout.Rooms()...)
	slices.Sort(rooms)
	for _, name := range slices.Compact(rooms) {
		was, had := r.Known.Ranges[name]
		is, has := r.Layout.Ranges[name]
		switch {
		case !has:
			put(w, "\t%s %v -> none: this room can lease nothing\n", name, was)
		case !had:
			put(w, "\t%s none -> %v\n", name, is)
		case was != is:
			put(w, "\t%s %v -> %v\n", name, was, is)
		}
	}
}

// recoverReport is what a recover did, or would do, as JSON. Numbers of 64 bits are texts there, as in the API.
func recoverReport(r *recovery.Report) map[string]any {
	missing, mirrors, unreadable, notBefore := []any{}, []any{}, []string{}, ""
	for _, m := range r.Missing {
		one := map[string]any{"id": m.ID, "incarnation": m.Incarnation, "why": m.Why, "without": m.Without}
		if !m.Beat.IsZero() {
			one["last_heartbeat"] = utc(m.Beat)
		}
		missing = append(missing, one)
	}
	for _, m := range r.Mirrors {
		one := map[string]any{"name": m.Name, "views": some(m.Views)}
		if m.Err != nil {
			one["problem"] = m.Err.Error()
		}
		mirrors = append(mirrors, one)
	}
	for _, key := range r.Unreadable {
		unreadable = append(unreadable, key.Error())
	}
	if !r.NotBefore.IsZero() {
		notBefore = utc(r.NotBefore)
	}
	return map[string]any{
		"uuid": r.UUID, "done": r.Epoch != "", "answered": some(r.Answered), "left_before": some(r.LeftBefore),
		"missing": missing, "unreadable": unreadable, "at_limit": some(r.AtLimit),
		"beyond_period": some(r.BeyondPeriod), "margin_steps": fmt.Sprint(r.Margin),
		"margin_total": fmt.Sprint(r.Total),
		"higher":       fmt.Sprint(r.Higher), "raised": fmt.Sprint(r.Raised),
		"stored_layout_version": fmt.Sprint(r.Stored.Layout.Version),
		"known_layout_version":  fmt.Sprint(r.Known.Version), "layout_version": fmt.Sprint(r.Layout.Version),
		"halted_seconds": r.Halted.Seconds(), "epoch": r.Epoch, "not_before": notBefore, "waits": r.Waits,
		"mirrors": mirrors, "jumps": some(r.Jumps),
	}
}

// some is a list for JSON: not null where it is empty.
func some[T any](list []T) []T { return append([]T{}, list...) }
