package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func TestLeavingRooms(t *testing.T) {
	from := &marchv1.Layout{Rooms: map[string]*marchv1.Range{"c": {Upper: 1}, "a": {Upper: 1}, "b": {Upper: 1}}}
	target := &marchv1.Layout{Rooms: map[string]*marchv1.Range{"b": {Upper: 1}, "d": {Upper: 1}}}
	if got := leavingRooms(from, target); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("got %v", got)
	}
}

func TestWaitUntilIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var said []string
		cfg := idleWait{
			Rooms: []string{"a"}, For: time.Minute, Every: time.Second, Say: func(line string) {
				said = append(said, line)
			},
			Use: func(context.Context, string) (*marchv1.RoomUse, error) {
				switch passed := time.Since(began); {
				case passed < 10*time.Second:
					return nil, allocator.Errorf(allocator.Unavailable, "no console")
				case passed < 20*time.Second:
					return &marchv1.RoomUse{Room: "a", Silent: []string{"a/one"}}, nil
				default: // the last call was then
					return &marchv1.RoomUse{Room: "a", Idle: durationpb.New(passed - 20*time.Second), Tags: 1,
						Latest: []*marchv1.TagUse{{Tag: "order"}}}, nil
				}
			},
		}
		if err := waitUntilIdle(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if passed := time.Since(began); passed != 80*time.Second {
			t.Errorf("waited for %v", passed)
		}
		for _, want := range []string{"no console", "do not answer: a/one",
			"room a: called 5s ago, 0.0 IDs a second; tags of the last hour: 1, last order"} {
			if !slices.ContainsFunc(said, func(line string) bool { return strings.Contains(line, want) }) {
				t.Errorf("never said %q: %q", want, said)
			}
		}

		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		began = time.Now()
		if err := waitUntilIdle(ctx, cfg); allocator.KindOf(err) != allocator.Unavailable ||
			!strings.Contains(err.Error(), "callers were still there: room a: called ") {
			t.Errorf("at the end of its time: %v", err)
		}
		broken := errors.New("broken")
		cfg.Use = func(context.Context, string) (*marchv1.RoomUse, error) { return nil, broken }
		if err := waitUntilIdle(t.Context(), cfg); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
		cfg.Rooms = nil
		if err := waitUntilIdle(t.Context(), cfg); err != nil {
			t.Errorf("without rooms: %v", err)
		}
	})
}
