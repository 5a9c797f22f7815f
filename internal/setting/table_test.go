package setting_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// unset are the fields of a tag that operators do not set.
var unset = []string{"name", "created", "prescale", "prescale_until", "skip", "skips", "deleted", "foreign_name",
	"revision", "period.current", "period.first", "period.end", "period.begins", "period.ends"}

// TestEveryFieldHasARow: a new field of the protos is a flag, a field of forms and a key of files, or it is unset.
func TestEveryFieldHasARow(t *testing.T) {
	t.Parallel()
	rows := make(map[string]bool)
	for _, s := range setting.Keys(setting.Any) {
		rows[s.Path] = true
	}
	var visit func(prefix string, m protoreflect.MessageDescriptor)
	visit = func(prefix string, m protoreflect.MessageDescriptor) {
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			path := prefix + string(f.Name())
			switch {
			case slices.Contains(unset, path):
			case f.Message() != nil && f.Message().ParentFile().Package() == "march.v1":
				visit(path+".", f.Message())
			case !rows[path]:
				t.Errorf("no row of %s", path)
			}
		}
	}
	visit("", (&marchv1.Tag{}).ProtoReflect().Descriptor())
}

// TestValues sets each setting, reads it back, and finds it in the settings that a console stores.
func TestValues(t *testing.T) {
	t.Parallel()
	values := map[string]string{"int": "7", "bool": "true", "duration": "1m30s", "string": "x"}
	for _, s := range setting.Settings(setting.Any, true) {
		text := values[s.Type()]
		switch words := s.Choices(); {
		case words != nil:
			text = words[len(words)-1]
		case s.Name() == "bits":
			text = "41/10/12"
		case s.Name() == "time_epoch":
			text = "1577203200000"
		}
		tag := &marchv1.Tag{}
		if err := s.Set(tag, text); err != nil || s.Text(tag) != text {
			t.Errorf("%s: set to %s it is %q, %v", s.Path, text, s.Text(tag), err)
		}
		other := &marchv1.Tag{}
		if len(setting.Diff([]setting.Setting{s}, tag, other)) != 1 {
			t.Errorf("%s: no difference", s.Path)
		}
		if s.Kind != setting.Counter || strings.Contains(s.Path, ".") {
			continue
		}
		settings, err := setting.New(tag)
		if got := s.Text(setting.ToProto(record.Tag{TagSettings: settings})); err != nil || got != text {
			t.Errorf("%s: stored %s is %q, %v", s.Path, text, got, err)
		}
	}
}

func TestSetRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, allowed string }{
		{"max_skew", "010", "a whole number up to 9223372036854775807, without leading zeros"},
		{"max_skew", "-00", "a whole number"}, {"max_skew", "1_000", "a whole number"},
		{"max_skew", "0x10", "a whole number"}, {"max_skew", "9223372036854775808", "a whole number"},
		{"period_digits", "4294967306", "a whole number"}, {"strict_retract", "maybe", "true or false"},
		{"reserve", "10", "a duration such as 500ms"}, {"sequence", "unspecified", "reset, carry, random"},
		{"bits", "41/10", "time/worker/sequence"}, {"bits", "41/010/12", "a whole number"},
		{"time_epoch", "yesterday", "a time such as"}, {"order", "first", "middle, last"},
	} {
		all := setting.Settings(setting.Any, true)
		s := all[slices.IndexFunc(all, func(s setting.Setting) bool { return s.Name() == tt.name })]
		err := s.Set(&marchv1.Tag{}, tt.text)
		if allocator.KindOf(err) != allocator.Invalid || !strings.Contains(err.Error(), "; allowed: "+tt.allowed) {
			t.Errorf("%s %q: %v", tt.name, tt.text, err)
		}
	}
}

// TestForeignName: a tag's message has the name that the doors' clients use, of both kinds
// of tags, and can be sent whatever bytes that name has.
func TestForeignName(t *testing.T) {
	t.Parallel()
	for tag, want := range map[allocator.Tag]string{
		"order": "", "order_id": "", "order_3aid": "order:id", "0_30_4frder": "Order", "a_61": "",
		"a_ff": "a\uFFFD", "a_00": "a\x00",
	} {
		counter := record.Tag{Name: tag, TagSettings: record.DefaultTag()}
		timed := counter
		timed.Time = &record.TimeTag{}
		for _, r := range []record.Tag{counter, timed} {
			message := setting.ToProto(r)
			if got := message.GetForeignName(); got != want {
				t.Errorf("tag %s stands for %q; want %q", tag, got, want)
			}
			if _, err := proto.Marshal(message); err != nil {
				t.Errorf("tag %s: %v", tag, err)
			}
		}
	}
}
