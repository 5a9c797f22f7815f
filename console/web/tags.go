package web

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// tagsPage is how many tags a page shows.
const tagsPage = 50

// column is the head of a column by which tags can be sorted.
type column struct {
	Title, Address, Sorted string
	Number                 bool
}

func (h *Handler) tags(c *call) (any, error) {
	q := c.query()
	page, err := strconv.Atoi(cmp.Or(q.Get("page"), "1"))
	if err != nil || page < 1 || page > math.MaxInt32/tagsPage {
		return nil, allocator.Errorf(allocator.Invalid, "page: %q; allowed: 1 to %d",
			q.Get("page"), math.MaxInt32/tagsPage)
	}
	by, err := api.ParseWord[marchv1.TagSort]("sort", cmp.Or(q.Get("sort"), "name"))
	if err != nil {
		return nil, err
	}
	down := q.Get("order") == "down"
	found, err := h.console.SearchTags(c.Context(), &marchv1.SearchTagsRequest{
		Search: q.Get("search"), Sort: by, Descending: down, PageSize: tagsPage, Offset: int32((page - 1) * tagsPage), //nolint:gosec // bounded above
	})
	if err != nil {
		return nil, err
	}
	v := &listPage{Tags: found, Search: q.Get("search"), Unreadable: found.GetUnreadable(),
		New: newTagForm(c, "create", nil)}
	v.New.Open = v.New.Problem != nil || q.Get("do") == "new"
	for _, o := range []struct {
		label, sort, order string
		by                 marchv1.TagSort
	}{
		{"by name", "", "", marchv1.TagSort_TAG_SORT_NAME},
		{"busiest first", "rate", "down", marchv1.TagSort_TAG_SORT_RATE},
		{"first to run out", "lasts", "", marchv1.TagSort_TAG_SORT_LASTS},
		{"fullest first", "used", "down", marchv1.TagSort_TAG_SORT_USED},
	} {
		v.Orders = append(v.Orders, shownLink{o.label, "/tags" + with(q, "sort", o.sort, "order", o.order, "page", ""),
			by == o.by && down == (o.order != "")})
	}
	for i, t := range found.GetTags() {
		if found.GetAsOf() == nil { // its rate is not known yet
			found.Tags[i] = &marchv1.TagSummary{Tag: t.GetTag(), Marks: t.GetMarks(), Used: t.GetUsed(), Rate: -1}
		}
	}
	l := newList("Tags", setting.Tags, found.GetTags(), c.colour, nil)
	l.Class = "list tags"
	for _, c := range setting.Tags {
		head, order := column{Title: c.Title, Number: c.Number}, ""
		if api.Word(by) == c.Sort {
			if head.Sorted = "ascending"; down {
				head.Sorted = "descending"
			} else {
				order = "down"
			}
		} else if slices.Contains([]string{"strict", "rate", "used", "next"}, c.Sort) { // the largest come first
			order = "down"
		}
		head.Address = with(q, "sort", c.Sort, "order", order, "page", "")
		l.Heads = append(l.Heads, head)
	}
	first, last := (page-1)*tagsPage+1, (page-1)*tagsPage+len(l.Rows)
	v.Lists = []*list{l}
	if found.GetAsOf() == nil || len(l.Rows) == 0 {
		return v, nil
	}
	v.Where = num(first) + " to " + num(last) + " of " + num(found.GetFound())
	if page > 1 {
		v.Newest = with(q, "page", strconv.Itoa(page-1))
	}
	if int64(last) < found.GetFound() {
		v.Older = with(q, "page", strconv.Itoa(page+1))
	}
	return v, nil
}

// used returns the width of a bar for the share used; a share above 0 is always
// visible.
func used(share float64) string {
	if share > 0 {
		share = max(share, 0.01)
	}
	return pct(100 * share)
}

// createTag handles the form of a new tag.
func (h *Handler) createTag(c *call) (string, error) {
	t, err := c.readSettings(true)
	if err != nil {
		return "", err
	}
	t.Name = c.FormValue("name")
	request := &marchv1.CreateTagRequest{Tag: t}
	if err := c.fill(request, setting.CreateFields...); err != nil {
		return "", err
	}
	if _, err := h.console.CreateTag(c.Context(), request); err != nil {
		return "", err
	}
	return "/tags/" + t.GetName(), nil
}

// tagForm is a tag's settings as a form has them.
type tagForm struct {
	Kind                      string
	Any, Counter, Rare, Timed []field
	More                      bool // a field that is folded away was filled in
	Open                      bool
	Problem                   *problem
}

// newTagForm returns the form of a tag; t is nil for one that is to be created.
func newTagForm(c *call, form string, t *marchv1.Tag) tagForm {
	kind, prefix := setting.KindOf(t), "s"
	f := tagForm{Kind: c.or(form, "kind", kind.String()), Problem: c.problemOf(form, "tag", "kind")}
	if t == nil {
		kind, prefix = setting.Any, "new"
	}
	settings := setting.Settings(kind, t == nil)
	switch p := f.Problem; {
	case p != nil && p.Field == "tag":
		p.Field = "name"
	case p != nil && p.Field == "":
		for _, s := range settings { // an error names the form's field, or the message's
			if p := c.problemOf(form, s.Name(), s.Path[strings.LastIndexByte(s.Path, '.')+1:]); p.Field != "" {
				f.Problem = &problem{s.Name(), p.Text}
			}
		}
	}
	if t == nil {
		f.Any = []field{{ID: "new-name", Name: "name", Label: "Name", Value: c.or(form, "name", ""), P: f.Problem,
			Hint: "a to z, 0 to 9, and . _ - inside", Required: true},
			{ID: "new-kind", Name: "kind", Label: "Kind", Value: f.Kind, P: f.Problem,
				Hint: "a counter, or time-ordered IDs", Of: []string{"counter", "time"}}}
	}
	for _, s := range settings {
		one := c.field(form, prefix, s, s.Text(t), f.Problem)
		if standard := s.Default(); t == nil && standard != "" && one.Type == "" {
			one.Hint, one.None = one.Hint+"; "+shown(s, standard)+" if left empty", "default"
		} else if t == nil {
			one.None = "none"
		}
		list := [...]*[]field{setting.Any: &f.Any, setting.Counter: &f.Counter, setting.Timed: &f.Timed}[s.Kind]
		if s.Rare && t == nil {
			list = &f.Rare
		}
		*list = append(*list, one)
	}
	if t == nil {
		f.Rare = append(f.Rare, c.fields(form, prefix, setting.CreateFields, &marchv1.CreateTagRequest{}, f.Problem)...)
		f.More = slices.ContainsFunc(f.Rare, func(f field) bool { return f.Value != "" })
	}
	return f
}

func shown(s setting.Setting, text string) string {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && s.Type() == "int" {
		return num(n)
	}
	if d, err := time.ParseDuration(text); err == nil && s.Type() == "duration" {
		return shortest(d)
	}
	return text
}

// readSettings reads the form of a tag's settings. Its error is Invalid.
func (c *call) readSettings(create bool) (*marchv1.Tag, error) {
	kind, err := setting.ParseKind(c.FormValue("kind"))
	if err != nil {
		return nil, err
	}
	return setting.Read(kind, create, c.text)
}
