package texts_test

import (
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/texts"
)

// FuzzText writes IDs as texts and reads texts back, by any description and with a key that is
// the tag's, another one or not there.
func FuzzText(f *testing.F) {
	right := key(f, "k", 1)
	for _, description := range []string{
		"", "decimal(6)", "prefix(ORD-) | radix62(11)", "prefix(A) | opaque(k, 10^6) | decimal(6) | luhn",
		"sortable(62)", "part-of-a-later-release",
	} {
		f.Add(description, right.CheckValue(), true, int64(5), "000005")
		f.Add(description, "c03e71ef377b215b", true, int64(allocator.MaxID), "ORD-00000000005")
		f.Add(description, "", false, int64(-1), "")
	}
	f.Fuzz(func(t *testing.T, description, check string, has bool, id int64, written string) {
		var keys []format.Key
		if has {
			keys = append(keys, right)
		}
		text := texts.New(description, check, keys)
		usable := text.Usable()
		if got, err := text.Append(nil, id); err == nil {
			if usable != nil {
				t.Fatalf("%q: ID %d is %q, but there are no texts: %v", description, id, got, usable)
			}
			if back, err := text.ID(string(got)); back != id || err != nil {
				t.Fatalf("%q: ID %d is %q, which reads as %d, %v", description, id, got, back, err)
			}
		} else if len(got) > 0 {
			t.Fatalf("%q: ID %d: %q beside the error %v", description, id, got, err)
		}
		read, err := text.ID(written)
		if err != nil {
			return
		}
		if usable != nil {
			t.Fatalf("%q: %q reads as %d, but there are no texts: %v", description, written, read, usable)
		}
		again, err := text.Append(nil, read)
		if err != nil {
			t.Fatalf("%q: %q reads as %d, which has no text: %v", description, written, read, err)
		}
		if back, err := text.ID(string(again)); back != read || err != nil {
			t.Fatalf("%q: %q reads as %d, whose text %q reads as %d, %v", description, written, read, again, back, err)
		}
	})
}
