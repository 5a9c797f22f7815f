package setting

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
)

// table has all settings of a tag, in the order of texts and files.
var table = []Setting{
	{Path: "start", Kind: Counter, Fixed: true, Help: "the least ID ever issued",
		of: func(s *record.TagSettings) any { return &s.Start }},
	{Path: "limit", Kind: Counter, Help: "the end of the tag's IDs, exclusive; with a format by default the end of " +
		"the IDs that it writes",
		of: func(s *record.TagSettings) any { return &s.Limit }, effect: limitEffect},
	{Path: "min_step", Kind: Counter, Rare: true, Help: "the least number of IDs leased at once, and the first",
		of: func(s *record.TagSettings) any { return &s.MinStep }},
	{Path: "max_step", Kind: Counter, Rare: true, Help: "the largest number of IDs leased at once",
		of: func(s *record.TagSettings) any { return &s.MaxStep }},
	{Path: "reserve", Kind: Counter, Rare: true, Help: "how long the IDs that an instance holds should last at the " +
		"recent peak rate, 1s to 168h",
		of: func(s *record.TagSettings) any { return &s.Reserve }},
	{Path: "max_jump", Kind: Counter, Rare: true, Help: "how far one room's mark may lie above the marks of all " +
		"others before rooms need an operator's consent to go on above it",
		of: func(s *record.TagSettings) any { return &s.MaxJump }, effect: jumpEffect},
	{Path: "max_skew", Kind: Counter, Rare: true, Help: "how far below the furthest room's mark an instance may " +
		"begin a lease; IDs that it holds already may lie further behind; 0 is no bound",
		of: func(s *record.TagSettings) any { return &s.MaxSkew }, effect: skewEffect},
	{Path: "strict_retract", Kind: Counter, Help: "issue nothing rather than an ID of a residue that the room may " +
		"have given up: issue only if etcd recently confirmed the layout",
		of: func(s *record.TagSettings) any { return &s.StrictRetract }, effect: strictEffect},
	{Path: "format", Fixed: true, Help: "how IDs are texts, such as 'prefix(ORD-) | radix62(11)'"},
	{Path: "key_check", Fixed: true, Help: "the check value of the format's opaque key: 16 hexadecimal digits"},
	{Path: "period.unit", name: "period", Kind: Counter, Fixed: true, Help: "count anew each day, month or year: the " +
		"ID is the date in digits, and then a number"},
	{Path: "period.digits", name: "period_digits", Kind: Counter, Fixed: true, preset: strconv.Itoa(periodDigits),
		Help: "with a period: how many digits the number has, 1 to 10 for a day, 12 for a month, 14 for a year"},
	{Path: "period.time_zone", Kind: Counter, Fixed: true, preset: "UTC",
		Help: "with a period: the IANA time zone in which periods begin, such as Asia/Shanghai"},
	{Path: "time.preset", Kind: Timed, Fixed: true, choices: timeid.PresetNames,
		Help: "the layout of another system, in place of bits: " + strings.Join(timeid.PresetNames(), ", ")},
	{Path: "time.bits", Kind: Timed, Fixed: true,
		parts: []string{"time.time_bits", "time.worker_bits", "time.sequence_bits"},
		Help:  "the bits of time/worker/sequence, such as 41/10/12; they need a time epoch"},
	{Path: "time.time_bits", Kind: Timed, Fixed: true, part: true},
	{Path: "time.worker_bits", Kind: Timed, Fixed: true, part: true},
	{Path: "time.sequence_bits", Kind: Timed, Fixed: true, part: true},
	{Path: "time.unit", Kind: Timed, Fixed: true, preset: "1ms", Help: "with bits: how long a tick is, 1ms, 10ms or 1s",
		choices: func() []string { return []string{"1ms", "10ms", "1s"} }},
	{Path: "time.epoch_ms", name: "time_epoch", Kind: Timed, Fixed: true,
		Help: "when tick 0 begins: RFC 3339 or Unix ms; a preset has its own",
		read: func(text string) (string, error) {
			ms, err := timeid.ParseEpoch(text)
			if err != nil { // its name there is that of formats
				err = allocator.Errorf(allocator.Invalid, "%s", strings.TrimPrefix(err.Error(), "epoch: "))
			}
			return strconv.FormatInt(ms, 10), err
		}},
	{Path: "time.order", Kind: Timed, Fixed: true, preset: "middle",
		Help: "with bits: whether the worker is in the middle or last",
		read: func(text string) (string, error) { return strings.TrimPrefix(text, api.OrderPrefix), nil }},
	{Path: "time.sequence", Kind: Timed, preset: "reset", effect: sequenceEffect,
		Help: "a tick begins at sequence 0 (reset), above the last one (carry) or at random; by default " +
			"as a preset has it"},
	{Path: "time.carry_to", Kind: Timed, preset: "half of all sequences", effect: sequenceEffect,
		Help: "with the sequence carry: a tick that ends at this sequence or above is followed by one " +
			"that begins at 1"},
	{Path: "time.random_below", Kind: Timed, preset: strconv.Itoa(timeid.DefaultRandomBelow), effect: sequenceEffect,
		Help: "with the sequence random: the bound below which a tick's first sequence lies"},
	{Path: "time.rollback", Kind: Timed, preset: "wait", effect: rollbackEffect,
		Help: "if the clock went back, calls wait until it has caught up, go on ahead of it (offset), or fail"},
	{Path: "time.max_wait", Kind: Timed, preset: fmt.Sprint(timeid.DefaultMaxWait), effect: rollbackEffect,
		Help: "how long a call waits for a clock that went back"},
}
