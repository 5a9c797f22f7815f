package imports

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/foreign"
)

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
		shift := c.Next - s.stored(c.Next) // the column's value is what is bounded
		return c, &Bad{largest.Place, s.columns[1].names[0], strconv.FormatInt(s.stored(c.Next), 10),
			fmt.Sprintf("up to %d with a margin of %d", max(allocator.MaxID-1-c.Margin-shift, 0), c.Margin)}
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
