package manifest

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// Export writes the file of a cluster with this layout and these tags, without the settings
// that are at their defaults. Parse reads it, and then there is nothing to change.
func Export(layout *marchv1.Layout, tags []*marchv1.Tag) ([]byte, error) {
	var file yaml.MapSlice
	if layout != nil {
		parts := yaml.MapSlice{item("boundary", layout.GetBoundary()), item("rooms", ranges(layout.GetRooms()))}
		if len(layout.GetReserved()) > 0 {
			parts = append(parts, item("reserved", ranges(layout.GetReserved())))
		}
		file = append(file, item("layout", parts))
	}
	all := yaml.MapSlice{}
	for _, t := range slices.SortedFunc(slices.Values(tags), func(a, b *marchv1.Tag) int {
		return cmp.Compare(a.GetName(), b.GetName())
	}) {
		settings, err := exported(t)
		if err != nil {
			return nil, err
		}
		all = append(all, item(t.GetName(), settings))
	}
	return yaml.Marshal(append(file, item("tags", all)))
}

// ranges writes ranges by lower.
func ranges(of map[string]*marchv1.Range) (list yaml.MapSlice) {
	byLower := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Compare(of[a].GetLower(), of[b].GetLower())
	})
	for _, name := range byLower {
		list = append(list, item(name, yaml.MapSlice{item("lower", of[name].GetLower()),
			item("upper", of[name].GetUpper())}))
	}
	return list
}

func item(name string, value any) yaml.MapItem { return yaml.MapItem{Key: name, Value: value} }

// exported returns the settings of a tag that are not at their defaults.
func exported(t *marchv1.Tag) (yaml.MapSlice, error) {
	plain := &marchv1.Tag{Format: t.Format, KeyCheck: t.KeyCheck, Period: t.GetPeriod()}
	if p := t.GetTime(); p != nil {
		plain.Time = &marchv1.TimeTag{
			TimeBits: p.GetTimeBits(), WorkerBits: p.GetWorkerBits(), SequenceBits: p.GetSequenceBits(),
			Unit: p.GetUnit(), EpochMs: p.EpochMs, Order: p.GetOrder(), Sequence: p.GetSequence(),
		}
	}
	plain, err := complete(plain)
	if err != nil {
		return nil, err
	}
	usual := make(map[string]string)
	for _, f := range fields(plain) {
		usual[f.name] = f.value
	}
	settings, periodic, timed := yaml.MapSlice{}, yaml.MapSlice{}, yaml.MapSlice{}
	for _, f := range fields(t) {
		part, isTimed := strings.CutPrefix(f.name, "time.")
		of, isPeriod := strings.CutPrefix(f.name, "period.")
		switch {
		case isPeriod:
			periodic = append(periodic, item(of, typed(f)))
		case isTimed && (f.fixed || part == "sequence" || usual[f.name] != f.value):
			timed = append(timed, item(part, typed(f)))
		case !isTimed && (f.name == "format" || f.name == "key_check" || usual[f.name] != f.value):
			settings = append(settings, item(f.name, typed(f)))
		}
	}
	if len(periodic) > 0 {
		settings = append(settings, item("period", periodic))
	}
	if len(timed) > 0 {
		settings = append(settings, item("time", timed))
	}
	return settings, nil
}

// typed returns a value as YAML is to write it: only texts may need quotes.
func typed(f field) any {
	if f.name == "format" || f.name == "key_check" {
		return f.value
	}
	if n, err := strconv.ParseInt(f.value, 10, 64); err == nil {
		return n
	}
	if f.value == "true" || f.value == "false" {
		return f.value == "true"
	}
	return f.value
}
