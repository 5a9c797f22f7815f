package main

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/yamlfile"
)

// maxManifest bounds a file, in bytes.
const maxManifest = 4 << 20

// manifest is the file of `march apply`: a cluster's layout and tags as they should be.
//
// The file is YAML. Numbers, names and texts are taken as they are written. A layout or a
// tag that the file does not have is left alone; a setting that a tag of the file does not
// have is at its default. So a cluster is the same after the same file, whatever was done
// by hand before.
type manifest struct {
	Layout *marchv1.Layout // nil where the file has none
	Tags   []*marchv1.Tag  // sorted by name, with defaults spelled out

	path   string
	places map[string]yamlfile.Position // of fields, by names such as tags.order.start
}

// parseManifest reads a file. path is its name in messages. The error is Invalid, and names each
// mistake with its line and column.
func parseManifest(path string, content []byte) (*manifest, error) {
	r := yamlfile.NewReader(path)
	m := &manifest{path: path, places: make(map[string]yamlfile.Position)}
	if len(content) > maxManifest {
		r.Refuse(yamlfile.Position{Line: 1, Column: 1}, "%d bytes; allowed: up to %d", len(content), maxManifest)
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

func (m *manifest) layout(r *yamlfile.Reader, e yamlfile.Entry) {
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
				l.Rooms[e.Name] = readRange(r, field, e)
			}
		case "reserved":
			l.Reserved = make(map[string]*marchv1.Range)
			for _, e := range r.Entries("layout.reserved", e.Value) {
				l.Reserved[e.Name] = readRange(r, "layout.reserved."+yamlfile.Short(e.Name), e)
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

func readRange(r *yamlfile.Reader, field string, e yamlfile.Entry) *marchv1.Range {
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
func (m *manifest) tag(r *yamlfile.Reader, e yamlfile.Entry) {
	before := r.Mistakes()
	name, err := allocator.ParseTag(e.Name)
	if err != nil {
		r.Refuse(e.At, "tags: %w", err)
		return
	}
	field := "tags." + e.Name
	m.places[field] = e.At
	t := &marchv1.Tag{Name: e.Name}
	m.settings(r, t, field, "", r.Entries(field, e.Value))
	if r.Mistakes() > before {
		return
	}
	full, err := completeTag(t)
	if err != nil {
		m.refuse(r, field, err)
		return
	}
	full.Name = string(name)
	m.Tags = append(m.Tags, full)
}

// refuse notes the error of a tag's settings at the setting that the error begins with.
func (m *manifest) refuse(r *yamlfile.Reader, field string, err error) {
	where := m.places[field]
	begin, _, _ := strings.Cut(err.Error(), ":")
	for _, sub := range []string{field + "." + begin, field + ".time." + begin, field + ".period." +
		strings.TrimPrefix(begin, "period_"), field + ".period", field + ".time"} {
		if p, ok := m.places[sub]; ok {
			where = p
			break
		}
	}
	r.Refuse(where, "%s: %w", field, err)
}

// settings reads settings of a tag: those whose keys have a prefix, such as time., below the others.
func (m *manifest) settings(r *yamlfile.Reader, t *marchv1.Tag, tag, prefix string, entries []yamlfile.Entry) {
	known := make(map[string]setting.Setting)
	var names []string
	for _, s := range setting.Keys(setting.Any) {
		if name, ok := strings.CutPrefix(s.Path, prefix); ok {
			name, _, _ = strings.Cut(name, ".")
			names = append(names, name)
			known[s.Path] = s
		}
	}
	for _, e := range entries {
		path := prefix + e.Name
		field := yamlfile.Join(tag, path)
		m.places[field] = e.At
		s, ok := known[path]
		switch {
		case ok:
			text, ok := r.Value(field, e.Value, s.Allowed())
			if !ok {
				continue
			}
			if err := s.Set(t, text); err != nil {
				r.Refuse(yamlfile.Of(e.Value), "%s: %w", field, err)
			}
		case !slices.Contains(names, e.Name):
			delete(m.places, field)
			r.Unknown(strings.TrimSuffix(tag+"."+prefix, "."), e, slices.Compact(names)...)
		default: // a message of its own, also if it is empty
			f := t.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(e.Name))
			t.ProtoReflect().Mutable(f)
			m.settings(r, t, tag, e.Name+".", r.Entries(field, e.Value))
		}
	}
}

// completeTag returns a tag with its defaults spelled out, as a console answers it. Its error
// is Invalid, and is the one with which a console refuses the tag.
func completeTag(t *marchv1.Tag) (*marchv1.Tag, error) {
	settings, err := setting.New(t)
	if err == nil {
		err = settings.Validate()
	}
	if err != nil {
		return nil, err
	}
	full := setting.ToProto(record.Tag{TagSettings: settings})
	full.Created, full.Skip, full.Skips = nil, 0, nil
	return full, nil
}
