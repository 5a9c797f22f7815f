package web

import (
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// workersPage is how many workers a page shows.
const workersPage = 50

type workersView struct {
	Workers    *list
	Slices     *list
	Unreadable []*marchv1.Unreadable
	Rooms      []string
	Room, Bits string
	pages
}

func (h *Handler) workers(c *call) (any, error) {
	q := c.URL.Query()
	r := &marchv1.ListWorkersRequest{PageSize: workersPage, PageToken: q.Get("after"), Room: q.Get("room")}
	if q.Get("bits") != "" {
		if err := c.fill(r, setting.Of(r, "bits", "")); err != nil {
			return nil, err
		}
	}
	list, err := h.console.ListWorkers(c.Context(), r)
	if err != nil {
		return nil, err
	}
	v := &workersView{Rooms: c.layout.GetEver(), Room: r.GetRoom(), Bits: q.Get("bits"),
		Unreadable: list.GetUnreadable()}
	v.Workers, v.Slices = listWorkers(list.GetWorkers(), c.colour), listSlices(list.GetSlices(), c.colour)
	v.pages = pagesOf(q, "after", list.GetNextPageToken())
	return v, nil
}
