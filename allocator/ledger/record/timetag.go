package record

import (
	"reflect"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

// TimeTag is set in a tag of time-ordered IDs. Bits, unit, epoch and order are chosen at the
// tag's creation and never change, as two layouts may give one ID to different times. The
// policies for rollbacks and for the start of sequences may change.
type TimeTag struct {
	TimeBits     int          `json:"time_bits"`
	WorkerBits   int          `json:"worker_bits"`
	SequenceBits int          `json:"sequence_bits"`
	UnitMS       int64        `json:"unit_ms,string"`  // a tick: 1, 10 or 1000 ms
	EpochMS      int64        `json:"epoch_ms,string"` // when tick 0 begins, Unix ms
	Order        timeid.Order `json:"order"`

	Sequence    timeid.Sequence `json:"sequence"`
	CarryTo     int64           `json:"carry_to,string,omitempty"`     // see timeid.Config; 0 is its default
	RandomBelow int64           `json:"random_below,string,omitempty"` // likewise
	Rollback    timeid.Rollback `json:"rollback"`
	MaxWaitMS   int64           `json:"max_wait_ms,string,omitempty"` // as for CarryTo
}

// NewTimeTag returns the tag of a layout, with the default policies.
func NewTimeTag(l timeid.Layout) TimeTag {
	return TimeTag{
		TimeBits: l.TimeBits, WorkerBits: l.WorkerBits, SequenceBits: l.SequenceBits,
		UnitMS: l.Unit.Milliseconds(), EpochMS: l.Epoch, Order: l.Order,
	}
}

// Layout returns the meaning of the bits of the tag's IDs.
func (t TimeTag) Layout() timeid.Layout {
	return timeid.Layout{
		TimeBits: t.TimeBits, WorkerBits: t.WorkerBits, SequenceBits: t.SequenceBits,
		Unit: time.Duration(t.UnitMS) * time.Millisecond, Epoch: t.EpochMS, Order: t.Order,
	}
}

// Wide reports whether the tag's IDs are those of timeid.Wide: they exist only as texts.
func (t TimeTag) Wide() bool { return t.Layout() == timeid.Wide }

// Config returns the configuration of a generator of the tag's IDs, without the clock.
func (t TimeTag) Config(worker int64, window timeid.Window) timeid.Config {
	return timeid.Config{
		Layout: t.Layout(), Worker: worker, Window: window,
		Sequence: t.Sequence, CarryTo: t.CarryTo, RandomBelow: t.RandomBelow,
		Rollback: t.Rollback, MaxWait: time.Duration(t.MaxWaitMS) * time.Millisecond, MaxAhead: MaxAhead,
	}
}

// Validate checks the layout and the policies. Its error is Invalid and names the
// field.
func (t TimeTag) Validate() error {
	const day = 24 * 60 * 60 * 1000
	if t.UnitMS < 1 || t.UnitMS > 1000 {
		return allocator.Errorf(allocator.Invalid, "unit: %d ms; allowed: 1, 10, 1000", t.UnitMS)
	}
	if t.MaxWaitMS < 0 || t.MaxWaitMS > day {
		return allocator.Errorf(allocator.Invalid, "max_wait: %d ms; allowed: 0 (the default) to %v",
			t.MaxWaitMS, timeid.LongestWait)
	}
	if err := t.Layout().Validate(); err != nil {
		return err
	}
	// A window of the first ticks fits every layout.
	return t.Config(0, timeid.Window{From: t.EpochMS, Until: t.EpochMS + t.UnitMS}).Validate()
}

// CheckTime checks that the tag has IDs at a time: its epoch is not in the future, and its time
// bits are not used up. Its error is Invalid.
func (t TimeTag) CheckTime(now time.Time) error {
	l, at := t.Layout(), now.UTC().Format(timeid.Format)
	switch ms := now.UnixMilli(); {
	case l.Epoch > ms:
		return allocator.Errorf(allocator.Invalid, "epoch_ms: %s is in the future; allowed: up to %s",
			time.UnixMilli(l.Epoch).UTC().Format(timeid.Format), at)
	case l.End() <= ms:
		return allocator.Errorf(allocator.Invalid,
			"time bits: %d, with which the time ends at %s; allowed: so many bits, or so late an epoch, "+
				"that it ends after %s",
			t.TimeBits, time.UnixMilli(l.End()).UTC().Format(timeid.Format), at)
	}
	return nil
}

// CheckSlices checks that every room of a layout has a worker of the tag's width in its slice.
// Its error is Refused.
func (t TimeTag) CheckSlices(l allocator.Layout) error {
	for _, room := range l.Rooms() {
		if slice, _ := timeid.SliceOf(l, room, t.WorkerBits); slice.Width() == 0 {
			return allocator.Errorf(allocator.Refused,
				"range %v of room %s is too narrow for a worker: of the %d workers of %d bits it has none; "+
					"give the tag more worker bits, or the room a wider range",
				l.Ranges[room], room, t.Layout().Workers(), t.WorkerBits)
		}
	}
	return nil
}

// onlyTime returns the settings of a tag of time-ordered IDs as they are stored: without those
// of a counter, whatever their defaults are.
func (s TagSettings) onlyTime() TagSettings {
	return TagSettings{Reserve: DurationOf(0), Time: s.Time, Format: s.Format, KeyCheck: s.KeyCheck}
}

// validateTime checks the settings of a tag of time-ordered IDs: the settings of a counter must
// have their defaults. Its error is Invalid.
func (s TagSettings) validateTime(defaults TagSettings) error {
	defaults.Time, defaults.Format, defaults.KeyCheck = s.Time, s.Format, s.KeyCheck
	if len(s.Skips) == 0 {
		s.Skips = nil
	}
	given, standard := reflect.ValueOf(s), reflect.ValueOf(defaults)
	for i := range given.NumField() {
		if !reflect.DeepEqual(given.Field(i).Interface(), standard.Field(i).Interface()) {
			name, _, _ := strings.Cut(given.Type().Field(i).Tag.Get("json"), ",")
			return allocator.Errorf(allocator.Invalid,
				"%s: a tag of kind time has none: its IDs follow the clock", name)
		}
	}
	return s.Time.Validate()
}
