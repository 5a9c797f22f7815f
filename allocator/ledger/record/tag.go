package record

import (
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
)

// TagSettings are the settings of a tag.
type TagSettings struct {
	// the least ID ever issued; default 1, so that zero is issued only on request
	Start   int64    `json:"start,string"`
	Limit   int64    `json:"limit,string"`    // the end of the IDs, exclusive; default allocator.MaxID
	MinStep int64    `json:"min_step,string"` // see allocator.Settings, as for MaxStep, Reserve and Prescale
	MaxStep int64    `json:"max_step,string"`
	Reserve Duration `json:"reserve"`
	MaxJump int64    `json:"max_jump,string"` // see defaultMaxJump
	// MaxSkew bounds how far below the furthest room's mark a lease may begin: a room further
	// behind skips ahead at its next lease. Segments that an instance already holds may lie
	// further behind. 0 is no bound.
	MaxSkew int64 `json:"max_skew,string,omitempty"`
	// StrictRetract makes instances issue IDs of a layout only while it was confirmed recently.
	// They rather issue none than an ID of a residue that the room gave up.
	StrictRetract bool `json:"strict_retract,omitempty"`
	// StrictOrder gives a call that begins after another one was answered a larger ID; empty for no order. It never
	// changes, nor does TenureHold.
	StrictOrder StrictOrder `json:"strict_order,omitempty"`
	// TenureHold is how long the process that issues an ordered tag goes on after the sending of its last confirmation.
	TenureHold Duration `json:"tenure_hold,omitempty"`
	// Home is the room whose instances issue the IDs of a tag that is ordered over all rooms.
	Home          allocator.Room `json:"home,omitempty"`
	Prescale      int64          `json:"prescale,string,omitempty"`
	PrescaleUntil time.Time      `json:"prescale_until,omitzero"`
	// Skip is the least ID that any room may lease, also one that comes later, where an operator
	// made all rooms jump ahead. Skips has more of some rooms. See SkipTag.
	Skip  int64 `json:"skip,string,omitempty"`
	Skips Skips `json:"skips,omitempty"`
	// Time is set if the tag has time-ordered IDs; nil for a counter. All settings above then
	// have their defaults, mean nothing, and are stored as zeros. Time must not be changed in
	// place.
	Time *TimeTag `json:"time,omitempty"`
	// Period divides the IDs of a counter by the calendar; zero for none. Start and Limit then
	// say which periods there are: see package period.
	Period period.Period `json:"period,omitzero"`
	// Format describes the texts of the tag's IDs for package format; empty for none. It
	// changes no ID, so a process that does not know the format issues the same IDs without
	// texts.
	Format string `json:"text_format,omitempty"` // "format" is the number of the value's own format
	// KeyCheck is the check value of the format's opaque key; empty if the format needs none.
	KeyCheck string `json:"key_check,omitempty"`
}

// Chain returns the settings that a chain of the tag follows.
func (s TagSettings) Chain() allocator.Settings {
	return allocator.Settings{MinStep: s.MinStep, MaxStep: s.MaxStep, Reserve: s.Reserve.Duration(),
		Prescale: s.Prescale, PrescaleUntil: s.PrescaleUntil}
}

// Skips are the least IDs that rooms may lease. They are stored as a list sorted by room.
type Skips map[allocator.Room]int64

type skip struct {
	Room allocator.Room `json:"room"`
	To   int64          `json:"to,string"`
}

// MarshalJSON writes the list.
func (s Skips) MarshalJSON() ([]byte, error) {
	list := make([]skip, 0, len(s))
	for _, room := range slices.Sorted(maps.Keys(s)) {
		list = append(list, skip{room, s[room]})
	}
	return json.Marshal(list)
}

// UnmarshalJSON reads the list.
func (s *Skips) UnmarshalJSON(b []byte) error {
	var list []skip
	err := json.Unmarshal(b, &list)
	*s = make(Skips, len(list))
	for _, skip := range list {
		(*s)[skip.Room] = skip.To
	}
	return err
}

// defaultMaxJump bounds how far above the second largest mark of a tag (the tag's start if
// there is none) a floor may make a room jump. Beyond that an operator must agree by raising
// the tag's max_jump, so that a typo in one room does not drag all others to the end of the
// space. 10^15 IDs are 31 years at a million per second.
const defaultMaxJump = 1_000_000_000_000_000

// DefaultTag returns the settings of a new tag before any are changed.
func DefaultTag() TagSettings {
	chain := allocator.DefaultSettings()
	return TagSettings{
		Start: 1, Limit: allocator.MaxID, MaxJump: defaultMaxJump,
		MinStep: chain.MinStep, MaxStep: chain.MaxStep, Reserve: DurationOf(chain.Reserve),
	}
}

// Validate checks 0 <= start < limit, the chain's settings and max_jump >= 1.
// Its error is Invalid.
func (s TagSettings) Validate() error {
	if s.Time != nil {
		return s.validateTime(DefaultTag())
	}
	if err := s.Reserve.validate(); err != nil {
		return allocator.Errorf(allocator.Invalid, "%w", err)
	}
	switch {
	case s.Start < 0 || s.Start >= allocator.MaxID:
		return allocator.Errorf(allocator.Invalid, "start: %d; allowed: 0 to %d", s.Start, int64(allocator.MaxID-1))
	case s.Limit <= s.Start:
		return allocator.Errorf(allocator.Invalid, "limit: %d; allowed: above start (%d), up to %d", s.Limit,
			s.Start, int64(allocator.MaxID))
	case s.MaxJump < 1:
		return allocator.Errorf(allocator.Invalid, "max_jump: %d; allowed: 1 to %d", s.MaxJump, int64(allocator.MaxID))
	case s.MaxSkew < 0:
		return allocator.Errorf(allocator.Invalid,
			"max_skew: %d; allowed: 0 (no bound) to %d", s.MaxSkew, int64(allocator.MaxID))
	}
	if s.Skip < 0 {
		return allocator.Errorf(allocator.Invalid, "skip: %d; allowed: 0 (none) to %d", s.Skip, int64(allocator.MaxID))
	}
	for room, to := range s.Skips {
		if to < 1 {
			return allocator.Errorf(allocator.Invalid,
				"skip of room %s: to %d; allowed: 1 to %d", room, to, int64(allocator.MaxID))
		}
	}
	if err := s.Period.Validate(); err != nil {
		return allocator.Errorf(allocator.Invalid, "%w", err)
	}
	return cmp.Or(s.validateOrder(), s.Chain().Validate())
}

const (
	leastTenureHold   = time.Second
	longestTenureHold = time.Minute
)

// validateOrder checks the order of a counter. Its error is Invalid.
func (s TagSettings) validateOrder() error {
	hold := s.TenureHold.Duration()
	switch {
	case s.StrictOrder == "" && s.TenureHold != "":
		return allocator.Errorf(allocator.Invalid, "tenure_hold: %s; allowed: only with strict_order", s.TenureHold)
	case s.StrictOrder != OrderCluster && s.Home != "":
		return allocator.Errorf(allocator.Invalid, "home: %s; allowed: only with strict_order %s", s.Home, OrderCluster)
	case s.StrictOrder == "":
		return nil
	case s.StrictOrder != OrderRoom && s.StrictOrder != OrderCluster:
		return allocator.Errorf(allocator.Invalid, "strict_order: %q; allowed: %s, %s", s.StrictOrder, OrderRoom,
			OrderCluster)
	case s.TenureHold.validate() != nil || hold < leastTenureHold || hold > longestTenureHold:
		return allocator.Errorf(allocator.Invalid, "tenure_hold: %s; allowed: %v to %v", s.TenureHold, leastTenureHold,
			longestTenureHold)
	}
	if _, err := allocator.ParseRoom(string(s.Home)); s.StrictOrder == OrderCluster && err != nil {
		return allocator.Errorf(allocator.Invalid, "home: %q; allowed with strict_order %s: the room whose instances "+
			"issue the IDs", s.Home, OrderCluster)
	}
	return nil
}

// Present returns the settings of a tag at a time; next is the largest mark. For a tag with a
// period, start and limit are those of the period at that time, or of a later period if a room
// has gone on to it. span is that period, zero for other tags.
func (s TagSettings) Present(now time.Time, next int64) (present TagSettings, span period.Span) {
	if s.Period == (period.Period{}) {
		s.Start = min(max(s.Start, s.Skip), s.Limit-1)
		return s, span
	}
	span = s.Period.At(now)
	if next > span.End {
		if later, ok := s.Period.Of(next - 1); ok {
			span = later
		}
	}
	s.Start, s.Limit = min(max(s.Start, s.Skip, span.First), s.Limit-1), min(s.Limit, span.End)
	return s, span
}

// LeastBlocks is the least number of boundaries that the IDs of a tag, or of one of its
// periods, must have: each move of a range may skip a block.
const LeastBlocks = 10

// CheckBlocks checks that a new counter has LeastBlocks boundaries of IDs, in each period. The
// block of the tag's start counts whole. Its error is Invalid.
func (s TagSettings) CheckBlocks(boundary int64) error {
	least := LeastBlocks * min(boundary, allocator.MaxID/LeastBlocks)
	from := s.Start - s.Start%boundary
	switch {
	case s.Time != nil || s.Limit <= s.Start: // Validate reports it
	case s.Period != period.Period{} && s.Period.Size() < least:
		return allocator.Errorf(allocator.Invalid,
			"period_digits: %d, of which there are %d IDs in a period; allowed: so many that a period has %d "+
				"boundaries, %d IDs",
			s.Period.Digits, s.Period.Size(), LeastBlocks, least)
	case s.Limit-from < least && from > allocator.MaxID-least:
		return allocator.Errorf(allocator.Invalid,
			"start: %d; allowed: %d boundaries or more below the end of all IDs, up to %d", s.Start,
			LeastBlocks, allocator.MaxID-least)
	case s.Limit-from < least:
		return allocator.Errorf(allocator.Invalid, "limit: %d; allowed: %d boundaries or more, from %d on",
			s.Limit, LeastBlocks, from+least)
	}
	return nil
}

// Tag is the stored value of a tag, living or deleted.
type Tag struct {
	kept
	Name allocator.Tag `json:"-"` // from the key
	TagSettings

	LargestStep int64 `json:"largest_step,string"` // the largest max_step that the tag ever had
	// BaseTotal is the margin total that counts for rooms without a mark. It is 0, or the total
	// of the epoch in which an operator declared that the name was never in use.
	BaseTotal int64 `json:"base_total,string,omitempty"`
	// Least is the largest start and skip of all earlier lives of the name.
	Least   int64     `json:"least,string,omitempty"`
	Created time.Time `json:"created"`          // by the clock of the process that created it
	Deleted time.Time `json:"deleted,omitzero"` // likewise; not zero in a tombstone: see second.go
	Nonce   string    `json:"nonce"`            // new in each write

	KV store.KV `json:"-"`
}

// Encode returns the stored value of the tag, with a nonce.
func (t Tag) Encode(nonce string) []byte {
	t.LargestStep, t.Nonce = max(t.LargestStep, t.MaxStep), nonce
	if t.Time != nil {
		t.TagSettings, t.LargestStep, t.BaseTotal, t.Least = t.onlyTime(), 0, 0, 0
	}
	return Encode(&t)
}

// format: a tag of time-ordered IDs, and one with a period, issue other IDs than a plain
// counter; a tombstone is no tag. A program that does not know the order of a tag must not read it, living or deleted.
func (t *Tag) format() int {
	switch t.StrictOrder {
	case OrderRoom:
		return orderFormat
	case OrderCluster:
		return clusterFormat
	}
	if !t.Deleted.IsZero() || t.Skip > 0 || t.Least > 0 {
		return livesFormat
	}
	if t.Time != nil && t.Time.Wide() {
		return wideFormat
	}
	if t.Time != nil {
		return timeFormat
	}
	if t.Period != (period.Period{}) {
		return periodFormat
	}
	return baseFormat
}

// Validate checks the settings and the rest of the stored value.
func (t *Tag) Validate() error {
	if t.Time != nil {
		if !reflect.DeepEqual(t.TagSettings, t.onlyTime()) || t.LargestStep != 0 || t.BaseTotal != 0 || t.Least != 0 {
			return allocator.Errorf(allocator.Internal, "a tag of kind time with settings of a counter")
		}
		return t.Time.Validate()
	}
	if err := t.TagSettings.Validate(); err != nil {
		return err
	}
	if t.LargestStep < t.MaxStep || t.LargestStep > allocator.LargestStep || t.BaseTotal < 0 || t.Least < 0 {
		return allocator.Errorf(allocator.Internal, "largest_step %d, base_total %d, least %d; max_step is %d",
			t.LargestStep, t.BaseTotal, t.Least, t.MaxStep)
	}
	return nil
}

// Terms are the settings of a tag that limit its leases.
type Terms struct {
	Numbers
	Skips map[allocator.Room]int64 // the least ID that a room may lease; not to be changed

	present int64 // the first ID of the present period; see At
}

// Numbers are the terms without the skips.
type Numbers struct {
	Start, Limit           int64
	MaxJump, MaxSkew       int64
	LargestStep, BaseTotal int64 // see Tag, as for Least
	Least                  int64
	Period                 period.Period
}

// At returns the terms of leases at a time, and the period at that time; zero for a tag without
// one. Of marks in earlier periods only the distance from the present one counts for max_jump.
func (t Terms) At(now time.Time) (terms Terms, span period.Span) {
	if t.Period == (period.Period{}) {
		return t, span
	}
	span = t.Period.At(now)
	t.present = span.First
	return t, span
}

// Begun returns the period in which the next lease of a tag lies, and whether that lease opens it:
// the present period, or a later one in which the largest known ID lies already: the last one below
// a mark, the tag's start, or a skip. So a margin takes no lease into a period that has not begun.
func (t Terms) Begun(present period.Span, largest int64) (span period.Span, opens bool) {
	if p, ok := t.Period.Of(largest); ok && p.First >= present.First {
		return p, false
	}
	return present, largest < present.First
}

// Terms returns the settings that limit leases. The skip of all rooms counts as the start does.
func (t Tag) Terms() Terms {
	return Terms{
		Numbers: Numbers{
			Start: max(t.Start, t.Skip), Limit: t.Limit, MaxJump: t.MaxJump, MaxSkew: t.MaxSkew,
			LargestStep: t.LargestStep, BaseTotal: t.BaseTotal, Least: t.Least, Period: t.Period,
		},
		Skips: t.Skips,
	}
}

// Clone returns settings that share nothing with s.
func (s TagSettings) Clone() TagSettings {
	s.Skips = maps.Clone(s.Skips)
	if s.Time != nil {
		of := *s.Time
		s.Time = &of
	}
	return s
}

// Changeable checks that an update leaves the fixed settings unchanged. Its error is Invalid.
func (s TagSettings) Changeable(to TagSettings) error {
	switch {
	case s.Start != to.Start:
		return allocator.Errorf(allocator.Invalid, "start: cannot be changed (it is %d)", s.Start)
	case s.Period != to.Period:
		return allocator.Errorf(allocator.Invalid,
			"period, period_digits, time_zone: cannot be changed (they are %v)", s.Period)
	}
	return s.sameIDs(to)
}

// sameIDs checks that other settings give an ID the same meaning, the same text and the same place in the order of
// calls; a period apart. Its error is Invalid.
func (s TagSettings) sameIDs(to TagSettings) error {
	switch {
	case s.Format != to.Format:
		return allocator.Errorf(allocator.Invalid, "format: cannot be changed (it is %s)", cmp.Or(s.Format, "none"))
	case s.KeyCheck != to.KeyCheck:
		return allocator.Errorf(allocator.Invalid,
			"key_check: cannot be changed (it is %s)", cmp.Or(s.KeyCheck, "none"))
	case s.KeyCheck != "" && s.Limit != to.Limit:
		return allocator.Errorf(allocator.Invalid,
			"limit: cannot be changed (it is %d), as it is the size of the opaque numbers", s.Limit)
	case s.StrictOrder != to.StrictOrder || s.TenureHold != to.TenureHold:
		return allocator.Errorf(allocator.Invalid, "strict_order, tenure_hold: cannot be changed (they are %s, %s)",
			cmp.Or(s.StrictOrder, "none"), cmp.Or(s.TenureHold, "none"))
	case (s.Time == nil) != (to.Time == nil):
		return allocator.Errorf(allocator.Invalid, "kind: cannot be changed")
	case s.Time != nil && s.Time.Layout() != to.Time.Layout():
		l := s.Time.Layout()
		return allocator.Errorf(allocator.Invalid,
			"bits, unit, time-epoch, order: cannot be changed (they are %s, %v, %s, %v)",
			l.BitsString(), l.Unit, time.UnixMilli(l.Epoch).UTC().Format(timeid.Format), l.Order)
	}
	return nil
}
