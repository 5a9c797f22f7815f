package web

import (
	"cmp"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// The pages of instances, workers and of what runs out. Those of tags and of the audit have files of their own.

func (h *Handler) instances(c *call) (any, error) {
	q := c.query()
	room := q.Get("room")
	answer, err := h.console.ListInstances(c.Context(), &marchv1.ListInstancesRequest{Room: room, Status: true})
	if err != nil {
		return nil, err
	}
	v := &listPage{Room: room, Refused: c.problemOf("forget"), Problems: c.shown(answer.GetProblems()),
		Bad: answer.GetHalt() != nil || answer.GetProblem() != ""}
	columns := append(slices.Clone(setting.Instances), setting.Col("Actions", func(i *marchv1.Instance) cell {
		actions := html(`<a href="/audit?exact=on&amp;object=rooms/%s/%s">Changes</a>`, i.GetRoom(), i.GetName())
		if c.may(marchv1.ConsoleService_ForgetInstance_FullMethodName, "", i.GetRoom()) {
			at := with(q, "do", "forget", "of", i.GetRoom(), "name", i.GetName())
			actions += html(` <a href="%s">Forget…</a>`, at)
		}
		return cell{Class: "act", Text: actions}
	}))
	l := newList("Instances", columns, answer.GetInstances(), c.colour, func(i *marchv1.Instance) listRow {
		return listRow{ID: "i-" + i.GetRoom() + "-" + i.GetName()} // problems link to it
	})
	for k, i := range answer.GetInstances() {
		l.warn(k, "Layout", i.GetVersion() < c.layout.GetLayout().GetLayout().GetVersion())
		l.warn(k, "etcd", i.GetStatus().GetEtcdAwaySince() != nil)
		if q.Get("do") == "forget" && q.Get("of") == i.GetRoom() && q.Get("name") == i.GetName() {
			v.Forget, v.Hidden = i, url.Values{"of": {i.GetRoom()}, "name": {i.GetName()}}
		}
	}
	v.Lists = []*list{l}
	return v, nil
}

const workersPage = 50

func (h *Handler) workers(c *call) (any, error) {
	q := c.URL.Query()
	r := &marchv1.ListWorkersRequest{PageSize: workersPage, PageToken: q.Get("after")}
	if err := c.choose(r, "bits", "room"); err != nil {
		return nil, err
	}
	answer, err := h.console.ListWorkers(c.Context(), r)
	if err != nil {
		return nil, err
	}
	return &listPage{Unreadable: answer.GetUnreadable(), pages: pagesOf(q, "after", answer.GetNextPageToken()),
		Lists: []*list{newList("Slices", setting.Slices, answer.GetSlices(), c.colour, nil),
			newList("Workers", setting.Workers, answer.GetWorkers(), c.colour, nil)}}, nil
}

func (h *Handler) capacity(c *call) (any, error) {
	answer, err := h.console.GetCapacity(c.Context(), &marchv1.GetCapacityRequest{})
	if err != nil {
		return nil, err
	}
	l := newList("What runs out first", setting.Capacity, answer.GetCapacity(), nil, func(c *marchv1.Capacity) listRow {
		c.What, c.Note = sentence(c.GetWhat()), grouped(c.GetNote())
		return listRow{Page: capacityLink(c)}
	})
	l.Class = "list capacity"
	return &listPage{Lists: []*list{l}, Unread: answer.GetTagsAsOf() == nil}, nil
}

// capacityLink returns the page on which an operator sees what runs out; empty for none.
func capacityLink(c *marchv1.Capacity) string {
	switch c.GetKind() {
	case marchv1.CapacityKind_CAPACITY_KIND_IDS, marchv1.CapacityKind_CAPACITY_KIND_PERIOD,
		marchv1.CapacityKind_CAPACITY_KIND_TIME:
		return "/tags/" + escape(c.GetTag())
	case marchv1.CapacityKind_CAPACITY_KIND_RESERVE:
		return "/instances" + with(nil, "room", c.GetRoom())
	case marchv1.CapacityKind_CAPACITY_KIND_WORKERS:
		return "/workers" + with(nil, "room", c.GetRoom())
	case marchv1.CapacityKind_CAPACITY_KIND_TAGS:
		return "/tags?sort=used&order=down"
	case marchv1.CapacityKind_CAPACITY_KIND_ROOMS:
		return "/"
	case marchv1.CapacityKind_CAPACITY_KIND_CERTIFICATE:
		if room := roomOf(c.GetProcess()); room != c.GetProcess() {
			return "/instances" + with(nil, "room", room)
		}
	}
	return ""
}

// listPage is what a page of lists shows, for the template of that name, which has the texts.
type listPage struct {
	Page       string                      // its name
	Filtered   bool                        // by the page's filter
	Refused    *problem                    // why a change was refused
	Forget     *marchv1.Instance           // to be confirmed
	Hidden     url.Values                  // that confirms it
	New        tagForm                     // of the page of tags, as are those up to Where
	Tags       *marchv1.SearchTagsResponse // nil on all other pages
	Orders     []shownLink                 // by name, rate or risk
	Search     string
	Where      string // which tags are on the page
	Problems   []*marchv1.Problem
	Bad        bool // they are of all rooms
	Unreadable []*marchv1.Unreadable
	Unread     bool // tags were not read yet
	Room       string
	Lists      []*list
	pages
}

// None reports whether there is nothing in what the page is for.
func (v *listPage) None() bool { return len(v.Lists) > 0 && len(v.Lists[len(v.Lists)-1].Rows) == 0 }

// list is a list with columns, for the template of that name. Terminals show many of them, too.
type list struct {
	Caption, Class string
	Rows           []listRow
	Heads          []column // with links to sort by them; nil for none
}

// pages are the addresses of the pages before and after that of a list; empty for none.
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

type listRow struct {
	ID, Page string // Page is the address of what it shows; empty for none
	Cells    []cell
	Wrong    []string // what is wrong with its fields
}

// shownMarks is how many rooms' marks a row has; the tag's page has all.
const shownMarks = 3

// cell is a value in a list. What it is besides a text, it has for the part of the template that draws that.
type cell struct {
	Title, Class string
	Number, Key  bool
	Field        *field
	Text         template.HTML
	Marks        []cell
	More         int // marks that are left out
	Room, Wrong  string
	Colour       int
	Bar          *bar
	Spark        *spark
	Dot, Part    string // where a dot is, and the width of a meter
	State        *setting.State
	Copy         string // what a button beside the text copies
	Change       *auditRow
}

// idChars are those of names that stand for others in the IDs of elements.
var idChars = strings.NewReplacer(" ", "-", "/", "-")

// newList returns a list with columns, which terminals show, too, where they are package setting's. row returns what a
// row has besides its cells; nil for nothing. The ID of a row is by its values up to the one that names it.
func newList[T any](caption string, columns []setting.Column[T], rows []T, colour palette, row func(T) listRow) *list {
	l := &list{Caption: caption}
	for _, one := range rows {
		var r listRow
		if row != nil {
			r = row(one)
		}
		id, named := caption, r.ID != ""
		for _, column := range columns {
			value := column.Value(one)
			c := newCell(value, colour)
			c.Title, c.Key, c.Number = column.Title, column.Key, column.Number
			if c.Number {
				c.Class = strings.TrimSpace("n " + c.Class)
			}
			if !named {
				id += fmt.Sprint("-", value)
			}
			if named = named || c.Key; r.ID == "" && named {
				r.ID = strings.ToLower(idChars.Replace(id))
			}
			r.Cells = append(r.Cells, c)
		}
		l.Rows = append(l.Rows, r)
	}
	return l
}

// warn has the value in a column of a row stand out, if something is wrong with it.
func (l *list) warn(row int, title string, wrong bool) {
	for i := range l.Rows[row].Cells {
		if c := &l.Rows[row].Cells[i]; c.Title == title && wrong {
			c.Class += " warn"
		}
	}
}

func newCell(value any, colour palette) cell {
	switch v := value.(type) {
	case nil:
		return plain("–")
	case cell:
		return v
	case template.HTML:
		return cell{Text: v}
	case field:
		return cell{Field: &v}
	case spark:
		return cell{Spark: &v}
	case setting.Actor:
		name, _, _ := strings.Cut(string(v), " from ")
		return cell{Class: "actor", Text: html(`<a href="/audit%s">%s</a>`, with(nil, "actor", name), v)}
	case setting.Object:
		name, note, _ := strings.Cut(string(v), " ")
		text := html("%s", name)
		if to := linkOf(name); to != "" {
			text = html(`<a href="%s">%s</a>`, to, name)
		}
		return cell{Class: "name", Text: text + html(` <span class="dim">%s</span>`, note)}
	case setting.ID:
		return cell{Text: html("%s", num(v)), Copy: strconv.FormatInt(int64(v), 10)}
	case setting.Value:
		c := plain(shown(v.Of, v.Text))
		if v.Of.Type() == "int" && len(v.Text) > 3 {
			c.Copy = v.Text
		}
		return c
	case setting.TagName:
		return cell{Text: html(`<a class="name" href="/tags/%s">%s</a>`, escape(string(v)), v)}
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
			mark := newCell(setting.Room(m.GetRoom()), colour)
			mark.Text = html("%s", num(m.GetNext()))
			c.Marks = append(c.Marks, mark)
		}
		return c
	case *marchv1.Layout:
		return cell{Bar: newBar(v, colour).withoutCut()}
	case *marchv1.Range:
		return plain(interval(v))
	case *timestamppb.Timestamp:
		return cell{Text: element(v, stamp(v))}
	case setting.Seen:
		if v.Since != nil {
			return plain(v.String())
		}
		return cell{Text: ago(v.At)}
	case setting.Code:
		return cell{Class: "code", Text: newCell(cmp.Or(string(v), "–"), nil).Text, Copy: string(v)}
	case setting.End:
		return cell{Text: ending(v)}
	case setting.Amount:
		text := num(v.N)
		if v.Bytes {
			text = humanize.IBytes(uint64(v.N)) //nolint:gosec // not negative
		}
		if v.Of == 0 {
			return plain(text)
		}
		share := min(float64(v.N)/float64(v.Of), 1)
		return cell{Text: html("%s (%s)", text, percent(share)), Part: used(share)}
	case setting.Reserve:
		return cell{Text: warned(v.Busy && v.Lasts.AsDuration() < lowReserve, short(v.Lasts))}
	case *durationpb.Duration:
		return plain(short(v))
	case string:
		return plain(v)
	}
	return plain(num(value))
}

func plain(text string) cell { return cell{Text: html("%s", text)} }

// warned returns a text, which stands out if something is wrong.
func warned(wrong bool, text string) template.HTML {
	if wrong {
		return html(`<span class="warn">%s</span>`, text)
	}
	return html("%s", text)
}

// runsOutSoon is how long before something runs out the page warns, as `march doctor` does.
const runsOutSoon = 30 * 24 * time.Hour

// ending says when something is used up.
func ending(e setting.End) template.HTML {
	if e.At == nil {
		return html(`<span class="dim">%s</span>`, e.Why)
	}
	text, d := "now", left(e.At)
	if d.GetSeconds() > 0 {
		text = "in " + lasts(d, nil)
	}
	return html(`<span>%s <span class="dim">%s</span></span>`, warned(d.AsDuration() < runsOutSoon, text),
		element(e.At, stamp(e.At)))
}

// html returns HTML with values in it, which are escaped.
func html(format string, values ...any) template.HTML {
	for i, v := range values {
		if _, is := v.(template.HTML); !is {
			values[i] = template.HTMLEscapeString(fmt.Sprint(v))
		}
	}
	return template.HTML(fmt.Sprintf(format, values...)) //nolint:gosec // escaped
}
