package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
)

// exportManifest writes the file of a cluster with this layout and these tags, without the settings
// that are at their defaults. parseManifest reads it, and then there is nothing to change.
func exportManifest(layout *marchv1.Layout, tags []*marchv1.Tag) ([]byte, error) {
	var file yaml.MapSlice
	if layout != nil {
		parts := yaml.MapSlice{yamlItem("boundary", layout.GetBoundary()),
			yamlItem("rooms", yamlRanges(layout.GetRooms()))}
		if len(layout.GetReserved()) > 0 {
			parts = append(parts, yamlItem("reserved", yamlRanges(layout.GetReserved())))
		}
		file = append(file, yamlItem("layout", parts))
	}
	all := yaml.MapSlice{}
	for _, t := range slices.SortedFunc(slices.Values(tags), func(a, b *marchv1.Tag) int {
		return cmp.Compare(a.GetName(), b.GetName())
	}) {
		settings, err := exportedTag(t)
		if err != nil {
			return nil, err
		}
		all = append(all, yamlItem(t.GetName(), settings))
	}
	return yaml.Marshal(append(file, yamlItem("tags", all)))
}

func yamlRanges(of map[string]*marchv1.Range) (list yaml.MapSlice) {
	for _, name := range operator.ByLower(of) {
		list = append(list, yamlItem(name, yaml.MapSlice{yamlItem("lower", of[name].GetLower()),
			yamlItem("upper", of[name].GetUpper())}))
	}
	return list
}

func yamlItem(name string, value any) yaml.MapItem { return yaml.MapItem{Key: name, Value: value} }

// exportedTag returns the settings of a tag that are not at their defaults.
func exportedTag(t *marchv1.Tag) (yaml.MapSlice, error) {
	plain := &marchv1.Tag{Format: t.Format, KeyCheck: t.KeyCheck, Period: t.GetPeriod()}
	if p := t.GetTime(); p != nil {
		plain.Time = &marchv1.TimeTag{
			TimeBits: p.GetTimeBits(), WorkerBits: p.GetWorkerBits(), SequenceBits: p.GetSequenceBits(),
			Unit: p.GetUnit(), EpochMs: p.EpochMs, Order: p.GetOrder(), Sequence: p.GetSequence(),
		}
	}
	plain, err := completeTag(plain)
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
			settings = append(settings, yamlItem(outer, yamlValue(row, text)))
			continue
		}
		if n := len(settings); n == 0 || settings[n-1].Key != outer {
			settings = append(settings, yamlItem(outer, yaml.MapSlice{}))
		}
		last := len(settings) - 1
		inner, _ := settings[last].Value.(yaml.MapSlice)
		inner = append(inner, yamlItem(name, yamlValue(row, text)))
		settings[last].Value = inner
	}
	return settings, nil
}

// yamlValue returns a value as YAML is to write it: only texts may need quotes.
func yamlValue(s setting.Setting, text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && s.Kind != setting.Any {
		return n
	}
	if s.Type() == "bool" {
		return text == "true"
	}
	return text
}
