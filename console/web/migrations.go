package web

import (
	"net/url"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

type migrationsView struct {
	Unreadable []*marchv1.Unreadable
	Active     *migrationView     // nil without one
	Problems   []*marchv1.Problem // that keep all rooms from leasing
	History    *list
	Older      string // address of the next page
	Newer      bool
	Planner    *planner
}

// historyPage is how many migrations a page has.
const historyPage = 10

func (h *Handler) migrations(c *call) (string, any, error) {
	q := c.URL.Query()
	token := q.Get("before")
	var list *marchv1.ListMigrationsResponse
	var l *marchv1.GetLayoutResponse
	reads, ctx := errgroup.WithContext(c.Context())
	reads.Go(func() (err error) {
		list, err = h.console.ListMigrations(ctx,
			&marchv1.ListMigrationsRequest{PageSize: historyPage, PageToken: token})
		return err
	})
	reads.Go(func() (err error) {
		l, err = h.console.GetLayout(ctx, &marchv1.GetLayoutRequest{})
		return err
	})
	err := reads.Wait()
	if err != nil {
		return "", nil, err
	}
	v := &migrationsView{Newer: token != "", Problems: c.shown(l.GetProblems()), Unreadable: list.GetUnreadable()}
	if next := list.GetNextPageToken(); next != "" {
		v.Older = with(url.Values{}, "before", next)
	}
	v.History = newList("Migrations", setting.Migrations[1:], list.GetMigrations(), // a row links to its ID
		func(m *marchv1.Migration) (listRow, map[string]int) {
			colour := colours(roomNames(l.GetEver(), m.GetFrom(), m.GetMoves())...)
			if !api.Ended(m.GetState()) {
				v.Active = view(c, m, colour)
			}
			return listRow{ID: "m-" + m.GetId(), Page: "/migrations/" + m.GetId()}, colour
		})
	v.History.Class = " history"
	if l.GetLayout() == nil {
		return "Migrations", v, nil // without a layout there is no plan
	}
	if c.live { // a plan is not in the live part
		return "Migrations", v, nil
	}
	if v.Planner, err = h.plan(c, l, v.Active != nil); err != nil {
		return "", nil, err
	}
	return "Migrations", v, nil
}

// refresh returns the address at which a browser without scripts asks again for a
// cost that is being counted; empty if none is.
func (v *migrationsView) refresh() string {
	if v.Planner == nil || v.Planner.Costs == nil {
		return ""
	}
	return v.Planner.Costs.Again
}
