// Package yamlfile reads YAML files of operators: settings, a cluster's file and a policy. A Reader
// goes over the tree of one document, and collects all mistakes instead of the first one.
// Each mistake is Invalid, and shows its line with a caret below.
package yamlfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/words"
)

// maxNested bounds how deep brackets in a file go: the YAML parser's memory grows with the
// square of that.
const maxNested = 8

// tooDeep returns the first bracket that is deeper than maxNested; nil if there is none.
func tooDeep(tokens token.Tokens) *token.Token {
	depth := 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
		if depth > maxNested {
			return t
		}
	}
	return nil
}

// Position is where a value stands in a file, counted from 1.
type Position struct{ Line, Column int }

// Reader collects the mistakes of a file.
type Reader struct {
	path     string
	lines    []string // of the file
	mistakes []error
}

// NewReader returns a reader of a file with the path, which messages have.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Refuse notes a mistake.
func (r *Reader) Refuse(at Position, format string, args ...any) {
	r.mistakes = append(r.mistakes, fmt.Errorf("%s:%d:%d: %w%s", r.path, at.Line, at.Column,
		allocator.Errorf(allocator.Invalid, format, args...), r.caret(at)))
}

// caret returns the line of a position with a caret below; empty if none is shown.
func (r *Reader) caret(at Position) string {
	const most = 160 // bytes of a line
	if at.Line < 1 || at.Line > len(r.lines) {
		return ""
	}
	line := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return ' ' // also tabs, so that the caret stands where it should
		}
		return c
	}, r.lines[at.Line-1])
	if at.Column < 1 || at.Column > most {
		return ""
	}
	return "\n  " + strings.TrimRight(line[:min(len(line), most)],
		" ") + "\n  " + strings.Repeat(" ", at.Column-1) + "^"
}

// Mistakes returns how many mistakes were found so far.
func (r *Reader) Mistakes() int { return len(r.mistakes) }

// Err returns all mistakes as one error; nil where there is none. It is Invalid.
func (r *Reader) Err() error { return errors.Join(r.mistakes...) }

// Parse returns the file's only document; nil if the file is empty.
func (r *Reader) Parse(content []byte) ast.Node {
	text := strings.TrimPrefix(string(content), "\uFEFF") // some editors begin a file with it
	r.lines = strings.Split(text, "\n")
	tokens := lexer.Tokenize(text)
	if t := tooDeep(tokens); t != nil {
		r.Refuse(positionOf(t), "more than %d brackets in each other", maxNested)
		return nil
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		where, why := Position{1, 1}, err.Error()
		var known yaml.Error
		if errors.As(err, &known) && known.GetToken() != nil {
			where, why = positionOf(known.GetToken()), known.GetMessage()
		}
		r.Refuse(where, "not YAML: %s", Short(why))
		return nil
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch doc.Body.(type) {
		case nil, *ast.CommentGroupNode, *ast.NullNode:
			continue
		}
		if body != nil {
			r.Refuse(Of(doc.Body), "a second document; allowed: one")
			return nil
		}
		body = doc.Body
	}
	return body
}

// Entry is a name of a mapping with its value.
type Entry struct {
	Name  string
	At    Position // of the name
	Value ast.Node
}

// Entries returns what a mapping has; none where node is absent. field is its name in
// messages.
func (r *Reader) Entries(field string, node ast.Node) []Entry {
	var values []*ast.MappingValueNode
	switch n := node.(type) {
	case nil, *ast.NullNode:
		return nil
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		r.Refuse(Of(node), "%s%s; allowed: a mapping", named(field), what(node))
		return nil
	}
	seen := make(map[string]Position, len(values))
	entries := make([]Entry, 0, len(values))
	for _, v := range values {
		name, ok := Text(v.Key)
		where := Of(v.Key)
		if !ok {
			r.Refuse(where, "%s%s as a name; allowed: a text", named(field), what(v.Key))
			continue
		}
		if before, twice := seen[name]; twice {
			r.Refuse(where, "%s: stands in line %d already; allowed: once", Join(field, Short(name)), before.Line)
			continue
		}
		seen[name] = where
		entries = append(entries, Entry{name, where, v.Value})
	}
	return entries
}

// Text returns a value as it is written, and sets ok if node is a single value: a room
// named 007 is not room 7.
func Text(node ast.Node) (value string, ok bool) {
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

// Value returns the text of a single value; ok is false where node has none, which is
// noted.
func (r *Reader) Value(field string, node ast.Node, allowed string) (value string, ok bool) {
	if value, ok = Text(node); !ok {
		r.Refuse(Of(node), "%s%s; allowed: %s", named(field), what(node), allowed)
	}
	return value, ok
}

// Number reads a whole number into to.
func (r *Reader) Number(field string, node ast.Node, to func(int64)) {
	value, ok := r.Value(field, node, words.Whole)
	if !ok {
		return
	}
	n, err := words.Parse(value, 64)
	if err != nil {
		r.Refuse(Of(node), "%s: %q; allowed: %s", field, Short(value), words.Whole)
		return
	}
	to(n)
}

// Unknown refuses a field that the file's format does not have.
func (r *Reader) Unknown(field string, e Entry, known ...string) {
	r.Refuse(e.At, "there is no field %s; allowed: %s", Join(field, Short(e.Name)), strings.Join(known, ", "))
}

func positionOf(t *token.Token) Position {
	if t == nil || t.Position == nil {
		return Position{1, 1}
	}
	return Position{t.Position.Line, t.Position.Column}
}

// Of returns where a node begins. A mapping's own token is the colon of its first entry.
func Of(n ast.Node) Position {
	switch n := n.(type) {
	case nil:
		return Position{1, 1}
	case *ast.MappingValueNode:
		return Of(n.Key)
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return Of(n.Values[0])
		}
	}
	return positionOf(n.GetToken())
}

// what names a node that is not what it should be.
func what(n ast.Node) string {
	if value, ok := Text(n); ok {
		return strconv.Quote(Short(value))
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

// Join returns the name of a field of a field.
func Join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}

// Short bounds what a message quotes of a file, and keeps control characters away from a
// terminal.
func Short(s string) string {
	const most = 100
	if len(s) > most {
		s = s[:most] + "..."
	}
	s = strconv.Quote(s)
	return strings.ReplaceAll(s[1:len(s)-1], `\"`, `"`)
}

// List returns the values of a list; a single value is a list of one. An absent node has
// none. field is its name in messages.
func (r *Reader) List(field string, node ast.Node) []ast.Node {
	switch n := node.(type) {
	case nil, *ast.NullNode:
		return nil
	case *ast.SequenceNode:
		return n.Values
	}
	if _, ok := Text(node); ok {
		return []ast.Node{node}
	}
	r.Refuse(Of(node), "%s%s; allowed: a list", named(field), what(node))
	return nil
}

// Fields reads what a mapping has, each value by the function of its name, and refuses other names. It returns the
// names that are there.
func (r *Reader) Fields(field string, node ast.Node, read map[string]func(Entry)) (seen map[string]bool) {
	seen = make(map[string]bool)
	for _, e := range r.Entries(field, node) {
		if to, known := read[e.Name]; known {
			seen[e.Name] = true
			to(e)
		} else {
			r.Unknown(field, e, slices.Sorted(maps.Keys(read))...)
		}
	}
	return seen
}

// To returns a function for Fields that reads a single value.
func (r *Reader) To(to *string, field, allowed string) func(Entry) {
	return func(e Entry) { *to, _ = r.Value(Join(field, e.Name), e.Value, allowed) }
}
