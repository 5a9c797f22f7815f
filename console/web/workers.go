package web

import (
	"cmp"
	"net/http"
	"strconv"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// workersPage is how many workers a page shows.
const workersPage = 50

type workersView struct {
	Rows          []workerRow
	Slices        []sliceRow
	Unreadable    []*marchv1.Unreadable
	Rooms         []string
	Room, Bits    string
	Newest, Older string // addresses
}

type workerRow struct {
	*marchv1.Worker
	Colour int
}

type sliceRow struct {
	*marchv1.WorkerSlice
	Colour  int
	Workers int64
	Used    string // a width
}

func (h *Handler) workers(c *call) (string, any, error) {
	q := c.URL.Query()
	if c.Method == http.MethodPost {
		q = nil
	}
	l, err := h.console.GetLayout(c.Context(), &marchv1.GetLayoutRequest{})
	if err != nil {
		return "", nil, err
	}
	r := &marchv1.ListWorkersRequest{PageSize: workersPage, PageToken: q.Get("after"), Room: q.Get("room")}
	if text := q.Get("bits"); text != "" {
		bits, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return "", nil, allocator.Errorf(allocator.Invalid, "bits: %q; allowed: a number of bits, such as 10", text)
		}
		r.Bits = new(int32(bits))
	}
	list, err := h.console.ListWorkers(c.Context(), r)
	if err != nil {
		return "", nil, err
	}
	colour := colours(l.GetEver()...)
	v := &workersView{Rooms: l.GetEver(), Room: r.GetRoom(), Bits: q.Get("bits"), Unreadable: list.GetUnreadable()}
	v.Rows, v.Slices = newWorkers(list.GetWorkers(), colour), newSlices(list.GetSlices(), colour)
	if r.GetPageToken() != "" {
		v.Newest = with(q, "after", "")
	}
	if next := list.GetNextPageToken(); next != "" {
		v.Older = with(q, "after", next)
	}
	return "Workers", v, nil
}

func newWorkers(workers []*marchv1.Worker, colour map[string]int) (rows []workerRow) {
	for _, w := range workers {
		rows = append(rows, workerRow{Worker: w, Colour: colour[w.GetRoom()]})
	}
	return rows
}

func newSlices(slices []*marchv1.WorkerSlice, colour map[string]int) (rows []sliceRow) {
	for _, s := range slices {
		n := s.GetUpper() - s.GetLower()
		rows = append(rows, sliceRow{
			WorkerSlice: s, Colour: colour[s.GetRoom()], Workers: n,
			Used: used(float64(s.GetLive()) / float64(cmp.Or(n, 1))),
		})
	}
	return rows
}
