package sim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// link is one process's connection to the store: a ledger.Store over a network. A request that
// was sent arrives, whatever happens to the sender. Each arrival has a time of its own: these
// times order the transactions.
type link struct {
	w    *world
	name string
	lane int
	dead chan struct{} // closed by kill
	once sync.Once

	role record.Role    // of the process's user in etcd, if the roles bind it
	in   allocator.Room // of an instance

	recovers *recovering // the recover that uses the link; nil for a process

	clock *wallClock   // of the process's machine; nil if it is right except for ahead
	ahead atomic.Int64 // of the time, in nanoseconds: the clock of the process's machine

	wrote       atomic.Bool // something was sent that writes
	loses, lost atomic.Bool // answers to takes of workers are to be lost; one was lost

	mu struct {
		sync.Mutex
		stalled time.Time        // the link carries nothing before
		deaf    time.Time        // watches deliver nothing before
		muted   time.Time        // no answer is carried before
		lost    time.Time        // the link leads to another etcd cluster before
		sent    map[string]times // how often, and when last
		reports []reported
		looks   []look
		read    time.Time        // when a source last read the tag with max_skew
		sourced []time.Time      // when sources did so
		leases  []lease          // in the order of their answers
		shown   map[string]shown // by epoch
		outside []outside        // the recovers that left the process out
		denied  []denied
		lives   lives
		left    time.Time // when etcd had it that the process left in good order
		from    *link     // of the process that kept what this one took, nil for none

		paused      time.Time // the process does nothing before
		windows     []window  // of workers, in the order of their answers
		incarnation string    // for which the process wrote windows
	}
}

func (w *world) link(name string, lane int) *link {
	l := &link{w: w, name: name, lane: lane, dead: make(chan struct{})}
	l.mu.sent, l.mu.shown, l.mu.lives.under = make(map[string]times), make(map[string]shown), make(map[string]bool)
	return l
}

// roomLink is the link of an instance of a room.
func (w *world) roomLink(in allocator.Room, id string, lane int) *link {
	l := w.link(id, lane)
	l.in, l.role = in, keys.RoomRole(in, false)
	return l
}

// now is the time by the clock of the process's machine.
func (l *link) now() time.Time {
	if l.clock != nil {
		return l.clock.now()
	}
	return l.w.rightTime().Add(time.Duration(l.ahead.Load()))
}

// kill cuts the connection for good: no further answer comes.
func (l *link) kill() { l.once.Do(func() { close(l.dead) }) }

// Close implements ledger.Store.
func (l *link) Close() error {
	l.kill()
	return nil
}

func (l *link) stall(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.stalled = time.Now().Add(d)
}

func (l *link) deafen(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.deaf = time.Now().Add(d)
}

// held returns how long the link carries nothing from now on.
func (l *link) held(watch bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	until := l.mu.stalled
	if watch {
		until = latest(until, l.mu.deaf, l.mu.muted)
	}
	if l.w.healed.Load() {
		return 0
	}
	return max(time.Until(until), 0)
}

type times struct {
	n    int
	last time.Time
}

// toss returns the dice for a message. Two messages of a kind at one instant get the same,
// since nothing orders them.
func (l *link) toss(what string) dice {
	l.mu.Lock()
	sent := l.mu.sent[what]
	if now := time.Now(); now != sent.last {
		sent = times{sent.n + 1, now}
		l.mu.sent[what] = sent
	}
	n := sent.n
	l.mu.Unlock()
	return l.w.dice(fmt.Sprint(l.name, " ", what, " ", n))
}

// latency is the latency of one way.
func (l *link) latency(d dice) time.Duration {
	if l.w.slow > 0 && d.chance(l.w.slow) {
		return d.between(10*time.Millisecond, 700*time.Millisecond)
	}
	return d.between(200*time.Microsecond, 3*time.Millisecond)
}

// after calls f after one way of the network.
func (l *link) after(d dice, f func()) {
	time.AfterFunc(align(l.latency(d), l.lane), func() { l.carried(d, f) })
}

// carried calls f once the link carries again.
func (l *link) carried(d dice, f func()) {
	if wait := l.held(false); wait > 0 {
		time.AfterFunc(align(wait+l.latency(d), l.lane), func() { l.carried(d, f) })
		return
	}
	f()
}

// call sends a request and waits for its answer. do runs when the request arrives.
func call[T any](ctx context.Context, l *link, d dice, do func() (T, error)) (T, error) {
	type outcome struct {
		answer T
		err    error
	}
	var none T
	select {
	case <-l.dead:
		return none, allocator.Errorf(allocator.Unavailable, "sim: the link was cut")
	case <-ctx.Done():
		return none, allocator.Errorf(allocator.Unavailable, "sim: not sent: %w", ctx.Err())
	default:
	}
	answered := make(chan outcome, 1)
	l.after(d, func() {
		answer, err := do()
		l.back(d, func() { answered <- outcome{answer, err} })
	})
	select {
	case o := <-answered:
		return o.answer, o.err
	case <-ctx.Done():
		return none, allocator.Errorf(allocator.Unavailable, "sim: no answer: %w", ctx.Err())
	case <-l.dead:
		return none, allocator.Errorf(allocator.Unavailable, "sim: the link was cut")
	}
}

// Txn implements ledger.Store.
func (l *link) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	what := describe(txn)
	d := l.toss(what)
	fate := l.w.fate(d, txn)
	l.reports(txn)
	l.keeps(txn)
	if ledgertest.Writes(txn) {
		l.wrote.Store(true)
	}
	if _, source, _ := l.reads(txn, store.Answer{}); source {
		l.mu.Lock()
		l.mu.read = time.Now()
		l.mu.sourced = append(l.mu.sourced, l.mu.read)
		l.mu.Unlock()
	}
	asked := l.asks(txn)
	if asked.takes && l.loses.Load() {
		fate = ledgertest.Fate{Name: ledgertest.DoneAnswerLost}
		l.lost.Store(true)
	}
	answer, err := call(ctx, l, d, func() (store.Answer, error) {
		if key := l.refuses(txn); key != "" {
			l.w.log("%-12s %s: denied", l.name, what)
			l.deniedTo(txn, key)
			return store.Answer{}, allocator.Errorf(allocator.Denied, "sim: etcdserver: permission denied")
		}
		mem := l.etcd()
		before, conn := mem.Revision(), mem.Open()
		conn.Fate(func(store.Txn) ledgertest.Fate { return fate })
		answer, err := conn.Txn(context.Background(), txn)
		asked.done(l.w)
		l.begins(txn)
		l.leaves(txn)
		if asked.leases && answer.Succeeded && mem == l.w.mem {
			l.w.checkReadable(l, asked.lease.tag)
		}
		l.w.met(fate, txn, err != nil && mem.Revision() > before)
		l.w.log("%-12s %s: %v%s", l.name, what, fate.Name, ending(answer, err))
		return answer, err
	})
	l.looks(txn, answer, err)
	l.answered(asked, answer, err)
	l.w.checkRolledBack(l, asked)
	l.checkDenied(asked)
	return answer, err
}

// reported is an instance's report that, of segments from before the layout of version, it
// issues only those that this layout keeps.
type reported struct {
	at      time.Time
	version int64
}

// reports notes what an instance is about to report of itself.
func (l *link) reports(txn store.Txn) {
	if len(txn.Then) == 0 || txn.Then[0].Put == nil ||
		!strings.HasPrefix(txn.Then[0].Put.Key, "/march/default/rooms/") {
		return
	}
	var v struct {
		Version int64 `json:"version,string"`
	}
	if err := json.Unmarshal(txn.Then[0].Put.Value, &v); err != nil {
		l.w.Errorf("%s registers: %v", l.name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.reports = append(l.mu.reports, reported{time.Now(), v.Version})
}

func ending(answer store.Answer, err error) string {
	switch {
	case err != nil:
		return ", " + kind(err)
	case answer.Succeeded:
		return fmt.Sprintf(", at %d", answer.Revision)
	default:
		return fmt.Sprintf(", refused at %d", answer.Revision)
	}
}

// describe names the keys that a transaction writes, or reads if it writes none. The text has
// nothing random in it.
func describe(txn store.Txn) string {
	var b strings.Builder
	list := func(ops []store.Op) {
		for _, op := range ops {
			verb, key := "delete", op.Delete
			switch {
			case op.Put != nil:
				verb, key = "put", op.Put.Key
			case op.Get != nil:
				verb, key = "get", op.Get.Key
			}
			rest := strings.TrimPrefix(key, "/march/default/")
			kind, _, _ := strings.Cut(rest, "/")
			if kind == "audit" || kind == "refusals" || kind == "migrations" || kind == "consoles" {
				rest = kind // the rest is a ULID
			}
			b.WriteString(" " + verb + " " + rest)
		}
	}
	if list(txn.Then); len(txn.Then) == 0 {
		b.WriteString(" check")
		list(txn.Else)
	}
	return b.String()[1:]
}

// Compact implements ledger.Store.
func (l *link) Compact(ctx context.Context, revision int64) error {
	_, err := call(ctx, l, l.toss("compact"), func() (bool, error) {
		return true, l.etcd().Open().Compact(context.Background(), revision)
	})
	return err
}

// Status implements ledger.Store.
func (l *link) Status(ctx context.Context) (store.Status, error) {
	return call(ctx, l, l.toss("status"), func() (store.Status, error) {
		return l.etcd().Open().Status(context.Background())
	})
}

// Watch implements ledger.Store.
func (l *link) Watch(ctx context.Context, intervals []store.Interval, from int64) <-chan store.Change {
	out := make(chan store.Change)
	watching, cancel := context.WithCancel(ctx)
	in := l.etcd().Open().Watch(watching, intervals, from)
	go func() {
		defer close(out)
		defer cancel()
		for {
			var change store.Change
			var ok bool
			select {
			case change, ok = <-in:
			case <-l.dead:
				change = store.Change{Err: allocator.Errorf(allocator.Unavailable, "sim: the link was cut")}
			case <-ctx.Done():
			}
			if !ok && change.Err == nil {
				return
			}
			if !l.listens(watching, change) {
				return
			}
			select {
			case out <- change:
			case <-ctx.Done():
				return
			}
			if change.Err != nil {
				return
			}
		}
	}()
	return out
}

// listens waits until a change has come over the network.
func (l *link) listens(ctx context.Context, change store.Change) bool {
	what := "end" // the end of a connection is not seen at once, either
	if change.Err == nil {
		what = fmt.Sprint(change.KVs[0].ModRevision)
	}
	d := l.toss("watch " + what)
	for wait := l.latency(d); wait > 0; wait = l.heldAnd(d) {
		select {
		case <-time.After(align(wait, l.lane)):
		case <-l.dead:
			return true // the end is the next thing that is seen
		case <-ctx.Done():
			return false
		}
	}
	return true
}
