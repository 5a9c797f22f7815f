package manifest

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// unset are the fields of a tag that operators do not set by files.
var unset = []string{"name", "created", "prescale", "prescale_until", "skips", "foreign_name", "revision"}

// TestEverySetting checks that a new setting of the protos is also in files, in differences and
// in the updates that they lead to.
func TestEverySetting(t *testing.T) {
	all := (&marchv1.Tag{}).ProtoReflect().Descriptor().Fields()
	for i := range all.Len() {
		f := all.Get(i)
		name := string(f.Name())
		if slices.Contains(unset, name) {
			continue
		}
		if !slices.Contains(counterFields, name) {
			t.Errorf("files cannot set %s", name)
		}
		if f.Kind() == protoreflect.MessageKind && name != "reserve" {
			continue // period and time have fields of their own
		}
		want := &marchv1.Tag{}
		want.ProtoReflect().Set(f, some(f))
		if slices.Equal(fields(want), fields(&marchv1.Tag{})) {
			t.Errorf("a difference does not show %s", name)
		}
		if at := slices.IndexFunc(fields(want), func(f field) bool {
			return f.name == name
		}); at >= 0 && fields(want)[at].fixed {
			continue
		}
		update := TagChange{Tag: "t", Fields: []FieldChange{{Field: name}}, want: want}.Message()
		update.Name = ""
		if !proto.Equal(update, want) {
			t.Errorf("the update of %s is %v, want %v", name, update, want)
		}
	}
	ofTime := (&marchv1.TimeTag{}).ProtoReflect().Descriptor().Fields()
	for i := range ofTime.Len() {
		if name := string(ofTime.Get(i).Name()); !slices.Contains(timeFields, name) {
			t.Errorf("files cannot set time.%s", name)
		}
	}
}

// some returns a value of a field that is not its default.
func some(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(7)
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("x")
	default:
		return protoreflect.ValueOfMessage(durationpb.New(time.Second).ProtoReflect())
	}
}
