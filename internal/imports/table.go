package imports

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
)

// Bounds of what is read. A system that counts for more names has no table that a person
// imports in one go.
const (
	maxRows = 1_000_000
	maxLine = 64 << 10
	maxText = 64 << 20
)

// ReadTable reads rows from a table in a text: TSV where its first line has a tab, CSV
// otherwise. A first line that names all columns says where they are; without one they
// are in the system's own order, and those that may be missing are the last.
//
// name says for people where the text is from. The error is of reading, or Invalid where
// the text is no table of the system; rows with wrong values are bad.
func ReadTable(in io.Reader, name string, s *System) (rows []Row, bad []*Bad, err error) {
	text := bufio.NewReaderSize(&bounded{in, maxText}, maxLine)
	if mark, _ := text.Peek(3); bytes.Equal(mark, []byte("\xef\xbb\xbf")) {
		_, _ = text.Discard(len(mark)) // what Windows writes before UTF-8
	}
	begin, err := text.Peek(maxLine)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	first, _, _ := bytes.Cut(begin, []byte("\n"))
	next := tsv(text)
	if !bytes.Contains(first, []byte("\t")) {
		next = commas(text)
	}
	places := s.positions()
	for n := 0; ; n++ {
		line, fields, err := next()
		if errors.Is(err, io.EOF) {
			return rows, bad, nil
		}
		place := name
		if line > 0 {
			place += ", line " + strconv.Itoa(line)
		}
		switch {
		case err != nil && allocator.KindOf(err) == allocator.Invalid:
			return nil, nil, allocator.Errorf(allocator.Invalid, "%s: %w", place, err)
		case err != nil:
			return nil, nil, err
		case n == 0:
			if named := s.header(fields); named != nil {
				places = named
				continue
			}
		case len(rows)+len(bad) == maxRows:
			return nil, nil, allocator.Errorf(allocator.Invalid,
				"%s: more than %d rows; allowed: up to so many in one import", place, maxRows)
		}
		row, wrong := s.tableRow(place, fields, places)
		if wrong != nil {
			bad = append(bad, wrong)
			continue
		}
		rows = append(rows, row)
	}
}

// bounded is a reader of a text that has a largest size. A reader of CSV would read on to
// the end where a quote is not closed.
type bounded struct {
	io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, allocator.Errorf(allocator.Invalid, "the text is too long; allowed: up to %d MiB", maxText>>20)
	}
	return n, err
}

// positions returns where the columns are in a table without a line that names them.
func (s *System) positions() []int {
	places := make([]int, len(s.columns))
	for i := range places {
		places[i] = i
	}
	return places
}

// header returns where the columns are by the line that names them, -1 for one that is not
// there; nil if it is no such line.
func (s *System) header(fields []*string) []int {
	places := make([]int, len(s.columns))
	for i, c := range s.columns {
		places[i] = slices.IndexFunc(fields, func(f *string) bool {
			return f != nil && slices.Contains(c.names, strings.ToLower(strings.TrimSpace(*f)))
		})
		if places[i] < 0 && !c.optional {
			return nil
		}
	}
	return places
}

func (s *System) tableRow(place string, fields []*string, places []int) (Row, *Bad) {
	ordered := make([]*string, len(s.columns))
	for i, at := range places {
		if at >= 0 && at < len(fields) {
			ordered[i] = fields[at]
		} else if !s.columns[i].optional {
			return Row{}, &Bad{place, s.columns[i].names[0], "", "a field for each of " + s.columnNames()}
		}
	}
	return s.row(place, ordered)
}

// columnNames names the columns that every row has.
func (s *System) columnNames() string {
	var names []string
	for _, c := range s.columns {
		if !c.optional {
			names = append(names, c.names[0])
		}
	}
	return strings.Join(names, ", ")
}

// tsv returns a function that reads lines as `mysql --batch` and COPY of PostgreSQL write
// them. nil is a field that is NULL. Empty lines are passed over.
func tsv(in *bufio.Reader) func() (line int, fields []*string, err error) {
	line := 0
	return func() (int, []*string, error) {
		for {
			line++
			text, err := in.ReadSlice('\n')
			switch {
			case errors.Is(err, bufio.ErrBufferFull):
				return line, nil, tooLong()
			case errors.Is(err, io.EOF) && len(text) > 0: // the last line may lack its end
			case err != nil:
				return line, nil, err
			}
			text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
			if len(text) == 0 {
				continue
			}
			var fields []*string
			for field := range bytes.SplitSeq(text, []byte("\t")) {
				fields = append(fields, unescape(string(field)))
			}
			return line, fields, nil
		}
	}
}

func tooLong() error {
	return allocator.Errorf(allocator.Invalid, "the line is too long; allowed: up to %d bytes", maxLine)
}

// unescape returns what a field of TSV stands for, nil for NULL.
func unescape(field string) *string {
	if field == "NULL" || field == `\N` {
		return nil
	}
	if !strings.Contains(field, `\`) {
		return &field
	}
	var b strings.Builder
	for i := 0; i < len(field); i++ {
		c := field[i]
		if c == '\\' && i+1 < len(field) {
			i++
			switch c = field[i]; c {
			case 'n':
				c = '\n'
			case 't':
				c = '\t'
			case 'r':
				c = '\r'
			case '0':
				c = 0
			}
		}
		b.WriteByte(c)
	}
	plain := b.String()
	return &plain
}

// commas returns a function that reads records of CSV (RFC 4180), which may have lines'
// ends within quotes. Empty lines are passed over.
func commas(in io.Reader) func() (line int, fields []*string, err error) {
	r := csv.NewReader(in)
	r.FieldsPerRecord, r.ReuseRecord = -1, true
	return func() (int, []*string, error) {
		record, err := r.Read()
		var wrong *csv.ParseError
		if errors.As(err, &wrong) {
			return wrong.Line, nil, allocator.Errorf(allocator.Invalid, "no CSV: %w", wrong.Err)
		}
		if err != nil {
			return 0, nil, err
		}
		line, _ := r.FieldPos(0)
		fields := make([]*string, len(record))
		size := 0
		for i, field := range record {
			fields[i] = &field
			size += len(field)
		}
		if size > maxLine {
			return line, nil, tooLong()
		}
		return line, fields, nil
	}
}
