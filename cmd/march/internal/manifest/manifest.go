// Package manifest reads and writes the file of `march apply`: a cluster's layout and tags
// as they should be. It also says what a cluster must change to get there.
//
// The file is YAML. Numbers, names and texts are taken as they are written. A layout or a
// tag that the file does not have is left alone; a setting that a tag of the file does not
// have is at its default. So a cluster is the same after the same file, whatever was done
// by hand before. Everything here is pure: the commands talk to the console.
package manifest

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

// Manifest is what a file asks for.
type Manifest struct {
	Layout *marchv1.Layout // nil where the file has none
	Tags   []*marchv1.Tag  // sorted by name, with defaults spelled out

	path   string
	places map[string]position // of fields, by names such as tags.order.start
}

// Parse reads a file. path is its name in messages. The error is Invalid, and names each
// mistake with its line and column.
func Parse(path string, content []byte) (*Manifest, error) {
	r := &reader{path: path}
	m := &Manifest{path: path, places: make(map[string]position)}
	if len(content) > MaxFile {
		r.refuse(position{1, 1}, "%d bytes; allowed: up to %d", len(content), MaxFile)
		return nil, r.err()
	}
	body := r.parse(content)
	if body == nil && r.err() == nil {
		r.refuse(position{1, 1}, "the file is empty; allowed: layout, tags")
	}
	for _, e := range r.entries("", body) {
		switch m.places[e.name] = e.at; e.name {
		case "layout":
			m.layout(r, e)
		case "tags":
			for _, e := range r.entries("tags", e.value) {
				m.tag(r, e)
			}
		default:
			r.unknown("", e, "layout", "tags")
		}
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	slices.SortFunc(m.Tags, func(a, b *marchv1.Tag) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return m, nil
}

// layout reads the layout.
func (m *Manifest) layout(r *reader, e entry) {
	before := len(r.mistakes)
	l := &marchv1.Layout{Rooms: make(map[string]*marchv1.Range)}
	for _, e := range r.entries("layout", e.value) {
		switch e.name {
		case "boundary":
			r.number("layout.boundary", e.value, func(n int64) { l.Boundary = n })
		case "rooms":
			for _, e := range r.entries("layout.rooms", e.value) {
				field := "layout.rooms." + short(e.name)
				m.places[field] = e.at
				l.Rooms[e.name] = room(r, field, e)
			}
		default:
			r.unknown("layout", e, "boundary", "rooms")
		}
	}
	m.Layout = l
	if len(r.mistakes) > before {
		return
	}
	answer, err := operator.ValidateLayout(l)
	if err != nil {
		r.refuse(e.at, "layout: %w", err)
		return
	}
	for i, text := range answer.GetProblems() {
		where := e.at
		if i < len(answer.GetDetails()) && len(answer.GetDetails()[i].GetRooms()) > 0 {
			if p, ok := m.places["layout.rooms."+answer.GetDetails()[i].GetRooms()[0]]; ok {
				where = p
			}
		}
		r.refuse(where, "layout: %s", short(text))
	}
}

func room(r *reader, field string, e entry) *marchv1.Range {
	g := &marchv1.Range{}
	for _, e := range r.entries(field, e.value) {
		switch e.name {
		case "lower":
			r.number(field+".lower", e.value, func(n int64) { g.Lower = n })
		case "upper":
			r.number(field+".upper", e.value, func(n int64) { g.Upper = n })
		default:
			r.unknown(field, e, "lower", "upper")
		}
	}
	return g
}

// tag reads a tag, and sets the defaults of what it does not have.
func (m *Manifest) tag(r *reader, e entry) {
	before := len(r.mistakes)
	name, err := allocator.ParseTag(e.name)
	if err != nil {
		r.refuse(e.at, "tags: %w", err)
		return
	}
	field := "tags." + e.name
	m.places[field] = e.at
	t := &marchv1.Tag{Name: e.name}
	for _, e := range r.entries(field, e.value) {
		m.setting(r, t, field, e)
	}
	if len(r.mistakes) > before {
		return
	}
	full, err := complete(t)
	if err != nil {
		m.refuse(r, field, err)
		return
	}
	full.Name = string(name)
	m.Tags = append(m.Tags, full)
}

// refuse notes the error of a tag's settings at the setting that the error begins with.
func (m *Manifest) refuse(r *reader, field string, err error) {
	where := m.places[field]
	begin, _, _ := strings.Cut(err.Error(), ":")
	for _, sub := range []string{field + "." + begin, field + ".time." + begin, field + ".time"} {
		if p, ok := m.places[sub]; ok {
			where = p
			break
		}
	}
	r.refuse(where, "%s: %w", field, err)
}

// counterFields and timeFields are the settings of tags in the order of files.
var (
	counterFields = []string{"start", "limit", "min_step", "max_step", "reserve", "max_jump", "max_skew", "strict_retract", "format", "key_check", "time"}
	timeFields    = []string{"preset", "time_bits", "worker_bits", "sequence_bits", "unit", "epoch_ms", "order", "sequence", "carry_to", "random_below", "rollback", "max_wait"}
)

// setting reads a setting of a tag.
func (m *Manifest) setting(r *reader, t *marchv1.Tag, tag string, e entry) {
	field := join(tag, e.name)
	m.places[field] = e.at
	number := func(to **int64) { r.number(field, e.value, func(n int64) { *to = &n }) }
	words := func(to **string) {
		if value, ok := r.value(field, e.value, "a text"); ok {
			*to = &value
		}
	}
	switch e.name {
	case "start":
		number(&t.Start)
	case "limit":
		number(&t.Limit)
	case "min_step":
		number(&t.MinStep)
	case "max_step":
		number(&t.MaxStep)
	case "max_jump":
		number(&t.MaxJump)
	case "max_skew":
		number(&t.MaxSkew)
	case "reserve":
		r.duration(field, e.value, func(d time.Duration) { t.Reserve = durationpb.New(d) })
	case "strict_retract":
		r.truth(field, e.value, func(b bool) { t.StrictRetract = &b })
	case "format":
		words(&t.Format)
	case "key_check":
		words(&t.KeyCheck)
	case "time":
		t.Time = &marchv1.TimeTag{}
		for _, e := range r.entries(field, e.value) {
			m.timeSetting(r, t.GetTime(), field, e)
		}
	default:
		delete(m.places, field)
		r.unknown(tag, e, counterFields...)
	}
}

// timeSetting reads a setting of time-ordered IDs.
func (m *Manifest) timeSetting(r *reader, t *marchv1.TimeTag, tag string, e entry) {
	field := join(tag, e.name)
	m.places[field] = e.at
	number := func(to *int64) { r.number(field, e.value, func(n int64) { *to = n }) }
	bits := func(to *int32) {
		r.number(field, e.value, func(n int64) {
			if n < 0 || n > 63 {
				r.refuse(of(e.value), "%s: %d; allowed: 0 to 63", field, n)
				return
			}
			*to = int32(n)
		})
	}
	switch e.name {
	case "preset":
		if value, ok := r.value(field, e.value, "a preset's name"); ok {
			t.Preset = value
		}
	case "time_bits":
		bits(&t.TimeBits)
	case "worker_bits":
		bits(&t.WorkerBits)
	case "sequence_bits":
		bits(&t.SequenceBits)
	case "unit":
		r.duration(field, e.value, func(d time.Duration) { t.Unit = durationpb.New(d) })
	case "epoch_ms":
		r.number(field, e.value, func(n int64) { t.EpochMs = &n })
	case "order":
		t.Order = word[marchv1.WorkerOrder](r, field, e.value)
	case "sequence":
		t.Sequence = word[marchv1.SequencePolicy](r, field, e.value)
	case "carry_to":
		number(&t.CarryTo)
	case "random_below":
		number(&t.RandomBelow)
	case "rollback":
		t.Rollback = word[marchv1.RollbackPolicy](r, field, e.value)
	case "max_wait":
		r.duration(field, e.value, func(d time.Duration) { t.MaxWait = durationpb.New(d) })
	default:
		delete(m.places, field)
		r.unknown(tag, e, timeFields...)
	}
}

// word reads a value of an enum.
func word[E api.Enum](r *reader, field string, node ast.Node) (value E) {
	text, ok := r.value(field, node, "a word")
	if !ok {
		return value
	}
	value, err := api.ParseWord[E](field, text)
	if err != nil {
		r.refuse(of(node), "%w", err)
	}
	return value
}

// complete returns a tag with its defaults spelled out, as a console answers it. Its error
// is Invalid, and is the one with which a console refuses the tag.
func complete(t *marchv1.Tag) (*marchv1.Tag, error) {
	settings, err := operator.NewSettings(t)
	if err == nil {
		err = settings.Validate()
	}
	if err != nil {
		return nil, err
	}
	full := operator.TagToProto(record.Tag{TagSettings: settings})
	full.Created, full.Skips = nil, nil
	return full, nil
}
