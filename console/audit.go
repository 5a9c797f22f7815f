package console

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// ListAudit implements ConsoleService. A page token is the last ID of the page
// before.
func (s *Server) ListAudit(ctx context.Context, r *marchv1.ListAuditRequest) (*marchv1.ListAuditResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	entries, err := s.ledger.Audits(ctx, r.GetPageToken(), size+1)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.ListAuditResponse{}
	for _, e := range entries[:min(len(entries), size)] {
		answer.Entries = append(answer.Entries, &marchv1.AuditEntry{
			Id: e.ID, Time: timestamppb.New(e.Time), Actor: e.Actor, Action: e.Action, Object: e.Object, From: e.From, To: e.To,
		})
	}
	answer.Entries = answer.Entries[:fitting(answer.GetEntries())]
	if n := len(answer.GetEntries()); n < len(entries) {
		answer.NextPageToken = entries[n-1].ID
	}
	return answer, nil
}
