// Package yamlfile reads YAML files of operators into Go values: settings, a cluster's file, a policy, contexts. It
// takes texts and numbers as they are written, refuses what a value has no place for, and collects all mistakes instead
// of the first one. Each mistake is Invalid, says what is allowed, and shows its line with a caret below.
//
// It walks the tree of goccy's parser. goccy's own strict decoder stops at the first mistake, takes 010 for 8, and its
// errors speak of Go's types.
package yamlfile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
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

// maxName bounds a name, in bytes.
const maxName = 256

// position is where something stands in a file, counted from 1.
type position struct{ line, column int }

// File is a file that was read, with its mistakes. A field of it is named by its path, such as grants[2].quotas.tags.
type File struct {
	path     string
	lines    []string
	places   map[string]position // of fields: where the name stands, or where the element of a list begins
	wrong    map[string]bool     // the fields that cannot be read
	around   map[string]bool     // the fields that have one of these inside
	mistakes []mistake
}

type mistake struct {
	position
	error
}

// Value is a type that reads itself. at is the field's path.
type Value interface {
	ReadYAML(f *File, at string, node ast.Node)
}

// Read reads the only document of a file into a value: a struct, whose fields have their names in the tag yaml, a map,
// a list, a text, a whole number, a pointer to one of these, or a Value. A list of one may stand without brackets. The
// tag allowed says which values a field has. An empty file is refused where a struct is to be read. path is the file's
// name in messages.
func Read(path string, content []byte, into any) *File {
	f := &File{path: path, places: make(map[string]position), wrong: make(map[string]bool),
		around: make(map[string]bool)}
	body := f.parse(content)
	to := reflect.ValueOf(into).Elem()
	switch {
	case len(f.mistakes) > 0:
	case body != nil:
		f.read("", body, to, "a text")
	case to.Kind() == reflect.Struct:
		f.unread("", position{1, 1}, "the file is empty; allowed: %s",
			strings.Join(slices.Sorted(maps.Keys(fieldsOf(to))), ", "))
	}
	return f
}

// Again returns the file without its mistakes, for another check of it.
func (f *File) Again() *File {
	return &File{path: f.path, lines: f.lines, places: f.places}
}

// Has reports whether the file has a field.
func (f *File) Has(at string) bool {
	_, has := f.places[at]
	return has
}

// Line returns the line of a field, or of the one around it.
func (f *File) Line(at string) int { return f.place(at).line }

// Err returns all mistakes as one error, in the order of their places; nil where there is none. It is Invalid.
func (f *File) Err() error {
	slices.SortStableFunc(f.mistakes, func(a, b mistake) int {
		return slices.Compare([]int{a.line, a.column}, []int{b.line, b.column})
	})
	errs := make([]error, len(f.mistakes))
	for i, m := range f.mistakes {
		errs[i] = m.error
	}
	return errors.Join(errs...)
}

// Wrong reports whether a field, or one inside of it, could not be read.
func (f *File) Wrong(at string) bool { return f.wrong[at] || f.around[at] }

// Refuse notes a mistake in what a field has, unless the field, one inside of it or one around it could not be read.
func (f *File) Refuse(at, format string, args ...any) {
	wrong := f.Wrong(at)
	for around, is := outer(at); is && !wrong; around, is = outer(around) {
		wrong = f.wrong[around]
	}
	if !wrong {
		f.add(f.place(at), format, args...)
	}
}

// unread notes that a field cannot be read.
func (f *File) unread(at string, where position, format string, args ...any) {
	f.wrong[at] = true
	for around, is := outer(at); is; around, is = outer(around) {
		f.around[around] = true
	}
	f.add(where, format, args...)
}

func (f *File) add(where position, format string, args ...any) {
	f.mistakes = append(f.mistakes, mistake{where, fmt.Errorf("%s:%d:%d: %w%s", f.path, where.line, where.column,
		allocator.Errorf(allocator.Invalid, format, args...), f.caret(where))})
}

// outer returns the field around a field; the path of the whole file is empty.
func outer(at string) (string, bool) {
	return at[:max(strings.LastIndexAny(at, ".["), 0)], at != ""
}

// place returns where a field is, or, of one that is not there, the one around it.
func (f *File) place(at string) position {
	for is := true; is; at, is = outer(at) {
		if p, has := f.places[at]; has {
			return p
		}
	}
	return position{1, 1}
}

// caret returns the line of a position with a caret below; empty if none is shown.
func (f *File) caret(at position) string {
	const most = 160 // bytes of a line
	if at.line < 1 || at.line > len(f.lines) || at.column < 1 || at.column > most {
		return ""
	}
	line := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return ' ' // also tabs, so that the caret stands where it should
		}
		return c
	}, words.Masked(f.lines[at.line-1]))
	return fmt.Sprintf("\n  %s\n  %*s", strings.TrimRight(line[:min(len(line), most)], " "), at.column, "^")
}

// parse returns the file's only document; nil if the file is empty.
func (f *File) parse(content []byte) (body ast.Node) {
	text := strings.TrimPrefix(string(content), "\uFEFF") // some editors begin a file with it
	f.lines = strings.Split(text, "\n")
	tokens := lexer.Tokenize(text)
	if t := tooDeep(tokens); t != nil {
		f.unread("", positionOf(t), "more than %d brackets or lists in each other, or a name of over %d bytes",
			maxNested, maxName)
		return nil
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		where, why := position{1, 1}, err.Error()
		var known yaml.Error
		if errors.As(err, &known) && known.GetToken() != nil {
			where, why = positionOf(known.GetToken()), known.GetMessage()
		}
		f.unread("", where, "not YAML: %s", Short(why))
		return nil
	}
	for _, doc := range file.Docs {
		switch doc.Body.(type) {
		case nil, *ast.CommentGroupNode, *ast.NullNode:
			continue
		}
		if body != nil {
			f.unread("", startOf(doc.Body), "a second document; allowed: one")
			return nil
		}
		body = doc.Body
	}
	return body
}

// tooDeep returns the first bracket that is deeper than maxNested, the first "-" or "?" with as many before it in a
// row, or the first name of over maxName bytes; nil if there is none. The parser keeps the path of names of each value.
func tooDeep(tokens token.Tokens) *token.Token {
	depth, row := 0, 0
	for i, t := range tokens {
		begun := row
		row = 0
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType:
			if i > 0 && tokens[i-1].Position.Line == t.Position.Line {
				row = begun + 1
			}
		case token.MappingValueType:
			if i > 0 && len(tokens[i-1].Value) > maxName {
				return tokens[i-1]
			}
		}
		if depth > maxNested || row > maxNested {
			return t
		}
	}
	return nil
}

// read reads a node into a value. allowed says which texts it may have.
func (f *File) read(at string, node ast.Node, to reflect.Value, allowed string) {
	if v, ok := to.Addr().Interface().(Value); ok {
		v.ReadYAML(f, at, node)
		return
	}
	switch to.Kind() {
	case reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		f.read(at, node, to.Elem(), allowed)
	case reflect.Struct:
		known := fieldsOf(to)
		for _, e := range f.Entries(at, node) {
			if i, is := known[e.Name]; is {
				more, _ := to.Type().Field(i).Tag.Lookup("allowed")
				f.read(e.At, e.Value, to.Field(i), cmp.Or(more, allowed))
			} else {
				f.Unknown(e, slices.Sorted(maps.Keys(known))...)
			}
		}
	case reflect.Map:
		to.Set(reflect.MakeMap(to.Type()))
		for _, e := range f.Entries(at, node) {
			one := reflect.New(to.Type().Elem()).Elem()
			f.read(e.At, e.Value, one, allowed)
			to.SetMapIndex(reflect.ValueOf(e.Name), one)
		}
	case reflect.Slice:
		for i, node := range f.list(at, node) {
			one, element := reflect.New(to.Type().Elem()).Elem(), fmt.Sprintf("%s[%d]", at, i)
			f.places[element] = startOf(node)
			f.read(element, node, one, allowed)
			to.Set(reflect.Append(to, one))
		}
	case reflect.Int64:
		f.Text(at, node, words.Whole, func(text string) error {
			n, err := words.Parse(text, 64)
			if to.SetInt(n); err != nil {
				err = fmt.Errorf("%q; allowed: %s", Short(text), words.Whole)
			}
			return err
		})
	case reflect.String:
		f.Text(at, node, allowed, func(text string) error {
			to.SetString(text)
			return nil
		})
	default:
		panic("a value of the type " + to.Type().String())
	}
}

// fieldsOf returns the fields of a struct that have a name in files, by their indexes.
func fieldsOf(v reflect.Value) map[string]int {
	fields := make(map[string]int)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("yaml"); name != "" {
			fields[name] = i
		}
	}
	return fields
}

// Value reads the node of a field into a value, as Read does.
func (f *File) Value(at string, node ast.Node, into any, allowed string) {
	f.read(at, node, reflect.ValueOf(into).Elem(), allowed)
}

// Text has use take the text of a single value as it is written: a room named 007 is not room 7. An error of use is a
// mistake of the value.
func (f *File) Text(at string, node ast.Node, allowed string, use func(text string) error) {
	text, ok := textOf(node)
	if !ok {
		f.unread(at, startOf(node), "%s%s; allowed: %s", named(at), what(node), allowed)
	} else if err := use(text); err != nil {
		f.unread(at, startOf(node), "%s%w", named(at), err)
	}
}

// Entry is a name of a mapping with its value.
type Entry struct {
	Name  string
	At    string // its path
	Value ast.Node
}

// Entries returns what a mapping has; none where node is absent.
func (f *File) Entries(at string, node ast.Node) (entries []Entry) {
	var values []*ast.MappingValueNode
	switch n := node.(type) {
	case nil, *ast.NullNode:
		return nil
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		f.unread(at, startOf(node), "%s%s; allowed: a mapping", named(at), what(node))
		return nil
	}
	seen := make(map[string]position, len(values))
	for _, v := range values {
		name, ok := textOf(v.Key)
		if !ok {
			f.unread(at, startOf(v.Key), "%s%s as a name; allowed: a text", named(at), what(v.Key))
			continue
		}
		e := Entry{name, strings.TrimPrefix(at+"."+Short(name), "."), v.Value}
		if before, twice := seen[name]; twice {
			f.unread(e.At, startOf(v.Key), "%sstands in line %d already; allowed: once", named(e.At), before.line)
			continue
		}
		seen[name] = startOf(v.Key)
		f.places[e.At] = seen[name]
		entries = append(entries, e)
	}
	return entries
}

// Unknown refuses a field that the file's format does not have.
func (f *File) Unknown(e Entry, known ...string) {
	at := f.place(e.At)
	delete(f.places, e.At)
	f.unread(e.At, at, "there is no field %s; allowed: %s", strings.TrimSuffix(named(e.At), ": "),
		strings.Join(known, ", "))
}

// list returns the values of a list; a single value is a list of one. An absent node has none.
func (f *File) list(at string, node ast.Node) []ast.Node {
	switch n := node.(type) {
	case nil, *ast.NullNode:
		return nil
	case *ast.SequenceNode:
		return n.Values
	}
	if _, ok := textOf(node); ok {
		return []ast.Node{node}
	}
	f.unread(at, startOf(node), "%s%s; allowed: a list", named(at), what(node))
	return nil
}

// textOf returns a value as it is written, and sets ok if node is a single value.
func textOf(node ast.Node) (value string, ok bool) {
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

func positionOf(t *token.Token) position {
	if t == nil || t.Position == nil {
		return position{1, 1}
	}
	return position{t.Position.Line, t.Position.Column}
}

// startOf returns where a node begins. A mapping's own token is the colon of its first entry.
func startOf(n ast.Node) position {
	switch n := n.(type) {
	case nil:
		return position{1, 1}
	case *ast.MappingValueNode:
		return startOf(n.Key)
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return startOf(n.Values[0])
		}
	}
	return positionOf(n.GetToken())
}

// what names a node that is not what it should be.
func what(n ast.Node) string {
	if value, ok := textOf(n); ok {
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

var index = regexp.MustCompile(`\[\d+\]`)

// named begins a message with the name of a field: its place says which element of a list it is in.
func named(at string) string {
	if at == "" {
		return ""
	}
	return index.ReplaceAllString(at, "") + ": "
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
