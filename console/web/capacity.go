package web

import (
	"time"

	"github.com/dustin/go-humanize"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// runsOutSoon is how long before something runs out the page warns, as `march doctor` does.
const runsOutSoon = 30 * 24 * time.Hour

func (h *Handler) capacity(c *call) (any, error) {
	return h.console.GetCapacity(c.Context(), &marchv1.GetCapacityRequest{})
}

// amount returns how much of a capacity n is, in words.
func amount(c *marchv1.Capacity, n int64) string {
	if c.GetKind() == marchv1.CapacityKind_CAPACITY_KIND_ETCD {
		return humanize.IBytes(uint64(n)) //nolint:gosec // not negative
	}
	return num(n)
}

// capacityLink returns the page on which an operator sees what runs out; empty for none.
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
		if room := roomOf(c.GetProcess()); room != c.GetProcess() {
			return "/instances" + with(nil, "room", room)
		}
	}
	return ""
}
