package console

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// GetCapacity implements ConsoleService.
func (s *Server) GetCapacity(ctx context.Context, _ *marchv1.GetCapacityRequest) (*marchv1.GetCapacityResponse, error) {
	o, err := s.GetOverview(ctx, &marchv1.GetOverviewRequest{})
	if err != nil {
		return nil, err
	}
	size := s.fullness.get().StoreSize
	_, _, away := s.known.get()
	if away.IsZero() {
		if now, err := s.admin.StoreSize(ctx); err == nil {
			size = now
		}
	}
	f := capacityFacts{Rooms: o.GetRooms(), Ever: int64(len(o.GetEver())), EtcdSize: size.Bytes, Quota: size.Quota,
		MaxTags: s.admin.MaxTags(), AsOf: o.GetAsOf().AsTime(), Trends: &s.trends}
	for _, c := range s.cfg.Diagnose.Certificates() {
		f.Certificates = append(f.Certificates, processCertificate{Process: "the console", CertificateStatus: c})
	}
	now, _ := s.sampled(ctx, 0) // that of the overview
	for id, told := range now.instances {
		for _, c := range told.status.GetCertificates() {
			f.Certificates = append(f.Certificates, processCertificate{Process: string(id), CertificateStatus: c})
		}
	}
	slices.SortFunc(f.Certificates, func(a, b processCertificate) int {
		return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.GetSetting(), b.GetSetting()))
	})
	answer := &marchv1.GetCapacityResponse{}
	// While etcd does not answer, the list has only the entries that need no etcd. The reserves,
	// which matter most then, are among them.
	if away.IsZero() && o.GetLayout() != nil {
		if f.Slices, err = s.slicesIn(ctx, "", admin.AllWidths); err == nil {
			f.Tags, f.TagsTotal, answer.TagsAsOf, err = s.scarceTags(ctx)
			f.TagsRead = answer.GetTagsAsOf() != nil
		}
	}
	if err != nil && allocator.KindOf(err) != allocator.Unavailable {
		return nil, err
	}
	answer.Capacity = f.list(time.Now())
	return answer, nil
}

// scarceTags returns the tags that run out first and those that have used most, with the number
// of all tags and when they were read.
func (s *Server) scarceTags(ctx context.Context) (list []*marchv1.TagSummary, total int64,
	at *timestamppb.Timestamp, err error) {
	const ofEach = 20
	seen := make(map[string]bool)
	for _, by := range []marchv1.TagSort{marchv1.TagSort_TAG_SORT_LASTS, marchv1.TagSort_TAG_SORT_USED} {
		found, err := s.SearchTags(ctx, &marchv1.SearchTagsRequest{Sort: by,
			Descending: by == marchv1.TagSort_TAG_SORT_USED, PageSize: ofEach})
		if err != nil {
			return nil, 0, nil, err
		}
		total, at = found.GetTotal(), found.GetAsOf()
		for _, t := range found.GetTags() {
			if !seen[t.GetTag().GetName()] {
				seen[t.GetTag().GetName()] = true
				list = append(list, t)
			}
		}
	}
	return list, total, at, nil
}
