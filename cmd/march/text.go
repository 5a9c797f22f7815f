package main

import (
	"fmt"
	"io"
	"strings"

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

// cell returns the parts as far as they fit into a table's cell, and how many more
// there are.
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
// ranges, which go on in rows below; end follows the last one.
func layoutRows(w io.Writer, what string, l *marchv1.Layout, end string) {
	lines := fold(rangeParts(l), ",", rangesWidth)
	lines[len(lines)-1] += end
	_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", what, picture(l), lines[0])
	for _, line := range lines[1:] {
		_, _ = fmt.Fprintf(w, "\t\t%s\n", line)
	}
}

// problemsText lists what is wrong: each with since when, what to do, and the command.
func problemsText(w io.Writer, problems []*marchv1.Problem) {
	_, _ = io.WriteString(w, problem.Lines(problems, printable))
}

// doText says what to do about a problem, and the command.
func doText(p *marchv1.Problem) string { return problem.Do(p, printable) }

// stoppedText lists what is wrong. A console of an earlier version has no list, and tells
// only of a halt and of a layout that cannot be used.
func stoppedText(w io.Writer, problems []*marchv1.Problem, halt *marchv1.Halt, unusable string) {
	if len(problems) == 0 && halt != nil {
		problems = append(problems, problem.Halted(halt.GetBy(), halt.GetWhy(), halt.GetTime().AsTime()))
	}
	if len(problems) == 0 && unusable != "" {
		problems = append(problems, problem.Unusable(unusable))
	}
	problemsText(w, problems)
}
