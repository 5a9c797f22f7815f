// Package use tells what callers did in a room lately: which tags they asked for, how many IDs
// they took, and how long the room has been idle. An operator who takes a room out of service
// wants to know that before it goes.
//
// It has only what the room's instances remember: the tags in memory, which an instance drops
// when they were unused for --idle-after, and the rates of all tags together, those of
// time-ordered IDs too, in the last two minutes. A client that leases its IDs is seen when it
// leases. Everything here is pure: the console asks the instances.
package use

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

const (
	// Window is how far back a use counts.
	Window = time.Hour
	// mostTags is how many tags an answer names.
	mostTags = 20
	// rateOver is over how much of the past the rate is the mean.
	rateOver = 60
)

// Told is what one instance told of itself.
type Told struct {
	Instance string // ROOM/NAME
	Answered bool
	Rates    []float64 // IDs per second, a value for each second, the oldest first
	Chains   []*marchv1.Chain
}

// Of returns the use of a room by the answers of its live instances.
func Of(room string, told []Told, now time.Time) *marchv1.RoomUse {
	u := &marchv1.RoomUse{Room: room}
	tags := make(map[string]*marchv1.TagUse)
	idle := Window
	for _, t := range told {
		if !t.Answered {
			u.Silent = append(u.Silent, t.Instance)
			continue
		}
		idle = min(idle, quiet(t.Rates))
		recent := t.Rates[max(len(t.Rates)-rateOver, 0):]
		for _, rate := range recent {
			u.Rate += rate / float64(len(recent))
		}
		for _, c := range t.Chains {
			used := c.GetUsed().AsTime()
			since := max(now.Sub(used), 0) // the clocks differ
			if c.GetIssued() == 0 || since >= Window {
				continue
			}
			idle = min(idle, since)
			tag := tags[c.GetTag()]
			if tag == nil {
				tag = &marchv1.TagUse{Tag: c.GetTag(), Last: c.GetUsed()}
				tags[c.GetTag()] = tag
			}
			if used.After(tag.GetLast().AsTime()) {
				tag.Last = timestamppb.New(used)
			}
			tag.Issued += c.GetIssued()
			tag.Peak += c.GetPeak()
		}
	}
	if len(u.GetSilent()) == 0 {
		u.Idle = durationpb.New(idle)
	}
	for _, tag := range tags {
		u.Latest = append(u.Latest, tag)
	}
	slices.SortFunc(u.Latest, func(a, b *marchv1.TagUse) int {
		return cmp.Or(b.GetLast().AsTime().Compare(a.GetLast().AsTime()), cmp.Compare(a.GetTag(), b.GetTag()))
	})
	u.Tags = int64(len(u.GetLatest()))
	u.Latest = u.GetLatest()[:min(len(u.GetLatest()), mostTags)]
	return u
}

// quiet returns for how long no ID was issued, by the rates of the last seconds; Window if none
// was issued in all of them.
func quiet(rates []float64) time.Duration {
	for i := len(rates) - 1; i >= 0; i-- {
		if rates[i] > 0 {
			return time.Duration(len(rates)-1-i) * time.Second
		}
	}
	return Window
}
