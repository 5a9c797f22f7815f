package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Idle is what the rooms' instances saw: no ID issued and none leased for a while. An instance
// that does not answer is not idle. A client with IDs that it leased before issues them without
// a room, so it is seen again only when it leases.

// leavingRooms returns the rooms that have a range in from and none in target, sorted.
func leavingRooms(from, target *marchv1.Layout) []string {
	return slices.DeleteFunc(sortedKeys(from.GetRooms()), func(room string) bool {
		return target.GetRooms()[room] != nil
	})
}

type idleWait struct {
	// Rooms are the rooms to wait for.
	Rooms []string
	// For is how long a room must have been idle.
	For time.Duration
	// Every is how often to ask.
	Every time.Duration
	// Use asks for the use of a room.
	Use func(ctx context.Context, room string) (*marchv1.RoomUse, error)
	// Say is told what is waited for.
	Say func(line string)
}

// waitUntilIdle returns when all rooms are idle. Its errors are Use's, except Unavailable, and
// Unavailable if ctx ends first.
func waitUntilIdle(ctx context.Context, cfg idleWait) error {
	ticker := time.NewTicker(cfg.Every)
	defer ticker.Stop()
	waiting := ""
	for {
		var busy []string
		for _, room := range cfg.Rooms {
			u, err := cfg.Use(ctx, room)
			switch {
			case err != nil && ctx.Err() == nil && allocator.KindOf(err) != allocator.Unavailable:
				return err
			case err != nil:
				busy = append(busy, fmt.Sprintf("room %s: %v", room, err))
			case u.GetIdle() == nil || u.GetIdle().AsDuration() < cfg.For:
				busy = append(busy, roomUseText(u))
			}
		}
		if len(busy) == 0 {
			return nil
		}
		if ctx.Err() == nil {
			waiting = strings.Join(busy, "; ")
			cfg.Say("waits for callers to leave: " + waiting)
		}
		select {
		case <-ctx.Done():
			return allocator.Errorf(allocator.Unavailable, "not applied: callers were still there: %s", waiting)
		case <-ticker.C:
		}
	}
}

func roomUseText(u *marchv1.RoomUse) string {
	if len(u.GetSilent()) > 0 {
		return fmt.Sprintf("room %s: not known, because these do not answer: %s", u.GetRoom(),
			strings.Join(u.GetSilent(), ", "))
	}
	idle := u.GetIdle().AsDuration()
	if idle >= time.Hour {
		return fmt.Sprintf("room %s: no caller in the last hour", u.GetRoom())
	}
	names := make([]string, 0, 3)
	for _, t := range u.GetLatest()[:min(len(u.GetLatest()), cap(names))] {
		names = append(names, t.GetTag())
	}
	tags := ""
	if u.GetTags() > 0 {
		tags = fmt.Sprintf("; tags of the last hour: %d, last %s", u.GetTags(), strings.Join(names, ", "))
	}
	return fmt.Sprintf("room %s: called %v ago, %.1f IDs a second%s", u.GetRoom(),
		idle.Round(time.Second), u.GetRate(), tags)
}

// roomsUse returns what callers did lately in the rooms that a plan takes out.
func roomsUse(ctx context.Context, t *target, plan *marchv1.Plan) (list []*marchv1.RoomUse) {
	for _, room := range leavingRooms(plan.GetFrom(), plan.GetTarget()) {
		u, err := roomUse(ctx, t, room)
		if err != nil { // a plan is of use without it
			u = &marchv1.RoomUse{Room: room, Silent: []string{"the console (" + err.Error() + ")"}}
		}
		list = append(list, u)
	}
	return list
}

func roomUse(ctx context.Context, t *target, room string) (*marchv1.RoomUse, error) {
	answer, err := askConsole(ctx, t, &marchv1.GetRoomUseRequest{Room: room}, marchv1.ConsoleServiceClient.GetRoomUse)
	return answer.GetUse(), err
}

// useText shows what callers did in the rooms that a plan takes out.
func useText(w *tabwriter.Writer, list []*marchv1.RoomUse) {
	if len(list) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w, "\nthe plan takes out:")
	for _, u := range list {
		_, _ = fmt.Fprintf(w, "  %s\n", roomUseText(u))
	}
}

// waitIdle waits until the rooms that a plan takes out have no callers.
func waitIdle(ctx context.Context, c *common, t *target, plan *marchv1.Plan, idleFor, timeout time.Duration) error {
	if idleFor < time.Second || idleFor > time.Hour {
		return usageError{allocator.Errorf(allocator.Invalid, "idle-for: %v; allowed: 1s to 1h", idleFor)}
	}
	if timeout < 0 {
		return usageError{allocator.Errorf(allocator.Invalid, "idle-timeout: %v; allowed: 0s or more", timeout)}
	}
	bounded, cancel := ctx, func() {}
	if timeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	p := newProgressAtOnce(c, 5*time.Second)
	defer p.end()
	err := waitUntilIdle(bounded, idleWait{
		Rooms: leavingRooms(plan.GetFrom(), plan.GetTarget()), For: idleFor, Every: time.Second,
		Use: func(ctx context.Context, room string) (*marchv1.RoomUse, error) { return roomUse(ctx, t, room) },
		Say: func(line string) { p.tick(func() string { return line }) },
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
