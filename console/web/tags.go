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

type tagsView struct {
	*marchv1.SearchTagsResponse
	Search      string
	Tags        *list
	First, Last int
	Prev, Next  string // addresses
	New         tagForm
	NewOpen     bool
	Orders      []shownLink // by name, rate or risk
}

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
	v := &tagsView{NewOpen: q.Get("do") == "new", SearchTagsResponse: found, Search: q.Get("search"),
		New: newTagForm(c, "create", nil)}
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
	v.Tags = newList("Tags", setting.Tags, found.GetTags(), func(t *marchv1.TagSummary) (listRow, palette) {
		return listRow{ID: "tag-" + t.GetTag().GetName(), Page: "/tags/" + escape(t.GetTag().GetName())}, c.colour
	})
	v.Tags.Class = " tags"
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
		v.Tags.Heads = append(v.Tags.Heads, head)
	}
	v.First, v.Last = (page-1)*tagsPage+1, (page-1)*tagsPage+len(v.Tags.Rows)
	if page > 1 {
		v.Prev = with(q, "page", strconv.Itoa(page-1))
	}
	if int64(v.Last) < found.GetFound() && len(v.Tags.Rows) > 0 {
		v.Next = with(q, "page", strconv.Itoa(page+1))
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
	Name, Kind                string
	Kinds                     []string
	Any, Counter, Rare, Timed []settingField
	More                      bool // a field that is folded away was filled in
	Problem                   *problem
}

// newTagForm returns the form of a tag; t is nil for one that is to be created.
func newTagForm(c *call, form string, t *marchv1.Tag) tagForm {
	kind, word, prefix := setting.KindOf(t), setting.KindOf(t).String(), "s"
	if t == nil {
		kind, prefix = setting.Any, "new"
	}
	f := tagForm{Name: c.or(form, "name", ""), Kind: c.or(form, "kind", word), Kinds: []string{"counter", "time"},
		Problem: c.problemOf(form, "tag", "kind")}
	settings := setting.Settings(kind, t == nil)
	if p := f.Problem; p != nil && p.Field == "" {
		for _, s := range settings { // an error names the form's field, or the message's
			if p := c.problemOf(form, s.Name(), s.Path[strings.LastIndexByte(s.Path, '.')+1:]); p.Field != "" {
				f.Problem = &problem{s.Name(), p.Text}
			}
		}
	}
	for _, s := range settings {
		field := c.field(form, prefix, s, s.Text(t), f.Problem)
		if standard := s.Default(); t == nil && standard != "" && !field.Box {
			field.Hint, field.None = field.Hint+"; "+shown(s, standard)+" if left empty", "default"
		} else if t == nil {
			field.None = "none"
		}
		list := [...]*[]settingField{setting.Any: &f.Any, setting.Counter: &f.Counter, setting.Timed: &f.Timed}[s.Kind]
		if s.Rare && t == nil {
			list = &f.Rare
		}
		*list = append(*list, field)
	}
	if t == nil {
		f.Rare = append(f.Rare, c.fields(form, prefix, setting.CreateFields, &marchv1.CreateTagRequest{}, f.Problem)...)
		f.More = slices.ContainsFunc(f.Rare, func(s settingField) bool { return s.Value != "" })
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
