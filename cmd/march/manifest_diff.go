package main

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/yamlfile"
)

// manifestDiff is what a cluster must change. Its JSON is that of `march apply -o json`.
type manifestDiff struct {
	Layout *layoutChange `json:"layout"` // nil where it stays
	Tags   []tagChange   `json:"tags"`   // sorted by name
}

type layoutChange struct {
	From *layoutState `json:"from"` // nil where the cluster has none yet
	To   *layoutState `json:"to"`
}

// layoutState is a layout in a manifestDiff's JSON.
type layoutState struct {
	Boundary int64                 `json:"boundary,string"`
	Rooms    map[string]rangeState `json:"rooms"`
	Reserved map[string]rangeState `json:"reserved,omitempty"`
}

// rangeState is the range of a room: [Lower, Upper).
type rangeState struct {
	Lower int64 `json:"lower,string"`
	Upper int64 `json:"upper,string"`
}

type tagChange struct {
	Tag    string        `json:"tag"`
	Action string        `json:"action"` // create, update or delete
	Fields []fieldChange `json:"fields"` // of a deleted tag none

	want     *marchv1.Tag
	revision int64 // of the tag that is compared, for a write that finds it unchanged; 0 for a new one
}

// fieldChange is a change of a setting. From is empty in a new tag.
type fieldChange struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// Empty reports whether nothing changes.
func (d manifestDiff) Empty() bool { return d.Layout == nil && len(d.Tags) == 0 }

// SameTags reports whether both change the same of the same tags: one that was written in
// between is another one, even if the difference is the same.
func (d manifestDiff) SameTags(other manifestDiff) bool {
	return slices.EqualFunc(d.Tags, other.Tags, func(a, b tagChange) bool {
		return a.Tag == b.Tag && a.Action == b.Action && a.revision == b.revision && slices.Equal(a.Fields, b.Fields)
	})
}

// SameLayout reports whether both change the layout alike.
func (d manifestDiff) SameLayout(other manifestDiff) bool {
	return reflect.DeepEqual(d.Layout, other.Layout)
}

// Diff returns what a cluster with a layout, nil if it has none yet, and with these tags
// must change to be as m asks for. With prune the tags go that m does not have. The error
// is Invalid, and names each setting that cannot be changed.
func (m *manifest) Diff(layout *marchv1.Layout, tags []*marchv1.Tag, prune bool) (manifestDiff, error) {
	r := yamlfile.NewReader(m.path)
	d := manifestDiff{Tags: []tagChange{}}
	if m.Layout != nil {
		change := layoutChange{From: layoutStateOf(layout), To: layoutStateOf(m.Layout)}
		if len(change.To.Reserved) == 0 && change.From != nil { // a file without them leaves them alone
			change.To.Reserved = change.From.Reserved
		}
		if !reflect.DeepEqual(change.From, change.To) {
			d.Layout = &change
		}
	}
	have := make(map[string]*marchv1.Tag, len(tags))
	for _, t := range tags {
		have[t.GetName()] = t
	}
	for _, want := range m.Tags {
		t, there := have[want.GetName()]
		if !there {
			d.Tags = append(d.Tags, createdTag(want))
		} else if change := m.updated(r, t, want); len(change.Fields) > 0 {
			d.Tags = append(d.Tags, change)
		}
		delete(have, want.GetName())
	}
	if prune {
		for _, name := range sortedKeys(have) {
			d.Tags = append(d.Tags, tagChange{Tag: name, Action: "delete", Fields: []fieldChange{},
				revision: have[name].GetRevision()})
		}
	}
	slices.SortStableFunc(d.Tags, func(a, b tagChange) int { return strings.Compare(a.Tag, b.Tag) })
	return d, r.Err()
}

func layoutStateOf(l *marchv1.Layout) *layoutState {
	if l == nil {
		return nil
	}
	out := &layoutState{l.GetBoundary(), make(map[string]rangeState), make(map[string]rangeState)}
	for name, g := range l.GetRooms() {
		out.Rooms[name] = rangeState{g.GetLower(), g.GetUpper()}
	}
	for name, g := range l.GetReserved() {
		out.Reserved[name] = rangeState{g.GetLower(), g.GetUpper()}
	}
	return out
}

// changesOf returns the settings that differ in tags of one kind.
func changesOf(have, want *marchv1.Tag) []setting.Change {
	return setting.Diff(setting.Keys(setting.KindOf(want)), have, want)
}

func createdTag(want *marchv1.Tag) tagChange {
	change := tagChange{Tag: want.GetName(), Action: "create", want: want}
	for _, s := range changesOf(&marchv1.Tag{}, want) {
		change.Fields = append(change.Fields, fieldChange{s.Path, "", s.To})
	}
	return change
}

// updated returns the settings of a tag that change; it refuses those that cannot.
func (m *manifest) updated(r *yamlfile.Reader, have, want *marchv1.Tag) tagChange {
	change := tagChange{Tag: want.GetName(), Action: "update", want: want, revision: have.GetRevision()}
	tag := "tags." + want.GetName()
	if was, is := setting.KindOf(have), setting.KindOf(want); was != is {
		m.refuse(r, tag, allocator.Errorf(allocator.Invalid,
			"time: a tag keeps its kind: this one is a %s tag, and the file has a %s tag", was, is))
		return change
	}
	refused := false
	for _, s := range changesOf(have, want) {
		change.Fields = append(change.Fields, fieldChange{s.Path, s.From, s.To})
		if s.Fixed {
			refused = true
			m.refuse(r, tag, allocator.Errorf(allocator.Invalid, "%s: %s; allowed: %s, as it cannot be changed",
				s.Path, cmp.Or(s.To, "none"), cmp.Or(s.From, "none")))
		}
	}
	if !refused && len(change.Fields) > 0 {
		if err := changeable(have, want); err != nil {
			m.refuse(r, tag, err)
		}
	}
	return change
}

// changeable is the check with which a console refuses an update.
func changeable(have, want *marchv1.Tag) error {
	before, err := setting.New(have)
	if err != nil {
		return err
	}
	after, err := setting.New(want)
	if err != nil {
		return err
	}
	return before.Changeable(after)
}

// Message returns the tag of the call that makes the change: with all settings for one that
// is created, and with those that change for an update.
func (c tagChange) Message() *marchv1.Tag {
	if c.Action == "create" {
		return c.want
	}
	t := &marchv1.Tag{Name: c.Tag}
	for _, s := range setting.Settings(setting.KindOf(c.want), false) {
		changes := func(f fieldChange) bool { return f.Field == s.Path }
		// The policies of time-ordered IDs belong together.
		if s.Kind == setting.Timed || slices.ContainsFunc(c.Fields, changes) {
			s.Copy(t, c.want)
		}
	}
	return t
}

// Text returns the changes of tags for a person: a line a tag, and one a setting.
func (d manifestDiff) Text() string {
	var b strings.Builder
	if d.Empty() {
		b.WriteString("nothing to change\n")
	}
	for _, c := range d.Tags {
		_, _ = fmt.Fprintf(&b, "%s tag %s\n", c.Action, c.Tag)
		for _, f := range c.Fields {
			if c.Action == "create" {
				_, _ = fmt.Fprintf(&b, "  %s: %s\n", f.Field, f.To)
			} else {
				_, _ = fmt.Fprintf(&b, "  %s: %s -> %s%s\n", f.Field, cmp.Or(f.From, "none"),
					cmp.Or(f.To, "none"), c.warning(f))
			}
		}
	}
	return b.String()
}

// warning says what a lower limit does.
func (c tagChange) warning(f fieldChange) string {
	from, _ := strconv.ParseInt(f.From, 10, 64)
	if f.Field == "limit" && c.want.GetLimit() < from {
		return " (rooms that have leased IDs above it stop issuing)"
	}
	return ""
}
