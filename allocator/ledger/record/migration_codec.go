package record

import (
	"encoding/json"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

func rangesOf(l allocator.Layout) rangesValue {
	v := rangesValue{Version: l.Version, Boundary: l.Boundary, Rooms: make(map[string]rangeValue, len(l.Ranges))}
	for room, r := range l.Ranges {
		v.Rooms[string(room)] = rangeValue(r)
	}
	return v
}

func (v rangesValue) layout() (allocator.Layout, error) {
	l := allocator.Layout{Version: v.Version, Boundary: v.Boundary, Ranges: make(map[allocator.Room]allocator.Range, len(v.Rooms))}
	for room, r := range v.Rooms {
		l.Ranges[allocator.Room(room)] = allocator.Range(r)
	}
	return l, l.Validate()
}

// Encode returns the value under which the migration is stored.
func (m Migration) Encode() []byte {
	v := &migrationValue{
		header: header{Rest: m.rest},
		State:  string(m.State), Abort: m.Abort, From: rangesOf(m.From), Target: rangesOf(m.Target),
		Reached: m.Reached, Hold: m.Hold.String(), Actor: m.Actor, Created: m.Created, Updated: m.Updated, Nonce: m.Nonce,
		NoWayBack: m.NoWayBack,
		Moves:     make([]moveValue, 0, len(m.Moves)), // none, where it was aborted before the first
	}
	for _, move := range m.Moves {
		mv := moveValue{Kind: move.Kind, Why: move.Why, Layout: rangesOf(move.Layout), rest: move.rest}
		for _, room := range move.Loses {
			mv.Loses = append(mv.Loses, string(room))
		}
		if !move.Made.IsZero() {
			mv.Made = &move.Made
		}
		if !move.Made.IsZero() || move.Hold > 0 {
			mv.Hold = move.Hold.String()
		}
		if !move.ClientsUntil.IsZero() {
			mv.ClientsUntil = &move.ClientsUntil
		}
		v.Moves = append(v.Moves, mv)
	}
	for _, w := range m.Without {
		v.Without = append(v.Without, waiverValue(w))
	}
	if m.Error != "" {
		v.Error, v.ErrorSince = m.Error, &m.ErrorSince
	}
	for _, entry := range m.Log {
		v.Log = append(v.Log, logValue(entry))
	}
	return Encode(v)
}

type migrationBrief struct {
	header
	State   string      `json:"state"`
	Abort   bool        `json:"abort,omitempty"`
	From    int64       `json:"from,string"` // the layout version
	Target  rangesValue `json:"target"`
	Moves   int         `json:"moves"`
	Reached int         `json:"reached"`
	Hold    string      `json:"hold"`

	Without []waiverValue `json:"without,omitempty"`
}

// Brief is what the audit keeps of a migration. The moves are under its own
// key, which stays: with them twice more, a change of a long plan would be more
// than etcd takes in one transaction.
func (m Migration) Brief() []byte {
	v := &migrationBrief{
		State: string(m.State), Abort: m.Abort, From: m.From.Version, Target: rangesOf(m.Target),
		Moves: len(m.Moves), Reached: m.Reached, Hold: m.Hold.String(),
	}
	for _, w := range m.Without {
		v.Without = append(v.Without, waiverValue(w))
	}
	return Encode(v)
}

// ParseMigration reads a migration with the ID that its key has.
func (k Keys) ParseMigration(kv store.KV) (Migration, error) {
	key, err := k.Parse(kv.Key)
	if err != nil {
		return Migration{}, err
	}
	m, err := decodeMigration(kv)
	m.ID = key.ulid
	return m, err
}

func decodeMigration(kv store.KV) (Migration, error) {
	var v migrationValue
	if err := Decode(kv, &v); err != nil {
		return Migration{}, err
	}
	m, err := v.migration()
	if err != nil {
		return Migration{}, Unreadable(kv.Key, err)
	}
	m.KV = kv
	return m, nil
}

func (v migrationValue) migration() (Migration, error) {
	m := Migration{
		State: MigrationState(v.State), Abort: v.Abort, Reached: v.Reached,
		Actor: v.Actor, Created: v.Created, Updated: v.Updated, Nonce: v.Nonce, rest: v.Rest,
		NoWayBack: v.NoWayBack,
	}
	var err error
	if m.Hold, err = time.ParseDuration(v.Hold); err != nil {
		return m, err
	}
	if m.From, err = v.From.layout(); err != nil {
		return m, err
	}
	if m.Target, err = v.Target.layout(); err != nil {
		return m, err
	}
	for _, mv := range v.Moves {
		move := Move{Kind: mv.Kind, Why: mv.Why, rest: mv.rest}
		if move.Layout, err = mv.Layout.layout(); err != nil {
			return m, err
		}
		for _, room := range mv.Loses {
			move.Loses = append(move.Loses, allocator.Room(room))
		}
		if mv.Made != nil {
			move.Made = *mv.Made
		}
		if mv.Made != nil || mv.Hold != "" {
			if move.Hold, err = time.ParseDuration(mv.Hold); err != nil {
				return m, err
			}
		}
		if mv.ClientsUntil != nil {
			move.ClientsUntil = *mv.ClientsUntil
		}
		m.Moves = append(m.Moves, move)
	}
	for _, w := range v.Without {
		if w.Reached < 0 {
			return m, allocator.Errorf(allocator.Internal, "a waiver after %d moves", w.Reached)
		}
		m.Without = append(m.Without, Waiver(w))
	}
	if v.Error != "" && v.ErrorSince != nil {
		m.Error, m.ErrorSince = v.Error, *v.ErrorSince
	}
	for _, entry := range v.Log {
		m.Log = append(m.Log, LogEntry(entry))
	}
	switch m.State {
	case Running, Paused, Done, Aborted:
	default:
		return m, allocator.Errorf(allocator.Internal, "a migration's state %q", v.State)
	}
	if m.Reached < 0 || m.Reached > len(m.Moves) {
		return m, allocator.Errorf(allocator.Internal, "a migration with %d moves reached %d", len(m.Moves), m.Reached)
	}
	return m, nil
}

// MarshalJSON writes a move with the fields that are kept in it.
func (v moveValue) MarshalJSON() ([]byte, error) {
	type plain moveValue
	return marshal(plain(v), v.rest)
}

// UnmarshalJSON reads a move, and keeps fields that this program does not know.
func (v *moveValue) UnmarshalJSON(b []byte) (err error) {
	type plain moveValue
	if err = json.Unmarshal(b, (*plain)(v)); err == nil {
		v.rest, err = unknown(b, v)
	}
	return err
}

// MarshalJSON writes a line of the log with the fields that are kept in it.
func (v logValue) MarshalJSON() ([]byte, error) {
	type plain logValue
	return marshal(plain(v), v.rest)
}

// UnmarshalJSON reads a line, and keeps fields that this program does not know.
func (v *logValue) UnmarshalJSON(b []byte) (err error) {
	type plain logValue
	if err = json.Unmarshal(b, (*plain)(v)); err == nil {
		v.rest, err = unknown(b, v)
	}
	return err
}
