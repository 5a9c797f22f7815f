package console

import (
	"context"

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
func (s *Server) UpdateCluster(ctx context.Context, r *marchv1.UpdateClusterRequest) (*marchv1.UpdateClusterResponse, error) {
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

func clusterToProto(s record.ClusterSettings) *marchv1.Cluster {
	if s.RequireJournal {
		return &marchv1.Cluster{Journal: marchv1.JournalMode_JOURNAL_MODE_REQUIRED}
	}
	return &marchv1.Cluster{Journal: marchv1.JournalMode_JOURNAL_MODE_OPTIONAL}
}
