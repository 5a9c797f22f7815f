package console

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

// GetCapacity implements ConsoleService.
func (s *problems) GetCapacity(ctx context.Context,
	_ *marchv1.GetCapacityRequest) (*marchv1.GetCapacityResponse, error) {
	o, err := s.GetOverview(ctx, &marchv1.GetOverviewRequest{})
	if err != nil {
		return nil, err
	}
	now := s.last.Load()
	size := now.etcd.StoreSize
	if now.away.IsZero() {
		if read, err := s.admin.StoreSize(ctx); err == nil {
			size = read
		}
	}
	f := capacityFacts{Rooms: o.GetRooms(), Ever: int64(len(o.GetEver())), EtcdSize: size.Bytes,
		Quota: size.Quota, MaxTags: s.admin.MaxTags(), AsOf: o.GetAsOf().AsTime(), Trends: now.trends}
	for _, c := range s.cfg.Diagnose.Certificates() {
		f.Certificates = append(f.Certificates, processCertificate{Process: "the console", CertificateStatus: c})
	}
	for id, answered := range s.answered(ctx, 0).answers.instances { // those of the overview
		for _, c := range answered.status.GetCertificates() {
			f.Certificates = append(f.Certificates, processCertificate{Process: string(id), CertificateStatus: c})
		}
	}
	slices.SortFunc(f.Certificates, func(a, b processCertificate) int {
		return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.GetSetting(), b.GetSetting()))
	})
	answer := &marchv1.GetCapacityResponse{}
	// While etcd does not answer, the list has only the entries that need no etcd. The reserves,
	// which matter most then, are among them.
	if now.away.IsZero() && o.GetLayout() != nil {
		if f.Slices, err = s.slicesIn(ctx, "", admin.AllWidths); err == nil {
			var found *marchv1.SearchTagsResponse
			f.Tags, found, err = operator.ScarceTags(func(r *marchv1.SearchTagsRequest) (*marchv1.SearchTagsResponse,
				error) {
				return s.index.SearchTags(ctx, r)
			})
			f.TagsTotal, answer.TagsAsOf, f.TagsRead = found.GetTotal(), found.GetAsOf(), found.GetAsOf() != nil
		}
	}
	if err != nil && allocator.KindOf(err) != allocator.Unavailable {
		return nil, err
	}
	answer.Capacity = f.list(time.Now())
	return answer, nil
}
