package web

import (
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

type decodeView struct {
	Tag, ID string
	Text    *int64 // the ID, where ID is its text
	*marchv1.DecodeResponse
	palette
	Found   bool
	Bar     *bar // of the layout it was leased under
	Mark    string
	Under   []underView
	pages   // of layouts
	Problem *problem
}

// underView is an ID under one of the layouts so far.
type underView struct {
	Version, Boundary, Block, Residue int64
	Room                              string
	Since, Until                      *timestamppb.Timestamp
	Issued                            bool
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
		c.failed, c.err = "decode", err
		// only the tag can be missing
		if v.Problem = c.problemOf("decode", "tag", "id"); allocator.KindOf(err) == allocator.NotFound {
			v.Problem = &problem{Field: "tag", Text: "there is none of this name"}
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
	v.pages = pagesOf(q, "before", list.GetNextPageToken())
	for _, record := range list.GetLayouts() {
		l, err := api.LayoutFromProto(record.GetLayout())
		if err != nil {
			return err
		}
		room, _ := l.RoomOf(id)
		v.Under = append(v.Under, underView{
			Version: l.Version, Boundary: l.Boundary, Block: l.Block(id), Residue: l.Residue(id), Room: string(room),
			Since: record.GetTime(), Until: until,
			Issued: v.GetOrigin().GetLayout().GetVersion() == l.Version,
		})
		until = record.GetTime()
	}
	return nil
}
