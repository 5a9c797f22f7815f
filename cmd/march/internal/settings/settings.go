// Package settings reads the values of settings: YAML mappings of flags' names.
package settings

import (
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/words"
	"github.com/march-id/march/internal/yamlfile"
)

// Value is a value as it was written, or a list of them.
type Value struct {
	Values []string
	List   bool
	Line   int
}

// Set sets f. field is the name that the user gave: flag, variable, or file and
// line.
func (s Value) Set(field string, f *pflag.Flag) error {
	list, takesList := f.Value.(pflag.SliceValue)
	var err error
	switch {
	case !s.List:
		err = f.Value.Set(s.Values[0])
	case takesList:
		err = list.Replace(s.Values)
	default:
		return allocator.Errorf(allocator.Invalid, "%s: a list; allowed: one value", field)
	}
	if err != nil {
		return NotAllowed(field, f, strings.Join(s.Values, ","))
	}
	f.Changed = true
	return nil
}

// Parse reads a YAML mapping of known names to values or lists of them. Values stay as they are written: a room
// named 007 is not room 7.
func Parse(path string, content []byte, known []string) (map[string]Value, error) {
	const allowed = "a value or a list of values"
	r := yamlfile.NewReader(path)
	settings := make(map[string]Value)
	for _, e := range r.Entries("", r.Parse(content)) {
		if !slices.Contains(known, e.Name) {
			r.Refuse(e.At, "there is no setting %q; known: %s", yamlfile.Short(e.Name), strings.Join(known, ", "))
			continue
		}
		list, isList := e.Value.(*ast.SequenceNode)
		nodes := []ast.Node{e.Value}
		if isList {
			nodes = list.Values
		}
		s := Value{List: isList, Line: e.At.Line, Values: make([]string, len(nodes))}
		for i, node := range nodes {
			s.Values[i], _ = r.Value(e.Name, node, allowed)
		}
		settings[e.Name] = s
	}
	return settings, r.Err()
}

// NotAllowed returns the error of a value that a flag does not take. field is the
// name that the user gave.
func NotAllowed(field string, f *pflag.Flag, value string) error {
	return allocator.Errorf(allocator.Invalid, "%s: %q; allowed: %s", field, value, Allowed(f))
}

// Allowed describes the values of a flag's type.
func Allowed(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int", "int64":
		return words.Whole
	case "float64":
		return "a number"
	case "duration":
		return "a duration such as 500ms, 5s or 2h30m"
	case "bool":
		return "true or false"
	case "stringSlice":
		return "values separated by commas"
	}
	return "a " + f.Value.Type()
}
