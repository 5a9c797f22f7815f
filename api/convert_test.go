package api_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func TestLayoutThereAndBack(t *testing.T) {
	for _, want := range []allocator.Layout{
		{Boundary: 1, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 1}}},
		{Version: 7, Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50},
			"b-2": {Lower: 60, Upper: 100}}},
		{Version: math.MaxInt64, Boundary: math.MaxInt64,
			Ranges: map[allocator.Room]allocator.Range{"a": {Lower: math.MaxInt64 - 1, Upper: math.MaxInt64}}},
	} {
		got, err := api.LayoutFromProto(sent(t, api.LayoutToProto(want)))
		if err != nil || !got.Equal(want) || got.Version != want.Version {
			t.Errorf("%v came back as %v, %v", want, got, err)
		}
	}
}

func TestLayoutFromProtoRefuses(t *testing.T) {
	type rooms = map[string]*marchv1.Range
	crowd := rooms{}
	for i := range int64(100_000) {
		crowd[fmt.Sprintf("r%d", i)] = &marchv1.Range{Lower: i, Upper: i + 1}
	}
	for name, tt := range map[string]struct {
		layout *marchv1.Layout
		want   string // part of the message
	}{
		"nothing":    {nil, "no layout"},
		"empty":      {&marchv1.Layout{}, "boundary 0"},
		"no rooms":   {&marchv1.Layout{Boundary: 10}, "0 rooms"},
		"nil range":  {&marchv1.Layout{Boundary: 10, Rooms: rooms{"a": nil}}, "room a [0, 0)"},
		"room name":  {&marchv1.Layout{Boundary: 10, Rooms: rooms{"A": {Upper: 5}}}, `"A"`},
		"empty name": {&marchv1.Layout{Boundary: 10, Rooms: rooms{"": {Upper: 5}}}, "room: empty"},
		"overlap": {&marchv1.Layout{Boundary: 10, Rooms: rooms{"a": {Upper: 5}, "b": {Lower: 4, Upper: 10}}},
			"[4, 5)"},
		"above":       {&marchv1.Layout{Boundary: 10, Rooms: rooms{"a": {Upper: 11}}}, "upper 11"},
		"below":       {&marchv1.Layout{Boundary: 10, Rooms: rooms{"a": {Lower: math.MinInt64, Upper: 5}}}, "below 0"},
		"many a room": {&marchv1.Layout{Boundary: 1 << 20, Rooms: crowd}, "100000 rooms"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := api.LayoutFromProto(tt.layout)
			var broken *allocator.LayoutError
			if !errors.As(err, &broken) || !errors.Is(err, allocator.Invalid) ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want a *LayoutError that says %q", err, tt.want)
			}
			if got.Ranges != nil {
				t.Errorf("%v came with an error", got)
			}
		})
	}
}

func TestSegmentThereAndBack(t *testing.T) {
	layout := allocator.Layout{Version: 3, Boundary: 100,
		Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 20, Upper: 70}}}
	for _, base := range []int64{0, 1, 69, 70, 1 << 53, math.MaxInt64 - 200} {
		want, err := layout.Segment("a", base, 1000, allocator.MaxID)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := api.SegmentFromProto(sent(t, api.SegmentToProto(want))); err != nil || got != want {
			t.Errorf("%v came back as %v, %v", want, got, err)
		}
	}
}

func TestSegmentFromProtoRefuses(t *testing.T) {
	good := func() *marchv1.Segment {
		return &marchv1.Segment{Version: 1, Boundary: 100, Range: &marchv1.Range{Lower: 20, Upper: 70},
			First: 120, Count: 5}
	}
	if _, err := api.SegmentFromProto(good()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*marchv1.Segment){
		"version 0":      func(s *marchv1.Segment) { s.Version = 0 },
		"boundary 0":     func(s *marchv1.Segment) { s.Boundary = 0 },
		"nil range":      func(s *marchv1.Segment) { s.Range = nil },
		"first outside":  func(s *marchv1.Segment) { s.First = 119 },
		"first negative": func(s *marchv1.Segment) { s.First = -80 },
		"count 0":        func(s *marchv1.Segment) { s.Count = 0 },
		"count negative": func(s *marchv1.Segment) { s.Count = math.MinInt64 },
		"past the end":   func(s *marchv1.Segment) { s.Count = math.MaxInt64 },
	} {
		t.Run(name, func(t *testing.T) {
			p := good()
			spoil(p)
			if got, err := api.SegmentFromProto(p); !errors.Is(err, allocator.Invalid) || got != (allocator.Segment{}) {
				t.Errorf("got %v, %v, want Invalid", got, err)
			}
		})
	}
	if _, err := api.SegmentFromProto(nil); !errors.Is(err, allocator.Invalid) {
		t.Errorf("nil: %v, want Invalid", err)
	}
}

func TestRunsToProto(t *testing.T) {
	want := []allocator.Run{{First: 1, Count: 49}, {First: 100, Count: 50}, {First: math.MaxInt64 - 1, Count: 1}}
	got := api.RunsToProto(want)
	if len(got) != len(want) {
		t.Fatalf("%d runs, want %d", len(got), len(want))
	}
	for i, run := range sent(t, &marchv1.NextBatchResponse{Runs: got}).GetRuns() {
		if run.GetFirst() != want[i].First || run.GetCount() != want[i].Count {
			t.Errorf("run %d: %v, want %v", i, run, want[i])
		}
	}
	if got := api.RunsToProto(nil); len(got) != 0 {
		t.Errorf("runs from nothing: %v", got)
	}
}

// sent returns a message as the other side gets it.
func sent[M proto.Message](t *testing.T, m M) M {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(data, got); err != nil {
		t.Fatal(err)
	}
	return got.(M)
}
