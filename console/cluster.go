package console

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

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
	if err != nil {
		return nil, err
	}
	return &marchv1.UpdateClusterResponse{Cluster: clusterToProto(settings)}, nil
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
