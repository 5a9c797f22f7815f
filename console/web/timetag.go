package web

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// timeView is what the page of a tag of time-ordered IDs shows.
type timeView struct {
	*marchv1.TimeTag
	Epoch, End *timestamppb.Timestamp // of the time bits
	Left       *durationpb.Duration   // until the end
	Capacity   int64                  // IDs of a worker in a second
	Slices     *list
	Workers    *list
	More       bool
}

func (h *Handler) newTimeView(c *call, t *marchv1.GetTagResponse, colour map[string]int) (*timeView, error) {
	p := t.GetTag().GetTime()
	l := timeid.Layout{
		TimeBits: int(p.GetTimeBits()), WorkerBits: int(p.GetWorkerBits()), SequenceBits: int(p.GetSequenceBits()),
		Unit: p.GetUnit().AsDuration(), Epoch: p.GetEpochMs(),
	}
	end := time.UnixMilli(l.End())
	v := &timeView{
		TimeTag: p, Epoch: timestamppb.New(time.UnixMilli(l.Epoch)), End: timestamppb.New(end), Capacity: l.PerSecond(),
		Left:   &durationpb.Duration{Seconds: max(end.Unix()-time.Now().Unix(), 0)},
		Slices: listSlices(t.GetSlices(), colour),
	}
	list, err := h.console.ListWorkers(c.Context(),
		&marchv1.ListWorkersRequest{Bits: &p.WorkerBits, PageSize: workersPage})
	v.Workers, v.More = listWorkers(list.GetWorkers(), colour), list.GetNextPageToken() != ""
	return v, err
}
