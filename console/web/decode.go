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
	Found   bool
	Origin  *originView
	Bar     *bar // of the layout it was leased under
	Mark    string
	Under   []underView
	Older   string // address of the page with older layouts
	Newest  string // and of the first one
	Problem *problem

	TimeRoom *originView // of a tag of kind time: the room's name and colour
}

type originView struct {
	*marchv1.Origin
	Colour int
	Range  string
}

// underView is an ID under one of the layouts so far.
type underView struct {
	Version, Boundary, Block, Residue int64
	Room                              string
	Colour                            int
	Since, Until                      *timestamppb.Timestamp
	Issued                            bool
}

// decodeLayouts is how many layouts a page shows an ID under.
const decodeLayouts = 20

func (h *Handler) decode(c *call) (string, any, error) {
	q := c.URL.Query()
	v := &decodeView{Tag: strings.TrimSpace(q.Get("tag")), ID: strings.TrimSpace(q.Get("id"))}
	if v.Tag == "" && v.ID == "" {
		return "Decode", v, nil
	}
	id, err := parseInt(v.ID)
	switch {
	case err == nil:
		v.DecodeResponse, err = h.console.Decode(c.Context(), &marchv1.DecodeRequest{Tag: v.Tag, Id: id})
	case strings.Trim(v.ID, "-0123456789") == "":
		err = allocator.Errorf(allocator.Invalid,
			"id: %q; allowed: a whole number, 0 to %d", v.ID, int64(allocator.MaxID))
	default:
		if v.DecodeResponse, err = h.console.Decode(c.Context(),
			&marchv1.DecodeRequest{Tag: v.Tag, Text: v.ID}); err == nil {
			id, v.Text = v.DecodeResponse.GetId(), v.DecodeResponse.Id
		}
	}
	if err != nil && allocator.KindOf(err) != allocator.Unavailable { // the form is wrong, or a value cannot be read
		c.failed, c.err = "decode", err
		// only the tag can be missing
		if v.Problem = c.problemOf("decode", "tag", "id"); allocator.KindOf(err) == allocator.NotFound {
			v.Problem = &problem{Field: "tag", Text: "there is none of this name"}
		}
		return "Decode", v, nil
	}
	if err != nil {
		return "", nil, err
	}
	v.Found = true
	colour, err := h.colours(c)
	if t := v.DecodeResponse.GetTime(); t != nil { // time-ordered IDs have no block and residue
		v.TimeRoom = &originView{Origin: &marchv1.Origin{Room: t.GetRoom()}, Colour: colour[t.GetRoom()]}
		return "Decode", v, err
	}
	if err == nil {
		err = h.decodeUnder(c, v, id, colour)
	}
	if err != nil {
		return "", nil, err
	}
	if o := v.DecodeResponse.GetOrigin(); o != nil {
		v.Origin = &originView{Origin: o, Colour: colour[o.GetRoom()],
			Range: interval(o.GetLayout().GetRooms()[o.GetRoom()])}
		v.Bar = newBar(o.GetLayout(), colour)
		v.Mark = pct(part(o.GetResidue(), o.GetLayout().GetBoundary()))
	}
	return "Decode", v, nil
}

// decodeUnder lists the layouts of a page, the newest first, with the room, block
// and residue of an ID under each.
func (h *Handler) decodeUnder(c *call, v *decodeView, id int64, colour map[string]int) error {
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
		until, v.Newest = newer.GetLayout().GetTime(), with(q, "before", "")
	}
	if next := list.GetNextPageToken(); next != "" {
		v.Older = with(q, "before", next)
	}
	for _, record := range list.GetLayouts() {
		l, err := api.LayoutFromProto(record.GetLayout())
		if err != nil {
			return err
		}
		room, _ := l.RoomOf(id)
		v.Under = append(v.Under, underView{
			Version: l.Version, Boundary: l.Boundary, Block: l.Block(id), Residue: l.Residue(id), Room: string(room),
			Colour: colour[string(room)],
			Since:  record.GetTime(), Until: until,
			Issued: v.DecodeResponse.GetOrigin().GetLayout().GetVersion() == l.Version,
		})
		until = record.GetTime()
	}
	return nil
}
