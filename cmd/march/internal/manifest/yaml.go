package manifest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/march-id/march/allocator"
)

// MaxFile bounds a file, in bytes, and maxNested how deep brackets in it go: the YAML
// parser's memory grows with the square of that.
const (
	MaxFile   = 4 << 20
	maxNested = 8
)

// position is where a value stands in the file.
type position struct{ line, column int }

// reader collects the mistakes of a file.
type reader struct {
	path     string
	mistakes []error
}

// refuse notes a mistake.
func (r *reader) refuse(at position, format string, args ...any) {
	r.mistakes = append(r.mistakes, mistake(r.path, at, format, args...))
}

func mistake(path string, at position, format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: %w", path, at.line, at.column, allocator.Errorf(allocator.Invalid, format, args...))
}

// err returns all mistakes as one error; nil where there is none. It is Invalid.
func (r *reader) err() error { return errors.Join(r.mistakes...) }

// parse returns the file's only document; nil if the file is empty.
func (r *reader) parse(content []byte) ast.Node {
	tokens := lexer.Tokenize(string(content))
	depth := 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
		if depth > maxNested {
			r.refuse(at(t), "more than %d brackets in each other; allowed: a cluster's file", maxNested)
			return nil
		}
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		where, text := position{1, 1}, err.Error()
		var known yaml.Error
		if errors.As(err, &known) && known.GetToken() != nil {
			where, text = at(known.GetToken()), known.GetMessage()
		}
		r.refuse(where, "not YAML: %s", short(text))
		return nil
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch doc.Body.(type) {
		case nil, *ast.CommentGroupNode, *ast.NullNode:
			continue
		}
		if body != nil {
			r.refuse(of(doc.Body), "a second document; allowed: one")
			return nil
		}
		body = doc.Body
	}
	return body
}

// entry is a name of a mapping with its value.
type entry struct {
	name  string
	at    position // of the name
	value ast.Node
}

// entries returns what a mapping has; none where node is absent. field is its name in
// messages.
func (r *reader) entries(field string, node ast.Node) []entry {
	var values []*ast.MappingValueNode
	switch n := node.(type) {
	case nil, *ast.NullNode:
		return nil
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		r.refuse(of(node), "%s%s; allowed: a mapping", named(field), what(node))
		return nil
	}
	seen := make(map[string]position, len(values))
	entries := make([]entry, 0, len(values))
	for _, v := range values {
		name, ok := text(v.Key)
		where := of(v.Key)
		if !ok {
			r.refuse(where, "%s%s as a name; allowed: a text", named(field), what(v.Key))
			continue
		}
		if before, twice := seen[name]; twice {
			r.refuse(where, "%s: stands in line %d already; allowed: once", join(field, short(name)), before.line)
			continue
		}
		seen[name] = where
		entries = append(entries, entry{name, where, v.Value})
	}
	return entries
}

// text returns a value as it is written, and sets ok if node is a single value: a room
// named 007 is not room 7.
func text(node ast.Node) (value string, ok bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// value returns the text of a single value; ok is false where node has none, which is
// noted.
func (r *reader) value(field string, node ast.Node, allowed string) (value string, ok bool) {
	if value, ok = text(node); !ok {
		r.refuse(of(node), "%s%s; allowed: %s", named(field), what(node), allowed)
	}
	return value, ok
}

// number reads a whole number into to.
func (r *reader) number(field string, node ast.Node, to func(int64)) {
	const allowed = "a whole number up to 9223372036854775807"
	value, ok := r.value(field, node, allowed)
	if !ok {
		return
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		r.refuse(of(node), "%s: %q; allowed: %s", field, short(value), allowed)
		return
	}
	to(n)
}

// duration reads a duration into to.
func (r *reader) duration(field string, node ast.Node, to func(time.Duration)) {
	const allowed = "a duration such as 500ms, 5s or 2h30m"
	value, ok := r.value(field, node, allowed)
	if !ok {
		return
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		r.refuse(of(node), "%s: %q; allowed: %s", field, short(value), allowed)
		return
	}
	to(d)
}

// truth reads true or false into to.
func (r *reader) truth(field string, node ast.Node, to func(bool)) {
	value, ok := r.value(field, node, "true or false")
	switch {
	case !ok:
	case value == "true" || value == "false":
		to(value == "true")
	default:
		r.refuse(of(node), "%s: %q; allowed: true or false", field, short(value))
	}
}

// unknown refuses a field that the file's format does not have.
func (r *reader) unknown(field string, e entry, known ...string) {
	r.refuse(e.at, "there is no field %s; allowed: %s", join(field, short(e.name)), strings.Join(known, ", "))
}

func at(t *token.Token) position {
	if t == nil || t.Position == nil {
		return position{1, 1}
	}
	return position{t.Position.Line, t.Position.Column}
}

// of returns where a node begins. A mapping's own token is the colon of its first entry.
func of(n ast.Node) position {
	switch n := n.(type) {
	case nil:
		return position{1, 1}
	case *ast.MappingValueNode:
		return of(n.Key)
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return of(n.Values[0])
		}
	}
	return at(n.GetToken())
}

// what names a node that is not what it should be.
func what(n ast.Node) string {
	if value, ok := text(n); ok {
		return strconv.Quote(short(value))
	}
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return "no value"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	default:
		return "a YAML " + strings.ToLower(n.Type().String())
	}
}

func named(field string) string {
	if field == "" {
		return ""
	}
	return field + ": "
}

func join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}

// short bounds what a message quotes of a file, and keeps control characters away from a
// terminal.
func short(s string) string {
	const most = 100
	if len(s) > most {
		s = s[:most] + "..."
	}
	s = strconv.Quote(s)
	return strings.ReplaceAll(s[1:len(s)-1], `\"`, `"`)
}
