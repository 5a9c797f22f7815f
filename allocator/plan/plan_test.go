package plan_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
)

var rewrite = flag.Bool("rewrite", false, "write the expected output of testdata anew")

// TestPlans runs testdata/*.txt. A case is a command, its input lines, "----", and
// the output up to an empty line. Text between the cases is prose. The commands:
//
//	plan BOUNDARY ROOM=LOWER-UPPER...    a plan from this layout, version 7
//	atomic BOUNDARY ROOM=LOWER-UPPER...  the same with --atomic
//	back BOUNDARY ROOM=LOWER-UPPER...    the same by Back
//	edit BOUNDARY ROOM=LOWER-UPPER...    only the layout that the edits make
//
// and the input lines: move, add-room, drain and boundary with the values of their
// flags, or target BOUNDARY ROOM=LOWER-UPPER...
func TestPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runCases(string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s: got (-rewrite makes it the expected output):\n%s", file, got)
			}
		})
	}
}

// runCases returns the file with the output of each case as it is now.
func runCases(text string) string {
	var out strings.Builder
	lines := strings.SplitAfter(text, "\n")
	for i := 0; i < len(lines); i++ {
		out.WriteString(lines[i])
		command, rest, _ := strings.Cut(strings.TrimSpace(lines[i]), " ")
		if command != "plan" && command != "atomic" && command != "back" && command != "edit" ||
			!strings.Contains(rest, "=") {
			continue
		}
		var input []string
		for i++; i < len(lines) && lines[i] != "----\n"; i++ {
			out.WriteString(lines[i])
			input = append(input, strings.TrimSpace(lines[i]))
		}
		out.WriteString("----\n" + runCase(command, rest, input) + "\n")
		for i++; i < len(lines) && lines[i] != "\n"; i++ { // the old output
		}
	}
	return out.String()
}

func runCase(command, layout string, input []string) string {
	from, target, err := readCase(layout, input)
	if command == "edit" && err == nil {
		return picture(target) + "\n"
	}
	var p plan.Plan
	switch {
	case err != nil:
	case command == "back":
		p, err = plan.Workers{}.Back(from, target)
	default:
		p, err = plan.New(from, target, command == "atomic")
	}
	if err != nil {
		return fmt.Sprintf("%s: %v\n", allocator.KindOf(err), err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%d           %s\n", p.From.Version, picture(p.From))
	for _, m := range p.Moves {
		fmt.Fprintf(&out, "%-2d %-8s %s\n", m.Layout.Version, m.Kind, picture(m.Layout))
		if len(m.Loses) > 0 {
			fmt.Fprintf(&out, "   loses: %v\n", m.Loses)
		}
		fmt.Fprintf(&out, "   why: %s\n", m.Why)
	}
	return out.String()
}

func readCase(layout string, input []string) (from, target allocator.Layout, err error) {
	if from, err = readLayout(layout); err != nil {
		return from, target, err
	}
	from.Version = 7
	var edits []plan.Edit
	for _, line := range input {
		what, value, _ := strings.Cut(line, " ")
		var edit plan.Edit
		switch what {
		case "target":
			target, err = readLayout(value)
			return from, target, err
		case "move":
			edit, err = plan.ParseMove(value)
		case "add-room":
			edit, err = plan.ParseAddRoom(value)
		case "drain":
			edit = plan.Drain(allocator.Room(value))
		case "boundary":
			var n int64
			n, err = strconv.ParseInt(value, 10, 64)
			edit = plan.ScaleBoundary(n)
		default:
			err = fmt.Errorf("no edit %q", what)
		}
		if err != nil {
			return from, target, err
		}
		edits = append(edits, edit)
	}
	target, err = plan.Apply(from, edits...)
	return from, target, err
}

func readLayout(s string) (allocator.Layout, error) {
	fields := strings.Fields(s)
	boundary, err := strconv.ParseInt(fields[0], 10, 64)
	l := allocator.Layout{Boundary: boundary, Ranges: make(map[allocator.Room]allocator.Range)}
	for _, field := range fields[1:] {
		var r allocator.Range
		room, run, _ := strings.Cut(field, "=")
		if _, err := fmt.Sscanf(run, "%d-%d", &r.Lower, &r.Upper); err != nil {
			return l, fmt.Errorf("%q: %w", field, err)
		}
		l.Ranges[allocator.Room(room)] = r
	}
	return l, err
}

func picture(l allocator.Layout) string {
	s := fmt.Sprintf("%s mod %d:", plan.Picture(l, 40), l.Boundary)
	for _, room := range l.Rooms() {
		s += fmt.Sprintf(" %s %v", room, l.Ranges[room])
	}
	return s
}

func TestNewPlanChecksItsInput(t *testing.T) {
	good := allocator.Layout{Version: 3, Boundary: 10,
		Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 5}}}
	overlap := allocator.Layout{Boundary: 10, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 5},
		"b": {Lower: 4, Upper: 7}}}
	unstored := good
	unstored.Version = 0
	for _, c := range []struct {
		from, target allocator.Layout
		layoutError  bool
		says         string
	}{
		{good, overlap, true, "target: invalid layout: rooms a [0, 5) and b [4, 7) overlap in [4, 5)"},
		{overlap, good, true, "from: invalid layout"},
		{good, allocator.Layout{}, true, "target: invalid layout: boundary 0"},
		{unstored, good, false, "from: layout version 0; allowed: 1 or more"},
		{good, good, false, "target: boundary 10, a [0, 5) is the current layout, version 3"},
	} {
		for _, atomic := range []bool{false, true} {
			_, err := plan.New(c.from, c.target, atomic)
			var layoutError *allocator.LayoutError
			if !errors.Is(err, allocator.Invalid) || errors.As(err, &layoutError) != c.layoutError ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("%v to %v: %v, want %q", c.from, c.target, err, c.says)
			}
		}
	}
}

// A plan lives as long as a migration. The layouts passed to New may change meanwhile.
func TestPlanOwnsItsLayouts(t *testing.T) {
	from := allocator.Layout{Version: 1, Boundary: 10,
		Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 5}}}
	target := allocator.Layout{Boundary: 10, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 7}}}
	p, err := plan.New(from, target, false)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprint(p)
	clear(from.Ranges)
	clear(target.Ranges)
	if got := fmt.Sprint(p); got != want {
		t.Errorf("became %s, want %s", got, want)
	}
	clear(p.Moves[0].Layout.Ranges)
	if len(p.Target.Ranges) != 1 {
		t.Error("the target is the last move's own layout")
	}
}

func TestPicture(t *testing.T) {
	line := func(boundary int64, ranges ...any) allocator.Layout {
		l := allocator.Layout{Boundary: boundary, Ranges: make(map[allocator.Room]allocator.Range)}
		for i := 0; i < len(ranges); i += 3 {
			l.Ranges[allocator.Room(ranges[i].(string))] = allocator.Range{Lower: int64(ranges[i+1].(int)),
				Upper: int64(ranges[i+2].(int))}
		}
		return l
	}
	for _, c := range []struct {
		l     allocator.Layout
		width int
		want  string
	}{
		{line(100, "a", 0, 50, "b", 50, 80, "c", 90, 100), 20, "[aaaaaaaaaabbbbbb..cc]"},
		{line(100, "a", 0, 50, "b", 50, 80, "c", 90, 100), 0, "[ab.c]"},
		{line(100, "a", 0, 50, "b", 50, 80, "c", 90, 100), -5, "[ab.c]"},
		{line(1000, "a", 0, 998, "b", 998, 999), 10, "[aaaaaaaab.]"},
		{line(1000, "a", 1, 2, "b", 2, 3, "c", 3, 1000), 10, "[.abccccccc]"},
		{line(100, "eu-1", 0, 50, "eu-2", 50, 90, "us", 90, 100), 20, "[eu-1111111eu-22222us]"},
		{line(100, "eu-1", 0, 10, "eu-2", 10, 90, "us", 95, 100), 20, "[11eu-2222222222222.s]"},
		{line(1, "a", 0, 1), 5, "[aaaaa]"},
		{allocator.Layout{Boundary: math.MaxInt64, Ranges: map[allocator.Room]allocator.Range{
			"a": {Lower: 1, Upper: math.MaxInt64 / 2}, "b": {Lower: math.MaxInt64 - 1, Upper: math.MaxInt64}}},
			10, "[.aaaa....b]"},
		{allocator.Layout{}, 10, "[invalid layout: boundary 0; allowed: 1 to 9223372036854775807; 0 rooms; " +
			"allowed: 1 to 64]"},
	} {
		if got := plan.Picture(c.l, c.width); got != c.want {
			t.Errorf("%v, %d wide: got %s, want %s", c.l, c.width, got, c.want)
		}
	}
}
