package web

import marchv1 "github.com/march-id/march/api/march/v1"

type instancesView struct {
	*marchv1.ListInstancesResponse
	palette
	call    *call
	Rooms   []string
	Room    string
	Current int64 // the layout's version
	Stopped bool  // leasing is halted in all rooms
	Forget  *marchv1.Instance
	Problem *problem
}

func (h *Handler) instances(c *call) (any, error) {
	q, l := c.query(), c.layout
	list, err := h.console.ListInstances(c.Context(), &marchv1.ListInstancesRequest{Room: q.Get("room"), Status: true})
	if err != nil {
		return nil, err
	}
	list.Problems = c.shown(list.GetProblems())
	v := &instancesView{ListInstancesResponse: list, palette: c.colour, call: c, Room: q.Get("room"),
		Rooms: l.GetEver(), Current: l.GetLayout().GetLayout().GetVersion(), Problem: c.problemOf("forget"),
		Stopped: list.GetHalt() != nil || list.GetProblem() != ""}
	for _, i := range list.GetInstances() {
		if q.Get("do") == "forget" && q.Get("of") == i.GetRoom() && q.Get("name") == i.GetName() {
			v.Forget = i
		}
	}
	return v, nil
}

// ForgetAt returns the address that asks whether to forget an instance; empty if the caller may not.
func (v *instancesView) ForgetAt(i *marchv1.Instance) string {
	if !v.call.may(marchv1.ConsoleService_ForgetInstance_FullMethodName, "", i.GetRoom()) {
		return ""
	}
	return with(v.call.query(), "do", "forget", "of", i.GetRoom(), "name", i.GetName())
}
