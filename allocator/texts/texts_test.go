package texts_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/texts"
)

func key(tb testing.TB, name string, b byte) format.Key {
	tb.Helper()
	k, err := format.NewKey(name, bytes.Repeat([]byte{b}, format.KeySize))
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

func TestTexts(t *testing.T) {
	right, wrong := key(t, "orders-1", 1), key(t, "orders-1", 2)
	const opaque = "prefix(A) | opaque(orders-1, 10^6) | decimal(6)"
	for _, c := range []struct {
		description, check string
		keys               []format.Key
		says               string // why there are none
	}{
		{"", "", nil, "the tag has no format"},
		{"prefix(A) | decimal", "", nil, ""},
		{"part-of-a-later-release", "", nil, "the tag's format is not one of this release"},
		{opaque, right.CheckValue(), nil, "the tag's texts need the key orders-1, which is not here; give its file: " +
			"--opaque-key orders-1=FILE"},
		{opaque, right.CheckValue(), []format.Key{key(t, "orders-2", 1)}, "need the key orders-1"},
		{opaque, right.CheckValue(), []format.Key{wrong}, "the key orders-1 here is another than the tag's: " +
			"its check value is " + wrong.CheckValue() + ", the tag's " + right.CheckValue()},
		{opaque, right.CheckValue(), []format.Key{right}, ""},
	} {
		text := texts.New(c.description, c.check, c.keys)
		if err := text.Usable(); c.says == "" && err != nil ||
			c.says != "" && (allocator.KindOf(err) != allocator.Refused || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q: got %v; want %q", c.description, err, c.says)
		}
		written, err := text.Append([]byte("x"), 5)
		if (err != nil) != (c.says != "") || err != nil && string(written) != "x" {
			t.Errorf("%q: appended %q, %v", c.description, written, err)
		}
		if err == nil {
			if id, err := text.ID(string(written[1:])); id != 5 || err != nil {
				t.Errorf("%q: %s is %d, %v", c.description, written, id, err)
			}
		}
		if want := strings.Contains(c.says, "this release") ||
			strings.Contains(c.says, "need the key"); text.Lacking() != want {
			t.Errorf("%q: lacking: got %v", c.description, text.Lacking())
		}
		if !text.Is(c.description, c.check) || text.Is("decimal(5)", c.check) {
			t.Errorf("%q: is another format", c.description)
		}
	}
}

func TestTextsOfRuns(t *testing.T) {
	text := texts.New("prefix(A) | decimal(2)", "", nil)
	runs := []allocator.Run{{First: 7, Count: 2}, {First: 20, Count: 2, Stride: 10}}
	if all, err := text.OfRuns(runs); strings.Join(all, " ") != "A07 A08 A20 A30" || err != nil {
		t.Errorf("got %v, %v", all, err)
	}
	if all, err := text.OfRuns([]allocator.Run{{First: 99, Count: 2}}); all != nil ||
		allocator.KindOf(err) != allocator.Invalid {
		t.Errorf("past the end: got %v, %v", all, err)
	}
	var none *texts.Text
	if all, err := none.OfRuns(runs); all != nil || err != nil {
		t.Errorf("without a format: got %v, %v", all, err)
	}
}

// Tags of one format share its Text.
func TestCache(t *testing.T) {
	c := texts.NewCache(nil)
	a, b := c.Of("decimal(5)", ""), c.Of("decimal(5)", "")
	if a != b || a == c.Of("decimal(6)", "") || c.Of("", "") != nil {
		t.Error("the cache has other texts")
	}
}

func TestAppendingAllocatesNothing(t *testing.T) {
	k := key(t, "k", 1)
	for _, text := range []*texts.Text{
		texts.New("prefix(ORD-) | radix62(11)", "", nil),
		texts.New("opaque(k, 10^12) | decimal(12) | luhn", k.CheckValue(), []format.Key{k}),
	} {
		dst := make([]byte, 0, 64)
		if n := testing.AllocsPerRun(100, func() { _, _ = text.Append(dst, 123456) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}
