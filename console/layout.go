package console

import (
	"context"
	"errors"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/levers"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func recordToProto(r ledger.LayoutRecord) *marchv1.LayoutRecord {
	return &marchv1.LayoutRecord{Layout: api.LayoutToProto(r.Layout), Time: timestamppb.New(r.Time), Actor: r.Actor}
}

// current returns the layout in force. Where what etcd has for it cannot be used,
// problem says why, and the record is the last good one: what this console saw,
// else the newest of the history. With an error besides there is none.
func (s *Server) current(ctx context.Context) (record ledger.LayoutRecord, problem string, err error) {
	record, err = s.ledger.Refresh(ctx)
	var unusable *ledger.UnusableError
	if !errors.As(err, &unusable) {
		return record, "", err
	}
	if record.Layout.Version > 0 {
		return record, err.Error(), nil
	}
	newest, historyErr := s.ledger.Layouts(ctx, 0, 1)
	if historyErr != nil || len(newest) == 0 {
		return record, err.Error(), err
	}
	return newest[0], err.Error(), nil
}

// halt returns why nothing is leased, as of the last Refresh; nil while leasing
// is not halted.
func (s *Server) halt() *marchv1.Halt {
	h, halted := s.ledger.Halted()
	if !halted {
		return nil
	}
	return &marchv1.Halt{By: h.By, Why: h.Why, Time: timestamppb.New(h.Time)}
}

// InitLayout implements ConsoleService.
func (s *Server) InitLayout(ctx context.Context, r *marchv1.InitLayoutRequest) (*marchv1.InitLayoutResponse, error) {
	layout, err := api.LayoutFromProto(r.GetLayout())
	if err != nil {
		return nil, err
	}
	record, err := s.ledger.Init(ctx, layout, levers.Actor(ctx))
	if err != nil {
		return nil, err
	}
	uuid, err := s.ledger.UUID(ctx)
	if err != nil {
		return nil, err
	}
	s.log.Info("cluster initialised", "cluster", uuid, "boundary", layout.Boundary, "rooms", len(layout.Ranges))
	return &marchv1.InitLayoutResponse{Layout: recordToProto(record), Cluster: uuid}, nil
}

// GetLayout implements ConsoleService.
func (s *Server) GetLayout(ctx context.Context, r *marchv1.GetLayoutRequest) (*marchv1.GetLayoutResponse, error) {
	if r.GetVersion() < 0 {
		return nil, allocator.Errorf(allocator.Invalid, "version: %d; allowed: 1 or more, 0 for the current one", r.GetVersion())
	}
	var record ledger.LayoutRecord
	var problem string
	var err error
	if r.GetVersion() == 0 {
		record, problem, err = s.current(ctx)
	} else {
		record, err = s.ledger.LayoutAt(ctx, r.GetVersion())
	}
	if err != nil {
		return nil, err
	}
	uuid, err := s.ledger.UUID(ctx)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.GetLayoutResponse{Layout: recordToProto(record), Cluster: uuid, Halt: s.halt(), Problem: problem}
	if r.GetVersion() == 0 {
		answer.Ever = names(record.Ever)
	}
	return answer, nil
}

// ListLayouts implements ConsoleService. A page token is the last version of
// the page before.
func (s *Server) ListLayouts(ctx context.Context, r *marchv1.ListLayoutsRequest) (*marchv1.ListLayoutsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	var before int64
	if token := r.GetPageToken(); token != "" {
		if before, err = strconv.ParseInt(token, 10, 64); err != nil || before < 1 {
			return nil, allocator.Errorf(allocator.Invalid, "page_token: %q is not from an answer of ListLayouts", token)
		}
	}
	records, err := s.ledger.Layouts(ctx, before, size+1)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.ListLayoutsResponse{}
	for _, record := range records[:min(len(records), size)] {
		answer.Layouts = append(answer.Layouts, recordToProto(record))
	}
	answer.Layouts = answer.Layouts[:fitting(answer.GetLayouts())]
	if n := len(answer.GetLayouts()); n < len(records) {
		answer.NextPageToken = strconv.FormatInt(records[n-1].Layout.Version, 10)
	}
	return answer, nil
}

// ValidateLayout implements ConsoleService.
func (s *Server) ValidateLayout(_ context.Context, r *marchv1.ValidateLayoutRequest) (*marchv1.ValidateLayoutResponse, error) {
	return levers.ValidateLayout(r.GetLayout())
}

func names(rooms []allocator.Room) []string {
	all := make([]string, len(rooms))
	for i, room := range rooms {
		all[i] = string(room)
	}
	return all
}
