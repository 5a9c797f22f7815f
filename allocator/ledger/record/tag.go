package record

import (
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// TagSettings is what operators set of a tag.
type TagSettings struct {
	Start   int64 // the least ID ever issued; default 1, so that zero is not issued unless asked for
	Limit   int64 // the end of the IDs, exclusive; default allocator.MaxID
	Chain   allocator.Settings
	MaxJump int64 // see DefaultMaxJump
	// MaxSkew bounds how far below the furthest room's mark a lease may begin: a room
	// that lies further behind skips ahead at its next lease. Segments that an instance
	// holds may lie further behind. 0 is no bound.
	MaxSkew int64
	// StrictRetract has instances issue IDs of a layout only while it was
	// confirmed lately: rather none than one of residues that the room gave up.
	StrictRetract bool
	// Skips holds, for rooms that an operator made jump ahead, the least ID that
	// they may lease. See SkipTag.
	Skips map[allocator.Room]int64
	// Time is set where the tag has time-ordered IDs. All settings above are as they
	// are by default then: they say nothing. nil for a counter. Not to be changed in place.
	Time *TimeTag
}

// DefaultMaxJump is how far above the second largest mark of a tag (the tag's
// start where there is none) a room may be made to jump by a floor before an
// operator must agree by raising the tag's max_jump: so that a typo in one room
// does not drag all others to the end of the space. 10^15 IDs are 31 years at a
// million per second.
const DefaultMaxJump = 1_000_000_000_000_000

// DefaultTag returns the settings of a tag of which nothing was said.
func DefaultTag() TagSettings {
	return TagSettings{Start: 1, Limit: allocator.MaxID, Chain: allocator.DefaultSettings(), MaxJump: DefaultMaxJump}
}

// Validate checks 0 <= start < limit, the chain's settings and max_jump >= 1.
// Its error is Invalid.
func (s TagSettings) Validate() error {
	if s.Time != nil {
		return s.validateTime()
	}
	switch {
	case s.Start < 0 || s.Start >= allocator.MaxID:
		return allocator.Errorf(allocator.Invalid, "start: %d; allowed: 0 to %d", s.Start, int64(allocator.MaxID-1))
	case s.Limit <= s.Start:
		return allocator.Errorf(allocator.Invalid, "limit: %d; allowed: above start (%d), up to %d", s.Limit, s.Start, int64(allocator.MaxID))
	case s.MaxJump < 1:
		return allocator.Errorf(allocator.Invalid, "max_jump: %d; allowed: 1 to %d", s.MaxJump, int64(allocator.MaxID))
	case s.MaxSkew < 0:
		return allocator.Errorf(allocator.Invalid, "max_skew: %d; allowed: 0 (no bound) to %d", s.MaxSkew, int64(allocator.MaxID))
	}
	for room, to := range s.Skips {
		if to < 1 {
			return allocator.Errorf(allocator.Invalid, "skip of room %s: to %d; allowed: 1 to %d", room, to, int64(allocator.MaxID))
		}
	}
	return s.Chain.Validate()
}

// Tag is a tag as it is stored.
type Tag struct {
	Name     allocator.Tag
	Settings TagSettings
	Created  time.Time // by the clock of the process that created it

	LargestStep int64 // the largest max_step that it ever had
	// BaseTotal is the margin total that rooms without a mark count with: 0, or that of
	// the epoch in which an operator said that the name was never in use.
	BaseTotal int64

	KV    store.KV
	Nonce string
	rest  []byte // as header has it
}

// Encode returns the value under which the tag is stored. nonce is new in each write.
func (t Tag) Encode(nonce string) []byte {
	s := t.Settings
	v := &tagValue{
		header: header{Rest: t.rest},
		Start:  s.Start, Limit: s.Limit, MinStep: s.Chain.MinStep, MaxStep: s.Chain.MaxStep,
		Reserve: s.Chain.Reserve.String(), MaxJump: s.MaxJump, MaxSkew: s.MaxSkew, Prescale: s.Chain.Prescale,
		StrictRetract: s.StrictRetract, LargestStep: max(t.LargestStep, s.Chain.MaxStep), BaseTotal: t.BaseTotal,
		Created: t.Created, Nonce: nonce,
	}
	if !s.Chain.PrescaleUntil.IsZero() {
		v.PrescaleUntil = &s.Chain.PrescaleUntil
	}
	if s.Time != nil {
		v = v.ofTime(s.Time)
	}
	for _, room := range slices.Sorted(maps.Keys(s.Skips)) {
		v.Skips = append(v.Skips, skipValue{Room: string(room), To: s.Skips[room]})
	}
	return Encode(v)
}

// DecodeTag reads a tag and checks its settings. Its error is a KeyError.
func (k Keys) DecodeTag(kv store.KV) (Tag, error) {
	var v tagValue
	if err := Decode(kv, &v); err != nil {
		return Tag{}, err
	}
	name, err := k.ParseTag(kv.Key)
	if err != nil {
		return Tag{}, err
	}
	reserve, err := time.ParseDuration(v.Reserve)
	if err != nil {
		return Tag{}, Damaged(kv.Key, "%w", err)
	}
	t := Tag{Name: name, Created: v.Created, KV: kv, Nonce: v.Nonce, rest: v.Rest, Settings: TagSettings{
		Start: v.Start, Limit: v.Limit, MaxJump: v.MaxJump, MaxSkew: v.MaxSkew, StrictRetract: v.StrictRetract,
		Chain: allocator.Settings{MinStep: v.MinStep, MaxStep: v.MaxStep, Reserve: reserve, Prescale: v.Prescale},
	}}
	t.LargestStep, t.BaseTotal = v.LargestStep, v.BaseTotal
	if v.Kind != "" || v.Time != nil {
		t.Settings, err = v.timeSettings(kv.Key)
		return t, err
	}
	if v.PrescaleUntil != nil {
		t.Settings.Chain.PrescaleUntil = *v.PrescaleUntil
	}
	for _, skip := range v.Skips {
		if t.Settings.Skips == nil {
			t.Settings.Skips = make(map[allocator.Room]int64, len(v.Skips))
		}
		t.Settings.Skips[allocator.Room(skip.Room)] = skip.To
	}
	if err := t.Settings.Validate(); err != nil {
		return Tag{}, Damaged(kv.Key, "%w", err)
	}
	if v.LargestStep < v.MaxStep || v.LargestStep > allocator.LargestStep || v.BaseTotal < 0 {
		return Tag{}, Damaged(kv.Key, "largest_step %d, base_total %d; max_step is %d", v.LargestStep, v.BaseTotal, v.MaxStep)
	}
	return t, nil
}
