package operator

import (
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// timeToProto returns the settings of a tag of time-ordered IDs as a message, with
// defaults spelled out.
func timeToProto(t *record.TimeTag) *marchv1.TimeTag {
	return api.TimeTagToProto(t.Config(0, timeid.Window{}))
}

// newTime returns the settings in a message. Its errors are Invalid; TimeTag checks
// the bounds of numbers.
func newTime(p *marchv1.TimeTag) (*record.TimeTag, error) {
	layout := timeid.Layout{
		TimeBits: int(p.GetTimeBits()), WorkerBits: int(p.GetWorkerBits()), SequenceBits: int(p.GetSequenceBits()),
		Unit: time.Millisecond,
	}
	sequence := timeid.Reset
	if p.GetPreset() != "" {
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
	} else if p.EpochMs == nil {
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
	return &t, changeTime(p, &t)
}

// changeTime copies the policies that p has to t: policies may change later. Its errors
// are Invalid.
func changeTime(p *marchv1.TimeTag, t *record.TimeTag) error {
	if s := p.GetSequence(); s != 0 {
		sequence, err := timeid.ParseSequence(api.Word(s))
		if err != nil {
			return api.NotAllowed("sequence", s)
		}
		t.Sequence, t.CarryTo, t.RandomBelow = sequence, 0, 0
	}
	if p.GetCarryTo() != 0 {
		t.CarryTo = p.GetCarryTo()
	}
	if p.GetRandomBelow() != 0 {
		t.RandomBelow = p.GetRandomBelow()
	}
	if r := p.GetRollback(); r != 0 {
		rollback, err := timeid.ParseRollback(api.Word(r))
		if err != nil {
			return api.NotAllowed("rollback", r)
		}
		t.Rollback = rollback
	}
	if p.GetMaxWait() != nil {
		wait, err := Duration("max_wait", p.GetMaxWait())
		if err != nil {
			return err
		}
		t.MaxWaitMS = wait.Milliseconds()
	}
	return nil
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
	return changeTime(p, &t)
}
