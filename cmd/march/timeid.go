package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
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
)

// timeLayout is the flags that describe time-ordered IDs.
type timeLayout struct {
	preset, bits, unit, epoch, order string
}

// timeFlags are its flags' names. Each of them makes `id decode` work offline.
var timeFlags = []string{"preset", "bits", "unit", "time-epoch", "order"}

func (l *timeLayout) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&l.preset, "preset", "", "a time-ordered ID of a known layout: "+strings.Join(timeid.PresetNames(), ", "))
	flags.StringVar(&l.bits, "bits", "", "a time-ordered ID of these bits of time/worker/sequence, such as 41/10/12; needs --time-epoch")
	flags.StringVar(&l.unit, "unit", "1ms", "with --bits: the unit of time, 1ms, 10ms or 1s")
	flags.StringVar(&l.epoch, "time-epoch", "", "the time of tick 0: RFC 3339 or Unix ms; with --preset, in place of the preset's")
	flags.StringVar(&l.order, "order", timeid.WorkerMiddle.String(), "with --bits: worker-middle or worker-last")
	for name, values := range map[string][]string{
		"preset": timeid.PresetNames(), "unit": {"1ms", "10ms", "1s"},
		"order": {timeid.WorkerMiddle.String(), timeid.WorkerLast.String()},
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// given reports whether any of the flags was.
func (l *timeLayout) given(cmd *cobra.Command) bool {
	return slices.ContainsFunc(timeFlags, cmd.Flags().Changed)
}

// layout returns the layout that the flags describe. Its errors are Invalid.
func (l *timeLayout) layout(cmd *cobra.Command) (timeid.Layout, error) {
	var layout timeid.Layout
	changed := cmd.Flags().Changed
	if changed("preset") {
		preset, err := timeid.PresetNamed(l.preset)
		if err != nil {
			return layout, err
		}
		for _, other := range []string{"bits", "unit", "order"} {
			if changed(other) {
				return layout, allocator.Errorf(allocator.Invalid, "%s: given together with preset; allowed: only one of them, because a preset has its own", other)
			}
		}
		layout = preset.Layout
	} else {
		for _, needed := range []string{"bits", "time-epoch"} {
			if !changed(needed) {
				return layout, allocator.Errorf(allocator.Invalid, "%s: must be given if preset is not; see `%s --help`", needed, cmd.CommandPath())
			}
		}
		var err error
		if layout.TimeBits, layout.WorkerBits, layout.SequenceBits, err = timeid.ParseBits(l.bits); err != nil {
			return layout, err
		}
		if layout.Unit, err = timeid.ParseUnit(l.unit); err != nil {
			return layout, err
		}
		if layout.Order, err = timeid.ParseOrder(l.order); err != nil {
			return layout, err
		}
	}
	if changed("time-epoch") {
		var err error
		if layout.Epoch, err = timeid.ParseEpoch(l.epoch); err != nil {
			return layout, err
		}
	}
	return layout, layout.Validate()
}

// decodeTime prints the parts of a time-ordered ID. It needs no server.
func decodeTime(cmd *cobra.Command, c *common, l *timeLayout, arg string) error {
	layout, err := l.layout(cmd)
	if err != nil {
		return usageError{err}
	}
	// No program issues an ID that is further ahead of its own clock.
	p, err := partsOf(layout, arg, time.Now().Add(timeid.FurthestAhead).UnixMilli())
	if err != nil {
		return usageError{err}
	}
	at := time.UnixMilli(p.Time).UTC().Format(timeid.Format)
	if c.output == "json" {
		// 64-bit numbers are strings, as in every answer.
		return json.NewEncoder(c.stdout).Encode(struct {
			Time     string `json:"time"`
			Worker   int64  `json:"worker,string"`
			Sequence int64  `json:"sequence,string"`
		}{at, p.Worker, p.Sequence})
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "time\t%s\nworker\t%d\nsequence\t%d\n", at, p.Worker, p.Sequence)
	return w.Flush()
}

// partsOf returns the parts of an ID, or of timeid.Wide of its text, which has 15 characters
// of radix 62 or 17 of radix 36. Its error is Invalid.
func partsOf(layout timeid.Layout, arg string, latest int64) (timeid.Parts, error) {
	if layout != timeid.Wide {
		id, err := parseID(arg)
		if err != nil {
			return timeid.Parts{}, err
		}
		return layout.DecomposeBefore(id, latest)
	}
	f, err := format.Parse("sortable(62)")
	if err == nil && len(arg) == 17 {
		f, err = format.Parse("sortable(36)")
	}
	if err != nil {
		return timeid.Parts{}, err
	}
	v, err := f.ParseText(arg)
	if err != nil {
		return timeid.Parts{}, err
	}
	return v.Parts, v.Parts.CheckBefore(latest)
}

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
	flags.StringVar(&f.sequence, "sequence", "reset", "of a time tag: the sequence of a tick begins at 0 (reset), above the last one (carry) or at random")
	flags.Int64Var(&f.carryTo, "carry-to", 0, "with --sequence carry: if a tick ends at this sequence or above, the next begins at 1 (default half of all sequences)")
	flags.Int64Var(&f.randomBelow, "random-below", 0, fmt.Sprintf("with --sequence random: the bound below which a tick's first sequence lies (default %d)", timeid.DefaultRandomBelow))
	flags.StringVar(&f.rollback, "rollback", "wait", "of a time tag, if the clock went back: wait until it has caught up, go on ahead of it (offset), or fail")
	flags.DurationVar(&f.maxWait, "max-wait", timeid.DefaultMaxWait, "of a time tag: how long a call waits for a clock that went back")
	for name, values := range map[string][]string{"sequence": {"reset", "carry", "random"}, "rollback": {"wait", "offset", "fail"}, "kind": {"counter", "time"}} {
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
	if f.kind != "" && f.layout.given(cmd) || f.kind == "time" { // a tag to be created
		layout, err := f.layout.layout(cmd)
		if err != nil {
			return nil, err
		}
		given = true
		p.EpochMs = &layout.Epoch
		if p.Preset = f.layout.preset; p.Preset == "" {
			p.TimeBits, p.WorkerBits, p.SequenceBits = int32(layout.TimeBits), int32(layout.WorkerBits), int32(layout.SequenceBits)
			p.Unit, p.Order = durationpb.New(layout.Unit), api.FromWord[marchv1.WorkerOrder](strings.TrimPrefix(layout.Order.String(), "worker-"))
		}
	}
	if !given {
		return nil, nil
	}
	if f.kind == "counter" && changed("kind") {
		return nil, allocator.Errorf(allocator.Invalid, "kind: counter, with settings of time-ordered IDs; allowed with these: time")
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

func timeTagText(w *tabwriter.Writer, t *marchv1.Tag) {
	p := t.GetTime()
	_, _ = fmt.Fprintf(w, "kind\ttime\n")
	_, _ = fmt.Fprintf(w, "bits\t%d/%d/%d (time/worker/sequence)\n", p.GetTimeBits(), p.GetWorkerBits(), p.GetSequenceBits())
	_, _ = fmt.Fprintf(w, "unit\t%s\n", p.GetUnit().AsDuration())
	_, _ = fmt.Fprintf(w, "time epoch\t%s\n", time.UnixMilli(p.GetEpochMs()).UTC().Format(timeid.Format))
	_, _ = fmt.Fprintf(w, "order\tworker-%s\n", api.Word(p.GetOrder()))
	_, _ = fmt.Fprintf(w, "sequence\t%s\n", api.Word(p.GetSequence()))
	_, _ = fmt.Fprintf(w, "rollback\t%s\n", api.Word(p.GetRollback()))
	_, _ = fmt.Fprintf(w, "max wait\t%s\n", p.GetMaxWait().AsDuration())
	_, _ = fmt.Fprintf(w, "created\t%s\n", t.GetCreated().AsTime().Format(time.RFC3339))
}

func newWorker(c *common) *cobra.Command {
	t := &target{}
	cmd := group("worker", "Show the workers of time-ordered IDs", newWorkerList(c, t))
	t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	return cmd
}

func newWorkerList(c *common, t *target) *cobra.Command {
	r := &marchv1.ListWorkersRequest{PageSize: 1000}
	var bits int32
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List all workers taken so far, their owners and windows",
		Long: `List the workers of time-ordered IDs that were ever taken: the instance that has each
of them or had it last, and the window of time for which it may use the worker. A pinned
worker keeps its number over restarts. One for a caller is in use in a caller's process.
Below the list are the slices: the workers that each room may take.`,
		Example: `  march worker list
  march worker list --bits 10 --room a`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("bits") {
				r.Bits = &bits
			}
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				all := &marchv1.ListWorkersResponse{}
				for {
					page, err := s.ListWorkers(ctx, r)
					if err != nil {
						return err
					}
					all.Workers = append(all.Workers, page.GetWorkers()...)
					all.Slices = append(all.Slices, page.GetSlices()...)
					all.Unreadable = passedOver(all.GetUnreadable(), page)
					if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
						break
					}
				}
				return c.print(all, func(w *tabwriter.Writer) { workersText(w, all) })
			})
		},
	}
	cmd.Flags().Int32Var(&bits, "bits", 0, "only workers of this width: the middle number of the tag's --bits")
	cmd.Flags().StringVar(&r.Room, "room", "", "only workers that this room has, or had last")
	return cmd
}

func workersText(w *tabwriter.Writer, all *marchv1.ListWorkersResponse) {
	_, _ = fmt.Fprintln(w, "BITS\tNUMBER\tROOM\tINSTANCE\tPINNED\tCALLER\tFROM\tUNTIL\tLEFT\tSTATE")
	for _, i := range all.GetWorkers() {
		left, state := "-", api.Word(i.GetState())
		if i.GetLeft() != nil {
			left = i.GetLeft().AsDuration().Truncate(time.Second).String()
		}
		if i.GetState() == marchv1.WorkerState_WORKER_STATE_ENDED {
			state += ", free again at " + i.GetFree().AsTime().Format(timeid.Format)
		}
		_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.GetBits(), i.GetNumber(), i.GetRoom(), i.GetInstance(),
			yesOr(i.GetPinned()), yesOr(i.GetCaller()), i.GetFrom().AsTime().Format(timeid.Format), i.GetUntil().AsTime().Format(timeid.Format), left, state)
	}
	slicesText(w, all.GetSlices())
}

// slicesText writes the rooms' slices, and how many of their workers are in use.
func slicesText(w *tabwriter.Writer, slices []*marchv1.WorkerSlice) {
	if len(slices) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w, "\nBITS\tROOM\tSLICE\tWORKERS\tIN USE\tEVER TAKEN")
	for _, s := range slices {
		_, _ = fmt.Fprintf(w, "%d\t%s\t[%d, %d)\t%d\t%d\t%d\n", s.GetBits(), s.GetRoom(), s.GetLower(), s.GetUpper(),
			s.GetUpper()-s.GetLower(), s.GetLive(), s.GetTaken())
	}
}

func yesOr(is bool) string {
	if is {
		return "yes"
	}
	return "-"
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
			ch.GetReserve().AsDuration().Round(time.Second), ch.GetPeak(), ch.GetStep(), ch.GetIssued(), ch.GetDropped(), ch.GetVersion())
	}
	if len(t.GetSilent()) > 0 {
		_, _ = fmt.Fprintf(w, "\nno answer from: %s\n", strings.Join(t.GetSilent(), ", "))
	}
}
