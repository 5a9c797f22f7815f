package setting

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
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
	{Path: "max_skew", Kind: Counter, Rare: true, Help: "how far below the furthest room's mark IDs may lie, as " +
		"that was some 5 s before: what instances hold further behind they lease anew for their next caller; " +
		"0 is no bound",
		of: func(s *record.TagSettings) any { return &s.MaxSkew }, effect: skewEffect},
	{Path: "strict_retract", Kind: Counter, Help: "issue nothing rather than an ID of a residue that the room may " +
		"have given up: issue only if etcd recently confirmed the layout",
		of: func(s *record.TagSettings) any { return &s.StrictRetract }, effect: strictEffect},
	{Path: "strict_order", Kind: Counter, Fixed: true, Help: "a call that begins after another one was answered, in " +
		"the same room (room) or in any (cluster), gets a larger ID; one instance of the room, or of all, then " +
		"issues all of the tag's IDs, without leases to clients, and stops within tenure_hold where etcd is away " +
		"or leasing is halted; a recover without one of the instances may break the order",
		of: func(s *record.TagSettings) any { return &s.StrictOrder }},
	{Path: "tenure_hold", Kind: Counter, Fixed: true, Rare: true, preset: string(record.DefaultTenureHold),
		Help: "with a strict order: how long the instance that issues the IDs goes on without etcd, and another one " +
			"waits after it was killed, 1s to 1m",
		of: func(s *record.TagSettings) any { return &s.TenureHold }},
	{Path: "home", Kind: Counter, Rare: true, Help: "with the strict order cluster: the room whose instances issue " +
		"the IDs; those of other rooms pass calls on to them", effect: homeEffect,
		of: func(s *record.TagSettings) any { return &s.Home }},
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
		of: func(s *record.TagSettings) any { return &s.Time.Sequence },
		Help: "a tick begins at sequence 0 (reset), above the last one (carry) or at random; by default " +
			"as a preset has it"},
	{Path: "time.carry_to", Kind: Timed, preset: "half of all sequences", effect: sequenceEffect,
		of: func(s *record.TagSettings) any { return &s.Time.CarryTo },
		Help: "with the sequence carry: a tick that ends at this sequence or above is followed by one " +
			"that begins at 1"},
	{Path: "time.random_below", Kind: Timed, preset: strconv.Itoa(timeid.DefaultRandomBelow), effect: sequenceEffect,
		of:   func(s *record.TagSettings) any { return &s.Time.RandomBelow },
		Help: "with the sequence random: the bound below which a tick's first sequence lies"},
	{Path: "time.rollback", Kind: Timed, preset: "wait", effect: rollbackEffect,
		of:   func(s *record.TagSettings) any { return &s.Time.Rollback },
		Help: "if the clock went back, calls wait until it has caught up, go on ahead of it (offset), or fail"},
	{Path: "time.max_wait", Kind: Timed, preset: fmt.Sprint(timeid.DefaultMaxWait), effect: rollbackEffect,
		of:   func(s *record.TagSettings) any { return &s.Time.MaxWaitMS },
		Help: "how long a call waits for a clock that went back"},
}

// effect returns what a change of a setting does; empty for nothing.
type effect func(before, after record.TagSettings, marks map[allocator.Room]record.Mark) string

// Effects returns what a change of a tag's settings does, a sentence for each setting.
func Effects(before, after record.TagSettings, marks map[allocator.Room]record.Mark) (list []string) {
	for _, s := range table {
		if s.effect != nil && (s.Kind == Timed) == (after.Time != nil) {
			if text := s.effect(before, after, marks); text != "" && !slices.Contains(list, text) {
				list = append(list, text)
			}
		}
	}
	return list
}

// Stopped returns the rooms that a limit stops, and the same with their next IDs, in words.
func Stopped(marks map[allocator.Room]record.Mark, limit int64) (rooms, said []string) {
	for _, room := range slices.Sorted(maps.Keys(marks)) {
		if next := marks[room].Next; next > limit {
			rooms = append(rooms, string(room))
			said = append(said, fmt.Sprintf("%s (its next ID is %d or higher)", room, next))
		}
	}
	return rooms, said
}

func limitEffect(before, after record.TagSettings, marks map[allocator.Room]record.Mark) (text string) {
	if before.Limit == after.Limit {
		return ""
	}
	next := after.Start
	for _, m := range marks {
		next = max(next, m.Next)
	}
	if _, rooms := Stopped(marks, after.Limit); after.Limit < before.Limit && rooms != nil {
		text = fmt.Sprintf("These rooms stop issuing at once, because they have leased IDs from the limit on: %s. ",
			strings.Join(rooms, ", "))
	}
	return text + fmt.Sprintf("From the largest mark on, %d, the tag has %d IDs left; now it has %d.", next,
		max(after.Limit-next, 0), max(before.Limit-next, 0))
}

func jumpEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	if before.MaxJump == after.MaxJump {
		return ""
	}
	return fmt.Sprintf("No room goes on above a mark that is more than %d ahead of all other rooms, "+
		"before an operator agrees; now %d.", after.MaxJump, before.MaxJump)
}

func skewEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	switch after.MaxSkew {
	case before.MaxSkew:
		return ""
	case 0:
		return fmt.Sprintf("A lease may begin any number of IDs below the furthest room's mark; now at most %d.",
			before.MaxSkew)
	}
	return fmt.Sprintf("Leases begin at most %d IDs below the furthest room's mark: a room that is further behind "+
		"skips the IDs up to there, and what it holds further behind it leases anew for its next caller. With a small "+
		"max_skew each instance in use drops up to two reserves every 5 s.", after.MaxSkew)
}

func strictEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	switch {
	case before.StrictRetract == after.StrictRetract:
		return ""
	case after.StrictRetract:
		return "An instance stops issuing IDs of the tag when etcd has not confirmed its layout for as long as its " +
			"hold, whatever its reserve."
	}
	return "Instances go on issuing in an outage of etcd, as long as their reserve lasts. " +
		"They may then issue residues that their room gave up: unique IDs, but out of range."
}

func homeEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	if before.Home == after.Home {
		return ""
	}
	return fmt.Sprintf("Instances of room %s issue the IDs from now on, and no longer those of room %s. If the one "+
		"that issues them now does not answer, that takes tenure_hold, a tenth, and about a second.", after.Home,
		before.Home)
}

func sequenceEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	a, b := before.Time, after.Time
	switch {
	case a.Sequence == b.Sequence && a.CarryTo == b.CarryTo && a.RandomBelow == b.RandomBelow:
		return ""
	case b.Sequence == timeid.Carry:
		return fmt.Sprintf("A tick begins above the last sequence of the tick before, "+
			"and at 1 once that was %d or more.", b.CarryTo)
	case b.Sequence == timeid.Random:
		return fmt.Sprintf("A tick begins at a random sequence below %d, so it has fewer IDs.", b.RandomBelow)
	}
	return "Each tick begins at sequence 0."
}

func rollbackEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	a, b := before.Time, after.Time
	switch {
	case a.Rollback == b.Rollback && a.MaxWaitMS == b.MaxWaitMS:
		return ""
	case b.Rollback == timeid.Offset:
		return "While its clock is behind the last ID, an instance goes on ahead of the clock, by 10 s at most."
	case b.Rollback == timeid.Fail:
		return "While its clock is behind the last ID, an instance refuses calls at once."
	}
	return fmt.Sprintf("While its clock is behind the last ID, calls wait for up to %d ms, and then fail.", b.MaxWaitMS)
}

// The fields of requests that are flags of a command and fields of a form.
var (
	CreateFields = []Setting{
		Of((*marchv1.CreateTagRequest)(nil), "fresh", "the name was never in use, so its first IDs need not leave the "+
			"margins of recovers free"),
		Of((*marchv1.CreateTagRequest)(nil), "reuse", "create it also where IDs, or texts, of a deleted tag of this "+
			"name may come again; says which"),
	}
	SkipFields = []Setting{
		Of((*marchv1.SkipTagRequest)(nil), "to", "the least ID to issue from now on"),
		Of((*marchv1.SkipTagRequest)(nil), "rooms", "only these rooms (default all, also those that come later)"),
		Of((*marchv1.SkipTagRequest)(nil), "force", "skip more IDs than the tag's max-jump"),
	}
	PrescaleFields = []Setting{
		Of((*marchv1.PrescaleTagRequest)(nil), "step", "how many IDs each instance holds at least, up to the tag's "+
			"max-step; 0 ends a prescale"),
		{message: (*marchv1.PrescaleTagRequest)(nil), Path: "duration", Help: "how long, 1s to 168h", preset: "1h0m0s"},
	}
	ApplyFields = []Setting{
		Of((*marchv1.ApplyMigrationRequest)(nil), "hold", "how long at least to wait for a silent instance; 0s for "+
			"its own hold, up to 168h"),
	}
)
