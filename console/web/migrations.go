package web

import (
	"net/url"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

type migrationsView struct {
	Unreadable []*marchv1.Unreadable
	Active     *migrationView     // nil without one
	Problems   []*marchv1.Problem // that keep all rooms from leasing
	History    []historyRow
	Older      string // address of the next page
	Newer      bool
	Planner    *planner
}

type historyRow struct {
	*marchv1.Migration
	From, Target *bar
	Live         bool
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
	for _, m := range list.GetMigrations() {
		colour := colours(roomNames(l.GetEver(), m.GetFrom(), m.GetMoves())...)
		r := historyRow{Migration: m, From: newBar(m.GetFrom(), colour).withoutCut(),
			Target: newBar(m.GetTarget(), colour).withoutCut()}
		if r.Live = !api.Ended(m.GetState()); r.Live {
			v.Active = view(c, m, colour)
		}
		v.History = append(v.History, r)
	}
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
