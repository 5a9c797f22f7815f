package api

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// LayoutToProto returns l as a message.
func LayoutToProto(l allocator.Layout) *marchv1.Layout {
	p := &marchv1.Layout{Version: l.Version, Boundary: l.Boundary,
		Rooms: make(map[string]*marchv1.Range, len(l.Ranges))}
	for room, r := range l.Ranges {
		p.Rooms[string(room)] = rangeToProto(r)
	}
	for name, r := range l.Reserved {
		if p.Reserved == nil {
			p.Reserved = make(map[string]*marchv1.Range, len(l.Reserved))
		}
		p.Reserved[string(name)] = rangeToProto(r)
	}
	return p
}

// LayoutFromProto checks p. Its error is a *allocator.LayoutError, whose Kind
// is Invalid.
func LayoutFromProto(p *marchv1.Layout) (allocator.Layout, error) {
	if p == nil {
		return allocator.Layout{}, &allocator.LayoutError{Problems: []string{"no layout is given"}}
	}
	// Check the number first: Validate compares all pairs of rooms, and a message
	// can name hundreds of thousands.
	if n := len(p.GetRooms()); n > allocator.MaxRooms {
		return allocator.Layout{}, &allocator.LayoutError{Problems: []string{
			fmt.Sprintf("%d rooms; allowed: 1 to %d", n, allocator.MaxRooms),
		}}
	}
	if n := len(p.GetReserved()); n > allocator.MaxRooms {
		return allocator.Layout{}, &allocator.LayoutError{Problems: []string{
			fmt.Sprintf("%d reserved ranges; allowed: 0 to %d", n, allocator.MaxRooms),
		}}
	}
	l := allocator.Layout{
		Version:  p.GetVersion(),
		Boundary: p.GetBoundary(),
		Ranges:   make(map[allocator.Room]allocator.Range, len(p.GetRooms())),
	}
	for name, r := range p.GetRooms() {
		l.Ranges[allocator.Room(name)] = rangeFromProto(r)
	}
	for name, r := range p.GetReserved() {
		if l.Reserved == nil {
			l.Reserved = make(map[allocator.Room]allocator.Range, len(p.GetReserved()))
		}
		l.Reserved[allocator.Room(name)] = rangeFromProto(r)
	}
	if err := l.Validate(); err != nil { // names and absent ranges too
		return allocator.Layout{}, err
	}
	return l, nil
}

// SegmentToProto returns s as a message.
func SegmentToProto(s allocator.Segment) *marchv1.Segment {
	return &marchv1.Segment{
		Version:  s.Version,
		Boundary: s.Boundary,
		Range:    rangeToProto(s.Range),
		First:    s.First,
		Count:    s.Count,
	}
}

// SegmentFromProto checks p. Its error's Kind is Invalid.
func SegmentFromProto(p *marchv1.Segment) (allocator.Segment, error) {
	if p == nil {
		return allocator.Segment{}, allocator.Errorf(allocator.Invalid, "no segment is given")
	}
	s := allocator.Segment{
		Version:  p.GetVersion(),
		Boundary: p.GetBoundary(),
		Range:    rangeFromProto(p.GetRange()),
		First:    p.GetFirst(),
		Count:    p.GetCount(),
	}
	if err := s.Validate(); err != nil {
		return allocator.Segment{}, err
	}
	return s, nil
}

// PartToProto returns p as a message.
func PartToProto(p allocator.Part) *marchv1.Part {
	return &marchv1.Part{Version: p.Version, Boundary: p.Boundary, Range: rangeToProto(p.Range)}
}

// PartFromProto returns p, or the zero Part if p is nil.
func PartFromProto(p *marchv1.Part) allocator.Part {
	return allocator.Part{Version: p.GetVersion(), Boundary: p.GetBoundary(), Range: rangeFromProto(p.GetRange())}
}

// RunsToProto returns runs as messages.
func RunsToProto(runs []allocator.Run) []*marchv1.Run {
	messages := make([]*marchv1.Run, len(runs))
	values := make([]marchv1.Run, len(runs)) // two allocations, however many runs a batch crosses
	for i, run := range runs {
		values[i].First, values[i].Count = run.First, run.Count
		if run.Stride > 1 {
			stride := run.Stride // a copy, so that other runs stay off the heap
			values[i].Stride = &stride
		}
		messages[i] = &values[i]
	}
	return messages
}

// AppendRuns appends runs from messages to dst.
func AppendRuns(dst []allocator.Run, messages []*marchv1.Run) []allocator.Run {
	for _, m := range messages {
		dst = append(dst, allocator.Run{First: m.GetFirst(), Count: m.GetCount(), Stride: m.GetStride()})
	}
	return dst
}

func rangeToProto(r allocator.Range) *marchv1.Range {
	return &marchv1.Range{Lower: r.Lower, Upper: r.Upper}
}

// rangeFromProto returns [0, 0), which no layout takes, for an absent range.
func rangeFromProto(p *marchv1.Range) allocator.Range {
	return allocator.Range{Lower: p.GetLower(), Upper: p.GetUpper()}
}

// MaxBatch is how many IDs one NextBatch returns at most.
const MaxBatch = 100_000

// MaxTexts is how many texts one answer has at most.
const MaxTexts = 10_000

// MaxLease is how many IDs one Lease hands out at most.
const MaxLease = 1_000_000_000

// RatesKept is how many rates are kept, one a second: an instance keeps its own, a
// console those of each room, which its page draws.
const RatesKept = 120

// RateOver is over how many of the last of these the rate that is shown is the mean, and the seconds for which IDs
// that a caller leases count: clients lease for about so long (client.DefaultReserve).
const RateOver = 30

// PageSize returns the number of items of a page: asked, which must be 1 to 1,000,
// or 100 for 0. Its error is Invalid.
func PageSize(asked int32) (int, error) {
	const most, usual = 1000, 100
	switch {
	case asked == 0:
		return usual, nil
	case asked < 0 || asked > most:
		return 0, allocator.Errorf(allocator.Invalid, "page_size: %d; allowed: 1 to %d, 0 for %d", asked, most, usual)
	}
	return int(asked), nil
}

// Ended reports whether a migration in a state makes no more moves.
func Ended(state marchv1.MigrationState) bool {
	return state == marchv1.MigrationState_MIGRATION_STATE_DONE ||
		state == marchv1.MigrationState_MIGRATION_STATE_ABORTED
}

// Space returns the first ID of a tag and the end of its IDs, exclusive: of a tag with a
// period, those of the period that is now.
func Space(t *marchv1.Tag) (start, limit int64) {
	if p := t.GetPeriod(); p != nil {
		return max(t.GetStart(), t.GetSkip(), p.GetFirst()), min(t.GetLimit(), p.GetEnd())
	}
	return max(t.GetStart(), t.GetSkip()), t.GetLimit()
}

// OrderPrefix is the prefix that an order's word has in commands but not in the messages'
// enum.
const OrderPrefix = "worker-"

// TimeTagToProto returns the settings of a tag of time-ordered IDs as a message, with
// defaults spelled out. The worker and the window are not settings.
func TimeTagToProto(c timeid.Config) *marchv1.TimeTag {
	sequence, l := c.Sequence, c.Layout
	c = c.WithDefaults()
	p := &marchv1.TimeTag{
		TimeBits: int32(l.TimeBits), WorkerBits: int32(l.WorkerBits), SequenceBits: int32(l.SequenceBits),
		Unit: durationpb.New(l.Unit), EpochMs: &l.Epoch,
		Order:    FromWord[marchv1.WorkerOrder](strings.TrimPrefix(l.Order.String(), OrderPrefix)),
		Sequence: FromWord[marchv1.SequencePolicy](sequence.String()),
		Rollback: FromWord[marchv1.RollbackPolicy](c.Rollback.String()),
		MaxWait:  durationpb.New(c.MaxWait),
	}
	switch sequence {
	case timeid.Carry:
		p.CarryTo = c.CarryTo
	case timeid.Random:
		p.RandomBelow = c.RandomBelow
	}
	return p
}

// TimeTagFromProto returns the configuration of a generator of a tag's IDs, without a
// worker and a window. p has every setting, as a server writes it. The error is Invalid.
func TimeTagFromProto(p *marchv1.TimeTag) (c timeid.Config, err error) {
	if err := p.GetUnit().CheckValid(); err != nil {
		return c, allocator.Errorf(allocator.Invalid, "unit: %w", err)
	}
	c.Layout = timeid.Layout{
		TimeBits: int(p.GetTimeBits()), WorkerBits: int(p.GetWorkerBits()), SequenceBits: int(p.GetSequenceBits()),
		Unit: p.GetUnit().AsDuration(), Epoch: p.GetEpochMs(),
	}
	if c.Layout.Order, err = timeid.ParseOrder(OrderPrefix + Word(p.GetOrder())); err != nil {
		return c, NotAllowed("order", p.GetOrder())
	}
	if c.Sequence, err = timeid.ParseSequence(Word(p.GetSequence())); err != nil {
		return c, NotAllowed("sequence", p.GetSequence())
	}
	if c.Rollback, err = timeid.ParseRollback(Word(p.GetRollback())); err != nil {
		return c, NotAllowed("rollback", p.GetRollback())
	}
	c.CarryTo, c.RandomBelow, c.MaxWait = p.GetCarryTo(), p.GetRandomBelow(), p.GetMaxWait().AsDuration()
	return c, c.Layout.Validate()
}

// MaxNonce and MinNonce bound the length of a WindowRequest's nonce.
const (
	MinNonce = 16
	MaxNonce = 64
)

const (
	// MaxManyTags is how many tags one NextMany names at most.
	MaxManyTags = 100
	// MaxMany is how many IDs one NextMany returns at most, of all its tags together.
	MaxMany = MaxTexts
)

// CheckMany checks the names and the counts of a NextMany. Its error is Invalid, and names
// the place in the request.
func CheckMany(r *marchv1.NextManyRequest) error {
	tags := r.GetTags()
	if n := len(tags); n < 1 || n > MaxManyTags {
		return allocator.Errorf(allocator.Invalid, "tags: %d; allowed: 1 to %d", n, MaxManyTags)
	}
	named := make(map[string]int, len(tags))
	sum := int64(0)
	for i, t := range tags {
		if _, err := allocator.ParseTag(t.GetTag()); err != nil {
			return fmt.Errorf("tags[%d]: %w", i, err)
		}
		n := t.GetCount()
		if n < 1 || n > MaxMany {
			return InMany(i, t.GetTag(), allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, MaxMany))
		}
		if first, twice := named[t.GetTag()]; twice {
			return InMany(i, t.GetTag(), allocator.Errorf(allocator.Invalid,
				"tag: named in tags[%d], too; allowed: each tag once", first))
		}
		named[t.GetTag()] = i
		sum += n
	}
	if sum > MaxMany {
		return allocator.Errorf(allocator.Invalid, "tags: the counts are %d together; allowed: 1 to %d", sum, MaxMany)
	}
	return nil
}

// InMany returns the error of one tag of a NextMany, with its place in the request and the
// tag's name. It has the error's Kind.
func InMany(i int, tag string, err error) error {
	return fmt.Errorf("tags[%d] (%s): %w", i, tag, err)
}

// Skipped returns the error of one tag of a NextMany with the number of IDs that the call
// had taken of the tags before it. It has the error's Kind.
func Skipped(err error, taken int64) error {
	if taken == 0 {
		return err
	}
	return fmt.Errorf("%w; skipped, and never issued: %d IDs that the call had taken of the tags before", err, taken)
}

// Enum is an enum of march.v1.
type Enum interface {
	~int32
	protoreflect.Enum
}

// Word returns an enum's value as commands, pages and metrics show it: running for
// MIGRATION_STATE_RUNNING. A number that a newer server sent is shown as it is.
func Word(value protoreflect.Enum) string {
	if known := value.Descriptor().Values().ByNumber(value.Number()); known != nil {
		return WordOf(known)
	}
	return strconv.Itoa(int(value.Number()))
}

// WordOf returns the word of an enum's value.
func WordOf(value protoreflect.EnumValueDescriptor) string {
	enum, _ := value.Parent().(protoreflect.EnumDescriptor)
	return strings.ToLower(strings.TrimPrefix(string(value.Name()), prefix(enum)))
}

// prefix returns the common prefix of the names of an enum's values, as buf's lint
// demands it: MIGRATION_STATE_ for MigrationState.
func prefix(enum protoreflect.EnumDescriptor) string {
	var b strings.Builder
	for i, r := range string(enum.Name()) {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String() + "_"
}

// Named returns the value of an enum that a word names, or nil.
func Named(enum protoreflect.EnumDescriptor, word string) protoreflect.EnumValueDescriptor {
	if word != strings.ToLower(word) {
		return nil
	}
	return enum.Values().ByName(protoreflect.Name(prefix(enum) + strings.ToUpper(word)))
}

// FromWord returns the value that a word names, or the unspecified one.
func FromWord[E Enum](word string) E {
	var none E
	if value := Named(none.Descriptor(), word); value != nil {
		return E(value.Number())
	}
	return none
}

// ParseWord returns the value that a word names. Its error is Invalid, and begins with
// field.
func ParseWord[E Enum](field, word string) (E, error) {
	value := FromWord[E](word)
	if value == 0 {
		return value, notAllowed(field, strconv.Quote(word), value.Descriptor(), WordOf)
	}
	return value, nil
}

// NotAllowed returns the error of a message's field whose value its enum does not have. It
// is Invalid.
func NotAllowed(field string, value protoreflect.Enum) error {
	return notAllowed(field, strconv.Itoa(int(value.Number())), value.Descriptor(),
		func(v protoreflect.EnumValueDescriptor) string {
			return string(v.Name())
		})
}

func notAllowed(field, value string, enum protoreflect.EnumDescriptor,
	show func(protoreflect.EnumValueDescriptor) string) error {
	var allowed []string
	for i := range enum.Values().Len() {
		if v := enum.Values().Get(i); v.Number() != 0 {
			allowed = append(allowed, show(v))
		}
	}
	return allocator.Errorf(allocator.Invalid, "%s: %s; allowed: %s", field, value, strings.Join(allowed, ", "))
}
