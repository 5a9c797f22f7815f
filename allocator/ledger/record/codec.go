package record

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Formats. A value carries the number of its format. Each kind of value has its own numbers. A
// field that changes which IDs may be issued raises the format, and a value is written in the
// lowest format that holds it. A program reads only formats that it knows. Other new fields
// leave the format unchanged: a program that does not know such a field keeps it and ignores
// it.
const (
	firstFormat = 1 // of the first release; its data is not read
	baseFormat  = 2
	timeFormat  = 3 // of a tag of time-ordered IDs, and of an epoch with not_before

	periodFormat = 4 // of a tag with a period

	wideFormat = 5 // of a tag of time-ordered IDs of 80 bits, which exist only as texts

	// livesFormat is of a tombstone, and of a tag with a skip of all rooms or with the least of
	// earlier lives. It is of generation 2: see Formats.
	livesFormat = 6

	orderFormat = 7 // of a tag with a strict order. It is of generation 2.

	clusterFormat = 8 // of a tag with a strict order over all rooms. It is of generation 2, too.
)

// Value is a pointer to a struct that is stored. Its method format, if it has one, returns the
// lowest format that holds the value; for other types that is baseFormat.
type Value interface {
	// Validate checks a value that was decoded. Its error says what is impossible in it.
	Validate() error
}

// kept is embedded in the values that keep fields that this program does not know. Values
// without it say which IDs may be issued: there an unknown field is refused.
type kept struct {
	Rest []byte `json:"-"` // `,"name":value` of each, as it was written
}

func (k *kept) unknown() *[]byte { return &k.Rest }

// Validate is for values with nothing to check. Other values have a method of their own.
func (*kept) Validate() error { return nil }

// formatOf returns the lowest format that holds a value.
func formatOf(v Value) int {
	if newer, ok := v.(interface{ format() int }); ok {
		return newer.format()
	}
	return baseFormat
}

// Encode writes v in its format, with the fields that are kept in it.
func Encode(v Value) []byte {
	var rest []byte
	if k, ok := v.(interface{ unknown() *[]byte }); ok {
		rest = *k.unknown()
	}
	object, err := marshal(v, rest)
	if err != nil {
		panic("ledger: a value cannot be encoded: " + err.Error()) // plain structs: a defect in this package
	}
	b := fmt.Appendf(nil, `{"format":%d`, formatOf(v))
	if object = object[1:]; object[0] != '}' && object[0] != ',' { // it has fields of its own
		b = append(b, ',')
	}
	return append(b, object...)
}

// marshal writes an object, and the rest after its own fields.
func marshal(object any, rest []byte) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // escaping would change the kept fields
	if err := e.Encode(object); err != nil {
		return nil, err
	}
	return append(append(bytes.TrimSuffix(b.Bytes(), []byte("}\n")), rest...), '}'), nil
}

// Decode reads kv into v, which must be zero, and validates it. It is strict with the fields of
// v. Package json would read a missing field or a null as zero, and accept other spellings of a
// name; a mark with its next read as zero would lease all IDs again. Other fields are kept in
// v, or refused if v keeps none. After an error v is zero. The errors are KeyErrors: Internal,
// or Refused for a value of the first release.
func Decode(kv store.KV, v Value) error {
	err := read(kv.Value, v)
	if err == nil {
		if err = v.Validate(); err != nil {
			err = allocator.Errorf(allocator.Internal, "%w", err)
		}
	}
	if err != nil {
		reflect.ValueOf(v).Elem().SetZero()
		return &KeyError{Key: kv.Key, Err: err}
	}
	return nil
}

// HashOf returns the hash of a stored value.
func HashOf(value []byte) string {
	sum := sha256.Sum256(value)
	return hex.EncodeToString(sum[:])
}

// decode is Decode for a value that does not depend on its key.
func decode[T any, P interface {
	*T
	Value
}](kv store.KV) (v T, err error) {
	err = Decode(kv, P(&v))
	return v, err
}

func read(b []byte, v Value) error {
	// Nearly always this program wrote the value and would write it so again. Then all checks
	// below would pass.
	null := bytes.Contains(b, []byte(":null"))
	if !null && json.Unmarshal(b, v) == nil && bytes.Equal(Encode(v), b) {
		return nil
	}
	reflect.ValueOf(v).Elem().SetZero()
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return fmt.Errorf("not a value of this program: %w", err)
	}
	if head.Format == firstFormat {
		return allocator.Errorf(allocator.Refused,
			"the first release of March wrote it, whose data this release cannot read: "+
				"start with an empty prefix, or with another --cluster")
	}
	err := json.Unmarshal(b, v)
	if known := formatOf(v); head.Format != known {
		return fmt.Errorf("format %d%s; this program knows format %d: use the version of the program that wrote it",
			head.Format, writer(b), known)
	}
	if err != nil {
		return err
	}
	rest, err := unknown(b, v, "format")
	if err != nil {
		return err
	}
	if k, ok := v.(interface{ unknown() *[]byte }); ok {
		*k.unknown() = rest
	} else if len(rest) > 0 {
		return fmt.Errorf("fields that this program does not know: %s; use the version of the program that wrote it",
			rest[1:])
	}
	return same(b, Encode(v))
}

// Identity names the cluster, and the etcd cluster that it lives in.
type Identity struct {
	kept
	UUID      string `json:"uuid"`
	ClusterID uint64 `json:"etcd_cluster_id,string"`
}

// Beat says that etcd has reached at least this point of its raft log.
type Beat struct {
	kept
	RaftIndex uint64    `json:"raft_index,string"`
	RaftTerm  uint64    `json:"raft_term,string"`
	Revision  int64     `json:"revision,string"`
	Time      time.Time `json:"time"`
}

// NewBeat returns the beat that a server's status makes.
func NewBeat(s store.Status, at time.Time) Beat {
	return Beat{RaftIndex: s.RaftIndex, RaftTerm: s.RaftTerm, Revision: s.Revision, Time: at}
}

// Heartbeat is written by an instance again and again while it runs.
type Heartbeat struct {
	kept
	Incarnation string    `json:"incarnation"`
	Counter     int64     `json:"counter,string"` // grows with each heartbeat of the process
	Time        time.Time `json:"time"`           // by the instance's clock
	Nonce       string    `json:"nonce"`          // new in each, so that a process recognizes its own
}

// Token lets the next process of an instance's name go on with what the process before it kept.
type Token struct {
	Epoch string `json:"epoch"` // under which it was written: in another one it is void
	Hash  string `json:"hash"`  // of what was kept
}

// Validate checks that nothing is missing.
func (t *Token) Validate() error {
	if t.Epoch == "" || t.Hash == "" {
		return allocator.Errorf(allocator.Internal, "a token without an epoch or a hash")
	}
	return nil
}

// Console says where a process of a console is asked for its mirror.
type Console struct {
	kept
	Address string    `json:"address"` // HOST:PORT, as others reach it
	Time    time.Time `json:"time"`    // when it was written, by the console's clock
}

// ActiveMigration names the migration that is under way.
type ActiveMigration struct {
	kept
	Name string `json:"name"`
}

// Duration is a length of time as it is stored: "10m0s", say. Empty is zero.
type Duration string

// DurationOf returns d as it is stored.
func DurationOf(d time.Duration) Duration { return Duration(d.String()) }

// Duration returns the length of time of a valid value.
func (d Duration) Duration() time.Duration {
	length, _ := time.ParseDuration(string(cmp.Or(d, "0s"))) // Validate of the enclosing value has parsed d
	return length
}

// MarshalText writes an empty duration as zero.
func (d Duration) MarshalText() ([]byte, error) { return []byte(cmp.Or(d, "0s")), nil }

func (d Duration) validate() error {
	_, err := time.ParseDuration(string(cmp.Or(d, "0s")))
	return err
}
