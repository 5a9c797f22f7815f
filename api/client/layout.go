package client

import (
	"context"
	"maps"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Place is where an ID lies in a layout.
type Place struct {
	Version int64  // of the layout
	Block   int64  // id / boundary
	Residue int64  // id mod boundary
	Room    string // that has the residue; empty if none has
}

// Layout returns the cluster's layout, which the client keeps. It asks a console the first time. Later the client
// follows changes each Discover.Every, and within some seconds if a lease shows that there was one. Its errors are
// Refused without Options.Discover, the consoles', and ErrClosed.
func (c *Client) Layout(ctx context.Context) (Layout, error) {
	l, err := c.keptLayout(ctx)
	l.Ranges = maps.Clone(l.Ranges) // the caller's
	return l, err
}

func (c *Client) keptLayout(ctx context.Context) (Layout, error) {
	switch kept := c.layout.Load(); {
	case c.closed():
		return Layout{}, ErrClosed
	case kept != nil:
		return *kept, nil
	case c.discover == nil:
		return Layout{}, allocator.Errorf(allocator.Refused, "the client knows no console; give it Options.Discover")
	}
	return c.readLayout(ctx)
}

// readLayout asks the consoles for the layout, and keeps it. One that is newer stays.
func (c *Client) readLayout(ctx context.Context) (Layout, error) {
	answer, err := askConsoles(ctx, c.discover, marchv1.ConsoleServiceClient.GetLayout, &marchv1.GetLayoutRequest{})
	switch {
	case c.closed():
		return Layout{}, ErrClosed
	case err != nil:
		return Layout{}, err
	}
	l, err := api.LayoutFromProto(answer.GetLayout().GetLayout())
	if err != nil {
		return Layout{}, allocator.Errorf(allocator.Internal, "a console's answer makes no sense: %w", err)
	}
	for {
		kept := c.layout.Load()
		if kept != nil && kept.Version >= l.Version {
			return *kept, nil
		}
		if c.layout.CompareAndSwap(kept, &l) {
			return l, nil
		}
	}
}

// followLayout reads the layout again if it is kept. What is kept stays where no console answers.
func (c *Client) followLayout(ctx context.Context) {
	if c.layout.Load() != nil {
		_, _ = c.readLayout(ctx)
	}
}

// Decode returns where an ID of a counter lies in the layout that the client keeps. A layout before it may have given
// the residue to another room: IDService.Decode knows which room leased an ID. Its errors are Layout's, and Invalid.
func (c *Client) Decode(ctx context.Context, id int64) (Place, error) {
	if id < 0 {
		return Place{}, allocator.Errorf(allocator.Invalid, "id: %d; allowed: 0 to %d", id, int64(allocator.MaxID))
	}
	l, err := c.keptLayout(ctx)
	if err != nil {
		return Place{}, err
	}
	room, _ := l.RoomOf(id)
	return Place{Version: l.Version, Block: l.Block(id), Residue: l.Residue(id), Room: string(room)}, nil
}

// RoomOf returns the room that has an ID's residue, for a program that routes by ID. Its errors are Decode's, and
// NotFound if no room has the residue.
func (c *Client) RoomOf(ctx context.Context, id int64) (room string, err error) {
	p, err := c.Decode(ctx, id)
	if err == nil && p.Room == "" {
		err = allocator.Errorf(allocator.NotFound, "no room has the residue %d in layout version %d", p.Residue,
			p.Version)
	}
	return p.Room, err
}
