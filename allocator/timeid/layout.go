package timeid

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
)

// Order is the position of the worker in an ID. The time always comes first.
type Order uint8

const (
	// WorkerMiddle is time | worker | sequence, as in Snowflake. It is the zero value.
	WorkerMiddle Order = iota
	// WorkerLast is time | sequence | worker: the worker is then id mod 2^WorkerBits.
	WorkerLast
)

// String returns the order as ParseOrder reads it.
func (o Order) String() string {
	switch o {
	case WorkerMiddle:
		return "worker-middle"
	case WorkerLast:
		return "worker-last"
	}
	return fmt.Sprintf("order-%d", uint8(o))
}

// MarshalText writes the order as String does.
func (o Order) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads it as ParseOrder does.
func (o *Order) UnmarshalText(text []byte) (err error) {
	*o, err = ParseOrder(string(text))
	return err
}

// Layout is the meaning of the bits of an ID. With t, w, s for the three widths and tick =
// (time - Epoch) / Unit, rounded down, an ID is
//
//	tick << (w+s) | worker << s | sequence     WorkerMiddle
//	tick << (w+s) | sequence << w | worker     WorkerLast
//
// Bit 63, the sign, is always 0. The zero value is not valid. The IDs of Wide are no int64.
type Layout struct {
	TimeBits     int           // t, from 1
	WorkerBits   int           // w, from 0
	SequenceBits int           // s, from 0; t+w+s is at most 63
	Unit         time.Duration // of time, one tick: 1 ms, 10 ms or 1 s
	Epoch        int64         // when tick 0 begins: Unix time in ms, a multiple of Unit
	Order        Order
}

// Wide is the layout of CosId's strings of 80 bits (CosIdGenerator), until the year 2527.
// Their IDs are no int64 and exist only as texts. It is the one valid layout above MaxBits.
// A generator issues them as numbers of Narrow, which with its worker are Parts.
var Wide = Layout{44, 20, 16, time.Millisecond, 0, WorkerMiddle}

// Narrow returns the layout of the numbers that a generator issues: of Wide the same without
// the worker, 60 bits, and l otherwise.
func (l Layout) Narrow() Layout {
	if l == Wide {
		l.WorkerBits = 0
	}
	return l
}

// checkNumber refuses Wide, as its IDs are no numbers. Its error is Invalid.
func (l Layout) checkNumber() error {
	if l == Wide {
		return allocator.Errorf(allocator.Invalid, "id: an ID of %s, %d bits, is no 64-bit number; allowed: its text",
			l.BitsString(), l.bits())
	}
	return nil
}

// MaxBits is the number of bits of an ID: an int64 without its sign.
const MaxBits = 63

// LatestEpoch is the largest Epoch, in Unix ms: the last ms of the year 9999.
const LatestEpoch = 253402300799999

// units are the units of time that a layout may have.
var units = []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second}

// Validate checks the fields' ranges, that the bits fit, and that the end of the
// time bits fits an int64 of Unix ms. Its error is Invalid and names the field.
func (l Layout) Validate() error {
	switch {
	case l.Unit != units[0] && l.Unit != units[1] && l.Unit != units[2]:
		return allocator.Errorf(allocator.Invalid, "unit: %v; allowed: 1ms, 10ms, 1s", l.Unit)
	case l.Epoch < 0 || l.Epoch > LatestEpoch:
		return allocator.Errorf(allocator.Invalid, "epoch: %d ms; allowed: 0 to %d", l.Epoch, int64(LatestEpoch))
	case l.Epoch%l.unit() != 0:
		return allocator.Errorf(allocator.Invalid, "epoch: %d ms; allowed: multiples of the unit (%v)", l.Epoch, l.Unit)
	case l.TimeBits < 1 || l.TimeBits > l.maxTimeBits():
		return allocator.Errorf(allocator.Invalid,
			"time bits: %d; allowed: 1 to %d with unit %v", l.TimeBits, l.maxTimeBits(), l.Unit)
	case l.WorkerBits < 0 || l.WorkerBits >= MaxBits:
		return allocator.Errorf(allocator.Invalid, "worker bits: %d; allowed: 0 to %d", l.WorkerBits, MaxBits-1)
	case l.SequenceBits < 0 || l.SequenceBits >= MaxBits:
		return allocator.Errorf(allocator.Invalid, "sequence bits: %d; allowed: 0 to %d", l.SequenceBits, MaxBits-1)
	case l.bits() > MaxBits && l != Wide:
		return allocator.Errorf(allocator.Invalid,
			"bits: %s is %d together; allowed: up to %d", l.BitsString(), l.bits(), MaxBits)
	case l.Order > WorkerLast:
		return allocator.Errorf(allocator.Invalid, "order: %d; allowed: %v, %v",
			uint8(l.Order), WorkerMiddle, WorkerLast)
	}
	return nil
}

// maxTimeBits returns the most bits of time that end, after the latest epoch, within an int64
// of ms.
func (l Layout) maxTimeBits() int {
	return bits.Len64(uint64((math.MaxInt64-LatestEpoch)/l.unit())) - 1
}

// BitsString returns the widths as ParseBits reads them: 41/10/12.
func (l Layout) BitsString() string {
	return fmt.Sprintf("%d/%d/%d", l.TimeBits, l.WorkerBits, l.SequenceBits)
}

// Workers returns the number of workers, 2^WorkerBits. They count from 0.
func (l Layout) Workers() int64 { return 1 << l.WorkerBits }

// PerTick returns how many IDs one worker has in one tick, 2^SequenceBits.
func (l Layout) PerTick() int64 { return 1 << l.SequenceBits }

// PerSecond returns how many IDs one worker has in a second, at most allocator.LargestStep.
func (l Layout) PerSecond() int64 {
	ticks := int64(time.Second / l.Unit)
	if l.PerTick() > allocator.LargestStep/ticks {
		return allocator.LargestStep
	}
	return l.PerTick() * ticks
}

// Largest returns the largest ID, 2^(t+w+s)-1; for Wide that of Narrow.
func (l Layout) Largest() int64 { return int64(uint64(1)<<l.Narrow().bits() - 1) }

// End returns when the time bits are used up, in Unix ms: Epoch + 2^t * Unit,
// exclusive.
func (l Layout) End() int64 { return l.Epoch + int64(1)<<l.TimeBits*l.unit() }

// Stride returns the distance between consecutive IDs of one worker within a tick: 1, or
// 2^WorkerBits if the worker is last.
func (l Layout) Stride() int64 {
	if l.Order == WorkerLast {
		return l.Workers()
	}
	return 1
}

func (l Layout) unit() int64 { return int64(l.Unit / time.Millisecond) }

func (l Layout) bits() int { return l.TimeBits + l.WorkerBits + l.SequenceBits }

// date prints a time in Unix ms.
func date(ms int64) string { return time.UnixMilli(ms).UTC().Format(Format) }

// Format is how March prints the time of an ID, for time.Time.Format: RFC 3339
// with ms.
const Format = "2006-01-02T15:04:05.000Z07:00"

// Preset is a layout that other systems' clients and decoders know, with that system's way to
// count within a tick.
type Preset struct {
	Name     string
	Layout   Layout
	Sequence Sequence
	Note     string // one line: the system
}

// Epochs of the presets, in Unix ms.
const (
	// EpochTwitter is 2010-11-04T01:42:54.657Z: Twitter's, and Leaf's
	// (SnowflakeIDGenImpl.java).
	EpochTwitter = 1288834974657
	// EpochCosId is 2019-12-24T16:00:00Z (CosId.java).
	EpochCosId = 1577203200000
	// EpochUID is 2016-05-19T16:00:00Z (DefaultUidGenerator.java of uid-generator).
	EpochUID = 1463673600000
)

// presets are in the order in which PresetNames returns their names.
var presets = []Preset{
	{"leaf", Layout{41, 10, 12, time.Millisecond, EpochTwitter, WorkerMiddle}, Random,
		"Leaf's snowflake; Twitter's epoch"},
	{"cosid", Layout{41, 10, 12, time.Millisecond, EpochCosId, WorkerMiddle}, Carry, "CosId's MillisecondSnowflakeId"},
	{"cosid-second", Layout{31, 10, 22, time.Second, EpochCosId, WorkerMiddle}, Carry, "CosId's SecondSnowflakeId"},
	{"cosid-js", Layout{41, 3, 9, time.Millisecond, EpochCosId, WorkerMiddle}, Carry,
		"CosId's SafeJavaScriptSnowflakeId: below 2^53"},
	{"cosid-js-second", Layout{31, 3, 19, time.Second, EpochCosId, WorkerMiddle}, Carry, "the same in seconds"},
	{"uid-generator", Layout{28, 22, 13, time.Second, EpochUID, WorkerMiddle}, Reset,
		"uid-generator's default; its time ended in 2024: new IDs need a newer epoch"},
	{"cosid-string", Wide, Carry, "CosId's CosIdGenerator: 80 bits, which exist only as texts"},
}

// PresetNames returns the names of all presets.
func PresetNames() []string {
	names := make([]string, len(presets))
	for i, p := range presets {
		names[i] = p.Name
	}
	return names
}

// PresetNamed returns the preset of a name. Its error is Invalid and lists the names.
func PresetNamed(name string) (Preset, error) {
	for _, p := range presets {
		if p.Name == name {
			return p, nil
		}
	}
	return Preset{}, allocator.Errorf(allocator.Invalid, "preset: %q; allowed: %s", short(name),
		strings.Join(PresetNames(), ", "))
}

// Parts are the parts of an ID.
type Parts struct {
	Time     int64 // Unix ms; in a decomposed ID the start of its tick
	Worker   int64 // from 0, below 2^WorkerBits
	Sequence int64 // from 0, below 2^SequenceBits
}

// Check checks that the parts fit the layout. Its error is Invalid and names the
// field: a time before the epoch or after the time bits' end, a worker or a
// sequence out of its width. The layout must be valid.
func (l Layout) Check(p Parts) error {
	switch {
	case p.Time < l.Epoch || p.Time >= l.End():
		return allocator.Errorf(allocator.Invalid,
			"time: %s; allowed: from the epoch %s until the %d time bits are used up, %s",
			date(p.Time), date(l.Epoch), l.TimeBits, date(l.End()))
	case p.Worker < 0 || p.Worker >= l.Workers():
		return allocator.Errorf(allocator.Invalid, "worker: %d; allowed: 0 to %d (%d bits)", p.Worker,
			l.Workers()-1, l.WorkerBits)
	case p.Sequence < 0 || p.Sequence >= l.PerTick():
		return allocator.Errorf(allocator.Invalid, "sequence: %d; allowed: 0 to %d (%d bits)", p.Sequence,
			l.PerTick()-1, l.SequenceBits)
	}
	return nil
}

// Compose returns the ID of parts by the formula at Layout. A time within a tick counts as the
// tick's start. Its errors are those of Check, and Invalid for Wide.
func (l Layout) Compose(p Parts) (int64, error) {
	if err := cmp.Or(l.checkNumber(), l.Check(p)); err != nil {
		return 0, err
	}
	low := p.Worker<<l.SequenceBits | p.Sequence
	if l.Order == WorkerLast {
		low = p.Sequence<<l.WorkerBits | p.Worker
	}
	return (p.Time-l.Epoch)/l.unit()<<(l.WorkerBits+l.SequenceBits) | low, nil
}

// Decompose returns the parts of an ID. It needs no server, so routers can call it for each
// request. Its error is Invalid and names the id if that is negative, or has bits above the
// layout's. Any other number has parts. DecomposeBefore is better at telling whether an ID of
// another system has sensible ones. The layout must be valid.
func (l Layout) Decompose(id int64) (Parts, error) {
	if err := l.checkNumber(); err != nil {
		return Parts{}, err
	}
	if id < 0 {
		return Parts{}, allocator.Errorf(allocator.Invalid, "id: %d is negative; allowed: 0 to %d", id, l.Largest())
	}
	if id > l.Largest() {
		return Parts{}, allocator.Errorf(allocator.Invalid, "id: %d has %d bits; allowed: 0 to %d, %d bits (%s)",
			id, bits.Len64(uint64(id)), l.Largest(), l.bits(), l.BitsString())
	}
	p := Parts{Time: l.Epoch + id>>(l.WorkerBits+l.SequenceBits)*l.unit()}
	if l.Order == WorkerLast {
		p.Worker, p.Sequence = id&(l.Workers()-1), id>>l.WorkerBits&(l.PerTick()-1)
	} else {
		p.Worker, p.Sequence = id>>l.SequenceBits&(l.Workers()-1), id&(l.PerTick()-1)
	}
	return p, nil
}

// DecomposeBefore is Decompose for an ID that exists already. latest is the present, in Unix
// ms, plus the most by which clocks may differ. It also refuses, by name, an epoch or a time
// after latest.
func (l Layout) DecomposeBefore(id, latest int64) (Parts, error) {
	if l.Epoch > latest {
		return Parts{}, allocator.Errorf(allocator.Invalid, "epoch: %s is in the future; allowed: up to %s",
			date(l.Epoch), date(latest))
	}
	p, err := l.Decompose(id)
	if err != nil {
		return Parts{}, err
	}
	return p, p.CheckBefore(latest)
}

// CheckBefore refuses parts with a time after latest, in Unix ms. Its error is Invalid.
func (p Parts) CheckBefore(latest int64) error {
	if p.Time > latest {
		return allocator.Errorf(allocator.Invalid,
			"time: %s of the ID is in the future; allowed: up to %s: the ID has other bits, unit or epoch",
			date(p.Time), date(latest))
	}
	return nil
}
