package setting

import (
	"cmp"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/foreign"
)

// ToProto returns a tag as a message, with defaults spelled out.
func ToProto(t record.Tag) *marchv1.Tag {
	s := t.TagSettings
	p := &marchv1.Tag{Name: string(t.Name), Created: timestamppb.New(t.Created), Revision: t.KV.ModRevision}
	if !t.Deleted.IsZero() {
		p.Deleted = timestamppb.New(t.Deleted)
	}
	if s.Format != "" {
		p.Format = &s.Format
	}
	if s.KeyCheck != "" {
		p.KeyCheck = &s.KeyCheck
	}
	// A field of a message is UTF-8, a foreign name need not be.
	if name, ok := foreign.Key(t.Name); ok && name != string(t.Name) {
		p.ForeignName = strings.ToValidUTF8(name, "\uFFFD")
	}
	if s.Time != nil {
		p.Time = api.TimeTagToProto(s.Time.Config(0, timeid.Window{}))
		return p
	}
	for _, row := range table {
		if row.of == nil || row.Kind == Timed {
			continue
		}
		m, f := row.field(p, true)
		switch v := row.of(&s).(type) {
		case *int64:
			m.Set(f, protoreflect.ValueOfInt64(*v))
		case *bool:
			m.Set(f, protoreflect.ValueOfBool(*v))
		case *record.Duration:
			if *v != "" {
				m.Set(f, protoreflect.ValueOfMessage(durationpb.New(v.Duration()).ProtoReflect()))
			}
		case *record.StrictOrder:
			m.Set(f, protoreflect.ValueOfEnum(api.FromWord[marchv1.StrictOrder](string(*v)).Number()))
		case *allocator.Room:
			m.Set(f, protoreflect.ValueOfString(string(*v)))
		}
	}
	if time.Now().Before(s.PrescaleUntil) {
		p.Prescale, p.PrescaleUntil = s.Prescale, timestamppb.New(s.PrescaleUntil)
	}
	p.Skip, p.Skips = s.Skip, make(map[string]int64, len(s.Skips))
	for room, to := range s.Skips {
		p.Skips[string(room)] = to
	}
	p.Period = periodToProto(s.Period, time.Now())
	return p
}

// periodToProto returns a period as a message, with the one that is now; nil for none.
func periodToProto(p period.Period, now time.Time) *marchv1.Period {
	if p == (period.Period{}) {
		return nil
	}
	span := p.At(now)
	return &marchv1.Period{
		Unit: api.FromWord[marchv1.PeriodUnit](p.Unit.String()), Digits: int32(p.Digits), TimeZone: p.Zone,
		Current: span.String(), First: span.First, End: span.End,
		Begins: timestamppb.New(span.Begins), Ends: timestamppb.New(span.Ends),
	}
}

// New returns the settings of a new tag: those in p, and defaults. Its error is Invalid; record.TagSettings checks
// the bounds of numbers.
func New(p *marchv1.Tag) (s record.TagSettings, err error) {
	s = record.DefaultTag()
	if p.GetTime() != nil {
		if s.Time, err = newTime(p.GetTime()); err != nil {
			return s, err
		}
		if p.Format == nil && s.Time.Wide() {
			s.Format = "sortable(62)" // CosId's default
		}
	}
	if p.Format != nil {
		f, err := format.Parse(p.GetFormat())
		if err != nil {
			return s, err
		}
		if s.Time == nil && !f.Domain().Parts {
			s.Start, s.Limit = max(s.Start, f.Domain().Least), record.FormatLimit(f)
		}
	}
	err = apply(p, &s)
	if s.StrictOrder != "" {
		s.TenureHold = cmp.Or(s.TenureHold, record.DefaultTenureHold)
	}
	return s, err
}

// Apply copies the settings that p has to s, the settings of an existing tag. Its errors are New's.
func Apply(p *marchv1.Tag, s *record.TagSettings) error {
	if p.GetTime() != nil {
		if err := applyTime(p.GetTime(), s); err != nil {
			return err
		}
	}
	return apply(p, s)
}

// apply copies what p has, but for the layout of time-ordered IDs.
func apply(p *marchv1.Tag, s *record.TagSettings) error {
	if p.Format != nil {
		f, err := format.Parse(p.GetFormat())
		if err != nil {
			return err
		}
		s.Format = f.String()
	}
	if p.KeyCheck != nil {
		s.KeyCheck = p.GetKeyCheck()
	}
	if p.GetPeriod() != nil {
		if err := applyPeriod(p.GetPeriod(), s); err != nil {
			return err
		}
	}
	for _, row := range table {
		if row.of == nil {
			continue
		}
		m, f := row.field(p, false)
		if !m.Has(f) {
			continue
		}
		var d time.Duration
		if f.Message() != nil {
			given, _ := m.Get(f).Message().Interface().(*durationpb.Duration)
			var err error
			if d, err = Duration(row.Name(), given); err != nil {
				return err
			}
		}
		switch to := row.of(s).(type) {
		case *int64:
			if *to = d.Milliseconds(); f.Message() == nil {
				*to = m.Get(f).Int()
			}
		case *bool:
			*to = m.Get(f).Bool()
		case *record.Duration:
			*to = record.DurationOf(d)
		case *record.StrictOrder:
			*to = record.StrictOrder(api.Word(p.GetStrictOrder()))
		case *allocator.Room:
			*to = allocator.Room(m.Get(f).String())
		case *timeid.Sequence:
			sequence, err := timeid.ParseSequence(api.Word(p.GetTime().GetSequence()))
			if err != nil {
				return api.NotAllowed(row.Name(), p.GetTime().GetSequence())
			}
			*to, s.Time.CarryTo, s.Time.RandomBelow = sequence, 0, 0
		case *timeid.Rollback:
			rollback, err := timeid.ParseRollback(api.Word(p.GetTime().GetRollback()))
			if err != nil {
				return api.NotAllowed(row.Name(), p.GetTime().GetRollback())
			}
			*to = rollback
		}
	}
	return nil
}

// periodDigits is how many digits the number in a period has by default.
const periodDigits = 9

// applyPeriod sets the period of a tag. Its error is Invalid; TagSettings.Validate checks the bounds.
func applyPeriod(p *marchv1.Period, s *record.TagSettings) error {
	unit := period.ParseUnit(api.Word(p.GetUnit()))
	switch {
	case p.GetUnit() == 0:
		return allocator.Errorf(allocator.Invalid, "period: none is given; allowed with digits or a time zone of "+
			"periods: day, month or year")
	case unit == period.None:
		return api.NotAllowed("period", p.GetUnit())
	}
	s.Period = period.Period{Unit: unit, Digits: int(cmp.Or(p.GetDigits(), periodDigits)),
		Zone: cmp.Or(p.GetTimeZone(), "UTC")}
	return nil
}

// Duration returns p, which must be given and fit a time.Duration. Its caller
// checks the bounds. Its error is Invalid.
func Duration(field string, p *durationpb.Duration) (time.Duration, error) {
	const most = math.MaxInt64 / int64(time.Second)
	if p == nil {
		return 0, allocator.Errorf(allocator.Invalid, "%s: none given; allowed: 1s to %v",
			field, allocator.LongestReserve)
	}
	if p.CheckValid() != nil || p.GetSeconds() >= most || p.GetSeconds() <= -most {
		return 0, allocator.Errorf(allocator.Invalid, "%s: %d seconds and %d nanoseconds; allowed: 1s to %v", field,
			p.GetSeconds(), p.GetNanos(), allocator.LongestReserve)
	}
	return p.AsDuration(), nil
}

// newTime returns the layout in a message, with default policies. Its errors are Invalid; TimeTag checks
// the bounds of numbers.
func newTime(p *marchv1.TimeTag) (*record.TimeTag, error) {
	layout := timeid.Layout{
		TimeBits: int(p.GetTimeBits()), WorkerBits: int(p.GetWorkerBits()), SequenceBits: int(p.GetSequenceBits()),
		Unit: time.Millisecond,
	}
	sequence := timeid.Reset
	switch {
	case p.GetPreset() != "":
		preset, err := timeid.PresetNamed(p.GetPreset())
		if err != nil {
			return nil, err
		}
		if p.GetTimeBits() != 0 || p.GetWorkerBits() != 0 || p.GetSequenceBits() != 0 ||
			p.GetUnit() != nil || p.GetOrder() != 0 {
			return nil, allocator.Errorf(allocator.Invalid,
				"preset: %s, together with bits, unit or order; allowed: only one of them, "+
					"because a preset has its own", p.GetPreset())
		}
		layout, sequence = preset.Layout, preset.Sequence
	case layout.TimeBits|layout.WorkerBits|layout.SequenceBits == 0:
		return nil, allocator.Errorf(allocator.Invalid, "bits: none, and no preset; allowed: one of them, "+
			"bits of time/worker/sequence such as 41/10/12")
	case p.EpochMs == nil:
		return nil, allocator.Errorf(allocator.Invalid,
			"epoch_ms: none given; allowed: 0 to %d (Unix ms); it is needed without a preset",
			int64(timeid.LatestEpoch))
	}
	if p.GetUnit() != nil {
		unit, err := Duration("unit", p.GetUnit())
		if err != nil {
			return nil, err
		}
		if unit%time.Millisecond != 0 {
			return nil, allocator.Errorf(allocator.Invalid, "unit: %v; allowed: 1ms, 10ms, 1s", unit)
		}
		layout.Unit = unit
	}
	if p.EpochMs != nil {
		layout.Epoch = p.GetEpochMs()
	}
	if o := p.GetOrder(); o != 0 {
		var err error
		if layout.Order, err = timeid.ParseOrder(api.OrderPrefix + api.Word(o)); err != nil {
			return nil, api.NotAllowed("order", o)
		}
	}
	t := record.NewTimeTag(layout)
	t.Sequence = sequence
	return &t, nil
}

// applyTime is apply for the settings of time-ordered IDs: a tag keeps its kind and the
// layout of its IDs.
func applyTime(p *marchv1.TimeTag, s *record.TagSettings) error {
	if s.Time == nil {
		return allocator.Errorf(allocator.Invalid,
			"time: the tag is a counter, and a tag keeps its kind; allowed: none")
	}
	if p.GetPreset() != "" || p.GetTimeBits() != 0 || p.GetWorkerBits() != 0 || p.GetSequenceBits() != 0 ||
		p.GetUnit() != nil || p.EpochMs != nil || p.GetOrder() != 0 {
		return allocator.Errorf(allocator.Invalid,
			"time: bits, unit, epoch and order of a tag never change; allowed: sequence, rollback and their settings")
	}
	t := *s.Time
	s.Time = &t
	return nil
}
