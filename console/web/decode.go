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
	*marchv1.DecodeResponse
	Found   bool
	Origin  *originView
	Bar     *bar // of the layout it was issued under
	Mark    string
	Under   []underView
	More    bool // there are older layouts
	Problem *problem
}

type originView struct {
	*marchv1.Origin
	Colour int
	Range  string
}

// underView is an ID under one of the layouts that ever were.
type underView struct {
	Version, Boundary, Block, Residue int64
	Room                              string
	Colour                            int
	Since, Until                      *timestamppb.Timestamp
	Issued                            bool
}

// decodeLayouts is how many layouts an ID is shown under.
const decodeLayouts = 20

func (h *Handler) decode(c *call) (string, any, error) {
	q := c.URL.Query()
	v := &decodeView{Tag: strings.TrimSpace(q.Get("tag")), ID: strings.TrimSpace(q.Get("id"))}
	if v.Tag == "" && v.ID == "" {
		return "Decode", v, nil
	}
	id, err := parseInt(v.ID)
	if err != nil {
		err = allocator.Errorf(allocator.Invalid, "id: %q; allowed: a whole number, 0 to %d", v.ID, int64(allocator.MaxID))
	} else {
		v.DecodeResponse, err = h.console.Decode(c.Context(), &marchv1.DecodeRequest{Tag: v.Tag, Id: id})
	}
	if allocator.KindOf(err) == allocator.Invalid {
		c.failed, c.err = "decode", err
		v.Problem = c.problemOf("decode", "tag", "id")
		return "Decode", v, nil
	}
	if err != nil {
		return "", nil, err
	}
	v.Found = true
	list, err := h.console.ListLayouts(c.Context(), &marchv1.ListLayoutsRequest{PageSize: decodeLayouts})
	if err != nil {
		return "", nil, err
	}
	colour, err := h.colours(c)
	if err != nil {
		return "", nil, err
	}
	v.More = list.GetNextPageToken() != ""
	var until *timestamppb.Timestamp
	for _, record := range list.GetLayouts() {
		l, err := api.LayoutFromProto(record.GetLayout())
		if err != nil {
			return "", nil, err
		}
		room, _ := l.RoomOf(id)
		v.Under = append(v.Under, underView{
			Version: l.Version, Boundary: l.Boundary, Block: l.Block(id), Residue: l.Residue(id), Room: string(room), Colour: colour[string(room)],
			Since: record.GetTime(), Until: until, Issued: v.DecodeResponse.GetOrigin().GetLayout().GetVersion() == l.Version,
		})
		until = record.GetTime()
	}
	if o := v.DecodeResponse.GetOrigin(); o != nil {
		v.Origin = &originView{Origin: o, Colour: colour[o.GetRoom()], Range: interval(o.GetLayout().GetRooms()[o.GetRoom()])}
		v.Bar = newBar(o.GetLayout(), colour)
		v.Mark = pct(part(o.GetResidue(), o.GetLayout().GetBoundary()))
	}
	return "Decode", v, nil
}
