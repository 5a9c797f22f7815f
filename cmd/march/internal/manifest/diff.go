package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/yamlfile"
)

// Diff is what a cluster must change. Its JSON is that of `march apply -o json`.
type Diff struct {
	Layout *LayoutChange `json:"layout"` // nil where it stays
	Tags   []TagChange   `json:"tags"`   // sorted by name
}

// LayoutChange is a change of the layout.
type LayoutChange struct {
	From *Layout `json:"from"` // nil where the cluster has none yet
	To   *Layout `json:"to"`
}

// Layout is a layout in a Diff's JSON.
type Layout struct {
	Boundary int64            `json:"boundary,string"`
	Rooms    map[string]Range `json:"rooms"`
	Reserved map[string]Range `json:"reserved,omitempty"`
}

// Range is the range of a room: [Lower, Upper).
type Range struct {
	Lower int64 `json:"lower,string"`
	Upper int64 `json:"upper,string"`
}

// Action is what is done to a tag.
type Action string

// The actions.
const (
	Create Action = "create"
	Update Action = "update"
	Delete Action = "delete"
)

// TagChange is a change of a tag.
type TagChange struct {
	Tag    string        `json:"tag"`
	Action Action        `json:"action"`
	Fields []FieldChange `json:"fields"` // of a deleted tag none

	want     *marchv1.Tag
	revision int64 // of the tag that is compared, for a write that finds it unchanged; 0 for a new one
}

// FieldChange is a change of a setting. From is empty in a new tag.
type FieldChange struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// Empty reports whether nothing changes.
func (d Diff) Empty() bool { return d.Layout == nil && len(d.Tags) == 0 }

// SameTags reports whether both change the same of the same tags: one that was written in
// between is another one, even if the difference is the same.
func (d Diff) SameTags(other Diff) bool {
	return slices.EqualFunc(d.Tags, other.Tags, func(a, b TagChange) bool {
		return a.Tag == b.Tag && a.Action == b.Action && a.revision == b.revision && slices.Equal(a.Fields, b.Fields)
	})
}

// SameLayout reports whether both change the layout alike.
func (d Diff) SameLayout(other Diff) bool { return reflect.DeepEqual(d.Layout, other.Layout) }

// Diff returns what a cluster with a layout, nil if it has none yet, and with these tags
// must change to be as m asks for. With prune the tags go that m does not have. The error
// is Invalid, and names each setting that cannot be changed.
func (m *Manifest) Diff(layout *marchv1.Layout, tags []*marchv1.Tag, prune bool) (Diff, error) {
	r := yamlfile.NewReader(m.path, false)
	d := Diff{Tags: []TagChange{}}
	if m.Layout != nil {
		change := LayoutChange{From: layoutOf(layout), To: layoutOf(m.Layout)}
		if change.To.Reserved == nil && change.From != nil { // a file without them leaves them alone
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
			d.Tags = append(d.Tags, created(want))
		} else if change := m.updated(r, t, want); len(change.Fields) > 0 {
			d.Tags = append(d.Tags, change)
		}
		delete(have, want.GetName())
	}
	if prune {
		for _, name := range slices.Sorted(maps.Keys(have)) {
			d.Tags = append(d.Tags, TagChange{Tag: name, Action: Delete, Fields: []FieldChange{},
				revision: have[name].GetRevision()})
		}
	}
	slices.SortStableFunc(d.Tags, func(a, b TagChange) int { return strings.Compare(a.Tag, b.Tag) })
	return d, r.Err()
}

func layoutOf(l *marchv1.Layout) *Layout {
	if l == nil {
		return nil
	}
	out := &Layout{Boundary: l.GetBoundary(), Rooms: make(map[string]Range, len(l.GetRooms()))}
	for room, g := range l.GetRooms() {
		out.Rooms[room] = Range{g.GetLower(), g.GetUpper()}
	}
	for name, g := range l.GetReserved() {
		if out.Reserved == nil {
			out.Reserved = make(map[string]Range)
		}
		out.Reserved[name] = Range{g.GetLower(), g.GetUpper()}
	}
	return out
}

func created(want *marchv1.Tag) TagChange {
	change := TagChange{Tag: want.GetName(), Action: Create, want: want}
	for _, f := range fields(want) {
		change.Fields = append(change.Fields, FieldChange{Field: f.name, To: f.value})
	}
	return change
}

// updated returns the fields of a tag that change; it refuses those that cannot.
func (m *Manifest) updated(r *yamlfile.Reader, have, want *marchv1.Tag) TagChange {
	change := TagChange{Tag: want.GetName(), Action: Update, want: want, revision: have.GetRevision()}
	tag := "tags." + want.GetName()
	if was, is := kind(have), kind(want); was != is {
		m.refuse(r, tag, allocator.Errorf(allocator.Invalid,
			"time: a tag keeps its kind: this one is a %s tag, and the file has a %s tag", was, is))
		return change
	}
	before, after := fields(have), fields(want)
	was := make(map[string]string, len(before))
	for _, f := range before {
		was[f.name] = f.value
	}
	refused := false
	for _, f := range after {
		from := was[f.name]
		delete(was, f.name)
		if from == f.value {
			continue
		}
		change.Fields = append(change.Fields, FieldChange{f.name, from, f.value})
		if f.fixed {
			refused = true
			m.refuse(r, tag, keeps(f.name, f.value, from))
		}
	}
	for _, f := range before { // fields that the tag loses
		if _, lost := was[f.name]; !lost {
			continue
		}
		change.Fields = append(change.Fields, FieldChange{f.name, f.value, ""})
		if f.fixed {
			refused = true
			m.refuse(r, tag, keeps(f.name, "none", f.value))
		}
	}
	if !refused && len(change.Fields) > 0 {
		if err := changeable(have, want); err != nil {
			m.refuse(r, tag, err)
		}
	}
	return change
}

func keeps(field, asked, is string) error {
	if is == "" {
		is = "none"
	}
	return allocator.Errorf(allocator.Invalid, "%s: %s; allowed: %s, as it cannot be changed", field, asked, is)
}

// changeable is the check with which a console refuses an update.
func changeable(have, want *marchv1.Tag) error {
	before, err := operator.NewSettings(have)
	if err != nil {
		return err
	}
	after, err := operator.NewSettings(want)
	if err != nil {
		return err
	}
	return before.Changeable(after)
}

func kind(t *marchv1.Tag) string {
	if t.GetTime() != nil {
		return "time"
	}
	return "counter"
}

// Message returns the tag of the call that makes the change: with all settings for one that
// is created, and with those that change for an update.
func (c TagChange) Message() *marchv1.Tag {
	if c.Action == Create {
		return c.want
	}
	t := &marchv1.Tag{Name: c.Tag}
	for _, f := range c.Fields {
		switch f.Field {
		case "limit":
			t.Limit = c.want.Limit
		case "min_step":
			t.MinStep = c.want.MinStep
		case "max_step":
			t.MaxStep = c.want.MaxStep
		case "reserve":
			t.Reserve = c.want.GetReserve()
		case "max_jump":
			t.MaxJump = c.want.MaxJump
		case "max_skew":
			t.MaxSkew = c.want.MaxSkew
		case "strict_retract":
			t.StrictRetract = c.want.StrictRetract
		default: // the policies of time-ordered IDs belong together
			w := c.want.GetTime()
			t.Time = &marchv1.TimeTag{Sequence: w.GetSequence(), CarryTo: w.GetCarryTo(),
				RandomBelow: w.GetRandomBelow(), Rollback: w.GetRollback(), MaxWait: w.GetMaxWait()}
		}
	}
	return t
}

// Revision returns the revision of the tag that was compared. A write is to find it there.
func (c TagChange) Revision() int64 { return c.revision }

// Text returns the changes of tags for a person: a line a tag, and one a setting.
func (d Diff) Text() string {
	var b strings.Builder
	if d.Empty() {
		b.WriteString("nothing to change\n")
	}
	for _, c := range d.Tags {
		_, _ = fmt.Fprintf(&b, "%s tag %s\n", c.Action, c.Tag)
		for _, f := range c.Fields {
			if c.Action == Create {
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
func (c TagChange) warning(f FieldChange) string {
	from, _ := strconv.ParseInt(f.From, 10, 64)
	if f.Field == "limit" && c.want.GetLimit() < from {
		return " (rooms that have leased IDs above it stop issuing)"
	}
	return ""
}

// field is a setting of a tag as files have it.
type field struct {
	name, value string
	fixed       bool // it is chosen when the tag is created
}

// fields returns the settings of a tag, defaults too.
func fields(t *marchv1.Tag) []field {
	number := strconv.FormatInt
	var all []field
	if t.GetTime() == nil {
		all = append(all,
			field{"start", number(t.GetStart(), 10), true}, field{"limit", number(t.GetLimit(), 10), false},
			field{"min_step", number(t.GetMinStep(), 10), false}, field{"max_step", number(t.GetMaxStep(), 10), false},
			field{"reserve", t.GetReserve().AsDuration().String(), false},
			field{"max_jump", number(t.GetMaxJump(), 10), false}, field{"max_skew", number(t.GetMaxSkew(), 10), false},
			field{"strict_retract", strconv.FormatBool(t.GetStrictRetract()), false})
	}
	if t.Format != nil {
		all = append(all, field{"format", t.GetFormat(), true})
	}
	if t.KeyCheck != nil {
		all = append(all, field{"key_check", t.GetKeyCheck(), true})
	}
	if p := t.GetPeriod(); p != nil {
		all = append(all, field{"period.unit", api.Word(p.GetUnit()), true},
			field{"period.digits", fmt.Sprint(p.GetDigits()), true}, field{"period.time_zone", p.GetTimeZone(), true})
	}
	if p := t.GetTime(); p != nil {
		all = append(all,
			field{"time.time_bits", fmt.Sprint(p.GetTimeBits()), true},
			field{"time.worker_bits", fmt.Sprint(p.GetWorkerBits()), true},
			field{"time.sequence_bits", fmt.Sprint(p.GetSequenceBits()), true},
			field{"time.unit", p.GetUnit().AsDuration().String(), true},
			field{"time.epoch_ms", number(p.GetEpochMs(), 10), true}, field{"time.order", api.Word(p.GetOrder()), true},
			field{"time.sequence", api.Word(p.GetSequence()), false})
		if p.GetCarryTo() != 0 {
			all = append(all, field{"time.carry_to", number(p.GetCarryTo(), 10), false})
		}
		if p.GetRandomBelow() != 0 {
			all = append(all, field{"time.random_below", number(p.GetRandomBelow(), 10), false})
		}
		all = append(all, field{"time.rollback", api.Word(p.GetRollback()), false},
			field{"time.max_wait", p.GetMaxWait().AsDuration().String(), false})
	}
	return all
}
