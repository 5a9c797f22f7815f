package console

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

// recordToProto returns nil for a zero record.
func recordToProto(r record.Layout) *marchv1.LayoutRecord {
	if r.Layout.Version == 0 {
		return nil
	}
	return &marchv1.LayoutRecord{Layout: api.LayoutToProto(r.Layout), Time: timestamppb.New(r.Time), Actor: r.Actor,
		Formats: int32(r.Formats)}
}

// textOf returns an error's text, or "" for nil.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// InitLayout implements ConsoleService.
func (s *Server) InitLayout(ctx context.Context, r *marchv1.InitLayoutRequest) (*marchv1.InitLayoutResponse, error) {
	layout, err := api.LayoutFromProto(r.GetLayout())
	if err != nil {
		return nil, err
	}
	stored, err := s.admin.Init(ctx, layout, operator.Actor(ctx))
	if err != nil {
		return nil, err
	}
	uuid, err := s.ledger.UUID(ctx)
	if err != nil {
		return nil, err
	}
	s.log.Info("cluster initialised", "cluster", uuid, "boundary", layout.Boundary, "rooms", len(layout.Ranges))
	return &marchv1.InitLayoutResponse{Layout: recordToProto(stored), Cluster: uuid}, nil
}

func (s *problems) GetLayout(ctx context.Context, r *marchv1.GetLayoutRequest) (*marchv1.GetLayoutResponse, error) {
	if r.GetVersion() < 0 {
		return nil, allocator.Errorf(allocator.Invalid,
			"version: %d; allowed: 1 or more, 0 for the current one", r.GetVersion())
	}
	now, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	if now.halted != nil { // which instances are barred
		now = s.answered(ctx, lookWithin)
	}
	if version := r.GetVersion(); version > 0 {
		stored, err := s.admin.LayoutAt(ctx, version)
		return &marchv1.GetLayoutResponse{Layout: recordToProto(stored), Cluster: now.UUID, Halt: now.halt()}, err
	}
	f := s.findings(now, nil)
	return &marchv1.GetLayoutResponse{
		Layout: recordToProto(now.Layout), Ever: names(now.Layout.Ever), Cluster: now.UUID, Halt: f.halt,
		Problem: textOf(now.Unusable), Problems: s.met.Fill(f.clusterProblems(), time.Now()),
	}, nil
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
			return nil, allocator.Errorf(allocator.Invalid,
				"page_token: %q is not from an answer of ListLayouts", token)
		}
	}
	records, bad, err := s.admin.Layouts(ctx, before, size+1)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.ListLayoutsResponse{Unreadable: passedOver(bad)}
	var last *record.Layout
	if answer.Layouts, last = page(records, size, recordToProto); last != nil {
		answer.NextPageToken = strconv.FormatInt(last.Layout.Version, 10)
	}
	return answer, nil
}

// ValidateLayout implements ConsoleService.
func (s *Server) ValidateLayout(_ context.Context,
	r *marchv1.ValidateLayoutRequest) (*marchv1.ValidateLayoutResponse, error) {
	return operator.ValidateLayout(r.GetLayout())
}

func names(rooms []allocator.Room) []string {
	all := make([]string, len(rooms))
	for i, room := range rooms {
		all[i] = string(room)
	}
	return all
}

// GetCluster implements ConsoleService.
func (s *Server) GetCluster(ctx context.Context, _ *marchv1.GetClusterRequest) (*marchv1.GetClusterResponse, error) {
	settings, err := s.admin.Settings(ctx)
	if err != nil {
		return nil, err
	}
	uuid, err := s.ledger.UUID(ctx)
	return &marchv1.GetClusterResponse{Cluster: clusterToProto(settings), Uuid: uuid}, err
}

// UpdateCluster implements ConsoleService.
func (s *Server) UpdateCluster(ctx context.Context,
	r *marchv1.UpdateClusterRequest) (*marchv1.UpdateClusterResponse, error) {
	settings, err := s.admin.UpdateSettings(ctx, func(settings *record.ClusterSettings) error {
		switch journal := r.GetCluster().GetJournal(); journal {
		case marchv1.JournalMode_JOURNAL_MODE_UNSPECIFIED: // leave it as it is
		case marchv1.JournalMode_JOURNAL_MODE_OPTIONAL, marchv1.JournalMode_JOURNAL_MODE_REQUIRED:
			settings.RequireJournal = journal == marchv1.JournalMode_JOURNAL_MODE_REQUIRED
		default:
			return api.NotAllowed("journal", journal)
		}
		return nil
	}, operator.Actor(ctx))
	return &marchv1.UpdateClusterResponse{Cluster: clusterToProto(settings)}, err
}

// UpgradeCluster implements ConsoleService.
func (s *Server) UpgradeCluster(ctx context.Context,
	r *marchv1.UpgradeClusterRequest) (*marchv1.UpgradeClusterResponse, error) {
	instances, err := s.instances(ctx)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.UpgradeClusterResponse{Newest: record.Formats, Instances: instancesToProto(instances)}
	var stored record.Layout
	if r.GetDryRun() {
		if stored, err = s.ledger.Refresh(ctx); err == nil && stored.Formats < record.Formats {
			if err = s.admin.MayUpgrade(ctx); allocator.KindOf(err) == allocator.Refused {
				answer.Refused, err = err.Error(), nil
			}
		}
	} else if stored, err = s.admin.Upgrade(ctx, operator.Actor(ctx)); err == nil {
		s.log.Info("formats turned on", "formats", stored.Formats, "version", stored.Layout.Version)
	}
	if err != nil {
		return nil, err
	}
	answer.Layout = recordToProto(stored)
	return answer, nil
}

func clusterToProto(s record.ClusterSettings) *marchv1.Cluster {
	if s.RequireJournal {
		return &marchv1.Cluster{Journal: marchv1.JournalMode_JOURNAL_MODE_REQUIRED}
	}
	return &marchv1.Cluster{Journal: marchv1.JournalMode_JOURNAL_MODE_OPTIONAL}
}

// halt returns why leasing is halted, and the instances that say that a recover has barred them; nil if it is not.
func (n *snapshot) halt() *marchv1.Halt {
	if n.halted == nil {
		return nil
	}
	return &marchv1.Halt{By: n.halted.By, Why: n.halted.Why, Time: timestamppb.New(n.halted.Time),
		Barred: barred(n.answers)}
}

// barred returns the instances of a sample that a recover has barred.
func barred(now sample) []*marchv1.BarredInstance {
	var all []*marchv1.BarredInstance
	for _, id := range slices.Sorted(maps.Keys(now.instances)) {
		if s := now.instances[id].status; s.GetBarred() != nil {
			all = append(all, &marchv1.BarredInstance{Room: s.GetRoom(), Name: s.GetInstance(), Barred: s.GetBarred()})
		}
	}
	return all
}
