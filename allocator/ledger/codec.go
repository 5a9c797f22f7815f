package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
)

// format is the number every value carries. A program refuses numbers that it
// does not know, so a format can change without an old program misreading it.
const format = 1

// header is the part of every value that says how to read the rest.
type header struct {
	Format int `json:"format"`
}

type identityValue struct {
	header
	UUID      string `json:"uuid"`
	ClusterID uint64 `json:"etcd_cluster_id,string"`
}

type epochValue struct {
	header
	Epoch  string     `json:"epoch,omitempty"` // 32 hex digits
	Halted *haltValue `json:"halted,omitempty"`
}

type haltValue struct {
	By    string    `json:"by"`
	Why   string    `json:"why"`
	Time  time.Time `json:"time"`
	Nonce string    `json:"nonce"`
	// Recover is set where `march recover` halted: it may have raised marks.
	Recover bool `json:"recover,omitempty"`
}

type beatValue struct {
	header
	RaftIndex uint64    `json:"raft_index,string"`
	RaftTerm  uint64    `json:"raft_term,string"`
	Revision  int64     `json:"revision,string"`
	Time      time.Time `json:"time"`
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

type layoutValue struct {
	header
	Version  int64                 `json:"version,string"`
	Boundary int64                 `json:"boundary,string"`
	Rooms    map[string]rangeValue `json:"rooms"`
	Ever     []string              `json:"ever"` // rooms that ever had a range, sorted
	Time     time.Time             `json:"time"`
	Actor    string                `json:"actor"`
	Nonce    string                `json:"nonce"`
	Lost     int64                 `json:"lost,string,omitempty"`
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

	Created time.Time `json:"created"`
	Nonce   string    `json:"nonce"`
}

type skipValue struct {
	Room string `json:"room"`
	To   int64  `json:"to,string"`
}

type eraValue struct {
	Epoch    string `json:"epoch"`
	Revision int64  `json:"layout_revision,string"`
	Version  int64  `json:"version,string"`
	First    int64  `json:"first,string"`
	End      int64  `json:"end,string"`
}

type markValue struct {
	header
	Next int64     `json:"next,string"`
	Era  *eraValue `json:"era,omitempty"`
}

type endedEraValue struct {
	header
	eraValue
}

type registrationValue struct {
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
	// Unconfirmed is set where it leases nothing before somebody has confirmed its
	// marks: see vouch.go.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// silentValue is since when an instance's heartbeat has been missed.
type silentValue struct {
	header
	Incarnation string    `json:"incarnation"`
	Since       time.Time `json:"since"`
}

type aliveValue struct {
	header
	Incarnation string    `json:"incarnation"`
	Time        time.Time `json:"time"`
	Nonce       string    `json:"nonce"` // new in each, so that a process knows its own
}

type auditValue struct {
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
}

type logValue struct {
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

type migrationValue struct {
	header
	State   string      `json:"state"`
	Abort   bool        `json:"abort,omitempty"`
	From    rangesValue `json:"from"`
	Target  rangesValue `json:"target"`
	Moves   []moveValue `json:"moves"`
	Reached int         `json:"reached"`
	Hold    string      `json:"hold"`
	Without []string    `json:"without,omitempty"`
	Log     []logValue  `json:"log"`
	Actor   string      `json:"actor"`
	Created time.Time   `json:"created"`
	Updated time.Time   `json:"updated"`
	Nonce   string      `json:"nonce"`
}

// holderValue names who or what holds a key that only one may: the migration
// under way, the console that drives it.
type holderValue struct {
	header
	Name string `json:"name"`
}

// value is any of the above, by pointer.
type value interface{ setFormat() }

func (h *header) setFormat() { h.Format = format }

// encode writes v with the present format number.
func encode(v value) []byte {
	v.setFormat()
	b, err := json.Marshal(v)
	if err != nil {
		panic("ledger: a value cannot be encoded: " + err.Error()) // plain structs: a defect in this file
	}
	return b
}

// decode reads kv into v, a zero one, strictly. Its errors are Internal and name
// the key.
func decode(kv KV, v value) error {
	// Nearly always this program wrote it and would write it so again: then all
	// that is looked for below is as it must be.
	if json.Unmarshal(kv.Value, v) == nil && bytes.Equal(encode(v), kv.Value) {
		return nil
	}
	reflect.ValueOf(v).Elem().SetZero()
	var h header
	if err := json.Unmarshal(kv.Value, &h); err != nil {
		return allocator.Errorf(allocator.Internal, "key %s: not a value of this program: %w", kv.Key, err)
	}
	if h.Format != format {
		return allocator.Errorf(allocator.Internal, "key %s: format %d; this program knows format %d: use the version of the program that wrote it", kv.Key, h.Format, format)
	}
	d := json.NewDecoder(bytes.NewReader(kv.Value))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return allocator.Errorf(allocator.Internal, "key %s: %w", kv.Key, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return allocator.Errorf(allocator.Internal, "key %s: something follows the value", kv.Key)
	}
	if field, ok := differs(fields(kv.Value), fields(encode(v))); ok {
		return allocator.Errorf(allocator.Internal, "key %s: field %s is missing, or not written as this program writes it", kv.Key, field)
	}
	return nil
}

// fields returns an object's fields as they are written: package json would
// read a field that is missing or null as zero, and take other spellings of
// its name. A mark whose next was read as zero would lease all IDs again.
func fields(object []byte) map[string]any {
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(object))
	d.UseNumber()
	_ = d.Decode(&m) // it was decoded before
	return m
}

// differs returns the first field in which a and b differ, if one does.
func differs(a, b map[string]any) (string, bool) {
	for _, field := range slices.Sorted(maps.Keys(b)) {
		if a[field] == nil || !reflect.DeepEqual(a[field], b[field]) {
			return field, true
		}
	}
	for _, field := range slices.Sorted(maps.Keys(a)) {
		if _, ok := b[field]; !ok {
			return field, true
		}
	}
	return "", false
}
