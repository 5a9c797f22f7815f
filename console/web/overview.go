package web

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	marchv1 "github.com/march-id/march/api/march/v1"
	wrong "github.com/march-id/march/internal/problem"
)

type overviewView struct {
	*marchv1.GetOverviewResponse
	palette
	Bar       *bar           // nil if no layout can be read
	Migration *migrationView // nil without one
	Total     float64        // IDs per second; -1 for unknown
	Partial   bool           // Total is without instances whose rate is not known
	Up, Known int32
	Trouble   int  // rooms that an operator must look at
	RoomDown  bool // a room with a range issues nothing
	Away      bool // etcd does not answer this console
}

// lowReserve is the reserve below which the page warns.
const lowReserve = 30 * time.Second

func (h *Handler) overview(c *call) (any, error) {
	o, err := h.console.GetOverview(c.Context(), &marchv1.GetOverviewRequest{})
	if err != nil {
		return nil, err
	}
	names := slices.Clone(o.GetEver())
	for _, r := range o.GetRooms() {
		names = append(names, r.GetName())
	}
	o.Problems = c.shown(o.GetProblems())
	v := &overviewView{GetOverviewResponse: o, palette: colours(names...), Total: -1}
	if list := o.GetProblems(); len(list) > 0 { // the worst is first
		v.Away = list[0].GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY && list[0].GetOf() == "console"
	}
	if o.GetLayout() != nil {
		v.Bar = newBar(o.GetLayout().GetLayout(), v.palette)
	}
	if m := o.GetMigration(); m != nil {
		v.Migration = view(c, m, v.palette)
	}
	for _, r := range o.GetRooms() {
		if r.Rate != nil {
			v.Total = max(v.Total, 0) + r.GetRate()
		}
		v.Partial = v.Partial || len(r.GetUnmeasured()) > 0 || r.Rate == nil && r.GetInstances() > 0
		if v.Down(r) || len(r.GetProblems()) > 0 || r.GetAlive() < r.GetInstances() || r.GetEtcdAwaySince() != nil {
			v.Trouble++
		}
		v.RoomDown = v.RoomDown || v.Down(r)
		v.Up, v.Known = v.Up+r.GetAlive(), v.Known+r.GetInstances()
	}
	return v, nil
}

// Down reports whether a room has a range, and no instance can issue its IDs.
func (v *overviewView) Down(r *marchv1.RoomStatus) bool {
	return r.GetRange() != nil && (r.GetAlive() == 0 || v.GetAsOf() != nil && r.GetReady() == 0)
}

// problemsEvery is how old the number of problems may be that pages other than the overview
// show: each needs an overview of the cluster.
const problemsEvery = tickEvery

// kept is an answer that pages share for a time. Its zero value is ready.
type kept[T any] struct {
	asking sync.Mutex
	last   atomic.Pointer[answered[T]]
}

type answered[T any] struct {
	value T
	at    time.Time
}

func (k *kept[T]) set(value T) { k.last.Store(&answered[T]{value, time.Now()}) }

// known returns the last answer; the zero value if there was none.
func (k *kept[T]) known() (value T) {
	if last := k.last.Load(); last != nil {
		return last.value
	}
	return value
}

// get returns the last answer, and first asks again if it is old and no other page asks now.
func (k *kept[T]) get(old time.Duration, ask func() (T, error)) T {
	if last := k.last.Load(); (last == nil || time.Since(last.at) >= old) && k.asking.TryLock() {
		defer k.asking.Unlock()
		if value, err := ask(); err == nil {
			k.set(value)
		}
	}
	return k.known()
}

// countProblems returns the number of problems, which may be a little old. A caller that may not see the overview
// gets 0.
func (h *Handler) countProblems(ctx context.Context) int {
	if !may(ctx, marchv1.ConsoleService_GetOverview_FullMethodName, "") {
		return 0
	}
	return h.problems.get(problemsEvery, func() (int, error) { // if it fails, the page itself says why
		o, err := h.console.GetOverview(ctx, &marchv1.GetOverviewRequest{})
		return len(o.GetProblems()), err
	})
}

// tellProblems answers with the number of problems. A page without a stream asks for it.
func (h *Handler) tellProblems(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), buildWithin)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(strconv.Itoa(h.countProblems(ctx))))
}

// shown returns problems as the caller sees them: with links to pages of this console, and with the buttons that the
// caller may use.
func (c *call) shown(list []*marchv1.Problem) []*marchv1.Problem {
	own := func(path string) bool { return strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") }
	for _, p := range list {
		if !own(p.GetPage()) {
			p.Page = ""
		}
		if name := wrong.CallOf(p.GetKind()); name == "" || !own(p.GetButton()) || !c.mayAny(name) {
			p.Button = ""
		}
	}
	return list
}
