package console

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

// The values of a cluster's journal setting.
const (
	journalOptional = "optional"
	journalRequired = "required"
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
		if r.GetCluster() == nil || r.GetCluster().Journal == nil {
			return nil
		}
		switch journal := r.GetCluster().GetJournal(); journal {
		case journalOptional, journalRequired:
			settings.RequireJournal = journal == journalRequired
			return nil
		default:
			return allocator.Errorf(allocator.Invalid, "journal: %q; allowed: %s, %s", journal, journalOptional, journalRequired)
		}
	}, operator.Actor(ctx))
	if err != nil {
		return nil, err
	}
	return &marchv1.UpdateClusterResponse{Cluster: clusterToProto(settings)}, nil
}

func clusterToProto(s record.ClusterSettings) *marchv1.Cluster {
	journal := journalOptional
	if s.RequireJournal {
		journal = journalRequired
	}
	return &marchv1.Cluster{Journal: &journal}
}
