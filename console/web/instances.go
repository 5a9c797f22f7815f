package web

import (
	"net/http"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

type instancesView struct {
	Rows     []instanceRow
	Rooms    []string
	Room     string
	Current  int64 // the layout's version
	Problems []*marchv1.Problem
	Stopped  bool // leasing is halted in all rooms
	Forget   *marchv1.Instance
	Problem  *problem
}

type instanceRow struct {
	*marchv1.Instance
	Colour int
	Now    float64 // IDs per second; -1 for unknown
	Uptime *durationpb.Duration
	Behind bool
	Forget string // address; empty if the caller may not
}

func (h *Handler) instances(c *call) (string, any, error) {
	q := c.URL.Query()
	if c.Method == http.MethodPost {
		q = nil
	}
	l, err := h.console.GetLayout(c.Context(), &marchv1.GetLayoutRequest{})
	if err != nil {
		return "", nil, err
	}
	list, err := h.console.ListInstances(c.Context(), &marchv1.ListInstancesRequest{Room: q.Get("room"), Status: true})
	if err != nil {
		return "", nil, err
	}
	v := &instancesView{Room: q.Get("room"), Rooms: l.GetEver(), Current: l.GetLayout().GetLayout().GetVersion(),
		Problem: c.problemOf("forget"), Problems: c.shown(list.GetProblems()), Stopped: list.GetHalt() != nil ||
			list.GetProblem() != ""}
	colour := colours(l.GetEver()...)
	for _, i := range list.GetInstances() {
		r := instanceRow{
			Instance: i, Colour: colour[i.GetRoom()], Now: -1, Behind: i.GetVersion() < v.Current,
		}
		if c.may(marchv1.ConsoleService_ForgetInstance_FullMethodName, "", i.GetRoom()) {
			r.Forget = with(q, "do", "forget", "of", i.GetRoom(), "name", i.GetName())
		}
		if i.Rate != nil {
			r.Now = i.GetRate()
		}
		if i.GetAlive() && (!i.GetUnknown() || i.GetStatus() != nil) {
			r.Uptime = durationpb.New(max(time.Since(i.GetStarted().AsTime()), 0))
		}
		if q.Get("do") == "forget" && q.Get("of") == i.GetRoom() && q.Get("name") == i.GetName() {
			v.Forget = i
		}
		v.Rows = append(v.Rows, r)
	}
	return "Instances", v, nil
}

func (h *Handler) forgetInstance(c *call) (string, error) {
	_, err := h.console.ForgetInstance(c.Context(), &marchv1.ForgetInstanceRequest{Room: c.FormValue("of"),
		Name: c.FormValue("name")})
	return "/instances?done=forgotten", err
}
