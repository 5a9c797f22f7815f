package web

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// tagsPage is how many tags a page shows.
const tagsPage = 50

type tagsView struct {
	*marchv1.SearchTagsResponse
	Search      string
	Columns     []column
	Rows        []tagRow
	First, Last int
	Prev, Next  string // addresses
	New         tagForm
	NewOpen     bool
	Orders      []shownLink // by name, rate or risk
}

// column is a column by which tags can be sorted.
type column struct{ Name, Label, Class, Address, Sorted string }

type tagRow struct {
	*marchv1.TagSummary
	Marks []markView
	More  int // rooms that are left out
	Used  string
}

// shownMarks is how many rooms' marks a row has; the tag's page has all.
const shownMarks = 3

func (h *Handler) tags(c *call) (string, any, error) {
	q := c.URL.Query()
	if c.Method == http.MethodPost {
		q = nil
	}
	page, err := strconv.Atoi(cmp.Or(q.Get("page"), "1"))
	if err != nil || page < 1 || page > math.MaxInt32/tagsPage {
		return "", nil, allocator.Errorf(allocator.Invalid, "page: %q; allowed: 1 to %d",
			q.Get("page"), math.MaxInt32/tagsPage)
	}
	by, err := api.ParseWord[marchv1.TagSort]("sort", cmp.Or(q.Get("sort"), "name"))
	if err != nil {
		return "", nil, err
	}
	down := q.Get("order") == "down"
	found, err := h.console.SearchTags(c.Context(), &marchv1.SearchTagsRequest{
		Search: q.Get("search"), Sort: by, Descending: down, PageSize: tagsPage, Offset: int32((page - 1) * tagsPage), //nolint:gosec // bounded above
	})
	if err != nil {
		return "", nil, err
	}
	colour, err := h.colours(c)
	if err != nil {
		return "", nil, err
	}
	v := &tagsView{NewOpen: q.Get("do") == "new", SearchTagsResponse: found, Search: q.Get("search"),
		New: newTagForm(c, "create", nil)}
	v.New.Name = c.or("create", "name", "")
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
	for _, col := range []column{
		{Name: "name", Label: "Tag"}, {Name: "strict", Label: "Kind"}, {Name: "rate", Label: "Peak IDs/s", Class: "n"},
		{Name: "next", Label: "Marks"},
		{Name: "used", Label: "Space used", Class: "n"}, {Name: "lasts", Label: "Time to the limit", Class: "n"},
		{Name: "created", Label: "Created"},
	} {
		order := ""
		if api.Word(by) == col.Name {
			if col.Sorted = "ascending"; down {
				col.Sorted = "descending"
			} else {
				order = "down"
			}
			// the largest come first
		} else if col.Name == "strict" || col.Name == "rate" || col.Name == "used" || col.Name == "next" {
			order = "down"
		}
		col.Address = with(q, "sort", col.Name, "order", order, "page", "")
		v.Columns = append(v.Columns, col)
	}
	for _, t := range found.GetTags() {
		row := tagRow{TagSummary: t, Used: used(t.GetUsed())}
		row.Marks, _ = newMarks(t.GetMarks(), colour, t.GetTag().GetStart())
		if n := len(row.Marks); n > shownMarks+1 {
			row.Marks, row.More = row.Marks[:shownMarks], n-shownMarks
		}
		v.Rows = append(v.Rows, row)
	}
	v.First, v.Last = (page-1)*tagsPage+1, (page-1)*tagsPage+len(v.Rows)
	if page > 1 {
		v.Prev = with(q, "page", previous(page))
	}
	if int64(v.Last) < found.GetFound() && len(v.Rows) > 0 {
		v.Next = with(q, "page", strconv.Itoa(page+1))
	}
	return "Tags", v, nil
}

func previous(page int) string {
	if page == 2 {
		return ""
	}
	return strconv.Itoa(page - 1)
}

// used returns the width of a bar for the share used; a share above 0 is always
// visible.
func used(share float64) string {
	if share > 0 {
		share = max(share, 0.01)
	}
	return pct(100 * share)
}

// colours returns the rooms' colours.
func (h *Handler) colours(c *call) (map[string]int, error) {
	l, err := h.console.GetLayout(c.Context(), &marchv1.GetLayoutRequest{})
	if err != nil {
		return nil, err
	}
	return colours(l.GetEver()...), nil
}

// createTag handles the form of a new tag.
func (h *Handler) createTag(c *call) (string, error) {
	kind, err := readKind(c)
	if err != nil {
		return "", err
	}
	t := &marchv1.Tag{}
	if kind == kindTime {
		t.Time, err = readTime(c, true)
	} else {
		t, err = readTag(c, true)
	}
	if err != nil {
		return "", err
	}
	t.Name = c.FormValue("name")
	if text := c.FormValue("format"); text != "" {
		t.Format = &text
	}
	if text := c.FormValue("key_check"); text != "" {
		t.KeyCheck = &text
	}
	if _, err := h.console.CreateTag(c.Context(), &marchv1.CreateTagRequest{Tag: t,
		Fresh: c.FormValue("fresh") != ""}); err != nil {
		return "", err
	}
	return "/tags/" + escape(t.GetName()) + "?done=created", nil
}

// tagForm is a tag's settings as a form has them.
type tagForm struct {
	Name, Start, Limit, MinStep, MaxStep, Reserve, MaxJump, MaxSkew string
	Format, KeyCheck                                                string
	Period, PeriodDigits, TimeZone                                  string // of a tag to be created
	Periods                                                         []string
	Strict, Fresh                                                   bool
	More                                                            bool // a field that is folded away was filled in
	Time                                                            timeForm

	Problem *problem
}

func newTagForm(c *call, form string, t *marchv1.Tag) tagForm {
	value := func(field string, n *int64) string {
		if n == nil {
			return c.or(form, field, "")
		}
		return c.or(form, field, num(*n))
	}
	if t == nil {
		t = &marchv1.Tag{}
	}
	reserve := ""
	if t.GetReserve() != nil {
		reserve = shortest(t.GetReserve().AsDuration())
	}
	strict := t.GetStrictRetract()
	if c.filled(form) {
		strict = c.FormValue("strict_retract") != "" // browsers do not send an unticked box
	}
	f := tagForm{
		Strict: strict, Fresh: c.filled(form) && c.FormValue("fresh") != "", Start: value("start", t.Start),
		Limit: value("limit", t.Limit), MinStep: value("min_step", t.MinStep), MaxStep: value("max_step", t.MaxStep),
		Reserve: c.or(form, "reserve", reserve), MaxJump: value("max_jump", t.MaxJump),
		MaxSkew: value("max_skew", t.MaxSkew),
		Format:  c.or(form, "format", t.GetFormat()), KeyCheck: c.or(form, "key_check", t.GetKeyCheck()),
		Period: c.or(form, "period", ""), PeriodDigits: c.or(form, "period_digits", ""),
		TimeZone: c.or(form, "time_zone", ""),
		Periods: []string{api.Word(marchv1.PeriodUnit_PERIOD_UNIT_DAY), api.Word(marchv1.PeriodUnit_PERIOD_UNIT_MONTH),
			api.Word(marchv1.PeriodUnit_PERIOD_UNIT_YEAR)},
		Time: newTimeForm(c, form, t.GetTime()),
		Problem: c.problemOf(form, slices.Concat(timeFields, periodFields, []string{"kind", "tag", "start", "limit",
			"min_step", "max_step", "reserve", "max_jump", "max_skew", "format", "key_check"})...),
	}
	f.More = f.MinStep+f.MaxStep+f.Reserve+f.MaxJump+f.MaxSkew != "" || f.Fresh
	return f
}

// readTag reads the form of a tag. An empty field leaves its setting unset, except
// the box.
func readTag(c *call, fresh bool) (*marchv1.Tag, error) {
	strict := c.FormValue("strict_retract") != ""
	t := &marchv1.Tag{StrictRetract: &strict}
	fields := []struct {
		name string
		to   **int64
	}{{"limit", &t.Limit}, {"min_step", &t.MinStep}, {"max_step", &t.MaxStep}, {"max_jump", &t.MaxJump},
		{"max_skew", &t.MaxSkew}}
	if fresh {
		fields = append(fields, struct {
			name string
			to   **int64
		}{"start", &t.Start})
	}
	for _, f := range fields {
		if c.FormValue(f.name) == "" {
			continue
		}
		n, err := number(c, f.name)
		if err != nil {
			return nil, err
		}
		*f.to = &n
	}
	if fresh {
		var err error
		if t.Period, err = readPeriod(c); err != nil {
			return nil, err
		}
	}
	if c.FormValue("reserve") != "" {
		d, err := period(c, "reserve")
		if err != nil {
			return nil, err
		}
		t.Reserve = durationpb.New(d)
	}
	return t, nil
}

// periodFields are the names of the fields of a new tag's period.
var periodFields = []string{"period", "period_digits", "time_zone"}

// defaultPeriodDigits is how many digits the number has if the form says nothing, as with
// `march tag create --period`.
const defaultPeriodDigits = 9

// readPeriod reads the period of a new tag, nil if it has none. Its errors are Invalid;
// the console checks the bounds.
func readPeriod(c *call) (*marchv1.Period, error) {
	unit := c.FormValue("period")
	if unit == "" {
		for _, field := range periodFields[1:] {
			if text := c.FormValue(field); text != "" {
				return nil, allocator.Errorf(allocator.Invalid,
					"%s: %q, without a period; allowed: with a period of a day, month or year", field, text)
			}
		}
		return nil, nil
	}
	p := &marchv1.Period{Digits: defaultPeriodDigits, TimeZone: c.FormValue("time_zone")}
	var err error
	if p.Unit, err = api.ParseWord[marchv1.PeriodUnit]("period", unit); err != nil {
		return nil, err
	}
	if text := c.FormValue("period_digits"); text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return nil, allocator.Errorf(allocator.Invalid,
				"period_digits: %q; allowed: 1 to 10 for a day, 12 for a month, 14 for a year", text)
		}
		p.Digits = int32(n)
	}
	return p, nil
}
