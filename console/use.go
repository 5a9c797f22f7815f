package console

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

const (
	// useWindow is how far back a use counts.
	useWindow = time.Hour
	// mostUsedTags is how many tags an answer names.
	mostUsedTags = 20
	// useRateOver is the number of seconds over which the rate is averaged.
	useRateOver = 60
)

// mostChains bounds the tags of an instance that GetRoomUse looks at.
const mostChains = 20_000

// GetRoomUse implements ConsoleService.
func (s *Server) GetRoomUse(ctx context.Context, r *marchv1.GetRoomUseRequest) (*marchv1.GetRoomUseResponse, error) {
	room, err := allocator.ParseRoom(r.GetRoom())
	if err != nil {
		return nil, err
	}
	instances, err := s.instances(ctx)
	if err != nil {
		return nil, err
	}
	list := inRoom(instances, room)
	var reports []useReport
	for k, r := range askEach(ctx, s.rooms, list, living(list), askTimeout, askUse) {
		if list[k].Alive {
			r.is.Instance, r.is.Answered = string(list[k].ID()), r.err == nil
			reports = append(reports, r.is)
		}
	}
	return &marchv1.GetRoomUseResponse{Use: roomUse(string(room), reports, time.Now())}, nil
}

// askUse asks an instance for its rates and chains.
func askUse(ctx context.Context, of marchv1.RoomServiceClient) (report useReport, err error) {
	status, err := of.GetInstance(ctx, &marchv1.GetInstanceRequest{})
	if err != nil {
		return report, err
	}
	report.Rates = status.GetRates()
	err = eachChain(ctx, of, func(page []*marchv1.Chain) bool {
		report.Chains = append(report.Chains, page...)
		return len(report.Chains) < mostChains
	})
	return report, err
}

// useReport is what an instance remembers of its callers: the tags in memory, which it drops when they were unused for
// --idle-after, and the rates of all tags together in the last two minutes. A client that leases its IDs is seen when
// it leases.
type useReport struct {
	Instance string // ROOM/NAME
	Answered bool
	Rates    []float64 // IDs per second, a value for each second, the oldest first
	Chains   []*marchv1.Chain
}

// roomUse returns what callers did in a room lately, by the reports of its live instances. An operator who takes a room
// out of service wants to know that before it goes.
func roomUse(room string, reports []useReport, now time.Time) *marchv1.RoomUse {
	u := &marchv1.RoomUse{Room: room}
	tags := make(map[string]*marchv1.TagUse)
	idle := useWindow
	for _, t := range reports {
		if !t.Answered {
			u.Silent = append(u.Silent, t.Instance)
			continue
		}
		idle = min(idle, quiet(t.Rates))
		u.Rate += mean(t.Rates, useRateOver)
		for _, c := range t.Chains {
			used := c.GetUsed().AsTime()
			since := max(now.Sub(used), 0) // the clocks differ
			if c.GetIssued() == 0 || since >= useWindow {
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
	u.Latest = u.GetLatest()[:min(len(u.GetLatest()), mostUsedTags)]
	return u
}

// quiet returns for how long no ID was issued, by the rates of the last seconds; useWindow if none was issued in all.
func quiet(rates []float64) time.Duration {
	for i := len(rates) - 1; i >= 0; i-- {
		if rates[i] > 0 {
			return time.Duration(len(rates)-1-i) * time.Second
		}
	}
	return useWindow
}
