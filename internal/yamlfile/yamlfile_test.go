package yamlfile_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/yamlfile"
)

type part struct {
	Size  int64    `yaml:"size"`
	Names []string `yaml:"names" allowed:"a name"`
}

type whole struct {
	Title string             `yaml:"title"`
	Parts []part             `yaml:"parts"`
	Named map[string]*part   `yaml:"named"`
	Not   map[string][]int64 // has no name in files
}

// Values are taken as they are written, a single value is a list of one, and a mark of the byte order counts for
// nothing.
func TestRead(t *testing.T) {
	t.Parallel()
	var got whole
	f := yamlfile.Read("f", []byte("\uFEFFtitle: 007\nparts:\n- {size: 10, names: 1e3}\n- names: [yes, ~x]\n"+
		"named: {a.b: {}}\n"), &got)
	want := whole{Title: "007", Parts: []part{{10, []string{"1e3"}}, {0, []string{"yes", "~x"}}},
		Named: map[string]*part{"a.b": {}}}
	if f.Err() != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, f.Err())
	}
	if !f.Has("parts[1].names") || f.Has("parts[1].size") || f.Line("parts[1].size") != 4 {
		t.Errorf("it has the size of the second part, in line %d", f.Line("parts[1].size"))
	}
}

// All mistakes are named with their places, in the order of these. What follows from a mistake is none: a check of what
// could not be read says nothing.
func TestMistakes(t *testing.T) {
	t.Parallel()
	var got whole
	f := yamlfile.Read("f", []byte("named: {a: {size: 010}}\ntitel: x\n"+
		"parts: [{names: [a, {b: c}], size: 5}, 7]\n"), &got)
	f.Refuse("parts[0].size", "parts.size: 5; allowed: 6")
	f.Refuse("parts[0].names[1]", "not said")
	f.Refuse("parts[1].names", "not said")
	f.Refuse("named.a", "not said")
	f.Refuse("named.b", "named.b: none")
	const want = `f:1:1: named.b: none
  named: {a: {size: 010}}
  ^
f:1:19: named.a.size: "010"; allowed: a whole number up to 9223372036854775807, without leading zeros
  named: {a: {size: 010}}
                    ^
f:2:1: there is no field titel; allowed: named, parts, title
  titel: x
  ^
f:3:21: parts.names: a mapping; allowed: a name
  parts: [{names: [a, {b: c}], size: 5}, 7]
                      ^
f:3:30: parts.size: 5; allowed: 6
  parts: [{names: [a, {b: c}], size: 5}, 7]
                               ^
f:3:40: parts: "7"; allowed: a mapping
  parts: [{names: [a, {b: c}], size: 5}, 7]
                                         ^`
	if err := f.Err(); err == nil || err.Error() != want || allocator.KindOf(err) != allocator.Invalid {
		t.Errorf("got\n%v", err)
	}
	again := f.Again()
	again.Refuse("named.a", "named.a: gone")
	if err := again.Err(); err == nil || !strings.HasPrefix(err.Error(), "f:1:9: named.a: gone\n  named: ") {
		t.Errorf("another check says %v", err)
	}
}
