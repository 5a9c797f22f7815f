package web

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	marchv1 "github.com/march-id/march/api/march/v1"
	wrong "github.com/march-id/march/internal/problem"
)

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
