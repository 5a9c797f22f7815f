package web

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

type capacityView struct {
	*marchv1.GetCapacityResponse
	Rows []capacityRow
}

type capacityRow struct {
	*marchv1.Capacity
	Link    string               // to what runs out; empty if it has no page
	Left    *durationpb.Duration // until it is full; nil where that is unknown
	Soon    bool
	Reserve bool // it lasts as long as etcd answers
	Unknown bool // its growth was not measured for long enough
	Width   string
}

// runsOutSoon is how long before something runs out the page warns, as `march doctor` does.
const runsOutSoon = 30 * 24 * time.Hour

func (h *Handler) capacity(c *call) (string, any, error) {
	answer, err := h.console.GetCapacity(c.Context(), &marchv1.GetCapacityRequest{})
	if err != nil {
		return "", nil, err
	}
	v := &capacityView{GetCapacityResponse: answer}
	for _, one := range answer.GetCapacity() {
		row := capacityRow{Capacity: one, Link: capacityLink(one), Width: used(one.GetShare()),
			Reserve: one.GetKind() == marchv1.CapacityKind_CAPACITY_KIND_RESERVE}
		row.Unknown = one.GetMeasured() != nil && one.Growth == nil
		if one.GetFull() != nil {
			left := time.Until(one.GetFull().AsTime())
			row.Left, row.Soon = durationpb.New(max(left, 0)), left < runsOutSoon
		}
		v.Rows = append(v.Rows, row)
	}
	return "What runs out first", v, nil
}

// Amount returns how much of the row's capacity n is, in words.
func (r capacityRow) Amount(n int64) string {
	if r.GetKind() == marchv1.CapacityKind_CAPACITY_KIND_ETCD {
		return bytesOf(n)
	}
	return num(n)
}

// capacityLink returns the page on which an operator sees what runs out.
func capacityLink(c *marchv1.Capacity) string {
	switch c.GetKind() {
	case marchv1.CapacityKind_CAPACITY_KIND_IDS, marchv1.CapacityKind_CAPACITY_KIND_PERIOD,
		marchv1.CapacityKind_CAPACITY_KIND_TIME:
		return "/tags/" + escape(c.GetTag())
	case marchv1.CapacityKind_CAPACITY_KIND_RESERVE:
		return "/instances" + with(nil, "room", c.GetRoom())
	case marchv1.CapacityKind_CAPACITY_KIND_WORKERS:
		return "/workers" + with(nil, "room", c.GetRoom())
	case marchv1.CapacityKind_CAPACITY_KIND_TAGS:
		return "/tags?sort=used&order=down"
	case marchv1.CapacityKind_CAPACITY_KIND_ROOMS:
		return "/"
	case marchv1.CapacityKind_CAPACITY_KIND_CERTIFICATE:
		if room, _, instance := strings.Cut(c.GetProcess(), "/"); instance {
			return "/instances" + with(nil, "room", room)
		}
	}
	return ""
}
