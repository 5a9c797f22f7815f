package web

import (
	"slices"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// The pages of instances, workers and of what runs out. Those of tags and of the audit have files of their own.

func (h *Handler) instances(c *call) (any, error) {
	q := c.query()
	room := q.Get("room")
	answer, err := h.console.ListInstances(c.Context(), &marchv1.ListInstancesRequest{Room: room, Status: true})
	if err != nil {
		return nil, err
	}
	v := &listPage{Room: room, Refused: c.problemOf("forget"), Problems: c.shown(answer.GetProblems()),
		Bad: answer.GetHalt() != nil || answer.GetProblem() != ""}
	columns := append(slices.Clone(setting.Instances), setting.Col("Actions", func(i *marchv1.Instance) cell {
		actions := html(`<a href="/audit?exact=on&amp;object=rooms/%s/%s">Changes</a>`, i.GetRoom(), i.GetName())
		if c.may(marchv1.ConsoleService_ForgetInstance_FullMethodName, "", i.GetRoom()) {
			at := with(q, "do", "forget", "of", i.GetRoom(), "name", i.GetName())
			actions += html(` <a href="%s">Forget…</a>`, at)
		}
		return cell{Class: "act", Text: actions}
	}))
	l := newList("Instances", columns, answer.GetInstances(), c.colour, func(i *marchv1.Instance) listRow {
		return listRow{ID: "i-" + i.GetRoom() + "-" + i.GetName()} // problems link to it
	})
	for k, i := range answer.GetInstances() {
		l.warn(k, "Layout", i.GetVersion() < c.layout.GetLayout().GetLayout().GetVersion())
		l.warn(k, "etcd", i.GetStatus().GetEtcdAwaySince() != nil)
		if q.Get("do") == "forget" && q.Get("of") == i.GetRoom() && q.Get("name") == i.GetName() {
			v.Forget = i
		}
	}
	v.Lists = []*list{l}
	return v, nil
}

// workersPage is how many workers a page shows.
const workersPage = 50

func (h *Handler) workers(c *call) (any, error) {
	q := c.URL.Query()
	r := &marchv1.ListWorkersRequest{PageSize: workersPage, PageToken: q.Get("after")}
	if err := c.choose(r, "bits", "room"); err != nil {
		return nil, err
	}
	answer, err := h.console.ListWorkers(c.Context(), r)
	if err != nil {
		return nil, err
	}
	return &listPage{Unreadable: answer.GetUnreadable(), pages: pagesOf(q, "after", answer.GetNextPageToken()),
		Lists: []*list{newList("Slices", setting.Slices, answer.GetSlices(), c.colour, nil),
			newList("Workers", setting.Workers, answer.GetWorkers(), c.colour, nil)}}, nil
}

func (h *Handler) capacity(c *call) (any, error) {
	answer, err := h.console.GetCapacity(c.Context(), &marchv1.GetCapacityRequest{})
	if err != nil {
		return nil, err
	}
	l := newList("What runs out first", setting.Capacity, answer.GetCapacity(), nil, func(c *marchv1.Capacity) listRow {
		c.What, c.Note = sentence(c.GetWhat()), grouped(c.GetNote())
		return listRow{Page: capacityLink(c)}
	})
	l.Class = "list capacity"
	return &listPage{Lists: []*list{l}, Unread: answer.GetTagsAsOf() == nil}, nil
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
