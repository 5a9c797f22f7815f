// Package settings reads the values of settings: YAML mappings of flags' names.
package settings

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/march/internal/show"
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

// Parse reads a YAML mapping of names to values or lists of them. Values
// stay as they are written: a room named 007 is not room 7.
func Parse(path string, content []byte) (map[string]Value, error) {
	tokens := lexer.Tokenize(string(content))
	if t := yamlfile.TooDeep(tokens); t != nil {
		return nil, badSettings(path, t.Position.Line,
			"brackets nested deeper than %d; allowed: lines of NAME: VALUE", yamlfile.MaxNested)
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil {
			return nil, badSettings(path, at.GetToken().Position.Line, "not YAML: %s", show.Excerpt(at.GetMessage()))
		}
		return nil, allocator.Errorf(allocator.Invalid, "%s: not YAML: %s", path, show.Excerpt(err.Error()))
	}
	settings := make(map[string]Value)
	for i, doc := range file.Docs {
		var entries []*ast.MappingValueNode
		switch body := doc.Body.(type) {
		case nil, *ast.CommentGroupNode, *ast.NullNode:
			continue
		case *ast.MappingNode:
			entries = body.Values
		case *ast.MappingValueNode:
			entries = []*ast.MappingValueNode{body}
		default:
			return nil, badSettings(path, line(body), "not settings; allowed: lines of NAME: VALUE")
		}
		if i > 0 {
			return nil, badSettings(path, line(doc.Body), "a second document; allowed: one")
		}
		for _, entry := range entries {
			name, err := scalar(entry.Key)
			if err != nil || !settingName.MatchString(name) {
				return nil, badSettings(path, line(entry.Key), "there is no setting %s",
					show.Excerpt(fmt.Sprintf("%q", name)))
			}
			if before, twice := settings[name]; twice {
				return nil, badSettings(path, line(entry.Key), "%s: already set in line %d", name, before.Line)
			}
			s, err := values(entry.Value)
			if err != nil {
				return nil, badSettings(path, line(entry.Key),
					"%s: %w; allowed: a value or a list of values", name, err)
			}
			s.Line = line(entry.Key)
			settings[name] = s
		}
	}
	return settings, nil
}

var settingName = regexp.MustCompile(`^[a-z][a-z-]{0,62}$`)

func badSettings(path string, line int, format string, args ...any) error {
	return allocator.Errorf(allocator.Invalid, "%s:%d: %w", path, line, fmt.Errorf(format, args...))
}

func line(n ast.Node) int {
	if n == nil || n.GetToken() == nil {
		return 1
	}
	return n.GetToken().Position.Line
}

// values returns the value or the list of values that n is.
func values(n ast.Node) (Value, error) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		value, err := scalar(n)
		return Value{Values: []string{value}}, err
	}
	s := Value{List: true, Values: make([]string, 0, len(list.Values))}
	for _, part := range list.Values {
		value, err := scalar(part)
		if err != nil {
			return Value{}, err
		}
		s.Values = append(s.Values, value)
	}
	return s, nil
}

// scalar returns the text of a value.
func scalar(n ast.Node) (string, error) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, nil
	case *ast.LiteralNode:
		return v.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return v.GetToken().Value, nil
	case nil, *ast.NullNode:
		return "", errors.New("no value")
	case *ast.MappingNode, *ast.MappingValueNode:
		return "", errors.New("a mapping")
	case *ast.SequenceNode:
		return "", errors.New("a list in a list")
	}
	return "", fmt.Errorf("a YAML %s", strings.ToLower(n.Type().String()))
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
		return "a whole number up to 9223372036854775807"
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
