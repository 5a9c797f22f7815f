// Package imports reads the counters of other systems, and has March go on above them.
//
// A source is a table in a text: TSV as `mysql --batch` writes it, or CSV as `psql --csv` does.
// Reading yields rows; Merge makes of them one Counter for each name: the tag by
// internal/foreign, and the least ID that March may issue. That is the other system's next ID
// and a margin. The margin is for what the other system's servers and clients take after the
// table was read, while both run.
//
// Apply makes the tags that are missing, and skips ahead in those that may issue IDs below
// their counter. It only ever raises, so it can be repeated: with the same rows it changes
// nothing, and with later ones it raises what they raise.
//
// A row that is not what its system writes is Bad, by its place, its field and its value.
package imports

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/foreign"
)

// System is another system that counts.
type System struct {
	Name string // as the command line has it
	// columns are those of its rows: the name, the counter, and what else there is.
	columns []column
	// last is 1 where the counter is an ID that was given out, not the one that comes next.
	last int64
	// margin returns the default margin for a step; 0 is a step that is not known.
	margin func(step int64) int64
	// Margin says how the default margin is computed.
	Margin string
}

type column struct {
	names    []string // in small letters; the first is the column's own
	optional bool
}

// Margins of systems that say no step.
const (
	leafLargestStep = 1_000_000 // Leaf doubles its step up to this one while it is busy
	unknownMargin   = 100_000   // twenty minutes at 80 IDs per second
	cosidMargin     = 1_000_000 // its clients double what they ask for while they are busy
)

var (
	stepColumn = column{names: []string{"step"}, optional: true}

	// Leaf counts in leaf_alloc. A segment is [max_id before, max_id), so max_id comes next.
	Leaf = &System{
		Name: "leaf", columns: []column{{names: []string{"biz_tag"}},
			{names: []string{"max_id"}}, stepColumn},
		margin: func(step int64) int64 { return twice(max(step, leafLargestStep)) },
		Margin: "two steps of the row, and 2,000,000 at least, as a busy Leaf server doubles its step up to 1,000,000",
	}
	// TinyID counts in tiny_id_info. A segment is (max_id before, max_id]; of n databases each
	// has its own row, with delta n.
	TinyID = &System{
		Name: "tinyid", last: 1,
		columns: []column{{names: []string{"biz_type"}}, {names: []string{"max_id"}}, stepColumn,
			{names: []string{"delta"}, optional: true}, {names: []string{"remainder"}, optional: true}},
		margin: func(step int64) int64 {
			if step == 0 {
				return unknownMargin
			}
			return twice(step)
		},
		Margin: "two steps of the row, or 100,000 where it has no step",
	}
	// CosID counts in the table cosid, or in the keys cosid:{NAME}.adder of a Redis.
	// A segment is (last_max_id before, last_max_id].
	CosID = &System{
		Name: "cosid", last: 1, columns: []column{{names: []string{"name"}},
			{names: []string{"last_max_id"}}},
		margin: func(int64) int64 { return cosidMargin },
		Margin: "1,000,000, as CosId stores no step and a busy client doubles what it asks for",
	}
	// Redis counts in keys, by INCR and INCRBY.
	Redis = &System{
		Name: "redis", last: 1, columns: []column{{names: []string{"key"}}, {names: []string{"value"}}},
		margin: func(int64) int64 { return unknownMargin }, Margin: "100,000, as Redis stores no step",
	}
	// MySQL counts in the AUTO_INCREMENT of tables, which is the ID that comes next.
	MySQL = &System{
		Name: "mysql", columns: []column{{names: []string{"table_name", "name"}}, {names: []string{"auto_increment"}}},
		margin: func(int64) int64 { return unknownMargin }, Margin: "100,000, as MySQL stores no step",
	}
)

// Systems are all systems, in the order of the documents.
var Systems = []*System{Leaf, TinyID, CosID, Redis, MySQL}

// ParseSystem returns the system of a name. Its error is Invalid.
func ParseSystem(name string) (*System, error) {
	names := make([]string, len(Systems))
	for i, s := range Systems {
		if names[i] = s.Name; s.Name == name {
			return s, nil
		}
	}
	return nil, allocator.Errorf(allocator.Invalid, "system: %q; allowed: %s", name, strings.Join(names, ", "))
}

// twice returns 2n, MaxID where that is more.
func twice(n int64) int64 {
	if n > allocator.MaxID/2 {
		return allocator.MaxID
	}
	return 2 * n
}

// Row is a counter as a source has it.
type Row struct {
	Place string // for people: "leaf.tsv, line 3"
	Name  string
	Next  int64 // the least ID that the system did not give out
	Step  int64 // 0 where it is not known
	Delta int64 // TinyId's: how many databases count for this name; 1 in other systems
	// Remainder is TinyId's: which of them this row is of.
	Remainder int64
}

// Bad is a row that cannot be imported. It is an error of Kind Invalid.
type Bad struct {
	Place   string `json:"place"`
	Field   string `json:"field"`
	Value   string `json:"value"`
	Allowed string `json:"allowed"`
}

func (b *Bad) Error() string {
	return b.Place + ": " + b.Field + ": " + strconv.Quote(shorten(b.Value)) + "; allowed: " + b.Allowed
}

func (b *Bad) Unwrap() error { return allocator.Invalid }

// shorten returns a value as a message has it.
func shorten(s string) string {
	const most = 100
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// row reads the fields of a row, which are in the order of the system's columns; nil is a
// field that is not there, or NULL.
func (s *System) row(place string, fields []*string) (Row, *Bad) {
	r := Row{Place: place, Delta: 1}
	for i, c := range s.columns {
		if fields[i] == nil {
			if c.optional {
				continue
			}
			return Row{}, &Bad{place, c.names[0], "NULL", c.allowed(i)}
		}
		value := *fields[i]
		if i == 0 {
			if r.Name = value; value == "" {
				return Row{}, &Bad{place, c.names[0], "", c.allowed(i)}
			}
			continue
		}
		least, most := c.bounds()
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil || n < least || n > most {
			return Row{}, &Bad{place, c.names[0], value, c.allowed(i)}
		}
		switch c.names[0] {
		case "step":
			r.Step = n
		case "delta":
			r.Delta = n
		case "remainder":
			r.Remainder = n
		default:
			r.Next = n + s.last
		}
	}
	if r.Remainder >= r.Delta {
		return Row{}, &Bad{place, "remainder", strconv.FormatInt(r.Remainder, 10),
			"below delta (" + strconv.FormatInt(r.Delta, 10) + ")"}
	}
	return r, nil
}

// bounds returns what is allowed in a column of numbers.
func (c column) bounds() (least, most int64) {
	switch c.names[0] {
	case "step":
		return 1, allocator.LargestStep
	case "delta":
		return 1, 1<<31 - 1 // TinyId's clients read both as ints of 32 bits
	case "remainder":
		return 0, 1<<31 - 1
	}
	return 0, allocator.MaxID - 2
}

func (c column) allowed(i int) string {
	if i == 0 {
		return "a name"
	}
	least, most := c.bounds()
	return "a whole number, " + strconv.FormatInt(least, 10) + " to " + strconv.FormatInt(most, 10)
}

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
	places := make([]int, len(s.columns)) // where they are in a table without a line that names them
	for i := range places {
		places[i] = i
	}
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
func tsv(in io.Reader) func() (line int, fields []*string, err error) {
	lines, line := bufio.NewScanner(in), 0
	lines.Buffer(nil, maxLine)
	return func() (int, []*string, error) {
		for lines.Scan() {
			if line++; lines.Text() == "" {
				continue
			}
			var fields []*string
			for field := range strings.SplitSeq(lines.Text(), "\t") {
				fields = append(fields, unescape(field))
			}
			return line, fields, nil
		}
		if errors.Is(lines.Err(), bufio.ErrTooLong) {
			return line + 1, nil, tooLong()
		}
		return line + 1, nil, cmp.Or(lines.Err(), io.EOF)
	}
}

func tooLong() error {
	return allocator.Errorf(allocator.Invalid, "the line is too long; allowed: up to %d bytes", maxLine)
}

var (
	escaped = regexp.MustCompile(`(?s)\\.`)
	escapes = map[string]string{`\n`: "\n", `\t`: "\t", `\r`: "\r", `\0`: "\x00"} // any other stands for itself
)

// unescape returns what a field of TSV stands for, nil for NULL.
func unescape(field string) *string {
	if field == "NULL" || field == `\N` {
		return nil
	}
	field = escaped.ReplaceAllStringFunc(field, func(e string) string { return cmp.Or(escapes[e], e[1:]) })
	return &field
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

// Counter is what March is to go on above, for one name.
type Counter struct {
	Name   string        `json:"name"`
	Tag    allocator.Tag `json:"tag"`
	Next   int64         `json:"next,string"` // the least ID that the other system did not give out
	Margin int64         `json:"margin,string"`
	From   int64         `json:"from,string"` // the least ID that March may issue: Next + Margin
	Step   int64         `json:"-"`           // 0 where it is not known
	Notes  []string      `json:"notes,omitempty"`
}

// Merge makes of rows a counter for each name, in the order of the names. Rows of one name,
// of several databases say, make one counter: the largest of them. A margin below 0 stands
// for the system's default.
func Merge(s *System, rows []Row, margin int64) (counters []Counter, bad []*Bad) {
	sorted := slices.Clone(rows)
	slices.SortStableFunc(sorted, func(a, b Row) int { return strings.Compare(a.Name, b.Name) })
	folded := make(map[string][]string) // names by what they are in MySQL's usual collations
	for len(sorted) > 0 {
		n := 1
		for n < len(sorted) && sorted[n].Name == sorted[0].Name {
			n++
		}
		c, wrong := merged(s, sorted[:n], margin)
		sorted = sorted[n:]
		if wrong != nil {
			bad = append(bad, wrong)
			continue
		}
		counters = append(counters, c)
		fold := strings.ToLower(c.Name)
		folded[fold] = append(folded[fold], c.Name)
	}
	for i := range counters {
		c := &counters[i]
		if same := folded[strings.ToLower(c.Name)]; len(same) > 1 {
			c.Notes = append(c.Notes, fmt.Sprintf("differs only in case from %s: two tags here, "+
				"one key where case does not count",
				quoted(slices.DeleteFunc(slices.Clone(same), func(n string) bool { return n == c.Name }))))
		}
	}
	return counters, bad
}

func merged(s *System, rows []Row, margin int64) (Counter, *Bad) {
	largest := rows[0]
	remainders := make(map[int64]bool)
	var step, delta int64
	for _, r := range rows {
		if r.Next > largest.Next {
			largest = r
		}
		remainders[r.Remainder] = true
		step, delta = max(step, r.Step), max(delta, r.Delta)
	}
	c := Counter{Name: largest.Name, Next: largest.Next, Step: step, Margin: margin}
	if margin < 0 {
		c.Margin = s.margin(step)
	}
	var err error
	if c.Tag, err = foreign.Tag(c.Name); err != nil {
		return c, &Bad{largest.Place, s.columns[0].names[0], c.Name,
			"a name of 1 to 1024 bytes"}
	}
	if c.Next > allocator.MaxID-1-c.Margin {
		return c, &Bad{largest.Place, s.columns[1].names[0], strconv.FormatInt(c.Next-s.last, 10),
			fmt.Sprintf("up to %d with a margin of %d", max(allocator.MaxID-1-c.Margin-s.last, 0), c.Margin)}
	}
	c.From = c.Next + c.Margin
	if int64(len(remainders)) < delta {
		c.Notes = append(c.Notes, fmt.Sprintf("%d of %d databases (delta): import the tables of all of them together",
			len(remainders), delta))
	} else if len(rows) > 1 {
		c.Notes = append(c.Notes, fmt.Sprintf("%d rows: the largest", len(rows)))
	}
	return c, nil
}

// quoted lists names.
func quoted(names []string) string {
	for i, n := range names {
		names[i] = strconv.Quote(shorten(n))
	}
	return strings.Join(names, ", ")
}

// State is what became of a counter.
type State string

// States. In a dry run they say what would become of it.
const (
	Created   State = "created"   // there was no such tag
	Raised    State = "raised"    // the tag might have issued IDs below the counter
	Unchanged State = "unchanged" // the tag issues only IDs from the counter on
	Failed    State = "refused"   // the tag cannot go on above the counter
)

// Result is a counter and what became of it.
type Result struct {
	Counter
	State State  `json:"state"`
	Why   string `json:"why,omitempty"` // it was refused
}

// Console calls the console: use is called with a context that has a deadline of its own.
type Console func(ctx context.Context, use func(context.Context, marchv1.ConsoleServiceClient) error) error

// atOnce is how many counters are asked for at a time: a call waits for instances.
const atOnce = 8

// Apply has March go on above counters, or in a dry run says what it would do. done is called
// after each counter, by one goroutine at a time.
//
// The results are in the order of the counters. Its error is of a call that was not answered;
// the results are then of the counters before that: what is done is done, and a second
// run goes on.
func Apply(ctx context.Context, console Console, counters []Counter, dry bool, done func(Result)) ([]Result, error) {
	var rooms []string // that have skips of their own: before `march cluster upgrade`
	err := console(ctx, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
		answer, err := s.GetLayout(ctx, &marchv1.GetLayoutRequest{})
		if answer.GetLayout().GetFormats() >= 2 {
			return err
		}
		for room := range answer.GetLayout().GetLayout().GetRooms() {
			rooms = append(rooms, room)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	results := make([]*Result, len(counters))
	var one sync.Mutex // around done
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, c := range counters {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			r := Result{Counter: c}
			r.Notes = slices.Clone(c.Notes)
			err := console(ctx, func(ctx context.Context, s marchv1.ConsoleServiceClient) (err error) {
				r.State, err = r.apply(ctx, s, rooms, dry)
				return err
			})
			switch allocator.KindOf(err) {
			case allocator.Invalid, allocator.Refused, allocator.Exhausted:
				r.State, r.Why, err = Failed, err.Error(), nil
			}
			if err != nil {
				return fmt.Errorf("tag %s: %w", c.Tag, err)
			}
			results[i] = &r
			one.Lock()
			defer one.Unlock()
			done(r)
			return nil
		})
	}
	err = group.Wait()
	all := make([]Result, 0, len(results))
	for _, r := range results {
		if r != nil {
			all = append(all, *r)
		}
	}
	return all, err
}

// apply makes or raises the tag of r.
func (r *Result) apply(ctx context.Context, s marchv1.ConsoleServiceClient, rooms []string, dry bool) (State, error) {
	answer, err := s.GetTag(ctx, &marchv1.GetTagRequest{Name: string(r.Tag)})
	if allocator.KindOf(err) == allocator.NotFound {
		settings := r.settings()
		if dry {
			return Created, nil
		}
		_, err = s.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: settings})
		if allocator.KindOf(err) != allocator.Exists { // another caller made it just now
			return Created, err
		}
		answer, err = s.GetTag(ctx, &marchv1.GetTagRequest{Name: string(r.Tag)})
	}
	if err != nil {
		return "", err
	}
	tag := answer.GetTag()
	switch {
	case tag.GetTime() != nil:
		return "", allocator.Errorf(allocator.Refused, "tag %s exists, and has time-ordered IDs", r.Tag)
	case r.From >= tag.GetLimit():
		return "", allocator.Errorf(allocator.Refused, "tag %s has the limit %d; first `march tag update %s --limit N`",
			r.Tag, tag.GetLimit(), r.Tag)
	case above(tag, rooms, r.From):
		return Unchanged, nil
	case dry:
		return Raised, nil
	}
	// A room's mark says nothing of what its instances hold still, so only start and skips
	// do. SkipTag has all instances drop what they hold below.
	skipped, err := s.SkipTag(ctx, &marchv1.SkipTagRequest{Name: string(r.Tag), To: r.From})
	if err != nil {
		return "", err
	}
	if behind := skipped.GetBehind(); len(behind) > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("may still issue IDs below %d, as they did not answer or follow: %s",
			r.From, strings.Join(behind, ", ")))
	}
	return Raised, nil
}

// above reports whether a tag's settings keep all rooms from issuing IDs below from, and those
// that come later if rooms is empty.
func above(tag *marchv1.Tag, rooms []string, from int64) bool {
	return max(tag.GetStart(), tag.GetSkip()) >= from || len(rooms) > 0 &&
		!slices.ContainsFunc(rooms, func(room string) bool { return tag.GetSkips()[room] < from })
}

// settings returns a new tag for r. It leases as many IDs at once as the other system did.
func (r *Result) settings() *marchv1.Tag {
	t := &marchv1.Tag{Name: string(r.Tag), Start: &r.From}
	if r.Step > 0 {
		t.MinStep = &r.Step
		if largest := max(r.Step, record.DefaultTag().MaxStep); r.Step == largest {
			t.MaxStep = &largest
		}
	}
	return t
}
