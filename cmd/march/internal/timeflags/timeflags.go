// Package timeflags has the flags that describe time-ordered IDs.
package timeflags

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

// Layout is the flags that describe time-ordered IDs.
type Layout struct {
	Preset                   string
	bits, unit, epoch, order string
}

// names are its flags' names. Each of them makes `id decode` work offline.
var names = []string{"preset", "bits", "unit", "time-epoch", "order"}

// Add adds the flags.
func (l *Layout) Add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&l.Preset, "preset", "", "a time-ordered ID of a known layout: "+strings.Join(
		timeid.PresetNames(), ", "))
	flags.StringVar(&l.bits, "bits", "", "a time-ordered ID of these bits of time/worker/sequence, such as 41/10/12; "+
		"needs --time-epoch")
	flags.StringVar(&l.unit, "unit", "1ms", "with --bits: the unit of time, 1ms, 10ms or 1s")
	flags.StringVar(&l.epoch, "time-epoch", "", "the time of tick 0: RFC 3339 or Unix ms; with --preset, "+
		"in place of the preset's")
	flags.StringVar(&l.order, "order", timeid.WorkerMiddle.String(), "with --bits: worker-middle or worker-last")
	for name, values := range map[string][]string{
		"preset": timeid.PresetNames(), "unit": {"1ms", "10ms", "1s"},
		"order": {timeid.WorkerMiddle.String(), timeid.WorkerLast.String()},
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// Given reports whether any of the flags was.
func (l *Layout) Given(cmd *cobra.Command) bool {
	return slices.ContainsFunc(names, cmd.Flags().Changed)
}

// Layout returns the layout that the flags describe. Its errors are Invalid.
func (l *Layout) Layout(cmd *cobra.Command) (timeid.Layout, error) {
	var layout timeid.Layout
	changed := cmd.Flags().Changed
	if changed("preset") {
		preset, err := timeid.PresetNamed(l.Preset)
		if err != nil {
			return layout, err
		}
		for _, other := range []string{"bits", "unit", "order"} {
			if changed(other) {
				return layout, allocator.Errorf(allocator.Invalid,
					"%s: given together with preset; allowed: only one of them, because a preset has its own", other)
			}
		}
		layout = preset.Layout
	} else {
		for _, needed := range []string{"bits", "time-epoch"} {
			if !changed(needed) {
				return layout, allocator.Errorf(allocator.Invalid,
					"%s: must be given if preset is not; see `%s --help`", needed, cmd.CommandPath())
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
