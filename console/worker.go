package console

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// ListWorkers implements ConsoleService. A page token is the last worker of the page
// before.
func (s *Server) ListWorkers(ctx context.Context, r *marchv1.ListWorkersRequest) (*marchv1.ListWorkersResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	var room allocator.Room
	if r.GetRoom() != "" {
		if room, err = allocator.ParseRoom(r.GetRoom()); err != nil {
			return nil, err
		}
	}
	bits := admin.AllWidths
	if r.Bits != nil {
		if bits = int(r.GetBits()); bits < 0 || bits >= timeid.MaxBits {
			return nil, allocator.Errorf(allocator.Invalid, "bits: %d; allowed: 0 to %d", bits, timeid.MaxBits-1)
		}
	}
	after, err := parseWorkerToken(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	epoch, err := s.admin.Epoch(ctx)
	if err != nil {
		return nil, err
	}
	instances, err := s.instances(ctx)
	if err != nil {
		return nil, err
	}
	var f findings
	if slices.ContainsFunc(instances, func(i instance) bool { return i.Unknown }) { // an answer says whether it runs
		f.sample = s.answered(ctx, lookWithin).answers
	}
	owners := make(map[string]instance, len(instances))
	for _, i := range instances {
		i.Unknown = i.Unknown && !f.sample.up(i)
		if owners[i.Incarnation] = i; i.Unreadable != nil { // which process it is is not known
			owners[string(i.ID())] = i
		}
	}
	answer := &marchv1.ListWorkersResponse{}
	now := time.Now()
	for more := true; more; {
		// Workers of other rooms are skipped.
		leases, bad, err := s.admin.Workers(ctx, bits, after, size+1)
		if err != nil {
			return nil, err
		}
		answer.Unreadable = append(answer.Unreadable, passedOver(bad)...)
		more = len(leases) > size
		for _, lease := range leases {
			if room != "" && lease.Room != room {
				after = &lease.WorkerID
				continue
			}
			if len(answer.GetWorkers()) == size {
				more, answer.NextPageToken = false, after.String()
				break
			}
			after = &lease.WorkerID
			owner, known := owners[lease.Incarnation]
			if !known {
				owner = owners[string(lease.ID())]
			}
			answer.Workers = append(answer.Workers, workerToProto(lease, epoch, owner, now))
		}
	}
	if r.GetPageToken() == "" {
		answer.Slices, err = s.slicesIn(ctx, room, bits)
	}
	return answer, err
}

// workerToProto returns a worker as a message. owner is the process that took it, the zero value if it is not
// registered.
func workerToProto(l record.Lease, epoch record.Epoch, owner instance, now time.Time) *marchv1.Worker {
	free := admin.Free(l.Worker, epoch)
	p := &marchv1.Worker{
		Bits: int32(l.Bits), Number: l.Number, Room: string(l.Room), Instance: string(l.Instance),
		//nolint:gosec // below timeid.MaxBits
		Pinned: owner.Pin != nil && !l.Caller, Caller: l.Caller,
		From: timestamppb.New(time.UnixMilli(l.From)), Until: timestamppb.New(time.UnixMilli(l.Until)),
		Free: timestamppb.New(free),
	}
	switch left := time.UnixMilli(l.Until).Sub(now); {
	case left > 0:
		p.State, p.Left = marchv1.WorkerState_WORKER_STATE_LIVE, durationpb.New(left)
		switch {
		case l.Caller:
		case !owner.Alive:
			p.State = marchv1.WorkerState_WORKER_STATE_SILENT
		case owner.Unknown:
			p.State = marchv1.WorkerState_WORKER_STATE_UNKNOWN
		}
	case free.After(now):
		p.State = marchv1.WorkerState_WORKER_STATE_ENDED
	default:
		p.State = marchv1.WorkerState_WORKER_STATE_FREE
	}
	return p
}

// parseWorkerToken reads a token of ListWorkers, nil for an empty one.
func parseWorkerToken(token string) (*record.WorkerID, error) {
	if token == "" {
		return nil, nil //nolint:nilnil // the first page
	}
	var id record.WorkerID
	if n, err := fmt.Sscanf(token, "%d/%d", &id.Bits, &id.Number); err != nil || n != 2 ||
		id.String() != token || !id.Valid() {
		return nil, allocator.Errorf(allocator.Invalid, "page_token: %q is not from an answer of ListWorkers", token)
	}
	return &id, nil
}

// slicesIn returns the slices of a room, or of all rooms if room is empty, of one width
// or of all.
func (s *view) slicesIn(ctx context.Context, room allocator.Room, bits int) (list []*marchv1.WorkerSlice, err error) {
	stored, _, err := s.admin.LastLayout(ctx)
	if err != nil {
		return nil, err
	}
	var widths []int
	if bits != admin.AllWidths {
		widths = []int{bits}
	}
	uses, err := s.admin.SliceUses(ctx, stored.Layout, widths...)
	for _, u := range uses {
		if room == "" || u.Room == room {
			list = append(list, &marchv1.WorkerSlice{
				Bits: int32(u.Bits), Room: string(u.Room), Lower: u.Slice.Lower, Upper: u.Slice.Upper, Taken: u.Taken,
				Live: u.Live, //nolint:gosec // below timeid.MaxBits
			})
		}
	}
	return list, err
}

const (
	// endsEvery is how often a console reads all tags to see when their time bits end.
	// endsAfter is how long after its start it first does: the ends are years ahead, and a
	// console that starts has more urgent reads.
	endsEvery = time.Hour
	endsAfter = sizeEvery / 2
	// endsSoon is how long before the end a problem is reported.
	endsSoon = 365 * 24 * time.Hour
	// mostUsed is the share of a slice's workers in use from which on a problem is
	// reported.
	mostUsed = 0.8
)

// workerUse is the use of workers and time bits as the console last saw it. Its lists do
// not change.
type workerUse struct {
	slices []admin.SliceUse
	ends   []tagEnd // of the tags whose time bits end first, at most problemsOfKind and one
}

// tagEnd is when a tag's time bits are used up.
type tagEnd struct {
	tag allocator.Tag
	end int64 // Unix ms
}

// readWorkers reads how many workers are in use. If etcd does not answer, the earlier values stay.
func (s *upkeep) readWorkers(ctx context.Context) {
	stored, _, err := s.admin.LastLayout(ctx)
	if err != nil {
		return
	}
	uses, err := s.admin.SliceUses(ctx, stored.Layout)
	if err != nil {
		return
	}
	s.publish(func(next *snapshot) {
		next.workers.slices = uses
		live := make(map[string]int64, len(uses))
		for _, u := range uses {
			live[workersOf(string(u.Room), u.Bits)] = u.Live
		}
		next.trends = next.trends.note(time.Now(), workersKind, live)
	})
}

// readEnds reads when the time bits of tags end, and how many tags there are. It returns the pause before the next
// time.
func (s *upkeep) readEnds(ctx context.Context) (pause time.Duration) {
	var ends []tagEnd
	var tags int64
	first := func() {
		slices.SortFunc(ends, func(a, b tagEnd) int {
			return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.tag, b.tag))
		})
		ends = ends[:min(len(ends), problemsOfKind+1)]
	}
	if _, err := s.admin.EachTagIn(ctx, nil, func(t record.Tag, _ map[allocator.Room]record.Mark) error {
		if tags++; t.Time == nil {
			return nil
		}
		if ends = append(ends, tagEnd{t.Name, t.Time.Layout().End()}); len(ends) > 10*problemsOfKind {
			first()
		}
		return nil
	}); err != nil {
		return sizeEvery
	}
	first()
	s.publish(func(next *snapshot) {
		next.workers.ends = ends
		next.trends = next.trends.note(time.Now(), tagsKind, map[string]int64{allTags: tags})
	})
	return endsEvery
}

// share returns the share of a slice's workers that are in use. A slice of one worker does not count: its share is
// always 0 or 1, as its operator knows.
func share(u admin.SliceUse) float64 {
	if u.Slice.Width() < 2 {
		return 0
	}
	return float64(u.Live) / float64(u.Slice.Width())
}

// problems lists tags that end soon, and slices with few workers left.
func (w workerUse) problems(now time.Time) []*marchv1.Problem {
	var ending, used []*marchv1.Problem
	for _, e := range w.ends {
		if end := time.UnixMilli(e.end); end.Before(now.Add(endsSoon)) {
			what := problem.TimeEnds
			if !end.After(now) {
				what = problem.TimeEnded
			}
			ending = append(ending, problem.New(what, string(e.tag), time.Time{}, "end",
				end.UTC().Format(time.RFC3339)))
		}
	}
	for _, u := range w.slices {
		if share(u) > mostUsed {
			used = append(used, problem.New(problem.WorkersUsed, problem.Slice(u.Room, u.Bits),
				time.Time{}, "in", u.Room, "bits", u.Bits, "live", u.Live, "workers", u.Slice.Width()))
		}
	}
	return slices.Concat(problem.Some(ending, problemsOfKind, "tags"), problem.Some(used, problemsOfKind, "workers"))
}
