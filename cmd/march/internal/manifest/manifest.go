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
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/yamlfile"
)

// MaxFile bounds a file, in bytes.
const MaxFile = 4 << 20

// Manifest is what a file asks for.
type Manifest struct {
	Layout *marchv1.Layout // nil where the file has none
	Tags   []*marchv1.Tag  // sorted by name, with defaults spelled out

	path   string
	places map[string]yamlfile.Position // of fields, by names such as tags.order.start
}

// Parse reads a file. path is its name in messages. The error is Invalid, and names each
// mistake with its line and column.
func Parse(path string, content []byte) (*Manifest, error) {
	r := yamlfile.NewReader(path, false)
	m := &Manifest{path: path, places: make(map[string]yamlfile.Position)}
	if len(content) > MaxFile {
		r.Refuse(yamlfile.Position{Line: 1, Column: 1}, "%d bytes; allowed: up to %d", len(content), MaxFile)
		return nil, r.Err()
	}
	body := r.Parse(content)
	if body == nil && r.Err() == nil {
		r.Refuse(yamlfile.Position{Line: 1, Column: 1}, "the file is empty; allowed: layout, tags")
	}
	for _, e := range r.Entries("", body) {
		switch m.places[e.Name] = e.At; e.Name {
		case "layout":
			m.layout(r, e)
		case "tags":
			for _, e := range r.Entries("tags", e.Value) {
				m.tag(r, e)
			}
		default:
			r.Unknown("", e, "layout", "tags")
		}
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	slices.SortFunc(m.Tags, func(a, b *marchv1.Tag) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return m, nil
}

// layout reads the layout.
func (m *Manifest) layout(r *yamlfile.Reader, e yamlfile.Entry) {
	before := r.Mistakes()
	l := &marchv1.Layout{Rooms: make(map[string]*marchv1.Range)}
	for _, e := range r.Entries("layout", e.Value) {
		switch e.Name {
		case "boundary":
			r.Number("layout.boundary", e.Value, func(n int64) { l.Boundary = n })
		case "rooms":
			for _, e := range r.Entries("layout.rooms", e.Value) {
				field := "layout.rooms." + yamlfile.Short(e.Name)
				m.places[field] = e.At
				l.Rooms[e.Name] = room(r, field, e)
			}
		case "reserved":
			l.Reserved = make(map[string]*marchv1.Range)
			for _, e := range r.Entries("layout.reserved", e.Value) {
				l.Reserved[e.Name] = room(r, "layout.reserved."+yamlfile.Short(e.Name), e)
			}
		default:
			r.Unknown("layout", e, "boundary", "rooms", "reserved")
		}
	}
	m.Layout = l
	if r.Mistakes() > before {
		return
	}
	answer, err := operator.ValidateLayout(l)
	if err != nil {
		r.Refuse(e.At, "layout: %w", err)
		return
	}
	for i, text := range answer.GetProblems() {
		where := e.At
		if i < len(answer.GetDetails()) && len(answer.GetDetails()[i].GetRooms()) > 0 {
			if p, ok := m.places["layout.rooms."+answer.GetDetails()[i].GetRooms()[0]]; ok {
				where = p
			}
		}
		r.Refuse(where, "layout: %s", yamlfile.Short(text))
	}
}

func room(r *yamlfile.Reader, field string, e yamlfile.Entry) *marchv1.Range {
	g := &marchv1.Range{}
	for _, e := range r.Entries(field, e.Value) {
		switch e.Name {
		case "lower":
			r.Number(field+".lower", e.Value, func(n int64) { g.Lower = n })
		case "upper":
			r.Number(field+".upper", e.Value, func(n int64) { g.Upper = n })
		default:
			r.Unknown(field, e, "lower", "upper")
		}
	}
	return g
}

// tag reads a tag, and sets the defaults of what it does not have.
func (m *Manifest) tag(r *yamlfile.Reader, e yamlfile.Entry) {
	before := r.Mistakes()
	name, err := allocator.ParseTag(e.Name)
	if err != nil {
		r.Refuse(e.At, "tags: %w", err)
		return
	}
	field := "tags." + e.Name
	m.places[field] = e.At
	t := &marchv1.Tag{Name: e.Name}
	for _, e := range r.Entries(field, e.Value) {
		m.setting(r, t, field, e)
	}
	if r.Mistakes() > before {
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
func (m *Manifest) refuse(r *yamlfile.Reader, field string, err error) {
	where := m.places[field]
	begin, _, _ := strings.Cut(err.Error(), ":")
	for _, sub := range []string{field + "." + begin, field + ".time." + begin, field + ".time"} {
		if p, ok := m.places[sub]; ok {
			where = p
			break
		}
	}
	r.Refuse(where, "%s: %w", field, err)
}

// counterFields and timeFields are the settings of tags in the order of files.
var (
	counterFields = []string{"start", "limit", "min_step", "max_step", "reserve", "max_jump", "max_skew",
		"strict_retract", "format", "key_check", "period", "time"}
	timeFields = []string{"preset", "time_bits", "worker_bits", "sequence_bits", "unit", "epoch_ms", "order",
		"sequence", "carry_to", "random_below", "rollback", "max_wait"}
)

// setting reads a setting of a tag.
func (m *Manifest) setting(r *yamlfile.Reader, t *marchv1.Tag, tag string, e yamlfile.Entry) {
	field := yamlfile.Join(tag, e.Name)
	m.places[field] = e.At
	number := func(to **int64) { r.Number(field, e.Value, func(n int64) { *to = &n }) }
	words := func(to **string) {
		if value, ok := r.Value(field, e.Value, "a text"); ok {
			*to = &value
		}
	}
	switch e.Name {
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
		r.Duration(field, e.Value, func(d time.Duration) { t.Reserve = durationpb.New(d) })
	case "strict_retract":
		r.Truth(field, e.Value, func(b bool) { t.StrictRetract = &b })
	case "format":
		words(&t.Format)
	case "key_check":
		words(&t.KeyCheck)
	case "period":
		t.Period = &marchv1.Period{}
		for _, e := range r.Entries(field, e.Value) {
			m.periodSetting(r, t.GetPeriod(), field, e)
		}
	case "time":
		t.Time = &marchv1.TimeTag{}
		for _, e := range r.Entries(field, e.Value) {
			m.timeSetting(r, t.GetTime(), field, e)
		}
	default:
		delete(m.places, field)
		r.Unknown(tag, e, counterFields...)
	}
}

// periodFields are the settings of a period.
var periodFields = []string{"unit", "digits", "time_zone"}

// periodSetting reads a setting of a tag's period.
func (m *Manifest) periodSetting(r *yamlfile.Reader, p *marchv1.Period, tag string, e yamlfile.Entry) {
	field := yamlfile.Join(tag, e.Name)
	m.places[field] = e.At
	switch e.Name {
	case "unit":
		p.Unit = word[marchv1.PeriodUnit](r, field, e.Value)
	case "digits":
		r.Number(field, e.Value, func(n int64) {
			if n < 1 || n > int64(period.Year.MaxDigits()) {
				r.Refuse(yamlfile.Of(e.Value), "%s: %d; allowed: 1 to %d", field, n, period.Year.MaxDigits())
				return
			}
			p.Digits = int32(n)
		})
	case "time_zone":
		if value, ok := r.Value(field, e.Value, "a time zone"); ok {
			p.TimeZone = value
		}
	default:
		delete(m.places, field)
		r.Unknown(tag, e, periodFields...)
	}
}

// timeSetting reads a setting of time-ordered IDs.
func (m *Manifest) timeSetting(r *yamlfile.Reader, t *marchv1.TimeTag, tag string, e yamlfile.Entry) {
	field := yamlfile.Join(tag, e.Name)
	m.places[field] = e.At
	number := func(to *int64) { r.Number(field, e.Value, func(n int64) { *to = n }) }
	bits := func(to *int32) {
		r.Number(field, e.Value, func(n int64) {
			if n < 0 || n > 63 {
				r.Refuse(yamlfile.Of(e.Value), "%s: %d; allowed: 0 to 63", field, n)
				return
			}
			*to = int32(n)
		})
	}
	switch e.Name {
	case "preset":
		if value, ok := r.Value(field, e.Value, "a preset's name"); ok {
			t.Preset = value
		}
	case "time_bits":
		bits(&t.TimeBits)
	case "worker_bits":
		bits(&t.WorkerBits)
	case "sequence_bits":
		bits(&t.SequenceBits)
	case "unit":
		r.Duration(field, e.Value, func(d time.Duration) { t.Unit = durationpb.New(d) })
	case "epoch_ms":
		r.Number(field, e.Value, func(n int64) { t.EpochMs = &n })
	case "order":
		t.Order = word[marchv1.WorkerOrder](r, field, e.Value)
	case "sequence":
		t.Sequence = word[marchv1.SequencePolicy](r, field, e.Value)
	case "carry_to":
		number(&t.CarryTo)
	case "random_below":
		number(&t.RandomBelow)
	case "rollback":
		t.Rollback = word[marchv1.RollbackPolicy](r, field, e.Value)
	case "max_wait":
		r.Duration(field, e.Value, func(d time.Duration) { t.MaxWait = durationpb.New(d) })
	default:
		delete(m.places, field)
		r.Unknown(tag, e, timeFields...)
	}
}

// word reads a value of an enum.
func word[E api.Enum](r *yamlfile.Reader, field string, node ast.Node) (value E) {
	text, ok := r.Value(field, node, "a word")
	if !ok {
		return value
	}
	value, err := api.ParseWord[E](field, text)
	if err != nil {
		r.Refuse(yamlfile.Of(node), "%w", err)
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
