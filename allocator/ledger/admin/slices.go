package admin

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/plan"
)

// AllNeeds returns what all tags, and pinned instances, need of layouts.
func (a *view) AllNeeds(ctx context.Context) (needs plan.Workers, err error) {
	if _, err := a.EachTagIn(ctx, nil, func(t record.Tag, _ map[allocator.Room]record.Mark) error {
		AddTag(&needs, t)
		return nil
	}); err != nil {
		return needs, err
	}
	err = a.AddPins(ctx, &needs)
	return needs, err
}

// FirstNeeds returns what the first n tags by name, and pinned instances, need of layouts.
func (a *view) FirstNeeds(ctx context.Context, n int) (needs plan.Workers, err error) {
	first, _, err := a.Tags(ctx, "", "", 0, n)
	if err != nil {
		return needs, err
	}
	for _, t := range first {
		AddTag(&needs, t)
	}
	err = a.AddPins(ctx, &needs)
	return needs, err
}

// AddPins adds the workers that pinned instances need. An instance that was not
// forgotten yet may start again with its number.
func (a *view) AddPins(ctx context.Context, needs *plan.Workers) error {
	instances, _, err := a.Instances(ctx, "")
	if err != nil {
		return err
	}
	for _, i := range instances {
		if i.Pin != nil && !i.Leaving {
			needs.AddPin(plan.Pin{Room: i.Room, Instance: i.Name, Number: *i.Pin})
		}
	}
	return nil
}
