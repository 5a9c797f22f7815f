package format_test

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/internal/race"
)

// TestAllocations: appending allocates nothing, and reading neither, whatever the format.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for _, f := range sampleFormats(t) {
		inside, _ := ends(f)
		v := inside[len(inside)-1]
		buffer := make([]byte, 0, 128)
		text, err := f.Append(nil, v)
		if err != nil {
			t.Fatal(err)
		}
		read := string(text)
		if n := testing.AllocsPerRun(200, func() { buffer, _ = f.Append(buffer[:0], v) }); n != 0 {
			t.Errorf("%v: Append allocates %v times", f, n)
		}
		if n := testing.AllocsPerRun(200, func() { _, _ = f.ParseText(read) }); n != 0 {
			t.Errorf("%v: ParseText allocates %v times", f, n)
		}
	}
}

// randomIDs are below a limit.
func randomIDs(largest int64) *[1024]int64 {
	random := rand.New(rand.NewPCG(1, 2))
	var ids [1024]int64
	for i := range ids {
		ids[i] = int64(random.Uint64() % (uint64(largest) + 1))
	}
	return &ids
}

// BenchmarkYardstick is the standard library's text of an ID, of radix 36.
func BenchmarkYardstick(b *testing.B) {
	ids, i := randomIDs(1<<63-1), 0
	var buffer [64]byte
	b.ReportAllocs()
	for b.Loop() {
		strconv.AppendInt(buffer[:0], ids[i%len(ids)], 36)
		i++
	}
}

var benchmarked = map[string]string{
	"radix62": "radix62(11)", "radix36": "radix36(13)", "decimal": "decimal(19)", "crockford": "crockford(13)",
	"prefix": "prefix(ORD-) | radix62(11)", "damm": "decimal(12) | damm", "friendly": "friendly(cosid, UTC)",
	// 2^39+1: two halves of its bits would walk twice, half the time
	"opaque": "opaque(k, 10^12) | decimal(12)", "opaque-worst": "opaque(k, 549755813889) | radix62(11)",
}

func BenchmarkAppend(b *testing.B) {
	for name, description := range benchmarked {
		b.Run(name, func(b *testing.B) {
			f := parse(b, description, key(b, "k", 1))
			ids, i := randomIDs(f.Domain().Largest), 0
			buffer := make([]byte, 0, 64)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.Append(buffer, format.Value{ID: ids[i%len(ids)]}); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
	b.Run("sortable", func(b *testing.B) {
		f, buffer := parse(b, "sortable(62)"), make([]byte, 0, 64)
		v := parts(1624425450192, 1, 0)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := f.Append(buffer, v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkParseText(b *testing.B) {
	for name, description := range benchmarked {
		b.Run(name, func(b *testing.B) {
			f := parse(b, description, key(b, "k", 1))
			text, err := f.Append(nil, id(123_456_789_012))
			if err != nil {
				b.Fatal(err)
			}
			read := string(text)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.ParseText(read); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
