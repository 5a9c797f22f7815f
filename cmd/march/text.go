package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/words"
)

// A cluster has up to 64 rooms, and many instances. A text that lists them is folded, or
// cut if it is a cell of a table.
const (
	textWidth   = 110 // of a text of its own
	rangesWidth = 70  // of ranges next to a picture
	cellWidth   = 80  // of a table's cell
)

// fold returns the parts in lines of up to width columns; a part that is longer has a
// line to itself.
func fold(parts []string, separator string, width int) []string {
	var lines []string
	line := ""
	for i, part := range parts {
		if i < len(parts)-1 {
			part += separator
		}
		if line != "" && len(line)+1+len(part) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+part, " ")
	}
	return append(lines, line)
}

// folded writes a text in lines of up to TextWidth columns, the first after begin, the
// others as far to the right. A command in backquotes stays in one line, so that it can be copied.
func folded(w io.Writer, begin, text string) {
	for _, line := range fold(unbroken.FindAllString(text, -1), "", textWidth-len(begin)) {
		put(w, "%s\n", begin+line)
		begin = strings.Repeat(" ", len(begin))
	}
}

// unbroken matches a word, or a command in backquotes.
var unbroken = regexp.MustCompile("(?:[^\\s`]|`[^`]*`|`)+")

// cell returns the parts that fit into a table's cell, and the number of the
// others.
func cell(parts []string) string {
	text := ""
	for i, part := range parts {
		next := strings.TrimPrefix(text+", "+part, ", ")
		if i > 0 && len(next) > cellWidth {
			return fmt.Sprintf("%s and %d more", text, len(parts)-i)
		}
		text = next
	}
	return text
}

// excerpt shortens a parser's message, which may quote the file, to fit a line, and
// removes control characters.
func excerpt(msg string) string {
	const most = 400
	if len(msg) > most {
		msg = strings.ToValidUTF8(msg[:most], "") + "..."
	}
	return printable(msg)
}

// printable keeps control characters away from a terminal.
func printable(msg string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, msg)
}

// lines passes text on to a terminal, line by line, without other control characters.
type lines struct{ io.Writer }

func (l lines) Write(b []byte) (int, error) {
	_, err := io.WriteString(l.Writer, printableLines(string(b)))
	return len(b), err
}

// printableLines is printable of a text of several lines.
func printableLines(text string) string {
	all := strings.Split(text, "\n")
	for k, line := range all {
		all[k] = printable(line)
	}
	return strings.Join(all, "\n")
}

// setIn is printableLines with all lines but the first set in, so that none of them is taken for another message of
// this program: a text may be a server's, and name what a caller gave.
func setIn(text string) string {
	return strings.ReplaceAll(printableLines(strings.TrimRight(text, "\n")), "\n", "\n  ")
}

// put writes a text. Its arguments lose the characters that cannot be printed: none of a server's texts becomes two
// lines. Where its writer fails, the command ends with the error of the next flush.
func put(w io.Writer, format string, args ...any) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			args[i] = printable(arg)
		case error:
			args[i] = printable(arg.Error())
		}
	}
	_, _ = fmt.Fprintf(w, format, args...)
}

// field writes a line with a name and a value; nothing for an empty value.
func field(w io.Writer, name string, value any) {
	if text := cellText(value); text != "" {
		put(w, "%s\t%s\n", name, text)
	}
}

// list writes a list.
func list[T any](w io.Writer, columns []setting.Column[T], rows []T) {
	columns = slices.DeleteFunc(slices.Clone(columns), func(c setting.Column[T]) bool { return c.Wide })
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = strings.ToUpper(c.Title)
	}
	table(w, strings.Join(titles, "\t"), rows, func(row T) []any {
		values := make([]any, len(columns))
		for i, c := range columns {
			values[i] = c.Value(row)
		}
		return values
	})
}

// listOf returns what writes a list of an answer, and its problems.
func listOf[A, T any](columns []setting.Column[T], rows func(A) []T) func(*tabwriter.Writer, A) {
	return func(w *tabwriter.Writer, answer A) {
		list(w, columns, rows(answer))
		if p, ok := any(answer).(interface{ GetProblems() []*marchv1.Problem }); ok {
			problemsText(w, p.GetProblems())
		}
	}
}

// table writes a table: the titles of the columns, and the cells of each row.
func table[T any](w io.Writer, titles string, rows []T, cells func(T) []any) {
	_, _ = fmt.Fprintln(w, titles)
	for _, row := range rows {
		texts := make([]string, 0, 12)
		for _, cell := range cells(row) {
			texts = append(texts, cmp.Or(cellText(cell), "-"))
		}
		_, _ = fmt.Fprintln(w, strings.Join(texts, "\t"))
	}
}

// cellText is a value in a table; empty for none.
func cellText(value any) string {
	if m, ok := value.(proto.Message); value == nil || ok && !m.ProtoReflect().IsValid() {
		return ""
	}
	switch v := value.(type) {
	case bool:
		return map[bool]string{true: "yes"}[v]
	case *timestamppb.Timestamp:
		return v.AsTime().Format(time.RFC3339)
	case *durationpb.Duration:
		return words.Short(v.AsDuration())
	case *marchv1.Range:
		return fmt.Sprintf("[%d, %d)", v.GetLower(), v.GetUpper())
	case *marchv1.Layout:
		return printable(cell(rangeParts(v)))
	}
	return printable(fmt.Sprint(value))
}

// marshal returns a message as one line of JSON, with words for the values of enums:
// running for MIGRATION_STATE_RUNNING.
func marshal(m proto.Message) ([]byte, error) {
	b, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return replaceEnums(compact(b), m, func(enum protoreflect.EnumDescriptor, name string) string {
		if value := enum.Values().ByName(protoreflect.Name(name)); value != nil {
			return api.WordOf(value)
		}
		return name
	}), nil
}

// unmarshal reads a message from JSON in which values of enums are words, names or
// numbers.
func unmarshal(b []byte, m proto.Message) error {
	return protojson.Unmarshal(replaceEnums(b, m, func(enum protoreflect.EnumDescriptor, word string) string {
		if value := api.Named(enum, word); value != nil {
			return string(value.Name())
		}
		return word
	}), m)
}

// compact removes the white space that protojson varies at random.
func compact(b []byte) []byte {
	var out bytes.Buffer
	if json.Compact(&out, b) != nil {
		return b
	}
	return out.Bytes()
}

// replaceEnums returns the JSON of a message with the texts of enum values replaced.
func replaceEnums(text []byte, m proto.Message, replace func(enum protoreflect.EnumDescriptor,
	text string) string) []byte {
	r := &replacer{text: text, tokens: json.NewDecoder(bytes.NewReader(text)), replace: replace}
	r.value(nil, m.ProtoReflect().Descriptor())
	return append(r.out, text[r.copied:]...)
}

// replacer reads the tokens of text, and copies text to out. It stops where text is
// not JSON.
type replacer struct {
	text    []byte
	tokens  *json.Decoder
	replace func(enum protoreflect.EnumDescriptor, text string) string
	out     []byte
	copied  int64 // how much of text is in out
}

// value reads a value of a field, or a message that is in no field. Both are nil if the
// message does not have the field.
func (r *replacer) value(field protoreflect.FieldDescriptor, message protoreflect.MessageDescriptor) {
	token, _ := r.tokens.Token()
	switch token := token.(type) {
	case json.Delim:
		for r.tokens.More() {
			if token == '[' {
				r.value(field, message)
				continue
			}
			name, _ := r.tokens.Token()
			r.value(inside(field, message, name))
		}
		_, _ = r.tokens.Token() // its end
	case string:
		if field == nil || field.Enum() == nil {
			return
		}
		end := r.tokens.InputOffset()
		start := end - int64(len(token)) - 2 // an enum's names and words need no escape
		if with := r.replace(field.Enum(), token); with != token {
			r.out = append(append(r.out, r.text[r.copied:start]...), '"')
			r.out = append(append(r.out, with...), '"')
			r.copied = end
		}
	}
}

// inside returns the field of a name in an object that is a message or a map.
func inside(field protoreflect.FieldDescriptor, message protoreflect.MessageDescriptor,
	name json.Token) (protoreflect.FieldDescriptor, protoreflect.MessageDescriptor) {
	text, _ := name.(string)
	switch {
	case field != nil && field.IsMap():
		field = field.MapValue()
	case message != nil:
		if field = message.Fields().ByJSONName(text); field == nil {
			field = message.Fields().ByTextName(text)
		}
	default:
		field = nil
	}
	if field == nil {
		return nil, nil
	}
	return field, field.Message()
}
