package operator

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// periodToProto returns the period of a tag's settings as a message, with the one that is
// now; nil for a tag without one.
func periodToProto(s record.TagSettings, now time.Time) *marchv1.Period {
	if s.Period == (period.Period{}) {
		return nil
	}
	span := s.Period.At(now)
	return &marchv1.Period{
		Unit: api.FromWord[marchv1.PeriodUnit](s.Period.Unit.String()), Digits: int32(s.Period.Digits),
		TimeZone: s.Period.Zone,
		Current:  span.String(), First: span.First, End: span.End,
		Begins: timestamppb.New(span.Begins), Ends: timestamppb.New(span.Ends),
	}
}

// applyPeriod sets the period of a tag where p has one. Its error is Invalid;
// TagSettings.Validate checks the bounds.
func applyPeriod(p *marchv1.Tag, s *record.TagSettings) error {
	its := p.GetPeriod()
	if its == nil {
		return nil
	}
	unit := period.ParseUnit(api.Word(its.GetUnit()))
	if unit == period.None {
		return api.NotAllowed("period", its.GetUnit())
	}
	s.Period = period.Period{Unit: unit, Digits: int(its.GetDigits()), Zone: cmp.Or(its.GetTimeZone(), "UTC")}
	return nil
}
