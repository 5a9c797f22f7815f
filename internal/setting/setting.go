// Package setting is the one table of a tag's settings. A row names a field of march.v1.Tag; flags, forms, files,
// texts, differences and the manual's table are made of the rows and of the fields' descriptors.
package setting

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/words"
)

// Setting is a row of the table. One of another message, a request, has no more than a path and a help.
type Setting struct {
	Path  string // of the field, and of the key in files: max_skew, time.sequence
	Help  string // one sentence
	Kind  Kind   // the tags that have it
	Fixed bool   // chosen when the tag is created
	Rare  bool   // forms fold it away

	message proto.Message // whose field it is; nil for a tag
	name    string        // where it is not the last part of Path
	preset  string        // the default, where a new tag's record does not have it
	choices func() []string
	parts   []string                          // the paths of the fields that make up a value such as 41/10/12
	part    bool                              // one of them: it has a key in files only
	read    func(text string) (string, error) // another form of a value; its error lacks the setting's name
	of      func(*record.TagSettings) any     // the field of the record
	effect  effect
}

// Kind is the kind of tags that have a setting.
type Kind int

// The kinds.
const (
	Any Kind = iota
	Counter
	Timed
)

// KindOf returns the kind of a tag.
func KindOf(t *marchv1.Tag) Kind {
	if t.GetTime() != nil {
		return Timed
	}
	return Counter
}

// String returns the kind's word.
func (k Kind) String() string { return [...]string{"any", "counter", "time"}[k] }

// ParseKind reads the word of a kind of tags; empty is a counter. Its error is Invalid.
func ParseKind(word string) (Kind, error) {
	for _, k := range []Kind{Counter, Timed} {
		if cmp.Or(word, Counter.String()) == k.String() {
			return k, nil
		}
	}
	return Any, allocator.Errorf(allocator.Invalid, "kind: %q; allowed: counter, time", word)
}

// Of returns the setting that is a field of any message.
func Of(m proto.Message, path, help string) Setting {
	return Setting{message: m, Path: path, Help: help}
}

// Name is the setting's name in forms, and with hyphens its flag: max_skew, period_digits.
func (s Setting) Name() string { return cmp.Or(s.name, s.Path[strings.LastIndexByte(s.Path, '.')+1:]) }

// Words are the name in texts: max skew.
func (s Setting) Words() string { return strings.ReplaceAll(s.Name(), "_", " ") }

// Settings returns the settings that tags of a kind may be given; with create those, too, that are chosen when a
// tag is created. Any is all kinds.
func Settings(kind Kind, create bool) (list []Setting) {
	for _, s := range table {
		if !s.part && s.has(kind) && (create || !s.Fixed) {
			list = append(list, s)
		}
	}
	return list
}

// Keys returns the settings of a kind of tags as files have them: a key for each field.
func Keys(kind Kind) (list []Setting) {
	for _, s := range table {
		if s.parts == nil && s.has(kind) {
			list = append(list, s)
		}
	}
	return list
}

func (s Setting) has(kind Kind) bool { return kind == Any || s.Kind == Any || s.Kind == kind }

func at(path string) Setting {
	for _, s := range table {
		if s.Path == path {
			return s
		}
	}
	panic("no setting " + path)
}

// field returns the message that has the setting's field, and the field. A message on the way that is absent is
// made, or without create is empty.
func (s Setting) field(t proto.Message, create bool) (protoreflect.Message, protoreflect.FieldDescriptor) {
	m, path := t.ProtoReflect(), s.Path
	for {
		outer, rest, nested := strings.Cut(path, ".")
		f := m.Descriptor().Fields().ByName(protoreflect.Name(outer))
		switch {
		case !nested:
			return m, f
		case create:
			m = m.Mutable(f).Message()
		default:
			m = m.Get(f).Message()
		}
		path = rest
	}
}

func (s Setting) descriptor() protoreflect.FieldDescriptor {
	if s.message == nil {
		s.message = (*marchv1.Tag)(nil)
	}
	_, f := s.field(s.message, false)
	return f
}

// Type is the type of the values, as flags name it: int, bool, duration, stringSlice or string.
func (s Setting) Type() string {
	if s.parts != nil {
		return "string"
	}
	f := s.descriptor()
	if f.IsList() {
		return "stringSlice"
	}
	switch f.Kind() {
	case protoreflect.Int64Kind, protoreflect.Int32Kind:
		if s.read == nil {
			return "int"
		}
	case protoreflect.BoolKind:
		return "bool"
	case protoreflect.MessageKind:
		if !isTime(f) {
			return "duration"
		}
	}
	return "string"
}

func isTime(f protoreflect.FieldDescriptor) bool {
	return f.Message().FullName() == "google.protobuf.Timestamp"
}

// Default returns the default in words; empty for none.
func (s Setting) Default() string {
	if s.preset != "" || s.of == nil {
		return s.preset
	}
	return s.Text(ToProto(record.Tag{TagSettings: record.DefaultTag()}))
}

// Choices returns the words that are allowed; nil where there are too many.
func (s Setting) Choices() (list []string) {
	switch {
	case s.choices != nil:
		return s.choices()
	case s.parts != nil || s.descriptor().Enum() == nil:
		return nil
	}
	for i := range s.descriptor().Enum().Values().Len() {
		if v := s.descriptor().Enum().Values().Get(i); v.Number() != 0 {
			list = append(list, api.WordOf(v))
		}
	}
	return list
}

// Text returns the value that a tag has; empty for none.
func (s Setting) Text(t proto.Message) string {
	if s.parts != nil {
		texts := make([]string, len(s.parts))
		for i, path := range s.parts {
			texts[i] = cmp.Or(at(path).Text(t), "0") // a message does not tell 0 from none
		}
		return strings.TrimPrefix(strings.Join(texts, "/"), "0/0/0")
	}
	m, f := s.field(t, false)
	if !m.Has(f) {
		return ""
	}
	switch v := m.Get(f); f.Kind() {
	case protoreflect.EnumKind:
		if known := f.Enum().Values().ByNumber(v.Enum()); known != nil {
			return api.WordOf(known)
		}
		return strconv.Itoa(int(v.Enum()))
	case protoreflect.MessageKind:
		d, _ := v.Message().Interface().(*durationpb.Duration)
		return d.AsDuration().String()
	default:
		return v.String()
	}
}

// Set gives a message a value; to a list it adds values. Its error is Invalid, and lacks the setting's name.
func (s Setting) Set(t proto.Message, text string) error {
	if s.parts != nil {
		texts := strings.Split(text, "/")
		if len(texts) != len(s.parts) {
			return allocator.Errorf(allocator.Invalid, "%.64q; allowed: time/worker/sequence such as 41/10/12", text)
		}
		for i, path := range s.parts {
			if err := at(path).Set(t, texts[i]); err != nil {
				return err
			}
		}
		return nil
	}
	var err error
	if s.read != nil {
		if text, err = s.read(text); err != nil {
			return err
		}
	}
	if s.choices != nil && !slices.Contains(s.choices(), text) {
		return s.notAllowed(text)
	}
	m, f := s.field(t, true)
	if f.IsList() {
		for _, part := range strings.Split(text, ",") {
			m.Mutable(f).List().Append(protoreflect.ValueOfString(part))
		}
		return nil
	}
	v, err := s.parse(f, text)
	if err == nil {
		m.Set(f, v)
	}
	return err
}

// Allowed says which values the setting's type has.
func (s Setting) Allowed() string {
	choices := s.Choices()
	switch {
	case choices != nil:
		return strings.Join(choices, ", ")
	case s.Type() == "int":
		return fmt.Sprintf("a whole number up to %d, without leading zeros", int64(1)<<(bits(s.descriptor())-1)-1)
	case s.Type() == "bool":
		return "true or false"
	case s.Type() == "duration":
		return "a duration such as 500ms, 5s or 2h30m"
	case s.descriptor().Kind() == protoreflect.MessageKind:
		return "a time such as 2026-11-24T15:00:00Z, or how long ago, such as 2h"
	}
	return "a text"
}

func (s Setting) parse(f protoreflect.FieldDescriptor, text string) (v protoreflect.Value, err error) {
	switch f.Kind() {
	case protoreflect.Int64Kind, protoreflect.Int32Kind:
		var n int64
		if n, err = words.Parse(text, bits(f)); bits(f) == 32 {
			v = protoreflect.ValueOfInt32(int32(n)) //nolint:gosec // of 32 bits
		} else {
			v = protoreflect.ValueOfInt64(n)
		}
	case protoreflect.BoolKind:
		var is bool
		is, err = strconv.ParseBool(text)
		v = protoreflect.ValueOfBool(is)
	case protoreflect.EnumKind:
		word := api.Named(f.Enum(), text)
		if word == nil || word.Number() == 0 {
			return v, s.notAllowed(text)
		}
		v = protoreflect.ValueOfEnum(word.Number())
	case protoreflect.MessageKind:
		var d time.Duration
		if d, err = time.ParseDuration(text); !isTime(f) {
			v = protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect())
			break
		}
		at := time.Now().Add(-d)
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02T15:04:05", time.DateOnly} {
			if err != nil { // as people and browsers write it
				at, err = time.Parse(layout, text)
			}
		}
		v = protoreflect.ValueOfMessage(timestamppb.New(at).ProtoReflect())
	default:
		v = protoreflect.ValueOfString(text)
	}
	if err != nil {
		err = s.notAllowed(text)
	}
	return v, err
}

func (s Setting) notAllowed(text string) error {
	return allocator.Errorf(allocator.Invalid, "%.64q; allowed: %s", text, s.Allowed())
}

func bits(f protoreflect.FieldDescriptor) int {
	if f.Kind() == protoreflect.Int32Kind {
		return 32
	}
	return 64
}

// Copy gives a tag the value that another one has.
func (s Setting) Copy(to, from *marchv1.Tag) {
	if source, f := s.field(from, false); source.Has(f) {
		m, _ := s.field(to, true)
		m.Set(f, source.Get(f))
	}
}

// Change is a setting that differs; an empty text is none.
type Change struct {
	Setting
	From, To string
}

// Diff returns the settings that differ.
func Diff(settings []Setting, a, b *marchv1.Tag) (list []Change) {
	for _, s := range settings {
		if from, to := s.Text(a), s.Text(b); from != to {
			list = append(list, Change{s, from, to})
		}
	}
	return list
}

// Read reads a form. value returns what was filled in for a setting; a box that is not ticked has no value. A value
// of another kind of tags is refused: browsers send hidden fields, too. Its error is Invalid.
func Read(kind Kind, create bool, value func(Setting) string) (*marchv1.Tag, error) {
	t := &marchv1.Tag{}
	if kind == Timed {
		t.Time = &marchv1.TimeTag{}
	}
	for _, s := range Settings(Any, create) {
		text := value(s)
		switch {
		case !s.has(kind) && text != "":
			return nil, allocator.Errorf(allocator.Invalid,
				"kind: %s: a tag of this kind has no %s; leave it empty (it is %q)", kind, s.Words(), text)
		case !s.has(kind):
			continue
		case s.Type() == "bool":
			text = strconv.FormatBool(text != "")
		case text == "":
			continue
		}
		if err := s.Set(t, text); err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "%s: %w", s.Name(), err)
		}
	}
	return t, nil
}
