package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
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
	flags.StringVar(&l.epoch, "time-epoch", "", "when the time begins: RFC 3339 or Unix ms; with --preset, in place of the preset's")
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

// layout returns what the flags describe. Its errors are Invalid.
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
				return layout, allocator.Errorf(allocator.Invalid, "%s: given together with preset; allowed: either, as a preset has its own", other)
			}
		}
		layout = preset.Layout
	} else {
		for _, needed := range []string{"bits", "time-epoch"} {
			if !changed(needed) {
				return layout, allocator.Errorf(allocator.Invalid, "%s: must be given where no preset is; see `%s --help`", needed, cmd.CommandPath())
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
	id, err := parseID(arg)
	if err != nil {
		return usageError{err}
	}
	// No ID is further ahead of the clock of the machine that issued it.
	p, err := layout.DecomposeBefore(id, time.Now().Add(timeid.FurthestAhead).UnixMilli())
	if err != nil {
		return usageError{err}
	}
	at := time.UnixMilli(p.Time).UTC().Format(timeid.Format)
	if c.output == "json" {
		// As in every answer, 64-bit numbers are strings.
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
