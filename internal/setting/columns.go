package setting

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/words"
)

// Column is a column of a list: terminals and pages show the same columns, and each writes a value in its way. A value
// is a number, a text, a bool, a time, a duration, a range, a layout, or of a type below; nil or empty is none.
type Column[T any] struct {
	Title  string
	Number bool   // on the right
	Key    bool   // it names the row
	Wide   bool   // a terminal has no place for it
	Sort   string // the word by which a console sorts by it; empty if it does not
	Value  func(T) any
}

// Room is the name of a room.
type Room string

// TagName is the name of a tag.
type TagName string

// Instance is an instance of a room, and why it does not issue; empty if it does.
type Instance struct{ Room, Name, Failure string }

func (i Instance) String() string { return strings.TrimSuffix(i.Room+"/"+i.Name, "/") }

// State is a state, what else holds, and when it ends.
type State struct {
	Word  string
	Plain bool // the word is no state of its own
	Also  []string
	Until string // what comes at the time Ends
	Ends  *timestamppb.Timestamp
}

func (s State) String() string {
	text := strings.Join(append([]string{s.Word}, s.Also...), ", ")
	if s.Ends != nil {
		text += ", " + s.Until + " " + s.Ends.AsTime().Format(time.RFC3339)
	}
	return text
}

// Rate is how many IDs are issued in a second. A low one is not 0.
type Rate float64

func (r Rate) String() string {
	switch {
	case r <= 0 || r >= 10:
		return strconv.FormatFloat(float64(r), 'f', 0, 64)
	case r < 0.1:
		return "<0.1"
	}
	return strconv.FormatFloat(float64(r), 'f', 1, 64)
}

// Part is how many there are of all that there may be.
type Part struct{ N, Of int64 }

func (p Part) String() string { return strconv.FormatInt(p.N, 10) }

// Share is a part of one.
type Share float64

func (s Share) String() string { return strconv.FormatFloat(100*float64(s), 'f', 2, 64) + "%" }

// Marks are the marks of rooms.
type Marks []*marchv1.Mark

func (m Marks) String() string {
	texts := make([]string, len(m))
	for i, one := range m {
		texts[i] = one.GetRoom() + " " + strconv.FormatInt(one.GetNext(), 10)
	}
	return strings.Join(texts, ", ")
}

// Lasts is how long something lasts, or when it counts anew.
type Lasts struct {
	For  *durationpb.Duration
	Ends *timestamppb.Timestamp
}

func (l Lasts) String() string { return words.Lasts(l.For, l.Ends, "") }

// Reserve is how long the IDs that an instance holds last, and whether they are being issued.
type Reserve struct {
	Lasts *durationpb.Duration
	Busy  bool
}

func (r Reserve) String() string { return words.Short(r.Lasts.AsDuration()) }

// Seen is when an instance was last seen, or for how long at least it has not been.
type Seen struct {
	At    *timestamppb.Timestamp
	Since *durationpb.Duration
}

func (s Seen) String() string {
	switch {
	case s.Since != nil:
		return "over " + words.Short(s.Since.AsDuration()) + " ago"
	case s.At == nil:
		return ""
	}
	return s.At.AsTime().Format(time.RFC3339)
}

// Code is a text to be copied: an address, a version.
type Code string

// End is when something is used up, or why that is not known.
type End struct {
	At  *timestamppb.Timestamp
	Why string
}

func (e End) String() string {
	if e.At == nil {
		return e.Why
	}
	return e.At.AsTime().Format(time.RFC3339)
}

// Amount is how much there is, of all that there may be; 0 for no such bound.
type Amount struct {
	N, Of int64
	Bytes bool
}

func (a Amount) String() string {
	text := strconv.FormatInt(a.N, 10)
	if a.Bytes {
		text = humanize.IBytes(uint64(a.N)) //nolint:gosec // not negative
	}
	if a.Of > 0 {
		text += " (" + Share(float64(a.N)/float64(a.Of)).String() + ")"
	}
	return text
}

// ID is an ID.
type ID int64

// RoomCost is what a plan costs a room of a tag.
type RoomCost struct {
	Of *marchv1.TagCost
	*marchv1.RoomForecast
}

// RoomCostsOf returns what a plan costs the rooms of tags.
func RoomCostsOf(tags []*marchv1.TagCost) (list []RoomCost) {
	for _, t := range tags {
		for _, r := range t.GetForecasts() {
			list = append(list, RoomCost{t, r})
		}
	}
	return list
}

// Actor is the user or program that made a change.
type Actor string

// Object is what a change was of, perhaps with a note behind it.
type Object string

// Col returns a column.
func Col[T, V any](title string, value func(T) V) Column[T] {
	return Column[T]{Title: title, Value: func(row T) any { return value(row) }}
}

// Num returns a column of numbers.
func Num[T, V any](title string, value func(T) V) Column[T] {
	c := Col(title, value)
	c.Number = true
	return c
}

// Key returns a column that names the row.
func Key[T any](c Column[T]) Column[T] {
	c.Key = true
	return c
}

func wide[T any](c Column[T]) Column[T] {
	c.Wide = true
	return c
}

func sorted[T any](by string, c Column[T]) Column[T] {
	c.Sort = by
	return c
}

// The columns of lists.
var (
	Capacity = []Column[*marchv1.Capacity]{
		Key(Col("What", (*marchv1.Capacity).GetWhat)), Col("Runs out", capacityEnd),
		Num("Used", func(c *marchv1.Capacity) any { return amount(c, c.GetUsed(), c.GetOf()) }),
		Num("Of", func(c *marchv1.Capacity) any { return amount(c, c.GetOf(), 0) }),
		Col("Note", (*marchv1.Capacity).GetNote),
	}
	Chains = []Column[*marchv1.Chain]{
		Key(Col("Instance", func(c *marchv1.Chain) Instance {
			return Instance{c.GetRoom(), c.GetInstance(), c.GetFailure()}
		})),
		Num("Peak IDs/s", func(c *marchv1.Chain) Rate { return Rate(c.GetPeak()) }),
		Num("Held", (*marchv1.Chain).GetHeld),
		Num("Lasts", func(c *marchv1.Chain) Reserve { return Reserve{c.GetReserve(), c.GetPeak() > 0} }),
		Num("Step", (*marchv1.Chain).GetStep), Num("Issued", (*marchv1.Chain).GetIssued),
		Num("Dropped", (*marchv1.Chain).GetDropped), Num("Waits", (*marchv1.Chain).GetWaits),
		Num("Layout", func(c *marchv1.Chain) any { return given(c.GetVersion() > 0, c.GetVersion()) }),
	}
	Tags = []Column[*marchv1.TagSummary]{
		sorted("name", Key(Col("Tag", func(t *marchv1.TagSummary) TagName { return TagName(t.GetTag().GetName()) }))),
		sorted("strict", Col("Kind", func(t *marchv1.TagSummary) State { return tagKind(t.GetTag()) })),
		sorted("rate", Num("Peak IDs/s", func(t *marchv1.TagSummary) any {
			return given(t.GetTag().GetTime() == nil, Rate(t.GetRate()))
		})),
		sorted("next", Col("Marks", func(t *marchv1.TagSummary) any {
			if t.GetTag().GetTime() != nil {
				return at("time.bits").Text(t.GetTag())
			}
			return Marks(t.GetMarks())
		})),
		sorted("used", Num("Space used", func(t *marchv1.TagSummary) Share { return Share(t.GetUsed()) })),
		sorted("lasts", Num("Time to the limit", func(t *marchv1.TagSummary) Lasts {
			return Lasts{t.GetLasts(), t.GetTag().GetPeriod().GetEnds()}
		})),
		sorted("created", Col("Created", func(t *marchv1.TagSummary) *timestamppb.Timestamp {
			return t.GetTag().GetCreated()
		})),
	}
	Slices = []Column[*marchv1.WorkerSlice]{
		Num("Bits", (*marchv1.WorkerSlice).GetBits),
		Key(Col("Room", func(s *marchv1.WorkerSlice) Room { return Room(s.GetRoom()) })),
		Num("Slice", func(s *marchv1.WorkerSlice) *marchv1.Range {
			return &marchv1.Range{Lower: s.GetLower(), Upper: s.GetUpper()}
		}),
		Num("Workers", func(s *marchv1.WorkerSlice) int64 { return s.GetUpper() - s.GetLower() }),
		Num("In use", func(s *marchv1.WorkerSlice) Part { return Part{s.GetLive(), s.GetUpper() - s.GetLower()} }),
		Num("Ever taken", (*marchv1.WorkerSlice).GetTaken),
	}
	Workers = []Column[*marchv1.Worker]{
		Num("Bits", (*marchv1.Worker).GetBits), Key(Num("Number", (*marchv1.Worker).GetNumber)),
		Col("Instance", func(w *marchv1.Worker) Instance {
			return Instance{Room: w.GetRoom(), Name: w.GetInstance()}
		}),
		Col("State", workerState),
		Col("From", (*marchv1.Worker).GetFrom), Col("Until", (*marchv1.Worker).GetUntil),
		Num("Left", (*marchv1.Worker).GetLeft),
	}
	Instances = []Column[*marchv1.Instance]{
		Key(Col("Instance", func(i *marchv1.Instance) Instance {
			return Instance{Room: i.GetRoom(), Name: i.GetName()}
		})),
		Col("State", InstanceState),
		wide(Num("IDs/s", func(i *marchv1.Instance) any { return given(i.Rate != nil, Rate(i.GetRate())) })),
		wide(Num("Held", func(i *marchv1.Instance) any {
			return given(i.GetStatus() != nil, i.GetStatus().GetHeld())
		})),
		wide(Num("Reserve", func(i *marchv1.Instance) *durationpb.Duration { return i.GetStatus().GetReserve() })),
		wide(Num("Hold", (*marchv1.Instance).GetHold)),
		Num("Layout", func(i *marchv1.Instance) any { return given(i.GetVersion() > 0, i.GetVersion()) }),
		wide(Num("etcd", func(i *marchv1.Instance) any {
			if i.GetStatus().GetEtcdAwaySince() != nil {
				return State{Word: "away", Plain: true}
			}
			return i.GetStatus().GetEtcdLatency()
		})),
		Col("Started", (*marchv1.Instance).GetStarted),
		Col("Last seen", func(i *marchv1.Instance) Seen { return Seen{i.GetLastSeen(), i.GetSilentFor()} }),
		Col("Address", func(i *marchv1.Instance) Code { return Code(i.GetAddress()) }),
		Col("Version", func(i *marchv1.Instance) Code { return Code(i.GetBuild()) }),
	}
	Migrations = []Column[*marchv1.Migration]{
		Col("ID", (*marchv1.Migration).GetId), Key(Col("Started", (*marchv1.Migration).GetCreated)),
		Col("State", MigrationState),
		Num("Moves", func(m *marchv1.Migration) string {
			return strconv.Itoa(int(m.GetReached())) + " of " + strconv.Itoa(len(m.GetMoves()))
		}),
		Col("By", (*marchv1.Migration).GetActor),
		Col("From", (*marchv1.Migration).GetFrom), Col("To", (*marchv1.Migration).GetTarget),
	}
	Layouts = []Column[*marchv1.LayoutRecord]{
		Key(Num("Version", func(r *marchv1.LayoutRecord) int64 { return r.GetLayout().GetVersion() })),
		Col("Time", (*marchv1.LayoutRecord).GetTime), Col("By", (*marchv1.LayoutRecord).GetActor),
		Num("Boundary", func(r *marchv1.LayoutRecord) int64 { return r.GetLayout().GetBoundary() }),
		Col("Rooms", (*marchv1.LayoutRecord).GetLayout),
	}
	Audit = []Column[*marchv1.AuditEntry]{
		Key(Col("Time", (*marchv1.AuditEntry).GetTime)),
		Col("Actor", func(e *marchv1.AuditEntry) Actor { return Actor(e.GetActor()) }),
		Col("Action", (*marchv1.AuditEntry).GetAction),
		Col("Object", func(e *marchv1.AuditEntry) Object {
			return Object(e.GetObject() + map[bool]string{true: " (unchained)"}[e.GetUnchained()])
		}),
	}
	TagMarks = []Column[*marchv1.Mark]{
		Key(Col("Room", func(m *marchv1.Mark) Room { return Room(m.GetRoom()) })),
		Num("Next to lease", func(m *marchv1.Mark) ID { return ID(m.GetNext()) }),
		Num("Layout", (*marchv1.Mark).GetVersion),
	}
	Waits = []Column[*marchv1.Waiting]{
		Key(Col("Waiting for", func(w *marchv1.Waiting) Instance {
			room, name, _ := strings.Cut(w.GetInstance(), "/")
			return Instance{Room: room, Name: name}
		})),
		Num("Serves layout", (*marchv1.Waiting).GetVersion), Col("Silent since", (*marchv1.Waiting).GetSilentSince),
		wide(Col("Goes on without it", (*marchv1.Waiting).GetUntil)),
	}
	RoomCosts = []Column[RoomCost]{
		Col("Tag", func(c RoomCost) TagName { return TagName(c.Of.GetTag()) }),
		Key(Col("Room", func(c RoomCost) Room { return Room(c.GetRoom()) })),
		Num("Next ID now", RoomCost.GetNext),
		Num("Then, at most", func(c RoomCost) any {
			if c.First == nil {
				return "none"
			}
			return c.GetFirst()
		}),
		Num("Skips", RoomCost.GetSkipped), Num("Left", RoomCost.GetLeft),
		Num("Lasts now", func(c RoomCost) Lasts { return Lasts{c.GetLastsBefore(), c.Of.GetRenews()} }),
		Num("Lasts after", func(c RoomCost) Lasts { return Lasts{c.GetLastsAfter(), c.Of.GetRenews()} }),
	}
)

func tagKind(t *marchv1.Tag) State {
	s := State{Word: KindOf(t).String(), Plain: true}
	if t.GetStrictRetract() {
		s.Also = append(s.Also, "strict")
	}
	if t.GetPrescale() > 0 {
		s.Also = append(s.Also, "prescaled")
	}
	return s
}

func workerState(w *marchv1.Worker) State {
	s := State{Word: api.Word(w.GetState())}
	if w.GetPinned() {
		s.Also = append(s.Also, "pinned")
	}
	if w.GetCaller() {
		s.Also = append(s.Also, "for a caller")
	}
	switch w.GetState() {
	case marchv1.WorkerState_WORKER_STATE_ENDED, marchv1.WorkerState_WORKER_STATE_SILENT,
		marchv1.WorkerState_WORKER_STATE_UNKNOWN:
		s.Until, s.Ends = "free again at", w.GetFree()
	}
	return s
}

// InstanceState is whether an instance is up, and what keeps it from its work.
func InstanceState(i *marchv1.Instance) (s State) {
	switch status := i.GetStatus(); {
	case i.GetUnreadable() != "":
		s.Word = "unreadable"
	case !i.GetAlive() && status == nil:
		s.Word = "silent"
	case !i.GetAlive():
		s.Word = "no heartbeats"
	case status == nil && i.GetUnknown():
		s.Word = "unknown"
	case status == nil:
		s.Word = "no answer"
	case status.GetNotReady() != "":
		s.Word = "not ready"
	default:
		s.Word = "up"
	}
	if i.GetUnconfirmed() {
		s.Also = append(s.Also, "unconfirmed")
	}
	if i.GetStatus().GetBarred() != nil {
		s.Also = append(s.Also, "barred")
	}
	return s
}

// capacityEnd is when a capacity is used up.
func capacityEnd(c *marchv1.Capacity) End {
	switch {
	case c.GetFull() != nil:
		return End{At: c.GetFull()}
	case c.GetKind() == marchv1.CapacityKind_CAPACITY_KIND_RESERVE:
		return End{Why: "not while etcd answers"}
	case c.GetMeasured() != nil && c.Growth == nil:
		return End{Why: "not known yet"}
	}
	return End{Why: "not at the present rate"}
}

func amount(c *marchv1.Capacity, n, of int64) any {
	return given(c.GetOf() > 0 || n > 0, Amount{n, of, c.GetKind() == marchv1.CapacityKind_CAPACITY_KIND_ETCD})
}

// given is a value that there may not be.
func given(is bool, value any) any {
	if !is {
		return nil
	}
	return value
}

// MigrationState is the state of a migration, and whether it goes back.
func MigrationState(m *marchv1.Migration) State {
	s := State{Word: api.Word(m.GetState())}
	if m.GetAbort() && m.GetState() != marchv1.MigrationState_MIGRATION_STATE_ABORTED {
		s.Also = []string{"going back"}
	}
	return s
}

// Fact is what a tag's page and `march tag show` say of the tag beside its lists.
type Fact struct {
	Name  string
	Value any // as in a list, or a Value
}

// Value is the value of a setting.
type Value struct {
	Of   Setting
	Text string
}

func (v Value) String() string { return v.Text }

// Facts returns what there is to say of a tag.
func Facts(t *marchv1.Tag) []Fact {
	list := []Fact{{"name at doors", t.GetForeignName()}, {"kind", KindOf(t).String()}}
	for _, s := range Settings(KindOf(t), true) {
		text := s.Text(t)
		if s.Path == "time.epoch_ms" {
			text = time.UnixMilli(t.GetTime().GetEpochMs()).UTC().Format(timeid.Format)
		}
		list = append(list, Fact{s.Words(), Value{s, text}})
	}
	add := func(name, format string, values ...any) {
		list = append(list, Fact{name, fmt.Sprintf(format, values...)})
	}
	if p := t.GetPeriod(); p != nil {
		add("now", "%s, IDs %d to %d; the next period begins at %s", p.GetCurrent(), p.GetFirst(), p.GetEnd()-1,
			p.GetEnds().AsTime().Format(time.RFC3339))
	}
	if t.GetPrescaleUntil() != nil {
		add("prescale", "%d until %s", t.GetPrescale(), t.GetPrescaleUntil().AsTime().Format(time.RFC3339))
	}
	if t.GetSkip() > 0 {
		add("skip", "all rooms to %d", t.GetSkip())
	}
	for _, room := range slices.Sorted(maps.Keys(t.GetSkips())) {
		add("skip", "room %s to %d", room, t.GetSkips()[room])
	}
	list = append(list, Fact{"created", t.GetCreated()})
	return slices.DeleteFunc(list, func(f Fact) bool { return fmt.Sprint(f.Value) == "" })
}
