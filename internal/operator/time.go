package operator

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// The enums of the messages follow those of package timeid, one further: 0 is unspecified.

// timeToProto returns the settings of a tag of time-ordered IDs as a message, with
// defaults spelled out.
func timeToProto(t *record.TimeTag) *marchv1.TimeTag {
	c := t.Config(0, timeid.Window{}).WithDefaults()
	p := &marchv1.TimeTag{
		TimeBits: int32(t.TimeBits), WorkerBits: int32(t.WorkerBits), SequenceBits: int32(t.SequenceBits),
		Unit: durationpb.New(c.Layout.Unit), EpochMs: &t.EpochMS, Order: marchv1.WorkerOrder(t.Order) + 1,
		Sequence: marchv1.SequencePolicy(t.Sequence) + 1, Rollback: marchv1.RollbackPolicy(t.Rollback) + 1,
		MaxWait: durationpb.New(c.MaxWait),
	}
	switch t.Sequence {
	case timeid.Carry:
		p.CarryTo = c.CarryTo
	case timeid.Random:
		p.RandomBelow = c.RandomBelow
	}
	return p
}

// newTime returns the settings that a message asks for. Its errors are Invalid; the
// numbers' bounds are TimeTag's own to check.
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
		if p.GetTimeBits() != 0 || p.GetWorkerBits() != 0 || p.GetSequenceBits() != 0 || p.GetUnit() != nil || p.GetOrder() != 0 {
			return nil, allocator.Errorf(allocator.Invalid, "preset: %s, together with bits, unit or order; allowed: either, as a preset has its own", p.GetPreset())
		}
		layout, sequence = preset.Layout, preset.Sequence
	} else if p.EpochMs == nil {
		return nil, allocator.Errorf(allocator.Invalid, "epoch_ms: none given; allowed: 0 to %d (Unix ms), needed where no preset is", int64(timeid.LatestEpoch))
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
	if p.GetOrder() != 0 {
		if p.GetOrder() > marchv1.WorkerOrder_WORKER_ORDER_LAST || p.GetOrder() < 0 {
			return nil, allocator.Errorf(allocator.Invalid, "order: %v; allowed: WORKER_ORDER_MIDDLE, WORKER_ORDER_LAST", p.GetOrder())
		}
		layout.Order = timeid.Order(p.GetOrder() - 1)
	}
	t := record.NewTimeTag(layout)
	t.Sequence = sequence
	return &t, changeTime(p, &t)
}

// changeTime sets in t the policies that p carries: they may change later. Its errors are
// Invalid.
func changeTime(p *marchv1.TimeTag, t *record.TimeTag) error {
	if s := p.GetSequence(); s != 0 {
		if s > marchv1.SequencePolicy_SEQUENCE_POLICY_RANDOM || s < 0 {
			return allocator.Errorf(allocator.Invalid, "sequence: %v; allowed: SEQUENCE_POLICY_RESET, _CARRY, _RANDOM", s)
		}
		t.Sequence, t.CarryTo, t.RandomBelow = timeid.Sequence(s-1), 0, 0
	}
	if p.GetCarryTo() != 0 {
		t.CarryTo = p.GetCarryTo()
	}
	if p.GetRandomBelow() != 0 {
		t.RandomBelow = p.GetRandomBelow()
	}
	if r := p.GetRollback(); r != 0 {
		if r > marchv1.RollbackPolicy_ROLLBACK_POLICY_FAIL || r < 0 {
			return allocator.Errorf(allocator.Invalid, "rollback: %v; allowed: ROLLBACK_POLICY_WAIT, _OFFSET, _FAIL", r)
		}
		t.Rollback = timeid.Rollback(r - 1)
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
		return allocator.Errorf(allocator.Invalid, "time: the tag is a counter; allowed: nothing, as a tag keeps its kind")
	}
	if p.GetPreset() != "" || p.GetTimeBits() != 0 || p.GetWorkerBits() != 0 || p.GetSequenceBits() != 0 || p.GetUnit() != nil || p.EpochMs != nil || p.GetOrder() != 0 {
		return allocator.Errorf(allocator.Invalid, "time: bits, unit, epoch and order of a tag never change; allowed: sequence, rollback and what belongs to them")
	}
	t := *s.Time
	s.Time = &t
	return changeTime(p, &t)
}
