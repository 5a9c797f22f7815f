// Package show has the parts of the commands' texts: folded lines, cells of tables, times, and
// words for the values of enums.
package show

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// A cluster has up to 64 rooms, and many instances. A text that lists them is folded, or
// cut if it is a cell of a table.
const (
	TextWidth   = 110 // of a text of its own
	RangesWidth = 70  // of ranges next to a picture
	CellWidth   = 80  // of a table's cell
)

// Fold returns the parts in lines of up to width columns; a part that is longer has a
// line to itself.
func Fold(parts []string, separator string, width int) []string {
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

// Folded writes a text in lines of up to TextWidth columns, the first after begin, the
// others as far to the right.
func Folded(w io.Writer, begin, text string) {
	for _, line := range Fold(strings.Fields(text), "", TextWidth-len(begin)) {
		_, _ = fmt.Fprintln(w, begin+line)
		begin = strings.Repeat(" ", len(begin))
	}
}

// Cell returns the parts that fit into a table's cell, and the number of the
// others.
func Cell(parts []string) string {
	text := ""
	for i, part := range parts {
		next := strings.TrimPrefix(text+", "+part, ", ")
		if i > 0 && len(next) > CellWidth {
			return fmt.Sprintf("%s and %d more", text, len(parts)-i)
		}
		text = next
	}
	return text
}

// Excerpt shortens a parser's message, which may quote the file, to fit a line, and
// removes control characters.
func Excerpt(msg string) string {
	const most = 400
	if len(msg) > most {
		msg = strings.ToValidUTF8(msg[:most], "") + "..."
	}
	return Printable(msg)
}

// Printable keeps control characters away from a terminal.
func Printable(msg string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, msg)
}
