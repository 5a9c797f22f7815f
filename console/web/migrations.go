package web

import (
	"net/url"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

type migrationsView struct {
	Unreadable []*marchv1.Unreadable
	Active     *migrationView     // nil without one
	Problems   []*marchv1.Problem // that keep all rooms from leasing
	History    *list
	pages
	Planner *planner
}

// historyPage is how many migrations a page has.
const historyPage = 10

func (h *Handler) migrations(c *call) (any, error) {
	q := c.URL.Query()
	list, err := h.console.ListMigrations(c.Context(),
		&marchv1.ListMigrationsRequest{PageSize: historyPage, PageToken: q.Get("before")})
	if err != nil {
		return nil, err
	}
	v := &migrationsView{pages: pagesOf(url.Values{"before": q["before"]}, "before", list.GetNextPageToken()),
		Problems: c.shown(c.layout.GetProblems()), Unreadable: list.GetUnreadable()}
	colour := coloursOf(c.layout, list.GetMigrations()...)
	for _, m := range list.GetMigrations() {
		if !api.Ended(m.GetState()) {
			v.Active = view(c, m, colour)
		}
	}
	v.History = newList("Migrations", setting.Migrations[1:], list.GetMigrations(), colour, // a row links to its ID
		func(m *marchv1.Migration) listRow {
			return listRow{ID: "m-" + m.GetId(), Page: "/migrations/" + m.GetId()}
		})
	if c.layout.GetLayout() != nil && !c.live { // a plan is of a layout, and not in the live part
		v.Planner, err = h.plan(c, v.Active != nil)
	}
	return v, err
}

// refresh returns the address at which a browser without scripts asks again for a
// cost that is being counted; empty if none is.
func (v *migrationsView) refresh() string {
	if v.Planner == nil || v.Planner.Costs == nil {
		return ""
	}
	return v.Planner.Costs.Again
}
