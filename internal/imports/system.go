package imports

import (
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
)

// System is another system that counts.
type System struct {
	Name string // as the command line has it
	// columns are those of its rows: the name, the counter, and what else there is.
	columns []column
	// used is whether the counter is an ID that was given out, not the one that comes next.
	used bool
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
		Name: "tinyid", used: true,
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
		Name: "cosid", used: true, columns: []column{{names: []string{"name"}},
			{names: []string{"last_max_id"}}},
		margin: func(int64) int64 { return cosidMargin },
		Margin: "1,000,000, as CosId stores no step and a busy client doubles what it asks for",
	}
	// Redis counts in keys, by INCR and INCRBY.
	Redis = &System{
		Name: "redis", used: true, columns: []column{{names: []string{"key"}}, {names: []string{"value"}}},
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

// Unwrap returns the Kind.
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
			r.Next = n
			if s.used {
				r.Next++
			}
		}
	}
	if r.Remainder >= r.Delta {
		return Row{}, &Bad{place, "remainder", strconv.FormatInt(r.Remainder, 10),
			"below delta (" + strconv.FormatInt(r.Delta, 10) + ")"}
	}
	return r, nil
}

// stored returns what the system's column has where next comes next.
func (s *System) stored(next int64) int64 {
	if s.used {
		return next - 1
	}
	return next
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
