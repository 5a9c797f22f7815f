package manifest

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
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
	settings := yaml.MapSlice{}
	for _, row := range setting.Keys(setting.KindOf(t)) {
		text := row.Text(t)
		if text == "" || !row.Fixed && row.Path != "time.sequence" && text == row.Text(plain) ||
			row.Path == "start" && text == row.Text(plain) {
			continue
		}
		outer, name, nested := strings.Cut(row.Path, ".")
		if !nested {
			settings = append(settings, item(outer, typed(row, text)))
			continue
		}
		if n := len(settings); n == 0 || settings[n-1].Key != outer {
			settings = append(settings, item(outer, yaml.MapSlice{}))
		}
		last := len(settings) - 1
		inner, _ := settings[last].Value.(yaml.MapSlice)
		inner = append(inner, item(name, typed(row, text)))
		settings[last].Value = inner
	}
	return settings, nil
}

// typed returns a value as YAML is to write it: only texts may need quotes.
func typed(s setting.Setting, text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && s.Kind != setting.Any {
		return n
	}
	if s.Type() == "bool" {
		return text == "true"
	}
	return text
}
