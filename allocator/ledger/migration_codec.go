package ledger

import (
	"strconv"
	"time"

	"github.com/march-id/march/allocator"
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

func (m Migration) encode() []byte {
	v := &migrationValue{
		State: string(m.State), Abort: m.Abort, From: rangesOf(m.From), Target: rangesOf(m.Target),
		Reached: m.Reached, Hold: m.Hold.String(), Actor: m.Actor, Created: m.Created, Updated: m.Updated, Nonce: m.nonce,
		Moves: make([]moveValue, 0, len(m.Moves)), // none, where it was aborted before the first
	}
	for _, move := range m.Moves {
		mv := moveValue{Kind: move.Kind, Why: move.Why, Layout: rangesOf(move.Layout)}
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
	for _, id := range m.Without {
		v.Without = append(v.Without, string(id))
	}
	for _, entry := range m.Log {
		v.Log = append(v.Log, logValue(entry))
	}
	return encode(v)
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
	Without []string    `json:"without,omitempty"`
}

// brief is what the audit keeps of a migration. The moves are under its own
// key, which stays: with them twice more, a change of a long plan would be more
// than etcd takes in one transaction.
func (m Migration) brief() []byte {
	v := &migrationBrief{
		State: string(m.State), Abort: m.Abort, From: m.From.Version, Target: rangesOf(m.Target),
		Moves: len(m.Moves), Reached: m.Reached, Hold: m.Hold.String(),
	}
	for _, id := range m.Without {
		v.Without = append(v.Without, string(id))
	}
	return encode(v)
}

// parseMigration reads a migration with the ID that its key has.
func (l *Ledger) parseMigration(kv KV) (Migration, error) {
	key, err := l.keys.parse(kv.Key)
	if err != nil {
		return Migration{}, err
	}
	m, err := decodeMigration(kv)
	m.ID = key.ulid
	return m, err
}

func decodeMigration(kv KV) (Migration, error) {
	var v migrationValue
	if err := decode(kv, &v); err != nil {
		return Migration{}, err
	}
	m, err := v.migration()
	if err != nil {
		return Migration{}, allocator.Errorf(allocator.Internal, "key %s: %w", kv.Key, err)
	}
	m.kv = kv
	return m, nil
}

func (v migrationValue) migration() (Migration, error) {
	m := Migration{
		State: MigrationState(v.State), Abort: v.Abort, Reached: v.Reached,
		Actor: v.Actor, Created: v.Created, Updated: v.Updated, nonce: v.Nonce,
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
		move := Move{Kind: mv.Kind, Why: mv.Why}
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
	for _, id := range v.Without {
		m.Without = append(m.Without, InstanceID(id))
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

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
