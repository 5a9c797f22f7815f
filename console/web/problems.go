package web

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/march-id/march/internal/access"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// problemsEvery is how old the number of problems may be that pages other than the overview
// show: each needs an overview of the cluster.
const problemsEvery = tickEvery

// problemCount is the number of the cluster's problems, which each page has in its title, its
// icon and its menu. Its zero value is ready.
type problemCount struct {
	counting sync.Mutex // while an overview is asked for
	mu       struct {
		sync.Mutex
		count int
		at    time.Time // when it was counted; zero before that
	}
}

func (p *problemCount) get() (count int, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.count, p.mu.at
}

func (p *problemCount) set(count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.count, p.mu.at = count, time.Now()
}

// countProblems returns the number of problems, and asks for them if the number is old. A
// caller that may not see the overview gets 0.
func (h *Handler) countProblems(ctx context.Context) int {
	if !mayCount(ctx) {
		return 0
	}
	count, at := h.problems.get()
	if time.Since(at) < problemsEvery || !h.problems.counting.TryLock() { // or another page counts now
		return count
	}
	defer h.problems.counting.Unlock()
	// otherwise the page itself says why
	if o, err := h.console.GetOverview(ctx, &marchv1.GetOverviewRequest{}); err == nil {
		h.problems.set(len(o.GetProblems()))
	}
	count, _ = h.problems.get()
	return count
}

// countBeside counts the problems for a page beside its own reads. It returns a function that
// waits for the number, and must be called.
func (h *Handler) countBeside(ctx context.Context, p *page) (wait func() int) {
	if p.path == "" || p.name == "overview" { // which counts by itself
		return func() int { return 0 }
	}
	counted := make(chan int, 1)
	go func() { counted <- h.countProblems(ctx) }()
	return func() int { return <-counted }
}

// knownProblems returns the number of problems as it was counted last.
func (h *Handler) knownProblems(ctx context.Context) int {
	count, _ := h.problems.get()
	if !mayCount(ctx) {
		return 0
	}
	return count
}

func mayCount(ctx context.Context) bool {
	s := access.From(ctx)
	return s == nil || s.Allows(marchv1.ConsoleService_GetOverview_FullMethodName, "")
}

// tellProblems answers with the number of problems. A page without a stream asks for it.
func (h *Handler) tellProblems(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), buildWithin)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(strconv.Itoa(h.countProblems(ctx))))
}

var buttons = map[marchv1.ProblemKind]string{
	marchv1.ProblemKind_PROBLEM_KIND_SILENT:          "ForgetInstance",
	marchv1.ProblemKind_PROBLEM_KIND_NO_RANGE:        "PlanMigration",
	marchv1.ProblemKind_PROBLEM_KIND_MIGRATION:       "AbortMigration",
	marchv1.ProblemKind_PROBLEM_KIND_MIGRATION_WAITS: "ContinueMigration",
	marchv1.ProblemKind_PROBLEM_KIND_TAG_USED_UP:     "UpdateTag",
}

// shown returns problems as the caller sees them: with links to pages of this console, and with the buttons that the
// caller may use.
func (c *call) shown(list []*marchv1.Problem) []*marchv1.Problem {
	own := func(path string) bool { return strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") }
	for _, p := range list {
		if !own(p.GetPage()) {
			p.Page = ""
		}
		if name := buttons[p.GetKind()]; name == "" || !own(p.GetButton()) || !c.mayAny(name) {
			p.Button = ""
		}
	}
	return list
}
