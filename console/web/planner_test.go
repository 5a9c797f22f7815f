package web_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/web"
)

// counting is a console with a million tags. It gives the answers about the costs of its
// plan that the test chooses.
type counting struct {
	marchv1.UnimplementedConsoleServiceServer

	mu      sync.Mutex
	answers []func() (*marchv1.CountPlanCostResponse, error) // of each call; the last one stays
	asked   []string                                         // the count that each call asked for
	applied *marchv1.ApplyMigrationRequest
}

var (
	twoRooms = &marchv1.Layout{Version: 1, Boundary: 100, Rooms: map[string]*marchv1.Range{"a": {Lower: 0, Upper: 50},
		"b": {Lower: 50, Upper: 100}}}
	moved = &marchv1.Layout{Version: 2, Boundary: 100, Rooms: map[string]*marchv1.Range{"a": {Lower: 0, Upper: 25},
		"b": {Lower: 25, Upper: 100}}}
)

func (c *counting) GetLayout(context.Context, *marchv1.GetLayoutRequest) (*marchv1.GetLayoutResponse, error) {
	return &marchv1.GetLayoutResponse{Layout: &marchv1.LayoutRecord{Layout: twoRooms}, Ever: []string{"a", "b"}}, nil
}

func (c *counting) ListMigrations(context.Context,
	*marchv1.ListMigrationsRequest) (*marchv1.ListMigrationsResponse, error) {
	return &marchv1.ListMigrationsResponse{}, nil
}

func (c *counting) ValidateLayout(context.Context,
	*marchv1.ValidateLayoutRequest) (*marchv1.ValidateLayoutResponse, error) {
	return &marchv1.ValidateLayoutResponse{}, nil
}

func (c *counting) PlanMigration(_ context.Context,
	r *marchv1.PlanMigrationRequest) (*marchv1.PlanMigrationResponse, error) {
	return &marchv1.PlanMigrationResponse{Plan: &marchv1.Plan{
		From: twoRooms, Target: moved, Moves: []*marchv1.Move{{Kind: marchv1.MoveKind_MOVE_KIND_SWITCH,
			Why: "rooms change", Layout: moved}}, Force: r.GetForce(),
		Warnings: []string{"room b gets [25, 100) of 100 residues, but no instance of it is up"},
	}}, nil
}

func (c *counting) CountPlanCost(_ context.Context,
	r *marchv1.CountPlanCostRequest) (*marchv1.CountPlanCostResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, r.GetCount())
	answer := c.answers[0]
	if len(c.answers) > 1 {
		c.answers = c.answers[1:]
	}
	return answer()
}

func (c *counting) ApplyMigration(_ context.Context,
	r *marchv1.ApplyMigrationRequest) (*marchv1.ApplyMigrationResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applied = r
	return nil, allocator.Errorf(allocator.Unavailable, "The plan is not applied: only 5 of 7 tags were read")
}

func (c *counting) says(answers ...func() (*marchv1.CountPlanCostResponse, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers, c.asked = answers, nil
}

func counts(read int64) func() (*marchv1.CountPlanCostResponse, error) {
	return func() (*marchv1.CountPlanCostResponse, error) {
		return &marchv1.CountPlanCostResponse{Read: read, Tags: 1_000_000, Count: "count-1"}, nil
	}
}

func counted(refused string) func() (*marchv1.CountPlanCostResponse, error) {
	return func() (*marchv1.CountPlanCostResponse, error) {
		return &marchv1.CountPlanCostResponse{
			Read: 1_000_000, Tags: 1_000_000, Count: "count-1", Refused: refused,
			Cost: &marchv1.PlanCost{Tags: 1_000_000, Skipped: 8749},
		}, nil
	}
}

// serve serves the pages of the console.
func (c *counting) serve(t *testing.T) (at string) {
	t.Helper()
	return servePages(t, web.Config{Console: inProcess(c)})
}

const movedForm = "/migrations?boundary=100&room=a&lower=0&upper=25&room=b&lower=25&upper=100"

// TestPlanIsShownBeforeItsCosts: a page has the plan while its costs are being counted,
// and gets the costs afterwards, with scripts or without.
func TestPlanIsShownBeforeItsCosts(t *testing.T) {
	c := &counting{}
	at := c.serve(t)
	var texts []string
	shows := func(what string, addresses ...string) {
		t.Helper()
		for _, address := range addresses {
			answer, page := get(t, at+movedForm+address)
			refreshes := strings.Contains(page, `<noscript><meta http-equiv="refresh"`)
			texts = append(texts, fmt.Sprintf("# %s, %s: %s, refreshes: %t", what, address, answer.Status, refreshes),
				textOf(page))
		}
	}
	c.says(counts(230_000))
	shows("being counted", "", "&do=apply&costs=count-1", "&do=apply&force=1")
	if want := []string{"", "count-1", ""}; strings.Join(c.asked, ",") != strings.Join(want, ",") {
		t.Errorf("asked for the counts %q, want %q", c.asked, want)
	}
	c.says(counted(""))
	shows("counted", "", "&costs=count-1", "&do=apply&costs=count-1")
	c.says(counted("tag order: room a may have nothing to lease"))
	shows("refused", "&do=apply", "&do=apply&force=1")
	c.says(func() (*marchv1.CountPlanCostResponse, error) {
		return nil, allocator.Errorf(allocator.Unavailable, "etcd is away")
	})
	shows("not counted", "")
	screen(t, "costs", texts...)
}

// TestApplyFromThePage: a form names the count that its page showed. If an apply has to wait
// for another count, the page says so.
func TestApplyFromThePage(t *testing.T) {
	c := &counting{}
	at := c.serve(t)
	c.says(counts(5))
	answer, text := post(t, at+"/migrations", strings.TrimPrefix(movedForm, "/migrations?")+
		"&costs=count-1&hold=0s&plan={}")
	if c.applied.GetCount() != "count-1" {
		t.Errorf("applied %v", c.applied)
	}
	if answer.StatusCode != http.StatusServiceUnavailable ||
		!strings.Contains(text, "The plan is not applied: only 5 of 7 tags were read") {
		t.Errorf("%s\n%s", answer.Status, text)
	}
}

// TestTicks: of edges that are close, the one that moves has the label.
func TestTicks(t *testing.T) {
	w := newWorld(t, 1000, "a", "b", "c")
	at, _ := w.console("")
	_, page := get(t,
		at+"/migrations?boundary=1000&room=a&lower=0&upper=333&room=c&lower=333&upper=380&room=b&lower=380&upper=1000")
	_, ticks, _ := strings.Cut(page, `class="ticks"`)
	ticks, _, _ = strings.Cut(ticks, "</svg>")
	if !strings.Contains(ticks, ">380<") || strings.Contains(ticks, ">333<") {
		t.Errorf("the labels are %s, want 380 and not 333", ticks)
	}
}

// Costs that are being counted appear without a reload.
func (b *browser) costs(t *testing.T) {
	c := &counting{}
	c.says(counts(1000), counts(500_000), counts(999_999), counted(""))
	p := b.open(t, c.serve(t))
	p.visit(movedForm + "&do=apply")
	p.says("1,000,000 tags skip 8,749 IDs in all, at most.")
	p.until("it can be applied", button("Apply: 1 move"))
	c.says(counts(1000), counts(500_000), counted(""))
	p.visit(movedForm)
	eval[bool](p, `(() => { document.querySelector("#row-0 input[name=upper]").dataset.stays = "yes"; return true })()`)
	p.says("1,000,000 tags skip 8,749 IDs in all, at most.")
	p.until("the form is untouched", `document.querySelector("#row-0 input[name=upper]").dataset.stays === "yes"`)
}
