package web

import (
	"fmt"
	"html/template"
	"net/url"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// list is a list with columns that terminals show, too, for the template of that name.
type list struct {
	Caption, Class string
	Rows           []listRow
	Heads          []column // with links to sort by them; nil for none
}

// pages are the addresses of the first and of the next page of a list; empty for none.
type pages struct{ Newest, Older string }

// pagesOf returns those of a page whose parameters are q: param has its token, and next is that of the next one.
func pagesOf(q url.Values, param, next string) (p pages) {
	if q.Get(param) != "" {
		p.Newest = with(q, param, "")
	}
	if next != "" {
		p.Older = with(q, param, next)
	}
	return p
}

// listRow is a row of a list. Page is the address of what it shows; empty for none.
type listRow struct {
	ID, Page string
	Cells    []cell
}

// shownMarks is how many rooms' marks a row has; the tag's page has all.
const shownMarks = 3

// cell is a value in a list. What it is besides a text, it has for the part of the template that draws that.
type cell struct {
	Title, Label string
	Number, Key  bool
	Warn         bool
	Text         template.HTML
	Marks        []cell
	More         int // marks that are left out
	Room, Wrong  string
	Colour       int
	Bar          *bar
	Part         string // the width of a meter
	State        *setting.State
}

// newList returns a list. row returns what a row has besides its cells, and the rooms' colours.
func newList[T any](caption string, columns []setting.Column[T], rows []T,
	row func(T) (listRow, palette)) *list {
	l := &list{Caption: caption}
	for _, one := range rows {
		r, colour := row(one)
		for _, c := range columns {
			cell := newCell(c.Value(one), colour)
			cell.Title, cell.Number, cell.Key = c.Title, c.Number, c.Key
			cell.Label = strings.ToLower(c.Title[:1]) + c.Title[1:]
			r.Cells = append(r.Cells, cell)
		}
		l.Rows = append(l.Rows, r)
	}
	return l
}

// newCell returns how a page shows a value.
func newCell(value any, colour palette) cell {
	switch v := value.(type) {
	case nil:
		return plain("–")
	case setting.Room:
		return cell{Room: string(v), Colour: colour[string(v)]}
	case setting.Instance:
		return cell{Room: v.String(), Colour: colour[v.Room], Wrong: v.Failure}
	case setting.State:
		return cell{State: &v}
	case setting.Rate:
		return plain(rate(float64(v)))
	case setting.Part:
		return cell{Text: plain(num(v.N)).Text, Part: used(float64(v.N) / float64(max(v.Of, 1)))}
	case setting.Share:
		return cell{Text: plain(percent(float64(v))).Text, Part: used(float64(v))}
	case setting.Lasts:
		return plain(lasts(v.For, v.Ends))
	case setting.Marks:
		if len(v) == 0 {
			return plain("nothing leased yet")
		}
		c := cell{}
		for _, m := range v {
			if len(v) > shownMarks+1 && len(c.Marks) == shownMarks {
				c.More = len(v) - shownMarks
				break
			}
			mark := plain(num(m.GetNext()))
			mark.Room, mark.Colour = m.GetRoom(), colour[m.GetRoom()]
			c.Marks = append(c.Marks, mark)
		}
		return c
	case *marchv1.Layout:
		return cell{Bar: newBar(v, colour).withoutCut()}
	case *marchv1.Range:
		return plain(interval(v))
	case *timestamppb.Timestamp:
		return cell{Text: element(v, stamp(v))}
	case setting.Reserve:
		cell := plain(short(v.Lasts))
		cell.Warn = v.Busy && v.Lasts.AsDuration() < lowReserve
		return cell
	case *durationpb.Duration:
		return plain(short(v))
	case string:
		return plain(v)
	}
	return plain(num(value))
}

func plain(text string) cell {
	return cell{Text: template.HTML(template.HTMLEscapeString(text))} //nolint:gosec // escaped
}

func listWorkers(workers []*marchv1.Worker, colour palette) *list {
	return newList("Workers", setting.Workers, workers, func(w *marchv1.Worker) (listRow, palette) {
		return listRow{ID: fmt.Sprintf("w-%d-%d", w.GetBits(), w.GetNumber())}, colour
	})
}

func listSlices(slices []*marchv1.WorkerSlice, colour palette) *list {
	return newList("Slices", setting.Slices, slices, func(s *marchv1.WorkerSlice) (listRow, palette) {
		return listRow{ID: fmt.Sprintf("slice-%d-%s", s.GetBits(), s.GetRoom())}, colour
	})
}
