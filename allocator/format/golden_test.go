package format_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/timeid"
)

var rewrite = flag.Bool("rewrite", false, "write the vectors of testdata/formats anew")

// vectors is a file of testdata/formats, for clients in other languages.
type vectors struct {
	About   string         `json:"about"`
	Keys    []vectorKey    `json:"keys,omitempty"`
	Formats []vectorFormat `json:"formats"`
}

// vectorKey is the key of opaque parts.
type vectorKey struct {
	Name       string `json:"name"`
	Secret     string `json:"secret"` // hex
	CheckValue string `json:"check_value"`
}

// vectorFormat is a format with values and texts.
type vectorFormat struct {
	Description   string   `json:"format"`
	Length        [2]int   `json:"length"`            // of the shortest and the longest text
	Least         string   `json:"least,omitempty"`   // ID; absent where the format takes no ID
	Largest       string   `json:"largest,omitempty"` // likewise
	Vectors       []vector `json:"vectors"`
	RefusedValues []vector `json:"refused_values"` // outside of the domain
	ReadAs        []vector `json:"read_as,omitempty"`
	RefusedTexts  []string `json:"refused_texts"`
}

// vector is a value and its text. 64-bit numbers are strings, as in every answer of March.
type vector struct {
	ID       *int64 `json:"id,omitempty,string"`
	Period   string `json:"period,omitempty"` // 2026-11-22
	Time     *int64 `json:"time,omitempty,string"`
	Worker   *int64 `json:"worker,omitempty,string"`
	Sequence *int64 `json:"sequence,omitempty,string"`
	Text     string `json:"text,omitempty"`
}

func vectorOf(d format.Domain, v format.Value, text string) vector {
	out := vector{Text: text}
	if v.Parts != (timeid.Parts{}) || d.Parts && v.ID == 0 {
		out.Time, out.Worker, out.Sequence = &v.Parts.Time, &v.Parts.Worker, &v.Parts.Sequence
	}
	if !d.Parts || v.ID != 0 {
		out.ID = &v.ID
	}
	if v.Period != (format.Date{}) {
		out.Period = v.Period.String()
	}
	return out
}

// goldenFiles are the descriptions of each file.
var goldenFiles = []struct{ name, about, part string }{
	{"numbers", "Numbers of a fixed width and without, prefixes and suffixes. radix62 and radix36 are CosId's. " +
		"Crockford's texts are also read in lower case, with O for 0, I and L for 1, and hyphens.", ""},
	{"checks", "Check characters: of the digits of the dates and of the number.", "luhn damm mod37-36 crockford-check"},
	{"periods", "Dates of the period. With a period part the ID has the period in its high digits, " +
		"else it is given beside the ID.", "date group"},
	{"reverse", "Reversed bits, as Spanner's BIT_REVERSE(n, TRUE) where there are 63.", "reverse"},
	{"opaque", "Opaque numbers. allocator/format/opaque.go has the algorithm.", "opaque"},
	{"times", "Time-ordered IDs as CosId writes them: friendly strings, and sortable strings of 80 bits.",
		"friendly sortable"},
}

// TestVectors checks testdata/formats, and with -rewrite writes it.
func TestVectors(t *testing.T) {
	all := sampleFormats(t)
	used := 0
	for i, file := range goldenFiles {
		t.Run(file.name, func(t *testing.T) {
			out := vectors{About: file.about}
			if file.name == "opaque" {
				k := key(t, "k", 1)
				out.Keys = []vectorKey{{k.Name(), hex.EncodeToString(secret(1)), k.CheckValue()}}
			}
			for _, f := range all {
				if fileOf(f.String()) == i {
					out.Formats = append(out.Formats, vectorsOf(t, f, all))
					used++
				}
			}
			var got bytes.Buffer
			encoder := json.NewEncoder(&got)
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			if err := encoder.Encode(out); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("..", "..", "testdata", "formats", file.name+".json")
			if *rewrite {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v; -rewrite writes it", err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got; -rewrite writes it anew):\n%s", path, diff)
			}
		})
	}
	if used != len(all) {
		t.Errorf("%d of %d formats are in a file", used, len(all))
	}
}

// fileOf returns the file of a description: the last one that has one of its parts, so that
// only numbers without any are in the first.
func fileOf(description string) int {
	for i := len(goldenFiles) - 1; i > 0; i-- {
		for _, part := range strings.Fields(goldenFiles[i].part) {
			if strings.HasPrefix(description, part) || strings.Contains(description, "| "+part) {
				return i
			}
		}
	}
	return 0
}

// vectorsOf returns a format's vectors: the ends of its domain, some values between, what
// it refuses.
func vectorsOf(t *testing.T, f *format.Format, all []*format.Format) vectorFormat {
	t.Helper()
	d := f.Domain()
	out := vectorFormat{Description: f.String(), RefusedTexts: []string{}}
	out.Length[0], out.Length[1] = f.Length()
	if !d.Parts {
		out.Least, out.Largest = strconv.FormatInt(d.Least, 10), strconv.FormatInt(d.Largest, 10)
	}
	inside, outside := ends(f)
	for _, n := range []int64{1, 5, 1234, 198064472869310464, 20261122_0000000005, 202611_000000000005} {
		v := format.Value{ID: n}
		if d.Parts {
			v = parts(1624425450192, n&(1<<20-1), n>>4&(1<<16-1)) // of 1 it is CosId's own example
		}
		if d.Period {
			v.Period = format.Date{Year: 2026, Month: 1, Day: 1}
		}
		inside = append(inside, v)
	}
	for _, v := range inside {
		text, err := f.Append(nil, v)
		if errors.As(err, new(*format.ValueError)) {
			continue // too large for this format
		} else if err != nil {
			t.Fatal(err)
		}
		wantText(t, f, v, string(text))
		out.Vectors = append(out.Vectors, vectorOf(d, v, string(text)))
		if lower := strings.ToLower(string(text)); lower != string(text) {
			if got, err := f.ParseText(lower); err == nil && got == v {
				out.ReadAs = append(out.ReadAs, vectorOf(d, v, lower))
			}
		}
	}
	for _, v := range outside {
		out.RefusedValues = append(out.RefusedValues, vectorOf(d, v, ""))
	}
	first, second := out.Vectors[0].Text, out.Vectors[1].Text
	// Texts that are too long, lost a character, or are of another format.
	texts := []string{"", first + "x", " " + first, second + "\n", second[1:], second[:len(second)-1]}
	for _, other := range all {
		_, most := other.Length()
		if text, err := other.Append(nil, id(5)); err == nil && most < 40 {
			texts = append(texts, string(text))
		}
	}
	seen := map[string]bool{}
	for _, text := range texts {
		if _, err := f.ParseText(text); err != nil && !seen[text] && len(out.RefusedTexts) < 8 {
			seen[text] = true
			out.RefusedTexts = append(out.RefusedTexts, text)
		}
	}
	return out
}
