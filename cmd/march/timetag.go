package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// timeTagFlags are the settings of a tag of time-ordered IDs as flags.
type timeTagFlags struct {
	kind                 string     // of a tag to be created
	layout               timeLayout // likewise
	sequence, rollback   string
	carryTo, randomBelow int64
	maxWait              time.Duration
}

// policyFlags are the flags of settings that may change later.
var policyFlags = []string{"sequence", "carry-to", "random-below", "rollback", "max-wait"}

func (f *timeTagFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.sequence, "sequence", "reset", "of a time tag: a tick begins at 0 (reset), above the last one (carry) or at random")
	flags.Int64Var(&f.carryTo, "carry-to", 0, "with --sequence carry: the sequence from which on the next tick begins at 1 (default half of them)")
	flags.Int64Var(&f.randomBelow, "random-below", 0, "with --sequence random: what a tick's first sequence lies below (default 100)")
	flags.StringVar(&f.rollback, "rollback", "wait", "of a time tag, where the clock went back: wait for it, go on ahead of it (offset), or fail")
	flags.DurationVar(&f.maxWait, "max-wait", timeid.DefaultMaxWait, "of a time tag: how long a call waits for a clock that went back")
	for name, values := range map[string][]string{"sequence": {"reset", "carry", "random"}, "rollback": {"wait", "offset", "fail"}, "kind": {"counter", "time"}} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// message returns the settings that were given, nil where the tag is a counter's. Its
// errors are Invalid.
func (f *timeTagFlags) message(cmd *cobra.Command) (*marchv1.TimeTag, error) {
	changed := cmd.Flags().Changed
	p, given := &marchv1.TimeTag{}, f.kind == "time"
	if f.kind != "" && f.kind != "time" && f.kind != "counter" {
		return nil, allocator.Errorf(allocator.Invalid, "kind: %q; allowed: counter, time", f.kind)
	}
	for _, name := range policyFlags {
		given = given || changed(name)
	}
	if f.kind != "" && f.layout.given(cmd) || f.kind == "time" { // a tag to be created
		layout, err := f.layout.layout(cmd)
		if err != nil {
			return nil, err
		}
		given = true
		p.EpochMs = &layout.Epoch
		if p.Preset = f.layout.preset; p.Preset == "" {
			p.TimeBits, p.WorkerBits, p.SequenceBits = int32(layout.TimeBits), int32(layout.WorkerBits), int32(layout.SequenceBits)
			p.Unit, p.Order = durationpb.New(layout.Unit), marchv1.WorkerOrder(layout.Order)+1
		}
	}
	if !given {
		return nil, nil
	}
	if f.kind == "counter" && changed("kind") {
		return nil, allocator.Errorf(allocator.Invalid, "kind: counter, with settings of time-ordered IDs; allowed: time")
	}
	if changed("sequence") {
		sequence, err := timeid.ParseSequence(f.sequence)
		if err != nil {
			return nil, err
		}
		p.Sequence = marchv1.SequencePolicy(sequence) + 1
	}
	if changed("rollback") {
		rollback, err := timeid.ParseRollback(f.rollback)
		if err != nil {
			return nil, err
		}
		p.Rollback = marchv1.RollbackPolicy(rollback) + 1
	}
	if changed("max-wait") {
		p.MaxWait = durationpb.New(f.maxWait)
	}
	p.CarryTo, p.RandomBelow = f.carryTo, f.randomBelow
	return p, nil
}

// word returns the last word of an enum's name, in lower case: WORKER_ORDER_LAST is last.
func word(enum fmt.Stringer) string {
	name := enum.String()
	return strings.ToLower(name[strings.LastIndexByte(name, '_')+1:])
}

func timeTagText(w *tabwriter.Writer, t *marchv1.Tag) {
	p := t.GetTime()
	_, _ = fmt.Fprintf(w, "kind\ttime\n")
	_, _ = fmt.Fprintf(w, "bits\t%d/%d/%d (time/worker/sequence)\n", p.GetTimeBits(), p.GetWorkerBits(), p.GetSequenceBits())
	_, _ = fmt.Fprintf(w, "unit\t%s\n", p.GetUnit().AsDuration())
	_, _ = fmt.Fprintf(w, "time epoch\t%s\n", time.UnixMilli(p.GetEpochMs()).UTC().Format(timeid.Format))
	_, _ = fmt.Fprintf(w, "order\tworker-%s\n", word(p.GetOrder()))
	_, _ = fmt.Fprintf(w, "sequence\t%s\n", word(p.GetSequence()))
	_, _ = fmt.Fprintf(w, "rollback\t%s\n", word(p.GetRollback()))
	_, _ = fmt.Fprintf(w, "max wait\t%s\n", p.GetMaxWait().AsDuration())
	_, _ = fmt.Fprintf(w, "created\t%s\n", t.GetCreated().AsTime().Format(time.RFC3339))
}
