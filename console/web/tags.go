package web

import (
	"cmp"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
)

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

type tagView struct {
	*marchv1.GetTagResponse
	palette
	Marks    *list
	Facts    []cell
	Chains   *list
	Settings tagForm
	Preview  *previewView // of the change in the form; nil for none
	Audit    *list        // the latest changes of the tag; none in the live part
	Skip     skipView
	Prescale prescaleView
	Chart    *chart // of the last hour; nil if it is not known
	Slices   *list  // nil for a counter, as those below
	Workers  *list
	More     bool // workers
}

func (h *Handler) tag(c *call) (any, error) {
	name, v := c.PathValue("tag"), &tagView{palette: c.colour}
	var reads errgroup.Group // the tag's own, its history and its audit ask etcd and all instances: beside each other
	reads.Go(func() (err error) {
		v.GetTagResponse, err = h.console.GetTag(c.Context(), &marchv1.GetTagRequest{Name: name})
		return err
	})
	reads.Go(func() error {
		v.Chart = h.tagChart(c, name)
		return nil
	})
	if !c.live {
		reads.Go(func() (err error) {
			v.Audit, err = h.latestChanges(c, string(record.Tags)+"/"+name)
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return nil, err
	}
	t, s := v.GetTagResponse, v.GetTag()
	if !c.live {
		v.Preview = h.newPreview(c, s)
	}
	if v.Settings = newTagForm(c, "settings", s); v.Preview != nil {
		v.Settings.Problem = nil // the preview says what is wrong
	}
	fact := func(name string, value any) {
		if text, is := value.(string); is {
			value = grouped(text)
		}
		c := newCell(value, nil)
		c.Title = sentence(name)
		v.Facts = append(v.Facts, c)
	}
	start, limit := api.Space(s)
	least, next, peak := int64(allocator.MaxID), start, 0.0
	for _, m := range t.GetMarks() {
		least, next = min(least, m.GetNext()), max(next, m.GetNext())
	}
	for _, chain := range t.GetChains() {
		peak += chain.GetPeak()
	}
	if s.GetTime() == nil {
		fact("recent peak, IDs per second", setting.Rate(peak))
		fact("next ID at most", setting.ID(next))
		fact("space used", setting.Share(allocator.Used(start, limit, next)))
	}
	for _, f := range setting.Facts(s) {
		if of, is := f.Value.(setting.Value); !is || !of.Of.Rare || of.Of.Fixed { // the form has the others
			fact(f.Name, f.Value)
		}
	}
	if p := s.GetTime(); p != nil {
		of, err := api.TimeTagFromProto(p)
		if err != nil {
			return nil, err
		}
		fact("time bits end", setting.End{At: timestamppb.New(time.UnixMilli(of.Layout.End()))})
		fact("IDs per second of a worker", of.Layout.PerSecond())
		workers, err := h.console.ListWorkers(c.Context(),
			&marchv1.ListWorkersRequest{Bits: &p.WorkerBits, PageSize: workersPage})
		v.Slices = newList("Slices", setting.Slices, t.GetSlices(), c.colour, nil)
		v.Workers = newList("Workers", setting.Workers, workers.GetWorkers(), c.colour, nil)
		v.More = workers.GetNextPageToken() != ""
		return v, err
	}
	beside := setting.Col("Beside the others", func(m *marchv1.Mark) cell {
		x := 1 - float64(next-m.GetNext())/float64(max(next-least, 1))
		return cell{Class: "chart", Dot: pct(4 + 92*x), Colour: v.palette[m.GetRoom()]} // with place for the dot
	})
	behind := setting.Num("Behind", func(m *marchv1.Mark) int64 { return next - m.GetNext() })
	v.Marks = newList("Marks", append(slices.Clone(setting.TagMarks), behind, beside), t.GetMarks(), v.palette, nil)
	v.Chains = newList("Chains", setting.Chains, t.GetChains(), v.palette, nil)
	v.Skip, v.Prescale = newSkip(c, t, c.layout.GetLayout().GetLayout()), newPrescale(c, t)
	return v, nil
}

// previewView is what a change of a tag's settings would do, before it is made.
type previewView struct {
	*marchv1.UpdateTagResponse
	Changes []difference
	Hidden  url.Values // the form as it was filled in, and the revision that the change is compared with
}

// newPreview asks what the change in the form would do; it returns nil if there is none. A change
// that was refused, because meanwhile another one was made or it stops rooms, is shown again.
func (h *Handler) newPreview(c *call, now *marchv1.Tag) (v *previewView) {
	kind := allocator.KindOf(c.err)
	again := c.failed == "settings" && (kind == allocator.Refused || kind == allocator.Conflict)
	if !again && (c.failed == "settings" || !c.asks("settings")) {
		return nil
	}
	c.asked = "settings"
	request := &marchv1.UpdateTagRequest{DryRun: true}
	err := readUpdate(c, request)
	if err == nil {
		v = &previewView{Hidden: c.sent()}
		request.IfRevision, request.Confirm = 0, false
		v.UpdateTagResponse, err = h.console.UpdateTag(c.Context(), request)
	}
	var changed []setting.Change
	if err == nil {
		if changed = setting.Diff(setting.Settings(setting.KindOf(now), false), now, v.GetTag()); len(changed) == 0 {
			err = allocator.Errorf(allocator.Invalid,
				"nothing was changed: these are the settings that the tag has")
		}
	}
	if err != nil {
		if !again {
			c.failed, c.err = "settings", err
		}
		return nil
	}
	for _, s := range changed {
		v.Changes = append(v.Changes, difference{sentence(s.Words()), shown(s.Setting, s.From), shown(s.Setting, s.To)})
	}
	v.Hidden.Set("revision", strconv.FormatInt(now.GetRevision(), 10))
	if len(v.GetStops()) > 0 {
		v.Hidden.Set("confirm", "on")
	}
	return v
}

// readUpdate reads the form of a tag's settings as a change. Its error is Invalid.
func readUpdate(c *call, r *marchv1.UpdateTagRequest) (err error) {
	if r.Tag, err = c.readSettings(false); err != nil {
		return err
	}
	r.Tag.Name, r.Confirm = c.PathValue("tag"), c.FormValue("confirm") != ""
	if text := c.FormValue("revision"); text != "" {
		if r.IfRevision, err = parseInt(text); err != nil {
			return allocator.Errorf(allocator.Invalid, "revision: %q; allowed: one that this page made", text)
		}
	}
	return nil
}

// skipView is the form of a skip and, once that was filled in, its effect.
type skipView struct {
	*marchv1.SkipTagRequest
	Fields  []field
	Rooms   []choice
	What    *list      // of a skip to confirm
	Hidden  url.Values // that confirms it
	Problem *problem
}

type choice struct {
	Name    string
	Checked bool
}

func newSkip(c *call, t *marchv1.GetTagResponse, l *marchv1.Layout) skipView {
	v := skipView{SkipTagRequest: &marchv1.SkipTagRequest{}}
	for _, room := range operator.ByLower(l.GetRooms()) {
		v.Rooms = append(v.Rooms, choice{room, !c.asks("skip") || slices.Contains(c.Form["room"], room)})
	}
	v.Problem = c.preview("skip", func() error { return v.read(c, t, l) }, "to", "rooms")
	v.Fields = c.fields("skip", "skip", setting.SkipFields, v.SkipTagRequest, v.Problem)
	return v
}

// read reads the form, and what the skip in it does. Its error is Invalid.
func (v *skipView) read(c *call, t *marchv1.GetTagResponse, l *marchv1.Layout) error {
	if err := readSkip(c, v.SkipTagRequest); err != nil {
		return err
	}
	layout, err := api.LayoutFromProto(l)
	if err != nil {
		return err
	}
	next := make(map[string]int64)
	for _, m := range t.GetMarks() {
		next[m.GetRoom()] = m.GetNext()
	}
	from := func(room choice) int64 { return max(t.GetTag().GetStart(), next[room.Name]) }
	to := func(room choice) int64 { return max(v.GetTo(), from(room)) }
	chosen := slices.DeleteFunc(slices.Clone(v.Rooms), func(room choice) bool { return !room.Checked })
	if !slices.ContainsFunc(chosen, func(room choice) bool { return to(room) > from(room) }) {
		return allocator.Errorf(allocator.Invalid,
			"to: %d; allowed: above the mark of a chosen room, otherwise nothing would change", v.GetTo())
	}
	v.What = newList("What the skip does", []setting.Column[choice]{
		setting.Key(setting.Col("Room", func(room choice) string { return room.Name })),
		setting.Num("Mark now", from), setting.Num("Then at least", to),
		setting.Num("IDs of its range lost", func(room choice) int64 {
			return layout.CountIDs(layout.Ranges[allocator.Room(room.Name)], from(room), to(room))
		}),
	}, chosen, nil, nil)
	if v.Hidden = c.sent(); len(chosen) == len(v.Rooms) { // then also those that come later
		v.Hidden.Set("all", "on")
	}
	return nil
}

// readSkip reads the form of a skip. Its error is Invalid.
func readSkip(c *call, r *marchv1.SkipTagRequest) error {
	err := c.fill(r, setting.SkipFields...)
	switch {
	case err != nil:
		return err
	case r.GetTo() < 1:
		return allocator.Errorf(allocator.Invalid, "to: %d; allowed: 1 or more", r.GetTo())
	case len(c.Form["room"]) == 0:
		return allocator.Errorf(allocator.Invalid, "rooms: none is chosen; allowed: one or more")
	case c.FormValue("all") == "":
		r.Rooms = c.Form["room"]
	}
	return nil
}

// prescaleView is the form of a prescale and its effect.
type prescaleView struct {
	*marchv1.PrescaleTagRequest
	Fields  []field
	All     int64      // IDs that instances lease at once
	Hidden  url.Values // that confirms it; nil before it is asked for
	Problem *problem
}

func newPrescale(c *call, t *marchv1.GetTagResponse) (v prescaleView) {
	v.PrescaleTagRequest = &marchv1.PrescaleTagRequest{Step: t.GetTag().GetPrescale()}
	v.Problem = c.preview("prescale", func() error {
		if err := readPrescale(c, v.PrescaleTagRequest); err != nil {
			return err
		}
		if most := t.GetTag().GetMaxStep(); v.GetStep() > most {
			return allocator.Errorf(allocator.Invalid, "step: %d; allowed: 0 to max_step (%d)", v.GetStep(), most)
		}
		for _, chain := range t.GetChains() {
			v.All += max(v.GetStep()-chain.GetHeld(), 0)
		}
		v.Hidden = c.sent()
		return nil
	}, "step", "duration")
	v.Fields = c.fields("prescale", "pre", setting.PrescaleFields, v.PrescaleTagRequest, v.Problem)
	return v
}

// readPrescale reads the form of a prescale. Its error is Invalid.
func readPrescale(c *call, r *marchv1.PrescaleTagRequest) error {
	return c.fill(r, setting.PrescaleFields...)
}
