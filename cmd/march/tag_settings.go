package main

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/march/internal/show"
	"github.com/march-id/march/cmd/march/internal/timeflags"
)

// periodFlags say how the calendar divides the IDs of a tag that is to be created.
type periodFlags struct {
	unit, zone string
	digits     int32
}

func (p *periodFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&p.unit, "period", "", "count anew each day, month or year: the ID is the date in digits, "+
		"and then a number of --period-digits digits")
	flags.Int32Var(&p.digits, "period-digits", 9, "with --period: how many digits the number has, 1 to 10 for a day, "+
		"12 for a month, 14 for a year")
	flags.StringVar(&p.zone, "time-zone", "UTC", "with --period: the IANA time zone in which periods begin, "+
		"such as Asia/Shanghai")
}

// set puts what was given into a message. Its errors are usage errors.
func (p *periodFlags) set(cmd *cobra.Command, tag *marchv1.Tag) error {
	if p.unit == "" {
		for _, flag := range []string{"period-digits", "time-zone"} {
			if cmd.Flags().Changed(flag) {
				return usageError{allocator.Errorf(allocator.Invalid,
					"%s: given without --period; allowed: with --period day, month or year", flag)}
			}
		}
		return nil
	}
	unit, err := api.ParseWord[marchv1.PeriodUnit]("period", p.unit)
	if err != nil {
		return usageError{err}
	}
	tag.Period = &marchv1.Period{Unit: unit, Digits: p.digits, TimeZone: p.zone}
	return nil
}

// tagTextFlags say how the IDs of a tag that is to be created are texts.
type tagTextFlags struct {
	format, keyCheck string
	keys             []string
	digits           int
}

func (t *tagTextFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&t.format, "format", "", "how IDs are texts, such as 'prefix(ORD-) | radix62(11)'; "+
		"it never changes, and the limit is by default what it has room for")
	flags.StringVar(&t.keyCheck, "key-check", "", "the check value of the format's opaque key: 16 hexadecimal digits")
	flags.StringArrayVar(&t.keys, "opaque-key", nil,
		"NAME=FILE: the format's opaque key itself, in the place of its check value")
	flags.IntVar(&t.digits, "digits", 0, "the limit is 10^DIGITS, for 1 to 18, and the texts are decimal(DIGITS) "+
		"unless there is a --format, which must have room for them")
}

// set puts what was given into a message. Its errors are usage errors.
func (t *tagTextFlags) set(cmd *cobra.Command, tag *marchv1.Tag) error {
	description := t.format
	if cmd.Flags().Changed("digits") {
		switch {
		case t.digits < 1 || t.digits > 18:
			return usageError{allocator.Errorf(allocator.Invalid, "digits: %d; allowed: 1 to 18", t.digits)}
		case tag.Period != nil:
			return usageError{allocator.Errorf(allocator.Invalid,
				"digits: %d, with --period; allowed with a period: --period-digits", t.digits)}
		case tag.Limit != nil || tag.Time != nil:
			return usageError{allocator.Errorf(allocator.Invalid, "digits: %d, with --limit or of kind time; allowed: "+
				"a counter without --limit, as --digits sets it", t.digits)}
		}
		limit := int64(1)
		for range t.digits {
			limit *= 10
		}
		tag.Limit = &limit
		description = cmp.Or(description, fmt.Sprintf("decimal(%d)", t.digits))
	}
	if cmd.Flags().Changed("key-check") {
		tag.KeyCheck = &t.keyCheck
	}
	if description == "" && !cmd.Flags().Changed("format") {
		return nil
	}
	f, err := format.Parse(description)
	if err != nil {
		return syntaxError(err)
	}
	tag.Format = &description
	keys, err := readKeys(t.keys)
	for _, key := range keys {
		if key.Name() != f.Key() || tag.KeyCheck != nil {
			return usageError{allocator.Errorf(allocator.Invalid,
				"opaque-key: %s; allowed: the format's key, once, and no --key-check", key.Name())}
		}
		check := key.CheckValue()
		tag.KeyCheck = &check
	}
	return err
}

// tell adds what --digits made of the limit to an error that the console gave.
func (t *tagTextFlags) tell(err error) error {
	if err == nil || t.digits == 0 || allocator.KindOf(err) != allocator.Invalid {
		return err
	}
	return fmt.Errorf("%w (digits: %d, which is the limit 10^%d)", err, t.digits, t.digits)
}

// timeTagFlags are the settings of a tag of time-ordered IDs as flags.
type timeTagFlags struct {
	kind                 string           // of a tag to be created
	layout               timeflags.Layout // likewise
	sequence, rollback   string
	carryTo, randomBelow int64
	maxWait              time.Duration
}

// policyFlags are the flags of settings that may change later.
var policyFlags = []string{"sequence", "carry-to", "random-below", "rollback", "max-wait"}

func (f *timeTagFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.sequence, "sequence", "reset",
		"of a time tag: the sequence of a tick begins at 0 (reset), above the last one (carry) or at random")
	flags.Int64Var(&f.carryTo, "carry-to", 0, "with --sequence carry: if a tick ends at this sequence or above, "+
		"the next begins at 1 (default half of all sequences)")
	flags.Int64Var(&f.randomBelow, "random-below", 0, fmt.Sprintf("with --sequence random: "+
		"the bound below which a tick's first sequence lies (default %d)", timeid.DefaultRandomBelow))
	flags.StringVar(&f.rollback, "rollback", "wait",
		"of a time tag, if the clock went back: wait until it has caught up, go on ahead of it (offset), or fail")
	flags.DurationVar(&f.maxWait, "max-wait", timeid.DefaultMaxWait,
		"of a time tag: how long a call waits for a clock that went back")
	for name, values := range map[string][]string{"sequence": {"reset", "carry", "random"},
		"rollback": {"wait", "offset", "fail"}, "kind": {"counter", "time"}} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// message returns the settings that were given, or nil for a counter. Its errors are
// Invalid.
func (f *timeTagFlags) message(cmd *cobra.Command) (*marchv1.TimeTag, error) {
	changed := cmd.Flags().Changed
	p, given := &marchv1.TimeTag{}, f.kind == "time"
	if f.kind != "" && f.kind != "time" && f.kind != "counter" {
		return nil, allocator.Errorf(allocator.Invalid, "kind: %q; allowed: counter, time", f.kind)
	}
	for _, name := range policyFlags {
		given = given || changed(name)
	}
	if f.kind != "" && f.layout.Given(cmd) || f.kind == "time" { // a tag to be created
		layout, err := f.layout.Layout(cmd)
		if err != nil {
			return nil, err
		}
		given = true
		p.EpochMs = &layout.Epoch
		if p.Preset = f.layout.Preset; p.Preset == "" {
			p.TimeBits, p.WorkerBits, p.SequenceBits = int32(layout.TimeBits), int32(layout.WorkerBits),
				int32(layout.SequenceBits)
			p.Unit, p.Order = durationpb.New(layout.Unit),
				api.FromWord[marchv1.WorkerOrder](strings.TrimPrefix(layout.Order.String(), "worker-"))
		}
	}
	if !given {
		return nil, nil
	}
	if f.kind == "counter" && changed("kind") {
		return nil, allocator.Errorf(allocator.Invalid,
			"kind: counter, with settings of time-ordered IDs; allowed with these: time")
	}
	if changed("sequence") {
		var err error
		if p.Sequence, err = api.ParseWord[marchv1.SequencePolicy]("sequence", f.sequence); err != nil {
			return nil, err
		}
	}
	if changed("rollback") {
		var err error
		if p.Rollback, err = api.ParseWord[marchv1.RollbackPolicy]("rollback", f.rollback); err != nil {
			return nil, err
		}
	}
	if changed("max-wait") {
		p.MaxWait = durationpb.New(f.maxWait)
	}
	p.CarryTo, p.RandomBelow = f.carryTo, f.randomBelow
	return p, nil
}

func tagText(w *tabwriter.Writer, t *marchv1.Tag) {
	_, _ = fmt.Fprintf(w, "tag\t%s\n", t.GetName())
	if t.GetFormat() != "" {
		_, _ = fmt.Fprintf(w, "format\t%s\n", t.GetFormat())
	}
	if t.GetKeyCheck() != "" {
		_, _ = fmt.Fprintf(w, "key check\t%s\n", t.GetKeyCheck())
	}
	if name := t.GetForeignName(); name != "" {
		_, _ = fmt.Fprintf(w, "name at doors\t%s\n", show.Printable(name))
	}
	if t.GetTime() != nil {
		timeTagText(w, t)
		return
	}
	if p := t.GetPeriod(); p != nil {
		_, _ = fmt.Fprintf(w, "period\t%s, %d digits, %s: now %s, IDs %d to %d; the next begins at %s\n",
			api.Word(p.GetUnit()), p.GetDigits(), p.GetTimeZone(),
			p.GetCurrent(), p.GetFirst(), p.GetEnd()-1, p.GetEnds().AsTime().Format(time.RFC3339))
	}
	_, _ = fmt.Fprintf(w, "start\t%d\n", t.GetStart())
	_, _ = fmt.Fprintf(w, "limit\t%d\n", t.GetLimit())
	_, _ = fmt.Fprintf(w, "min step\t%d\n", t.GetMinStep())
	_, _ = fmt.Fprintf(w, "max step\t%d\n", t.GetMaxStep())
	_, _ = fmt.Fprintf(w, "reserve\t%s\n", t.GetReserve().AsDuration())
	_, _ = fmt.Fprintf(w, "max jump\t%d\n", t.GetMaxJump())
	if t.GetMaxSkew() > 0 {
		_, _ = fmt.Fprintf(w, "max skew\t%d\n", t.GetMaxSkew())
	}
	if t.GetStrictRetract() {
		_, _ = fmt.Fprintf(w, "strict retract\tyes\n")
	}
	if t.GetPrescaleUntil() != nil {
		_, _ = fmt.Fprintf(w, "prescale\t%d until %s\n", t.GetPrescale(),
			t.GetPrescaleUntil().AsTime().Format(time.RFC3339))
	}
	for _, room := range sortedKeys(t.GetSkips()) {
		_, _ = fmt.Fprintf(w, "skip\troom %s to %d\n", room, t.GetSkips()[room])
	}
	_, _ = fmt.Fprintf(w, "created\t%s\n", t.GetCreated().AsTime().Format(time.RFC3339))
}

func timeTagText(w *tabwriter.Writer, t *marchv1.Tag) {
	p := t.GetTime()
	_, _ = fmt.Fprintf(w, "kind\ttime\n")
	_, _ = fmt.Fprintf(w,
		"bits\t%d/%d/%d (time/worker/sequence)\n", p.GetTimeBits(), p.GetWorkerBits(), p.GetSequenceBits())
	_, _ = fmt.Fprintf(w, "unit\t%s\n", p.GetUnit().AsDuration())
	_, _ = fmt.Fprintf(w, "time epoch\t%s\n", time.UnixMilli(p.GetEpochMs()).UTC().Format(timeid.Format))
	_, _ = fmt.Fprintf(w, "order\tworker-%s\n", api.Word(p.GetOrder()))
	_, _ = fmt.Fprintf(w, "sequence\t%s\n", api.Word(p.GetSequence()))
	_, _ = fmt.Fprintf(w, "rollback\t%s\n", api.Word(p.GetRollback()))
	_, _ = fmt.Fprintf(w, "max wait\t%s\n", p.GetMaxWait().AsDuration())
	_, _ = fmt.Fprintf(w, "created\t%s\n", t.GetCreated().AsTime().Format(time.RFC3339))
}

func tagShowText(w *tabwriter.Writer, t *marchv1.GetTagResponse) {
	tagText(w, t.GetTag())
	if t.GetTag().GetTime() != nil {
		slicesText(w, t.GetSlices())
		return
	}
	_, _ = fmt.Fprintln(w, "\nROOM\tNEXT TO LEASE\tLAYOUT")
	for _, m := range t.GetMarks() {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\n", m.GetRoom(), m.GetNext(), m.GetVersion())
	}
	_, _ = fmt.Fprintln(w, "\nINSTANCE\tHELD\tRESERVE\tPEAK PER S\tSTEP\tISSUED\tDROPPED\tLAYOUT")
	for _, ch := range t.GetChains() {
		_, _ = fmt.Fprintf(w, "%s/%s\t%d\t%s\t%.0f\t%d\t%d\t%d\t%d\n", ch.GetRoom(), ch.GetInstance(), ch.GetHeld(),
			ch.GetReserve().AsDuration().Round(time.Second), ch.GetPeak(), ch.GetStep(), ch.GetIssued(),
			ch.GetDropped(), ch.GetVersion())
	}
	if len(t.GetSilent()) > 0 {
		_, _ = fmt.Fprintf(w, "\nno answer from: %s\n", strings.Join(t.GetSilent(), ", "))
	}
}
