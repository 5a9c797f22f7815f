package console

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
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
	pinned, err := s.pinned(ctx)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.ListWorkersResponse{}
	now := time.Now()
	for more := true; more; {
		// Those of other rooms are passed over.
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
			answer.Workers = append(answer.Workers, workerToProto(lease, epoch, pinned[lease.Incarnation], now))
		}
	}
	if r.GetPageToken() == "" {
		answer.Slices, err = s.slicesIn(ctx, room, bits)
	}
	return answer, err
}

// pinned returns the processes that have pinned workers.
func (s *Server) pinned(ctx context.Context) (map[string]bool, error) {
	instances, _, err := s.admin.Instances(ctx, "")
	if err != nil {
		return nil, err
	}
	pinned := make(map[string]bool)
	for _, i := range instances {
		if i.Pin != nil {
			pinned[i.Incarnation] = true
		}
	}
	return pinned, nil
}

func workerToProto(l record.Lease, epoch record.Epoch, pinned bool, now time.Time) *marchv1.Worker {
	free := admin.Free(l.Worker, epoch)
	p := &marchv1.Worker{
		Bits: int32(l.Bits), Number: l.Number, Room: string(l.Room), Instance: string(l.Instance), //nolint:gosec // below timeid.MaxBits
		Pinned: pinned && !l.Caller, Caller: l.Caller,
		From: timestamppb.New(time.UnixMilli(l.From)), Until: timestamppb.New(time.UnixMilli(l.Until)), Free: timestamppb.New(free),
	}
	switch left := time.UnixMilli(l.Until).Sub(now); {
	case left > 0:
		p.State, p.Left = marchv1.WorkerState_WORKER_STATE_LIVE, durationpb.New(left)
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
	if n, err := fmt.Sscanf(token, "%d/%d", &id.Bits, &id.Number); err != nil || n != 2 || id.String() != token || !id.Valid() {
		return nil, allocator.Errorf(allocator.Invalid, "page_token: %q is not from an answer of ListWorkers", token)
	}
	return &id, nil
}

// slicesIn returns the slices of a room, or of all rooms if it is empty, of a width or of
// all.
func (s *Server) slicesIn(ctx context.Context, room allocator.Room, bits int) (list []*marchv1.WorkerSlice, err error) {
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
				Bits: int32(u.Bits), Room: string(u.Room), Lower: u.Slice.Lower, Upper: u.Slice.Upper, Taken: u.Taken, Live: u.Live, //nolint:gosec // below timeid.MaxBits
			})
		}
	}
	return list, err
}
