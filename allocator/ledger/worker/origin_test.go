package worker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
)

func TestOrigins(t *testing.T) {
	preset, err := timeid.PresetNamed("cosid")
	if err != nil {
		t.Fatal(err)
	}
	tag := record.NewTimeTag(preset.Layout)
	at := func(minutes int) time.Time {
		return time.UnixMilli(1_800_000_000_000).Add(time.Duration(minutes) * time.Minute)
	}
	layouts := []record.Layout{ // in the order in which a list has them
		{Layout: allocator.Layout{Version: 3, Boundary: 100,
			Ranges: map[allocator.Room]allocator.Range{"b": {Lower: 0, Upper: 50}, "a": {Lower: 50, Upper: 100}}},
			Time: at(100)},
		{Layout: allocator.Layout{Version: 2, Boundary: 100,
			Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 25}, "b": {Lower: 50, Upper: 100}}},
			Time: at(50)},
		{Layout: allocator.Layout{Version: 1, Boundary: 100,
			Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}, "b": {Lower: 50, Upper: 100}}},
			Time: at(0)},
	}
	key := record.Worker{Room: "b", Instance: "b-1", From: at(101).UnixMilli(), Until: at(110).UnixMilli()}
	for name, test := range map[string]struct {
		minute  int
		number  int64
		layouts []record.Layout
		key     *record.Worker
		room    allocator.Room
		rooms   []allocator.Room
		by      allocator.Instance
		layout  int64
	}{
		"under the first layout":              {minute: 10, number: 5, layouts: layouts, room: "a", layout: 1},
		"after a layout that kept the worker": {minute: 51, number: 5, layouts: layouts, room: "a", layout: 2},
		"just after one that took it away":    {minute: 60, number: 300, layouts: layouts, room: "a", layout: 2},
		"long after that":                     {minute: 90, number: 300, layouts: layouts, layout: 2},
		"about when it changed hands": {minute: 105, number: 5, layouts: layouts,
			rooms: []allocator.Room{"a", "b"}, layout: 3},
		"just before, by another clock": {minute: 100, number: 5, layouts: layouts,
			rooms: []allocator.Room{"a", "b"}, layout: 3},
		"within the window that the key tells": {minute: 105, number: 5, layouts: layouts, key: &key,
			room: "b", by: "b-1", layout: 3},
		"before that window": {minute: 10, number: 5, layouts: layouts, key: &key, room: "a", layout: 1},
		"layouts that are no longer kept": {minute: 60, number: 5, layouts: layouts[:2],
			rooms: []allocator.Room{"a"}, layout: 2},
		"with enough layouts": {minute: 80, number: 5, layouts: layouts[:2], room: "a", layout: 2},
		"without layouts":     {minute: 80, number: 5},
	} {
		parts := timeid.Parts{Time: at(test.minute).UnixMilli(), Worker: test.number, Sequence: 7}
		o, err := worker.OriginOf(tag, parts, at(120), test.key, test.layouts)
		if err != nil || o.Room != test.room || !slices.Equal(o.Rooms, test.rooms) || o.Instance != test.by ||
			o.Layout != test.layout ||
			o.Worker != test.number || o.Sequence != 7 || o.Time != at(test.minute).UnixMilli() {
			t.Errorf("%s: got %+v, %v", name, o, err)
		}
	}
	parts := timeid.Parts{Time: at(10).UnixMilli(), Worker: 5, Sequence: 7}
	if o, err := worker.OriginOf(tag, parts, at(9), nil, layouts); err == nil {
		t.Errorf("an ID of the future was decoded as %+v", o)
	}
}
