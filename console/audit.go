package console

import (
	"context"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// maxScanned is how many entries one call reads, in pages of scanPage.
const (
	maxScanned = 10_000
	scanPage   = 1000
)

// ListAudit implements ConsoleService. A page token is the ID of the last entry
// that was read.
func (s *Server) ListAudit(ctx context.Context, r *marchv1.ListAuditRequest) (*marchv1.ListAuditResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	for _, f := range []struct{ name, value string }{{"actor", r.GetActor()}, {"action", r.GetAction()},
		{"object", r.GetObject()}} {
		if len(f.value) > maxFilter {
			return nil, allocator.Errorf(allocator.Invalid, "%s: %d bytes; allowed: up to %d",
				f.name, len(f.value), maxFilter)
		}
	}
	chunk := size + 1
	if r.GetUntil() != nil && r.GetPageToken() == "" {
		if r, err = endAt(r); err != nil {
			return nil, err
		}
	}
	if r.GetActor() != "" || r.GetAction() != "" || r.GetObject() != "" {
		chunk = scanPage
	}
	answer, err := s.listAudit(ctx, r, size, chunk)
	if err != nil {
		return nil, err
	}
	if n := fitting(answer.GetEntries()); n < len(answer.GetEntries()) {
		answer.Entries = answer.Entries[:n]
		answer.NextPageToken = answer.GetEntries()[n-1].GetId()
	}
	return answer, nil
}

// endAt returns a request for the page of the latest entries before until.
func endAt(r *marchv1.ListAuditRequest) (*marchv1.ListAuditRequest, error) {
	var end ulid.ULID // the least of its millisecond
	if err := end.SetTime(ulid.Timestamp(r.GetUntil().AsTime())); err != nil ||
		r.GetUntil().AsTime().Before(time.UnixMilli(0)) {
		return nil, allocator.Errorf(allocator.Invalid, "until: %v; allowed: from 1970 to 10889", r.GetUntil().AsTime())
	}
	r = proto.CloneOf(r)
	r.PageToken = end.String()
	return r, nil
}

// listAudit is ListAudit without a bound in bytes; it reads in chunks.
func (s *Server) listAudit(ctx context.Context, r *marchv1.ListAuditRequest,
	size, chunk int) (*marchv1.ListAuditResponse, error) {
	answer := &marchv1.ListAuditResponse{}
	before := r.GetPageToken()
	for scanned := 0; scanned < maxScanned; {
		entries, bad, err := s.admin.Audits(ctx, before, chunk)
		if err != nil {
			return nil, err
		}
		answer.Unreadable = append(answer.Unreadable, passedOver(bad)...)
		for _, e := range entries {
			if r.GetSince() != nil && e.Time.Before(r.GetSince().AsTime()) {
				return answer, nil
			}
			if len(answer.GetEntries()) == size {
				answer.NextPageToken = before
				return answer, nil
			}
			if wanted(r, e) {
				answer.Entries = append(answer.Entries, &marchv1.AuditEntry{
					Id: e.ID, Time: timestamppb.New(e.Time), Actor: e.Actor, Action: e.Action, Object: e.Object,
					From: string(e.From), To: string(e.To), Unchained: e.Writer == "",
				})
			}
			before = e.ID
		}
		if scanned += len(entries); len(entries) < chunk {
			return answer, nil
		}
	}
	answer.NextPageToken = before
	return answer, nil
}

// maxFilter bounds a filter, in bytes.
const maxFilter = 256

// wanted reports whether an entry matches a filter, in large or small letters.
func wanted(r *marchv1.ListAuditRequest, e record.AuditEntry) bool {
	low := strings.ToLower
	if r.GetExact() && e.Object != r.GetObject() {
		return false
	}
	return strings.Contains(low(e.Actor), low(r.GetActor())) && strings.Contains(low(e.Action), low(r.GetAction())) &&
		strings.HasPrefix(low(e.Object), low(r.GetObject()))
}
