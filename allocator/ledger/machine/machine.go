// Package machine gives machine IDs to clients of CosId, which make time-ordered IDs
// themselves. The numbers come from a range that the layout reserves: no room has a worker
// of its slice, so no ID of a tag of kind time has such a number.
//
// The instances of all rooms may give numbers of one range, each writing the keys of its own room:
// clients/<room>/<bits>/<number> has the client to which the room gave the number last. It is
// written by one transaction: IF epoch, layout and all rooms' keys of the number are as known THEN
// put. The client that has a number is that of the key which was written last. But a room's claim
// ends by that room's key alone, or by its silence, and only its own room's key makes a client's
// number good where another client is named: no room can say that another one's client has ended.
// All namespaces share the numbers, so no two clients have the same.
//
// A client is not fenced: it goes on with its number whether its guard arrives or not. So a
// silent client's number goes to another one only after the time that the other client asks
// for, and never if the first one is stable. How long a client has been silent is how long its
// key has not changed, as this process counts it from the first time that it read the key as
// it is under the epoch in force, without the time in which etcd did not answer this process: no
// client's guard could arrive then. So no wall clock gives a number away, neither this process's nor
// another's, and a process that has just started gives none of a silent client. And no halt gives
// one away: while leasing is halted no client can be heard, and a restore may have brought back an
// older key.
package machine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/timeid"
)

const (
	// MaxBits is the largest width of a machine ID.
	MaxBits = 31
	// Most is how many numbers of a width are given at most: the first ones of the range.
	Most = 1024
)

// DefaultGuard is the guard of a client that names none. A client that was silent for longer does not count as its
// caller's.
const DefaultGuard = 5 * time.Minute

// writing is longer than a call takes.
const writing = time.Minute

// Forever is a guard of a client whose number never goes to another one.
const Forever = time.Duration(math.MaxInt64)

// Errors of a call. Other errors are those of a lease.
var (
	ErrOverflow = &allocator.Error{Kind: allocator.Exhausted, Msg: "all machine IDs of the range are in use"}
	ErrNotFound = &allocator.Error{Kind: allocator.NotFound, Msg: "this client has no machine ID"}
	ErrLost     = &allocator.Error{Kind: allocator.Conflict,
		Msg: "the machine ID is no longer in the reserved range, or another client has it"}
)

// Machines gives machine IDs. Its methods are safe for concurrent use.
type Machines struct {
	ledger   *ledger.Ledger
	cluster  *record.Cluster
	room     allocator.Room // whose keys are written
	reserved allocator.Room // the name of the layout's reserved range

	// Runs returns how long this process has run. New sets it to count by the monotonic clock.
	Runs func() time.Duration

	mu struct {
		sync.Mutex
		epoch string          // under which all was seen
		seen  map[string]seen // by key, of machine IDs and of workers
		// of has the holders of clients' numbers, as far as calls of this process named them.
		of map[name]holding
	}
}

// name names a client.
type name struct{ namespace, instance string }

// holding is the holder of a client's numbers.
type holding struct {
	by    string        // the name of the holder
	since time.Duration // of the last call, by Runs
}

// seen is since when a key has not changed, as far as this process knows.
type seen struct {
	revision int64
	since    time.Duration // by elapsed
}

// New returns what gives, in a room, the numbers of the range that the layout reserves by a name.
func New(l *ledger.Ledger, room, reserved allocator.Room) *Machines {
	began := time.Now()
	m := &Machines{ledger: l, cluster: l.Cluster(), room: room, reserved: reserved,
		Runs: func() time.Duration { return time.Since(began) }}
	m.mu.seen, m.mu.of = make(map[string]seen), make(map[name]holding)
	return m
}

// elapsed is how long this process has run while etcd answered it.
func (m *Machines) elapsed() time.Duration { return m.Runs() - m.ledger.Contact().Outages }

// under forgets what was seen under another epoch.
func (m *Machines) under(epoch string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.epoch != epoch {
		m.mu.epoch, m.mu.seen = epoch, make(map[string]seen)
	}
}

// unchanged notes a key as an answer showed it, and returns how long it has not changed, at
// least, when the request of the answer was sent.
func (m *Machines) unchanged(kv store.KV, sent time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, known := m.mu.seen[kv.Key]
	if !known || was.revision != kv.ModRevision {
		was = seen{kv.ModRevision, m.elapsed()}
		m.mu.seen[kv.Key] = was
	}
	return sent - was.since
}

// Client is a client of CosId.
type Client struct {
	Namespace, Instance string
	Stable              bool
	By                  allocator.Holder // the caller that asks for the client
}

// roomKey is a room's key of a number: the client to which the room gave it last.
type roomKey struct {
	kv        store.KV
	own       bool          // this room wrote it, or all rooms do
	unchanged time.Duration // how long at least
	record.Machine
}

// held is a number that has keys.
type held struct {
	id             record.WorkerID
	keys           []roomKey
	record.Machine // of the key that was written last
}

func (h held) named(c Client) bool { return h.Namespace == c.Namespace && h.Instance == c.Instance }

// of reports whether a client has the number: it is named last, and by this room, or no other
// client is named. So no other room can give a client a number which it does not have.
func (h held) of(c Client) bool {
	ours, others := false, false
	for _, key := range h.keys {
		same := key.Namespace == c.Namespace && key.Instance == c.Instance
		ours, others = ours || key.own && same, others || !same && !key.Returned
	}
	return h.named(c) && (ours || !others)
}

// returned reports whether each room's client gave the number back.
func (h held) returned() bool {
	return !slices.ContainsFunc(h.keys, func(c roomKey) bool { return !c.Returned })
}

// silent reports whether each room's client gave the number back, or was silent for longer than
// guard.
func (h held) silent(guard time.Duration) bool {
	return guard != Forever && !slices.ContainsFunc(h.keys, func(c roomKey) bool {
		return !c.Returned && (c.Stable || c.unchanged-2*record.MaxAhead <= guard)
	})
}

// view is one snapshot of the numbers of the range.
type view struct {
	layout record.Layout
	conds  []store.Cond             // that epoch and layout are as read
	held   []held                   // that can be read, by number
	taken  map[record.WorkerID]bool // that cannot be read, or that a worker's window still has
	now    time.Time
}

// attempts bounds how often a call starts over because another one came first.
const attempts = 20

// Distribute returns a number of a width of 1 to MaxBits bits for a client, and when it was
// last in use, Unix ms: the client's own one, or one that was given back, or the first that
// never had a client, or one whose client this process has seen silent for longer than guard
// and twice record.MaxAhead. Its errors are Invalid, Refused (the layout reserves no such range), ErrOverflow
// and TooMany (of the client's holder).
func (m *Machines) Distribute(ctx context.Context, c Client, bits int,
	guard time.Duration) (number, last int64, err error) {
	if bits < 1 || bits > MaxBits {
		return 0, 0, allocator.Errorf(allocator.Invalid, "machineBit: %d; allowed: 1 to %d", bits, MaxBits)
	}
	if guard < 0 {
		return 0, 0, allocator.Errorf(allocator.Invalid, "safeGuardDuration: %v; allowed: 0 or more", guard)
	}
	err = m.change(ctx, bits, c, func(v view) (chosen held, err error) {
		slice, err := m.slice(v.layout.Layout, bits)
		if err != nil {
			return chosen, err
		}
		if chosen, err = v.choose(c, slice, bits, guard); err != nil {
			return chosen, err
		}
		if !chosen.of(c) {
			if err := m.another(v, c, slice, bits); err != nil {
				return chosen, err
			}
		}
		m.holds(c)
		number, last = chosen.id.Number, cmp.Or(chosen.Last, v.now.UnixMilli())
		chosen.Machine = record.Machine{Namespace: c.Namespace, Instance: c.Instance, Stable: c.Stable,
			Last: max(chosen.Last, v.now.UnixMilli())}
		return chosen, nil
	})
	return number, last, err
}

// Guard notes that a client goes on with its number. Its errors are ErrNotFound, ErrLost and
// Invalid.
func (m *Machines) Guard(ctx context.Context, c Client) error {
	return m.note(ctx, c, false)
}

// Revert notes that a client has ended. If it is not stable, its number may go to another
// client. A client that has no number has nothing to give back. Its error is Invalid.
func (m *Machines) Revert(ctx context.Context, c Client) error {
	if err := m.note(ctx, c, true); err != nil && allocator.KindOf(err) != allocator.NotFound {
		return err
	}
	return nil
}

func (m *Machines) note(ctx context.Context, c Client, ends bool) error {
	return m.change(ctx, 1, c, func(v view) (held, error) {
		at := slices.IndexFunc(v.held, func(h held) bool { return h.of(c) && !h.Returned })
		if at < 0 {
			if at = slices.IndexFunc(v.held, func(h held) bool { return h.of(c) }); at < 0 {
				return held{}, ErrNotFound
			}
		}
		own := v.held[at]
		if !ends {
			m.holds(c)
			if slice, err := m.slice(v.layout.Layout, own.id.Bits); err != nil || !slice.Contains(own.id.Number) {
				return held{}, ErrLost
			}
		}
		own.Last, own.Stable, own.Returned = max(own.Last, v.now.UnixMilli()), c.Stable, ends && !c.Stable
		return own, nil
	})
}

// slice returns the numbers of a width in the reserved range of a layout: the first Most.
func (m *Machines) slice(l allocator.Layout, bits int) (allocator.Range, error) {
	r, ok := l.Reserved[m.reserved]
	if !ok {
		return r, allocator.Errorf(allocator.Refused,
			"layout version %d reserves no range %s; reserve it with `march migrate plan --reserve %s=LOWER-UPPER`",
			l.Version, m.reserved, m.reserved)
	}
	slice := timeid.Slice(r, l.Boundary, bits)
	slice.Upper = min(slice.Upper, slice.Lower+Most)
	return slice, nil
}

// choose chooses a number for a client.
func (v view) choose(c Client, slice allocator.Range, bits int, guard time.Duration) (held, error) {
	known := make(map[int64]bool)
	var returned, silent []held
	for _, h := range v.held {
		if h.id.Bits != bits || !slice.Contains(h.id.Number) {
			continue
		}
		known[h.id.Number] = true
		switch {
		case h.of(c):
			return h, nil
		case h.returned():
			returned = append(returned, h)
		case h.silent(guard):
			silent = append(silent, h)
		}
	}
	if len(returned) > 0 {
		return oldest(returned), nil
	}
	for n := slice.Lower; n < slice.Upper; n++ {
		if id := (record.WorkerID{Bits: bits, Number: n}); !known[n] && !v.taken[id] {
			return held{id: id}, nil
		}
	}
	if len(silent) > 0 {
		return oldest(silent), nil
	}
	return held{}, ErrOverflow
}

// holds notes that a client is its holder's. It comes before the write, so that of calls at the same moment each counts
// those that wrote before it.
func (m *Machines) holds(c Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.of[name{c.Namespace, c.Instance}] = holding{c.By.Name, m.Runs()}
}

// another returns nil if the holder of a client may hold one more number of a slice. The error is TooMany. A client of
// which no call came since this process began is no caller's, but its number is not free either.
func (m *Machines) another(v view, c Client, slice allocator.Range, bits int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	there := make(map[name]bool)
	taken := int64(0) // of the slice
	var has, all int64
	for _, h := range v.held {
		of := name{h.Namespace, h.Instance}
		there[of] = true
		if h.returned() || h.silent(DefaultGuard) {
			continue
		}
		ours := m.mu.of[of].by == c.By.Name
		if ours {
			all++
		}
		if h.id.Bits == bits && slice.Contains(h.id.Number) {
			if taken++; ours {
				has++
			}
		}
	}
	for id := range v.taken {
		if id.Bits == bits && slice.Contains(id.Number) {
			taken++
		}
	}
	for of, holding := range m.mu.of {
		if !there[of] && m.Runs()-holding.since > writing {
			delete(m.mu.of, of)
		}
	}
	return c.By.Another(fmt.Sprintf("machine IDs of %d bits", bits), has, all, slice.Width()-taken, DefaultGuard)
}

func oldest(all []held) held {
	return slices.MinFunc(all, func(a, b held) int { return cmp.Compare(a.Last, b.Last) })
}

// change writes what choose returns for a snapshot, and starts over where another process
// came first or the outcome is not known.
func (m *Machines) change(ctx context.Context, bits int, c Client, choose func(view) (held, error)) error {
	if err := (record.Machine{Namespace: c.Namespace, Instance: c.Instance}).Validate(); err != nil {
		return err
	}
	for range attempts {
		v, ok, err := m.read(ctx, bits)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if v.layout.Upgraded() && !slices.Contains(v.layout.Ever, m.room) {
			return allocator.Errorf(allocator.NoRange, "room %s has never had a range, so other rooms do not compare "+
				"its keys, and it gives no machine IDs: ask another room", m.room)
		}
		chosen, err := choose(v)
		if err != nil {
			return err
		}
		if done, err := m.put(ctx, v, chosen); err != nil || done {
			return err
		}
	}
	return allocator.Errorf(allocator.Unavailable,
		"machine ID of %s: other processes changed what it depends on %d times", c.Instance, attempts)
}

// read returns a snapshot of all numbers that have a client, and of the workers of a width
// in the reserved range. False means that epoch or layout changed.
func (m *Machines) read(ctx context.Context, bits int) (v view, ok bool, err error) {
	l := m.ledger
	state, err := l.LeasableState(ctx)
	if err != nil {
		return v, false, err
	}
	m.under(state.Epoch())
	v.layout = state.Layout()
	v.conds, v.taken = l.Holds(state), make(map[record.WorkerID]bool)
	k := m.cluster.Keys
	ops := []store.Op{store.OpGetPrefix(k.All(record.Clients)), store.OpGetPrefix(k.All(record.Machines))}
	if slice, err := m.slice(v.layout.Layout, bits); err == nil && slice.Width() > 0 {
		for _, workers := range k.WorkersIn(v.layout, m.room, bits, slice) {
			ops = append(ops, store.Op{Get: &store.Get{Interval: workers}})
		}
	}
	sent := m.elapsed()
	answer, err := l.Try(ctx, store.Txn{If: v.conds, Then: ops})
	if err != nil {
		return v, false, err
	}
	if !answer.Succeeded {
		_, err := l.Refresh(ctx)
		return v, false, err
	}
	v.now = m.cluster.Now()
	byID := make(map[record.WorkerID]held)
	for _, kv := range slices.Concat(answer.Got[0], answer.Got[1]) {
		key, value, err := k.Read(kv)
		machine, readable := value.(record.Machine)
		if err != nil || !readable {
			v.taken[key.Worker] = true
			continue
		}
		c := roomKey{kv, key.Room == m.room || key.Room == "" && !v.layout.Upgraded(), m.unchanged(kv, sent), machine}
		h := byID[key.Worker]
		if h.id = key.Worker; !slices.ContainsFunc(h.keys,
			func(o roomKey) bool { return o.kv.ModRevision > kv.ModRevision }) {
			h.Machine = machine
		}
		h.keys = append(h.keys, c)
		byID[key.Worker] = h
	}
	for id, h := range byID {
		if !v.taken[id] {
			v.held = append(v.held, h)
		}
	}
	slices.SortFunc(v.held, func(a, b held) int {
		return cmp.Or(cmp.Compare(a.id.Bits, b.id.Bits), cmp.Compare(a.id.Number, b.id.Number))
	})
	for _, kv := range slices.Concat(answer.Got[2:]...) {
		// The room that had the residues before may issue until the window's end, which is at most
		// the longest window after the write.
		if id, _, err := k.DecodeWorker(kv); err != nil ||
			m.unchanged(kv, sent) < record.LongestWindow+record.MaxAhead {
			v.taken[id] = true
		}
	}
	return v, true, nil
}

// keysOf returns the keys of a number that may be written under a layout, the one that this room
// writes first.
func (m *Machines) keysOf(l record.Layout, id record.WorkerID) []string {
	k := m.cluster.Keys
	if !l.Upgraded() {
		return []string{k.Machine(id)}
	}
	all := []string{k.Client(m.room, id)}
	for _, room := range l.Ever {
		if room != m.room {
			all = append(all, k.Client(room, id))
		}
	}
	return all
}

// put writes this room's key of a number and reads it back, each under the conditions of the
// snapshot: so the answer counts only if etcd did not go back in between. False means that
// something changed.
func (m *Machines) put(ctx context.Context, v view, h held) (bool, error) {
	l, keys := m.ledger, m.keysOf(v.layout, h.id)
	put := store.KV{Key: keys[0], Value: h.Encode()}
	var unchanged []store.Cond
	for _, key := range keys {
		cond := store.Absent(key)
		if at := slices.IndexFunc(h.keys, func(c roomKey) bool { return c.kv.Key == key }); at >= 0 {
			cond = store.Unchanged(h.keys[at].kv)
		}
		unchanged = append(unchanged, cond)
	}
	answer, err := l.Try(ctx, store.Txn{If: slices.Concat(v.conds, unchanged),
		Then: []store.Op{store.OpPut(put.Key, put.Value)}})
	if err != nil {
		return false, err
	}
	if !answer.Succeeded {
		_, err := l.Refresh(ctx)
		return false, err
	}
	m.unchanged(store.KV{Key: put.Key, ModRevision: answer.Revision}, 0)
	if _, err := l.LeasableState(ctx); err != nil {
		return false, err
	}
	back, err := l.Try(ctx, store.Txn{If: append(slices.Clone(v.conds), store.HasValue(put.Key, put.Value))})
	return err == nil && back.Succeeded, err
}
