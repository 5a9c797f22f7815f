package record

import (
	"encoding/json"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
)

// Formats. A value carries the number of its format, each kind and each value its
// own: a field that changes which IDs may be issued raises it, and a value is
// written in the lowest format that holds it. A program reads formats that it
// knows only. Other new fields leave the format as it is: a program that does not
// know such a field keeps it and ignores it.
const (
	firstFormat = 1 // of the first release; its data is not read
	baseFormat  = 2
	timeFormat  = 3 // of a tag of time-ordered IDs, and of an epoch with not_before
)

// header is the part of every value that says how to read the rest.
type header struct {
	Format int `json:"format"`

	Rest []byte `json:"-"` // the fields that this program does not know: `,"name":value` of each, as it was written
}

func (h *header) head() *header { return h }

// format is the lowest format that holds a value. A kind with a higher one has a
// method of its own.
func (*header) format() int { return baseFormat }

// Value is any of those below, by pointer.
type Value interface {
	head() *header
	format() int
}

// Values with a method exact say which IDs may be issued, so all of them counts:
// a field that is not known is refused.
func (*Epoch) exact()       {}
func (*LayoutValue) exact() {}
func (*markValue) exact()   {}

// Identity says which cluster this is, and in which etcd cluster it lives.
type Identity struct {
	header
	UUID      string `json:"uuid"`
	ClusterID uint64 `json:"etcd_cluster_id,string"`
}

// Epoch says under which epoch leases are made, or that leasing is halted. Every lease
// compares its value as it was read.
type Epoch struct {
	header
	Epoch string `json:"epoch,omitempty"` // 32 hex digits; empty while leasing is halted
	// MarginTotal is the margin of all recovers so far, in steps. In a halt it is the
	// total of the epoch that the halt stopped.
	MarginTotal int64 `json:"margin_total,string,omitempty"`
	// Layout is the version of the layout that the recover put in force with the epoch; 0
	// in the first epoch of a cluster.
	Layout int64 `json:"layout,string,omitempty"`
	// NotBefore is when windows of workers may begin, Unix ms: a recover went on without
	// an instance, whose windows end before that. 0 where none was left out so far. In a
	// halt it is that of the epoch that the halt stopped. It only grows.
	NotBefore int64 `json:"not_before,string,omitempty"`
	// Ended names the halt that the epoch ended; nil in the first epoch of a cluster.
	Ended  *EndedHalt `json:"ended,omitempty"`
	Halted *Halt      `json:"halted,omitempty"`
}

// format: an epoch with NotBefore changes which windows may be leased.
func (e *Epoch) format() int {
	if e.NotBefore != 0 {
		return timeFormat
	}
	return baseFormat
}

// EndedHalt is the halt that a recover ended with a new epoch.
type EndedHalt struct {
	Nonce   string `json:"nonce"`
	Stopped string `json:"stopped"` // the epoch that the halt stopped
}

// Halt says by which process or operator leasing was halted, why and when.
type Halt struct {
	By      string    `json:"by"`
	Why     string    `json:"why"`
	Time    time.Time `json:"time"`
	Nonce   string    `json:"nonce"`
	Stopped string    `json:"stopped,omitempty"` // the epoch that it stopped
}

// Answered lists the processes whose memory was taken by the recover that began
// the epoch. It has a key of its own, because every lease compares the epoch's value.
type Answered struct {
	header
	Epoch        string   `json:"epoch"`
	Incarnations []string `json:"incarnations"`
}

// Beat says that etcd was at least at this point of its raft log.
type Beat struct {
	header
	RaftIndex uint64    `json:"raft_index,string"`
	RaftTerm  uint64    `json:"raft_term,string"`
	Revision  int64     `json:"revision,string"`
	Time      time.Time `json:"time"`
}

// NewBeat returns the beat that a server's status makes.
func NewBeat(s store.Status, at time.Time) Beat {
	return Beat{RaftIndex: s.RaftIndex, RaftTerm: s.RaftTerm, Revision: s.Revision, Time: at}
}

// settingsValue is what ClusterSettings are stored as.
type settingsValue struct {
	header
	Journal string `json:"journal"` // "optional" or "required"
	Nonce   string `json:"nonce"`
}

type rangeValue struct {
	Lower int64 `json:"lower,string"`
	Upper int64 `json:"upper,string"`
}

// LayoutValue is what a Layout is stored as.
type LayoutValue struct {
	header
	Version  int64                 `json:"version,string"`
	Boundary int64                 `json:"boundary,string"`
	Rooms    map[string]rangeValue `json:"rooms"`
	Ever     []string              `json:"ever"` // rooms that ever had a range, sorted
	Time     time.Time             `json:"time"`
	Actor    string                `json:"actor"`
	Nonce    string                `json:"nonce"`

	NarrowestRange  int64 `json:"narrowest_range,string"`  // of all layouts so far, this one included
	LargestBoundary int64 `json:"largest_boundary,string"` // likewise
}

type tagValue struct {
	header
	Start   int64  `json:"start,string"`
	Limit   int64  `json:"limit,string"`
	MinStep int64  `json:"min_step,string"`
	MaxStep int64  `json:"max_step,string"`
	Reserve string `json:"reserve"`
	MaxJump int64  `json:"max_jump,string"`
	MaxSkew int64  `json:"max_skew,string,omitempty"`

	StrictRetract bool `json:"strict_retract,omitempty"`

	Prescale      int64       `json:"prescale,string,omitempty"`
	PrescaleUntil *time.Time  `json:"prescale_until,omitempty"`
	Skips         []skipValue `json:"skips,omitempty"` // by room

	LargestStep int64 `json:"largest_step,string"`         // the largest max_step so far
	BaseTotal   int64 `json:"base_total,string,omitempty"` // the margin total that an absent mark counts with

	Created time.Time `json:"created"`
	Nonce   string    `json:"nonce"`

	Kind string   `json:"kind,omitempty"` // "time", or none for a counter
	Time *TimeTag `json:"time,omitempty"` // of kind time
}

// format: a tag of kind time issues other IDs.
func (v *tagValue) format() int {
	if v.Kind != "" || v.Time != nil {
		return timeFormat
	}
	return baseFormat
}

type skipValue struct {
	Room string `json:"room"`
	To   int64  `json:"to,string"`
}

type stampValue struct {
	Epoch    string `json:"epoch"`
	Revision int64  `json:"layout_revision,string"`
}

type eraValue struct {
	Version int64  `json:"version,string"`
	Epoch   string `json:"epoch"`
	First   int64  `json:"first,string"`
	End     int64  `json:"end,string"`
}

// markValue has a next only, where nothing was leased.
type markValue struct {
	header
	Next  int64       `json:"next,string"`
	Stamp *stampValue `json:"stamp,omitempty"`
	Total int64       `json:"total,string,omitempty"`
	Began int64       `json:"began,string,omitempty"`
	Eras  []eraValue  `json:"eras,omitempty"`
}

// Registration is what an instance's registration is stored as.
type Registration struct {
	header
	Incarnation string    `json:"incarnation"`
	Address     string    `json:"address"`
	Build       string    `json:"build"`
	Version     int64     `json:"version,string"` // of the layout it serves
	Started     time.Time `json:"started"`
	Hold        string    `json:"hold"` // for how long it goes on under a layout that was not confirmed again
	// Epoch is the last one that this was written under, and Lost are the earlier
	// processes of this name under it whose memory this one does not have.
	Epoch string   `json:"epoch,omitempty"`
	Lost  []string `json:"lost,omitempty"`
	// Unconfirmed is set where the instance leases nothing before an operator has
	// confirmed its marks: see unconfirmed.go.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
	// Leaving is set as the last write of a clean stop, before the registration goes:
	// the instance leases nothing any longer, and other instances see that.
	Leaving bool `json:"leaving,omitempty"`
}

// Heartbeat is what an instance writes again and again while it runs.
type Heartbeat struct {
	header
	Incarnation string    `json:"incarnation"`
	Counter     int64     `json:"counter,string"` // grows with each that the process sends
	Time        time.Time `json:"time"`           // by the instance's clock
	Nonce       string    `json:"nonce"`          // new in each, so that a process knows its own
}

// AuditValue is what an AuditEntry is stored as.
type AuditValue struct {
	header
	Time   time.Time       `json:"time"`
	Actor  string          `json:"actor"`
	Action string          `json:"action"`
	Object string          `json:"object"`
	From   json.RawMessage `json:"from,omitempty"`
	To     json.RawMessage `json:"to,omitempty"`
}

// rangesValue is a layout of a migration: the version is the one it has, or
// will have.
type rangesValue struct {
	Version  int64                 `json:"version,string"`
	Boundary int64                 `json:"boundary,string"`
	Rooms    map[string]rangeValue `json:"rooms"`
}

type moveValue struct {
	Kind   string      `json:"kind"`
	Why    string      `json:"why"`
	Layout rangesValue `json:"layout"`
	Loses  []string    `json:"loses,omitempty"`
	Made   *time.Time  `json:"made,omitempty"`
	Hold   string      `json:"hold,omitempty"` // always where it was made

	ClientsUntil *time.Time `json:"clients_until,omitempty"`

	rest []byte // as header has it
}

type logValue struct {
	Time time.Time `json:"time"`
	Text string    `json:"text"`

	rest []byte // as header has it
}

type waiverValue struct {
	Instance    InstanceID `json:"instance"`
	Incarnation string     `json:"incarnation"`
	Reached     int        `json:"reached"`
}

type migrationValue struct {
	header
	State   string        `json:"state"`
	Abort   bool          `json:"abort,omitempty"`
	From    rangesValue   `json:"from"`
	Target  rangesValue   `json:"target"`
	Moves   []moveValue   `json:"moves"`
	Reached int           `json:"reached"`
	Hold    string        `json:"hold"`
	Without []waiverValue `json:"without,omitempty"`
	Log     []logValue    `json:"log"`
	Actor   string        `json:"actor"`
	Created time.Time     `json:"created"`
	Updated time.Time     `json:"updated"`
	Nonce   string        `json:"nonce"`

	Error      string     `json:"error,omitempty"`
	ErrorSince *time.Time `json:"error_since,omitempty"`
	NoWayBack  string     `json:"no_way_back,omitempty"`
}

// ActiveMigration names the migration that is under way.
type ActiveMigration struct {
	header
	Name string `json:"name"`
}
