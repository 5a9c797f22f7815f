package foreign_test

import (
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/foreign"
)

func TestTag(t *testing.T) {
	seen := make(map[allocator.Tag]bool)
	for name, want := range map[string]allocator.Tag{
		"order": "order", "order.id-2": "order.id-2", "order_id": "order_id", "order_": "order_", "order_1": "order_1",
		"order:id": "order_3aid", "Order": "0_30_4frder", "a_b0": "a_5fb0", "a_B0": "a__420",
		"__share__":     "0_30__share__",
		"order@2026-01": "order_402026-01", ".x": "0_30.x", "0_30x": "0_5f30x",
		"_4f": "0_30_5f4f", "订": "0_30_e8_ae_a2",
		"cosid:{a.b}.adder": "cosid_3a_7ba.b_7d.adder", "a\x00b": "a_00b",
	} {
		tag, err := foreign.Tag(name)
		if err != nil || tag != want {
			t.Errorf("Tag(%q) = %q, %v; want %q", name, tag, err, want)
		}
		if back, ok := foreign.Key(tag); !ok || back != name {
			t.Errorf("Key(%q) = %q, %v; want %q", tag, back, ok, name)
		}
	}
	for _, name := range []string{"", strings.Repeat("a", 1025), strings.Repeat(":", 4000)} {
		if tag, err := foreign.Tag(name); allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("Tag(%q) = %q, %v", name, tag, err)
		}
	}
	long := strings.Repeat("shop:", 30)
	for name, want := range map[string]allocator.Tag{
		strings.Repeat("a", 63):   allocator.Tag(strings.Repeat("a", 63)),
		strings.Repeat("a", 64):   "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa_30",
		long:                      "shop_3ashop_3ashop_3ashop_3ashop_3_30",
		long + "a":                "shop_3ashop_3ashop_3ashop_3ashop_3_30",
		strings.Repeat(":", 1024): "0_30_3a_3a_3a_3a_3a_3a_3a_3a_3a_3a_30",
	} {
		tag, err := foreign.Tag(name)
		if _, bad := allocator.ParseTag(string(tag)); err != nil || bad != nil || len(tag) != 63 ||
			!strings.HasPrefix(string(tag), string(want)) || seen[tag] {
			t.Errorf("Tag(%q) = %q, %v; want a new one of 63 bytes that begins with %q", name, tag, err, want)
		}
		seen[tag] = true
		if back, ok := foreign.Key(tag); len(name) > 63 && ok {
			t.Errorf("Key(%q) = %q", tag, back)
		}
		if again, err := foreign.Tag(string(tag)); len(name) > 63 && (err != nil || again == tag) {
			t.Errorf("the name %q has its own tag, which is that of %q", tag, name)
		}
	}
	for _, tag := range []allocator.Tag{"a_61", "0_30a", "a_5f", "a_5fxy"} {
		if name, ok := foreign.Key(tag); ok {
			t.Errorf("Key(%q) = %q, which has another tag", tag, name)
		}
	}
}

// FuzzTag: no two names have one tag.
func FuzzTag(f *testing.F) {
	for _, name := range []string{"order", "a_b0", "0_30", "_", "__", "_0", "Ab:_3a"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		tag, err := foreign.Tag(name)
		if err != nil {
			return
		}
		if _, err := allocator.ParseTag(string(tag)); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if back, ok := foreign.Key(tag); (!ok || back != name) && len(tag) < 63 {
			t.Errorf("%q is the tag %q, which is %q, %v", name, tag, back, ok)
		}
	})
}
