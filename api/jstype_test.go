package api_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "github.com/march-id/march/api/march/v1"
)

// JavaScript rounds numbers above 2^53, so that a caller there would take an ID for another one. Each field of 64 bits
// is listed: as one that has IDs, which generated JavaScript then has as a string, or as one that has none.
func TestIDsAreStringsInJavaScript(t *testing.T) {
	list := func(names string) map[string]bool {
		all := make(map[string]bool)
		for name := range strings.FieldsSeq(names) {
			all[name] = true
		}
		return all
	}
	// A block is an ID where the boundary is 1.
	ids := list("id first end start limit next skip skipped_to to block")
	others := list(`
		after_sequence boundary carry_to clock_ms compacted count dropped ending epoch_ms found free from_ms held
		if_revision issued largest_boundary layout_revision layout_version left left_before left_revision live
		lower margin_total max_jump max_skew max_step min_step narrowest_range not_before_ms now_ms number of
		prescale quota random_below read refills residue revision sequence shards size skipped step stride taken
		tags total until_ms upper used version waits worker`)
	met := make(map[string]bool)
	var walk func(messages protoreflect.MessageDescriptors)
	walk = func(messages protoreflect.MessageDescriptors) {
		for i := range messages.Len() {
			m := messages.Get(i)
			walk(m.Messages())
			for k := range m.Fields().Len() {
				f := m.Fields().Get(k)
				if f.Kind() != protoreflect.Int64Kind && f.Kind() != protoreflect.Uint64Kind || m.IsMapEntry() {
					continue // the option does not exist for maps: Tag.skips and its like are for operators
				}
				name := string(f.Name())
				met[name] = true
				options, _ := f.Options().(*descriptorpb.FieldOptions)
				text := options.GetJstype() == descriptorpb.FieldOptions_JS_STRING
				switch {
				case ids[name] == others[name]:
					t.Errorf("%s has 64 bits: list it as one that has IDs or none", f.FullName())
				case text != ids[name]:
					t.Errorf("%s: jstype = JS_STRING is %t, want %t", f.FullName(), text, ids[name])
				}
			}
		}
	}
	protoregistry.GlobalFiles.RangeFilesByPackage("march.v1", func(f protoreflect.FileDescriptor) bool {
		walk(f.Messages())
		return true
	})
	for _, names := range []map[string]bool{ids, others} {
		for name := range names {
			if !met[name] {
				t.Errorf("no field has the name %s", name)
			}
		}
	}
}
