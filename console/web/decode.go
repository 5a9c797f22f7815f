package web

import (
	"cmp"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

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
	before := q.Get("before")
	list, err := h.console.ListLayouts(c.Context(),
		&marchv1.ListLayoutsRequest{PageSize: decodeLayouts, PageToken: before})
	if err != nil {
		return err
	}
	var until *timestamppb.Timestamp
	if before != "" {
		version, _ := parseInt(before) // ListLayouts checked it
		newer, err := h.console.GetLayout(c.Context(), &marchv1.GetLayoutRequest{Version: version})
		if err != nil {
			return err
		}
		until = newer.GetLayout().GetTime()
	}
	v.Under = newList("Layouts", []setting.Column[*marchv1.LayoutRecord]{{Title: "Layout", Key: true, Number: true},
		{Title: "Room"}, {Title: "Boundary", Number: true}, {Title: "Block", Number: true},
		{Title: "Residue", Number: true}, {Title: "From"}, {Title: "Until"}}, list.GetLayouts(),
		func(record *marchv1.LayoutRecord) (listRow, palette) {
			l, bad := api.LayoutFromProto(record.GetLayout())
			if err = cmp.Or(err, bad); err != nil {
				return listRow{Values: make([]any, 7)}, nil
			}
			in, ended := cell{Text: html(`<span class="dim">no room</span>`)}, any("current")
			if room, has := l.RoomOf(id); has {
				in = newCell(setting.Room(room), v.palette)
			}
			if v.GetOrigin().GetLayout().GetVersion() == l.Version {
				in.Text += html(` <span class="state made">leased</span>`)
			}
			if until != nil {
				ended = until
			}
			until = record.GetTime()
			return listRow{ID: fmt.Sprint("v-", l.Version), Values: []any{l.Version, in, l.Boundary, l.Block(id),
				l.Residue(id), record.GetTime(), ended}}, nil
		})
	v.pages = pagesOf(q, "before", list.GetNextPageToken())
	return err
}
