package plan

import (
	"maps"
	"math/bits"
	"strings"

	"github.com/march-id/march/allocator"
)

// Picture draws a layout as one line of width characters between brackets: each room's range in
// proportion, gaps as dots, reserved ranges as number signs. A room's stretch begins with its
// name, if that fits, and goes on with the name's last character. Each room and each gap gets
// at least one character, and the line is longer than width if that is too narrow. The same
// room looks the same in every picture. The legend has the exact numbers.
//
//	[aaaaaaaaaabbbbbb....eu-111111]
func Picture(l allocator.Layout, width int) string {
	if err := l.Validate(); err != nil {
		return "[" + err.Error() + "]"
	}
	type stretch struct {
		name  string // "" for a gap, reserved for a reserved range
		upper int64
	}
	const reserved = "#"
	var all []stretch
	var at int64
	taken := allocator.Layout{Ranges: maps.Clone(l.Ranges)}
	for name, r := range l.Reserved {
		taken.Ranges[reserved+name] = r
	}
	for _, room := range taken.Rooms() {
		r := taken.Ranges[room]
		if strings.HasPrefix(string(room), reserved) {
			room = reserved
		}
		if at < r.Lower {
			all = append(all, stretch{upper: r.Lower})
		}
		all = append(all, stretch{string(room), r.Upper})
		at = r.Upper
	}
	if at < l.Boundary {
		all = append(all, stretch{upper: l.Boundary})
	}

	width = max(width, len(all))
	var bar strings.Builder
	bar.WriteByte('[')
	drawn := 0
	for i, s := range all {
		end := nearest(s.upper, int64(width), l.Boundary)
		end = min(max(end, drawn+1), width-(len(all)-1-i)) // one for this, and one for each that follows
		n := end - drawn
		drawn = end
		switch {
		case s.name == "":
			bar.WriteString(strings.Repeat(".", n))
		case n < len(s.name):
			bar.WriteString(strings.Repeat(s.name[len(s.name)-1:], n))
		default:
			bar.WriteString(s.name + strings.Repeat(s.name[len(s.name)-1:], n-len(s.name)))
		}
	}
	bar.WriteByte(']')
	return bar.String()
}

// nearest returns v*width/boundary, rounded, for 0 <= v <= boundary.
func nearest(v, width, boundary int64) int {
	hi, lo := bits.Mul64(uint64(v), uint64(width))
	lo, carry := bits.Add64(lo, uint64(boundary)/2, 0)
	quotient, _ := bits.Div64(hi+carry, lo, uint64(boundary))
	return int(quotient)
}
