package words_test

import (
	"math"
	"testing"

	"github.com/march-id/march/internal/words"
)

func TestGrouped(t *testing.T) {
	for n, want := range map[any]string{
		0: "0", 999: "999", int32(1000): "1,000", int64(-100): "-100", -1000: "-1,000", 123456: "123,456",
		int64(math.MaxInt64): "9,223,372,036,854,775,807", uint64(math.MaxUint64): "18,446,744,073,709,551,615",
	} {
		if got := words.Grouped(n); got != want {
			t.Errorf("%v: got %s; want %s", n, got, want)
		}
	}
}

func TestCounted(t *testing.T) {
	for n, want := range map[any]string{0: "0 tags", int64(1): "1 tag", 2: "2 tags", -1: "-1 tags",
		1_000_001: "1,000,001 tags"} {
		if got := words.Counted(n, "tag"); got != want {
			t.Errorf("%v: got %s; want %s", n, got, want)
		}
	}
}

// Plain keeps what can be printed, quotes what cannot, and cuts at whole characters.
func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "order": "order", "größe": "größe", "a\nb": `"a\nb"`, "\x1b[2J": `"\x1b[2J"`, "\u009b": `"\u009b"`,
		"\u202etxt": `"\u202etxt"`, "\xff": `"\xff"`, "0123456789": "01234567...", "0123456ö9": "0123456...",
		"0123456\n89": `"0123456\n"...`,
	} {
		if got := words.Plain(text, 8); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
