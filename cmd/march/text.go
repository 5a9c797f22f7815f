package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
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

// folded writes a text in lines of up to textWidth columns, the first after begin, the
// others as far to the right.
func folded(w io.Writer, begin, text string) {
	for _, line := range fold(strings.Fields(text), "", textWidth-len(begin)) {
		_, _ = fmt.Fprintln(w, begin+line)
		begin = strings.Repeat(" ", len(begin))
	}
}

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

// layoutRows writes a layout as a row of a table: what it is, its picture and its
// ranges. More ranges go on in the rows below; end follows the last one.
func layoutRows(w io.Writer, what string, l *marchv1.Layout, end string) {
	lines := fold(rangeParts(l), ",", rangesWidth)
	lines[len(lines)-1] += end
	_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", what, picture(l), lines[0])
	for _, line := range lines[1:] {
		_, _ = fmt.Fprintf(w, "\t\t%s\n", line)
	}
}

// problemsText lists the problems, each with its start, its remedy and the command.
func problemsText(w io.Writer, problems []*marchv1.Problem) {
	_, _ = io.WriteString(w, problem.Lines(problems, printable))
}

// doText returns the remedy of a problem, and the command.
func doText(p *marchv1.Problem) string { return problem.Do(p, printable) }

// stoppedText lists the problems. A console of an earlier version has no list, and
// reports only a halt and a layout that cannot be used.
func stoppedText(w io.Writer, problems []*marchv1.Problem, halt *marchv1.Halt, unusable string) {
	if len(problems) == 0 && halt != nil {
		problems = append(problems, problem.Halted(halt.GetBy(), halt.GetWhy(), halt.GetTime().AsTime()))
	}
	if len(problems) == 0 && unusable != "" {
		problems = append(problems, problem.Unusable(unusable))
	}
	problemsText(w, problems)
}

// marshalWords returns a message as one line of JSON, with words for the values of enums:
// running for MIGRATION_STATE_RUNNING.
func marshalWords(m proto.Message) ([]byte, error) {
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

// unmarshalWords reads a message from JSON in which values of enums are words, names or
// numbers.
func unmarshalWords(b []byte, m proto.Message) error {
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
func replaceEnums(text []byte, m proto.Message, replace func(enum protoreflect.EnumDescriptor, text string) string) []byte {
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
func inside(field protoreflect.FieldDescriptor, message protoreflect.MessageDescriptor, name json.Token) (protoreflect.FieldDescriptor, protoreflect.MessageDescriptor) {
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

// plainLine appends an ID, nil where it exists only as a text, and its text where there is
// one.
func plainLine(b []byte, id *int64, text string) []byte {
	if id != nil {
		b = strconv.AppendInt(b, *id, 10)
		if text != "" {
			b = append(b, '\t')
		}
	}
	return append(append(b, text...), '\n')
}

// jsonLine appends a NextResponse, as plainLine does.
func jsonLine(b []byte, id *int64, text string) []byte {
	b = append(b, '{')
	if id != nil {
		b = append(strconv.AppendInt(append(b, `"id":"`...), *id, 10), '"')
	}
	if text != "" {
		if id != nil {
			b = append(b, ',')
		}
		quoted, _ := json.Marshal(text) // a string has no error
		b = append(append(b, `"text":`...), quoted...)
	}
	return append(b, "}\n"...)
}

func tagText(w *tabwriter.Writer, t *marchv1.Tag) {
	_, _ = fmt.Fprintf(w, "tag\t%s\n", t.GetName())
	if t.GetFormat() != "" {
		_, _ = fmt.Fprintf(w, "format\t%s\n", t.GetFormat())
	}
	if t.GetKeyCheck() != "" {
		_, _ = fmt.Fprintf(w, "key check\t%s\n", t.GetKeyCheck())
	}
	if name := t.GetForeignName(); name != "" {
		_, _ = fmt.Fprintf(w, "name at doors\t%s\n", printable(name))
	}
	if t.GetTime() != nil {
		timeTagText(w, t)
		return
	}
	if p := t.GetPeriod(); p != nil {
		_, _ = fmt.Fprintf(w, "period\t%s, %d digits, %s: now %s, IDs %d to %d; the next begins at %s\n", api.Word(p.GetUnit()), p.GetDigits(), p.GetTimeZone(),
			p.GetCurrent(), p.GetFirst(), p.GetEnd()-1, p.GetEnds().AsTime().Format(time.RFC3339))
	}
	_, _ = fmt.Fprintf(w, "start\t%d\n", t.GetStart())
	_, _ = fmt.Fprintf(w, "limit\t%d\n", t.GetLimit())
	_, _ = fmt.Fprintf(w, "min step\t%d\n", t.GetMinStep())
	_, _ = fmt.Fprintf(w, "max step\t%d\n", t.GetMaxStep())
	_, _ = fmt.Fprintf(w, "reserve\t%s\n", t.GetReserve().AsDuration())
	_, _ = fmt.Fprintf(w, "max jump\t%d\n", t.GetMaxJump())
	if t.GetMaxSkew() > 0 {
		_, _ = fmt.Fprintf(w, "max skew\t%d\n", t.GetMaxSkew())
	}
	if t.GetStrictRetract() {
		_, _ = fmt.Fprintf(w, "strict retract\tyes\n")
	}
	if t.GetPrescaleUntil() != nil {
		_, _ = fmt.Fprintf(w, "prescale\t%d until %s\n", t.GetPrescale(), t.GetPrescaleUntil().AsTime().Format(time.RFC3339))
	}
	for _, room := range sortedKeys(t.GetSkips()) {
		_, _ = fmt.Fprintf(w, "skip\troom %s to %d\n", room, t.GetSkips()[room])
	}
	_, _ = fmt.Fprintf(w, "created\t%s\n", t.GetCreated().AsTime().Format(time.RFC3339))
}
