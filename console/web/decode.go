package web

import (
	"cmp"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

type decodeView struct {
	Tag, ID string
	Text    *int64 // the ID, where ID is its text
	*marchv1.DecodeResponse
	palette
	Found bool
	Bar   *bar // of the layout it was leased under
	Mark  string
	Under *list // of layouts
	pages
}

// decodeLayouts is how many layouts a page shows an ID under.
const decodeLayouts = 20

func (h *Handler) decode(c *call) (any, error) {
	q := c.URL.Query()
	v := &decodeView{Tag: strings.TrimSpace(q.Get("tag")), ID: strings.TrimSpace(q.Get("id"))}
	if v.Tag == "" && v.ID == "" {
		return v, nil
	}
	request := &marchv1.DecodeRequest{Tag: v.Tag}
	id, err := parseInt(v.ID)
	switch {
	case err == nil:
		request.Id = id
	case strings.Trim(v.ID, "-0123456789") == "":
		err = allocator.Errorf(allocator.Invalid,
			"id: %q; allowed: a whole number, 0 to %d", v.ID, int64(allocator.MaxID))
	default:
		request.Text, err = v.ID, nil
	}
	if err == nil {
		v.DecodeResponse, err = h.console.Decode(c.Context(), request)
	}
	if allocator.KindOf(err) == allocator.Unavailable {
		return nil, err
	}
	if err != nil { // the form is wrong, or a value cannot be read
		if c.failed, c.err = "decode", err; allocator.KindOf(err) == allocator.NotFound { // only the tag can be missing
			c.err = allocator.Errorf(allocator.NotFound, "tag: there is none of this name")
		}
		return v, nil
	}
	if v.Found = true; request.GetText() != "" {
		id, v.Text = v.GetId(), v.DecodeResponse.Id
	}
	l, err := h.layout(c)
	v.palette = colours(l.GetEver()...)
	if v.GetTime() == nil && err == nil { // time-ordered IDs have no block and residue
		err = h.decodeUnder(c, v, id)
	}
	if o := v.GetOrigin(); o != nil {
		v.Bar = newBar(o.GetLayout(), v.palette)
		v.Mark = pct(partOf(o.GetResidue(), o.GetLayout().GetBoundary()))
	}
	return v, err
}

// decodeUnder lists the layouts of a page, the newest first, with the room, block
// and residue of an ID under each.
func (h *Handler) decodeUnder(c *call, v *decodeView, id int64) error {
	q := c.URL.Query()
	answer, err := h.console.ListLayouts(c.Context(),
		&marchv1.ListLayoutsRequest{PageSize: decodeLayouts, PageToken: q.Get("before")})
	layouts := make(map[*marchv1.LayoutRecord]allocator.Layout)
	for _, record := range answer.GetLayouts() {
		l, bad := api.LayoutFromProto(record.GetLayout())
		layouts[record], err = l, cmp.Or(err, bad)
	}
	if err != nil {
		return err
	}
	columns := append(slices.Clone(setting.Layouts), setting.Col("Room", func(r *marchv1.LayoutRecord) cell {
		in := cell{Text: html(`<span class="dim">no room</span>`)}
		if room, has := layouts[r].RoomOf(id); has {
			in = newCell(setting.Room(room), v.palette)
		}
		if v.GetOrigin().GetLayout().GetVersion() == r.GetLayout().GetVersion() {
			in.Text += html(` <span class="state made">leased</span>`)
		}
		return in
	}), setting.Num("Block", func(r *marchv1.LayoutRecord) int64 { return layouts[r].Block(id) }),
		setting.Num("Residue", func(r *marchv1.LayoutRecord) int64 { return layouts[r].Residue(id) }))
	v.Under = newList("Layouts", columns, answer.GetLayouts(), v.palette, nil)
	v.pages = pagesOf(q, "before", answer.GetNextPageToken())
	return nil
}
