package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// probes reads epoch, layout, beat and status, adopts them, and checks whether etcd went back in time.
type probes struct {
	client

	ping struct {
		sync.Mutex
		status store.Status // what Ping was answered last; zero once a probe has used it
		at     time.Time    // when Ping asked
	}
}

// Ping asks within ctx the member of etcd that answers about itself. Its errors are Unavailable
// and Refused (the server's version is not supported).
func (l *probes) Ping(ctx context.Context) (store.Status, error) {
	at := time.Now()
	status, err := l.store.Status(ctx)
	if err != nil {
		return status, err
	}
	l.ping.Lock()
	l.ping.status, l.ping.at = status, at
	l.ping.Unlock()
	l.pinged(time.Since(at))
	return status, store.CheckVersion(status.Version)
}

// probeResult is the result of one probe, and the knowledge when it was sent.
type probeResult struct {
	before   sentAt
	certain  bool  // it went through consensus, as a write does
	full     bool  // with beat and status
	version  int64 // of the layout that it assumed to be the current one
	answer   store.Answer
	state    *State
	identity record.Identity
	more     [][]store.KV // the other keys that were asked for
	beat     record.Beat  // zero if there is none
	beatKV   store.KV
	status   store.Status
}

// sender is Ledger.Read or Ledger.Try.
type sender func(context.Context, store.Txn) (store.Answer, error)

// probeAttempts bounds how often a probe starts over because of a change meanwhile.
const probeAttempts = 8

// probe reads epoch and layout, adopts them, and checks whether etcd went back in
// time. If full is set, it also reads beat and status. If it finds evidence it probes
// again, and halts leasing if the second probe confirms the evidence. Its errors are
// those of attach, WentBack, Unavailable, and Refused for a layout that cannot be
// used. send is how often it tries: read, or try if the caller has a back-off of its
// own and must hear of each failure.
func (l *probes) probe(ctx context.Context, full bool, send sender) (record.Layout, error) {
	s, stored, err := l.look(ctx, full, send)
	l.beatOn(ctx, s)
	return stored, err
}

// Refresh reads epoch and layout and adopts them. It does not adopt an invalid
// layout: it returns the last good one, which stays for serving (the zero record if
// there is none), together with an *UnusableError, and Leasable returns why nothing
// is leased.
func (l *probes) Refresh(ctx context.Context) (record.Layout, error) {
	return l.probe(ctx, false, l.Read)
}

// RefreshTo is Refresh for a caller that wrote the layout itself, in this version,
// which saves a second probe. 0 stands for the version that was last read.
func (l *probes) RefreshTo(ctx context.Context, version int64) (record.Layout, error) {
	if version != 0 {
		l.with(func() { l.mu.version = version })
	}
	return l.Refresh(ctx)
}

// beatOn writes the beat that is due by the result of a probe, nil for none. The next probe writes it if that fails.
func (l *probes) beatOn(ctx context.Context, s *probeResult) {
	if txn := l.nextBeat(s); len(txn.Then) > 0 {
		if _, err := l.Try(ctx, txn); err != nil {
			l.log.Debug("beat not written", "error", err)
		}
	}
}

// look is probe, but writes no beat. It returns the result of the last probe, and that reads more keys in its
// snapshot.
func (l *probes) look(ctx context.Context, full bool, send sender,
	more ...store.Op) (*probeResult, record.Layout, error) {
	if err := l.Attach(ctx); err != nil {
		return nil, record.Layout{}, err
	}
	for range probeAttempts {
		s, err := l.probeOnce(ctx, full, send, more)
		if l.moved(ctx, err) {
			continue
		}
		if err != nil {
			return nil, record.Layout{}, err
		}
		if s == nil {
			continue // two members answered, or the layout is of another version than was known
		}
		stored, verdict, evidence, err := l.classify(s)
		switch verdict {
		case adopted:
			return s, stored, err
		case wentBack:
			if err := l.stop(ctx, s, evidence); err != nil {
				return nil, record.Layout{}, err
			}
		case askAgain:
		}
	}
	return nil, record.Layout{}, allocator.Errorf(allocator.Unavailable,
		"the epoch, or the member that answers, changed %d times while it was read", probeAttempts)
}

// stop halts leasing because of the evidence. An operator's command does not halt:
// it reports the evidence. See HaltAs.
func (l *probes) stop(ctx context.Context, s *probeResult, evidence string) error {
	by := l.haltsAs()
	if by == "" {
		return l.sawBack(ctx, allocator.Errorf(allocator.WentBack,
			"etcd went back in time: %s; see `march recover`", evidence))
	}
	// If the epoch was changed meanwhile, the next probe shows it.
	_, err := l.HaltOver(ctx, s.state.raw, 0, by, evidence+wayOut)
	if err != nil && allocator.KindOf(err) == allocator.Conflict {
		return nil
	}
	return err
}

// HaltOver writes a halt over the epoch's value, if that is still in force, and returns
// the key as it wrote it. A value that cannot be read counts as an epoch without a name
// and margins. The operations in also are done in the same transaction. Its errors are
// Conflict and Unavailable. Only a recover writes a halt over another halt. The
// halt has the value's margin total, or the given one if that is larger: a recover knows it from a memory.
func (l *probes) HaltOver(ctx context.Context, epoch []byte, total int64, by, why string,
	also ...store.Op) (store.KV, error) {
	var was record.Epoch
	if err := record.Decode(store.KV{Key: l.keys.Epoch(), Value: epoch}, &was); err != nil {
		was = record.Epoch{}
	}
	v := record.Halt{By: by, Why: why, Time: l.now(), Nonce: record.RandomHex(), Stopped: was.InForce()}
	value := record.Encode(&record.Epoch{MarginTotal: max(was.MarginTotal, total), NotBefore: was.NotBefore,
		MarginEnds: was.MarginEnds, Halted: &v})
	txn := store.Txn{
		If:   []store.Cond{store.HasValue(l.keys.Epoch(), epoch)},
		Then: append(also, store.OpPut(l.keys.Epoch(), value), l.audit(by, "halt", l.keys.Epoch(), epoch, value)),
	}
	answer, err := l.Try(ctx, txn.With(l.MakeRoom(ctx)))
	if err == nil && answer.Succeeded {
		level := hclog.Error
		if l.haltsAs() == "" { // an operator's command prints it itself
			level = hclog.Info
		}
		l.log.Log(level, "leasing is halted", "by", by, "why", why)
		return store.KV{Key: l.keys.Epoch(), Value: value, ModRevision: answer.Revision}, nil
	}
	var kv store.KV
	err = store.Outcome(answer, err, func() bool {
		check, err := l.Gets(ctx, store.OpGet(l.keys.Epoch()))
		kv, _ = check.FirstIfAny()
		return err == nil && string(kv.Value) == string(value)
	}, allocator.Errorf(allocator.Conflict, "another process changed the epoch just now"))
	if err != nil {
		return store.KV{}, err
	}
	return kv, nil
}

// haltsAs returns the name under which this process halts leasing if it sees etcd go
// back in time. It is empty if the process only reports that.
func (l *knowledge) haltsAs() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.haltsAs
}

// ordered returns a transaction that reads in the order of all writes. Its condition
// never holds, so it deletes nothing. But etcd puts a transaction that might write
// into the order of all writes, which it does not always do with reads.
func (l *knowledge) ordered(gets ...store.Op) store.Txn {
	return store.Txn{If: []store.Cond{store.Absent(l.keys.Identity())},
		Then: []store.Op{{Delete: l.keys.Beat()}}, Else: gets}
}

// probeOnce sends one probe. It returns nil if the answers were not of one member
// over one connection.
func (l *probes) probeOnce(ctx context.Context, full bool, send sender, more []store.Op) (*probeResult, error) {
	s := &probeResult{before: l.before()}
	s.certain = s.before.suspicion != nil
	s.full = full || s.certain && l.haltsAs() != ""
	l.with(func() { s.version = l.mu.version })
	gets := []store.Op{
		store.OpGet(l.keys.Epoch()), store.OpGet(l.keys.Layout()), l.historyAt(s.version),
		store.OpGet(l.keys.Identity()), store.OpGet(l.keys.Beat()), store.OpGet(l.keys.Settings()),
	}
	gets = append(gets, more...)
	fixed := len(gets)
	var marks []string
	txn := store.Txn{Then: gets}
	if s.certain {
		for _, key := range slices.Sorted(maps.Keys(s.before.suspicion.marks)) {
			marks = append(marks, key)
			gets = append(gets, store.OpGet(key))
		}
		txn = l.ordered(gets...)
	}
	early, stop := l.askStatus(ctx, s)
	defer stop()
	var err error
	if s.answer, err = send(ctx, txn); err != nil {
		return nil, err
	}
	if len(s.answer.Got) != len(gets) {
		return nil, l.noIdentity(ctx, clusterGone)
	}
	if err := l.readIdentity(ctx, s); err != nil {
		return nil, err
	}
	s.more = s.answer.Got[fixed-len(more) : fixed]
	if s.full {
		if s.status, err = l.status(ctx, s, early()); err != nil {
			return nil, err
		}
		if s.status.Sender != s.answer.Sender || s.status.Connection == 0 {
			return nil, nil
		}
	}
	if s.state = l.parseState(s.answer); l.otherVersion(s) {
		return nil, nil
	}
	for i, key := range marks {
		// Keep it until the state is classified: it counts only under the same
		// epoch.
		if next := l.nextOf(s.answer.Got[fixed+i]); next < s.before.suspicion.marks[key] {
			s.state.fallen = fmt.Sprintf("%s is %d, and was %d", key, next, s.before.suspicion.marks[key])
		}
	}
	return s, nil
}

// historyAt reads the keys of the history that a probe needs if the layout has this
// version or the next: these two, the one before and the one after. The version
// must be known beforehand, because etcd would read the whole history to find its
// end. If the layout has another version, otherVersion returns true, and the probe
// is repeated.
func (l *knowledge) historyAt(version int64) store.Op {
	within := store.Interval{Key: l.keys.LayoutAt(max(version-1, 0)), End: store.PrefixEnd(l.keys.All(record.Layouts))}
	return store.Op{Get: &store.Get{Interval: within, Limit: 4}}
}

// otherVersion reports whether the layout that s saw has another version than s
// assumed, and notes that version.
func (l *knowledge) otherVersion(s *probeResult) bool {
	version := l.expects(s.answer.Got[1])
	return version > 0 && version != s.version && version != s.version+1
}

// askStatus asks a member for its status beside what a full probe reads, which saves a round trip. early waits for the
// answer, which is zero if there is none; stop ends the question. The answer to a Ping of a moment ago is as good.
func (l *probes) askStatus(ctx context.Context, s *probeResult) (early func() store.Status, stop func()) {
	if !s.full {
		return nil, func() {}
	}
	l.ping.Lock()
	pinged, at := l.ping.status, l.ping.at // it counts once
	l.ping.status = store.Status{}
	l.ping.Unlock()
	if pinged.Connection != 0 && allocator.Elapsed(at, time.Now()) < checkFor {
		return func() store.Status { return pinged }, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var status store.Status
	var asking sync.WaitGroup
	asking.Go(func() { status, _ = l.Cluster().Status(ctx) })
	return func() store.Status { asking.Wait(); return status }, func() { cancel(); asking.Wait() }
}

// status returns the status of the member that answered s. One that was asked for before that answer counts if it came
// over the same connection, and its raft index is not below the beat's: within one process the index only grows.
func (l *probes) status(ctx context.Context, s *probeResult, early store.Status) (store.Status, error) {
	if early.Sender == s.answer.Sender && early.RaftIndex >= s.beat.RaftIndex {
		return early, nil
	}
	return l.Cluster().Status(ctx)
}

// nextOf returns a mark's next, or the end of a worker's window; 0 if there is none. An
// unreadable value is not evidence: no lease relies on it.
func (l *knowledge) nextOf(found []store.KV) int64 {
	if len(found) == 0 {
		return 0
	}
	if l.keys.KindOf(found[0].Key).OfWorkers() {
		return untilOf(found[0])
	}
	mark, err := record.DecodeMark(found[0])
	if err != nil {
		return allocator.MaxID
	}
	return mark.Next
}

// untilOf returns the end of a worker's window, or 0. An unreadable worker is not
// evidence: no lease relies on it.
func untilOf(kv store.KV) int64 {
	var w record.Worker
	if err := record.Decode(kv, &w); err != nil {
		return allocator.MaxID
	}
	return w.Until
}

// readIdentity reads identity and beat. Its error is Refused if another cluster
// answers: that stops only this process, and does not halt the others.
func (l *probes) readIdentity(ctx context.Context, s *probeResult) error {
	kv, ok := s.answer.One(3)
	if !ok {
		return l.noIdentity(ctx, clusterGone)
	}
	if err := record.Decode(kv, &s.identity); err != nil {
		return err
	}
	if s.identity.UUID != l.pinned().UUID {
		return l.otherCluster(s.identity)
	}
	if kv, ok := s.answer.One(4); ok {
		s.beatKV = kv
		if err := record.Decode(kv, &s.beat); err != nil {
			return err
		}
	}
	s.beatKV.Key = l.keys.Beat()
	return nil
}

// verdict is the outcome of a probe.
type verdict int

const (
	adopted  verdict = iota // its state was adopted
	askAgain                // it shows nothing, or must be confirmed
	wentBack                // etcd went back in time
)

// classify adopts the state that s saw, or returns why not.
func (l *knowledge) classify(s *probeResult) (stored record.Layout, v verdict, evidence string, err error) {
	var said pending.Lines
	defer said.Write(l.log)
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.clock
	if t.epochSeq != s.before.epochSeq {
		return stored, askAgain, "", nil // the epoch changed during the probe
	}
	id := s.state.id()
	switch {
	case id == "":
		stored, err = l.setState(&said, s.state)
		return stored, adopted, "", err
	case s.state.halted != nil && id != t.current && (s.certain || !t.knows(id)):
		// A halt is adopted at once, because nothing is leased under it. But a halt
		// that was in force before counts only if it was read in the order of all
		// writes. If a stale read of it counted, the epoch that followed it would
		// seem to be in force again.
		t.turn(id, s.answer.Revision)
	case s.state.halted != nil:
		t.suspicion = nil // leasing is halted anyway
	case id != t.current && !t.knows(id) && s.state.problem != nil:
		// Without its layout, a new epoch cannot be distinguished from an old one
		// that was missed.
		stored, err = l.setState(&said, s.state)
		return stored, adopted, "", err
	case id != t.current && !t.knows(id):
		if evidence = t.missed(id, s.state.layout.Layout.Version); evidence != "" {
			break
		}
		if t.current != "" {
			said.Add(hclog.Info, "a new epoch", "epoch", id)
		}
		t.turn(id, s.answer.Revision)
		t.entering = true
		evidence = s.restored()
	case id != t.current:
		evidence = fmt.Sprintf("epoch %s is in force again, after %s", id, t.current)
	case s.answer.Revision < s.before.seen:
		evidence = fmt.Sprintf("etcd answered at revision %d after it had shown revision %d",
			s.answer.Revision, s.before.seen)
	case s.state.fallen != "":
		evidence = s.state.fallen
	default:
		evidence = s.restored()
	}
	switch {
	case evidence != "" && s.certain && s.before.suspicion == t.suspicion:
		return stored, wentBack, evidence, nil
	case evidence != "":
		if t.suspicion == nil {
			said.Warn("etcd may have gone back in time: looking again", "why", evidence)
		}
		t.suspect(evidence, nil)
		return stored, askAgain, "", nil
	case t.suspicion != nil && t.suspicion != s.before.suspicion:
		return stored, askAgain, "", nil // a suspicion came up during the probe
	}
	if t.suspicion != nil {
		said.Add(hclog.Info, "a second look did not confirm that etcd went back in time", "why", t.suspicion.why)
		t.suspicion = nil
	}
	if s.full {
		t.checked = check{at: s.before.at, by: s.answer.Sender}
	}
	version := s.state.layout.Layout.Version
	t.total, t.notBefore = max(t.total, s.state.margins.Total), max(t.notBefore, s.state.notBefore)
	stored, err = l.setState(&said, s.state)
	if s.state.problem == nil && stored.Layout.Version == version {
		if version > t.version && s.state.epoch != "" {
			t.version, t.latest = version, s.state.epoch
		}
		l.confirmations.Store(l.confirmations.Load().with(stored.Layout, s.before.at))
	}
	return stored, adopted, "", err
}

// The beat says "etcd was at least here". Its reader needs no memory of its own: a
// raft index below the beat's belongs to another raft log. A restore begins another
// log; a restart does not. The index is read from a member after that member has
// answered a linearizable read of the beat. So the member has applied the beat's
// own entry, which comes after the index that the beat carries. The beat's term is
// no evidence; it is there for people to read.

const (
	// beatEvery is how old a beat is when a probe writes the next one.
	beatEvery = 10 * time.Second
	// beatGrowth is the factor by which the raft index has grown when a probe writes
	// the next beat before beatEvery has passed. A log that just began (after an init,
	// or a restore and a recover) reaches many times its first index within seconds. A
	// beat of its first moments would hardly show a restore from a backup that was
	// taken soon after. The factor costs a dozen writes in a log's life.
	beatGrowth = 2
)

// checkLasts returns how long the last check is still good. It lasts longer where etcd is far away, and an instance
// makes the next one ahead of need: a check takes two round trips, and a heartbeat may come before it. The caller
// holds the lock.
func (l *probes) checkLasts() (left, ahead time.Duration) {
	at := l.mu.clock.checked.at
	if at.IsZero() {
		return 0, 0
	}
	latency := l.Contact().Latency
	return max(checkFor, 8*latency) - allocator.Elapsed(at, time.Now()), max(checkAhead, 4*latency)
}

// checkAhead is how long before a lease would need it an instance makes the next check, where etcd is near.
const checkAhead = time.Second

// restored returns why etcd must have been restored, by beat and status.
func (s *probeResult) restored() string {
	if !s.full || s.beatKV.ModRevision == 0 || s.status.RaftIndex >= s.beat.RaftIndex {
		return ""
	}
	return fmt.Sprintf("etcd's raft index is %d, and was %d at %s: it was restored from a backup",
		s.status.RaftIndex, s.beat.RaftIndex, s.beat.Time.Format(time.RFC3339))
}

// beatDue reports whether this process writes the beat: the one that s saw is old, or the raft log has grown far past
// it.
func (l *probes) beatDue(s *probeResult) bool {
	age := l.now().Sub(s.beat.Time)
	fresh := age >= 0 && age < beatEvery && s.status.RaftIndex/beatGrowth < s.beat.RaftIndex
	return (s.beatKV.ModRevision == 0 || !fresh) && l.haltsAs() != ""
}

// nextBeat returns the transaction that writes the beat over the one that s saw, under the epoch that s saw; the empty
// one if no beat is due. Its index is not below that of the last one, as that would be evidence.
func (l *probes) nextBeat(s *probeResult) (txn store.Txn) {
	if s == nil || !s.full || s.state.halted != nil || s.state.problem != nil || !l.beatDue(s) {
		return txn
	}
	value := record.NewBeat(s.status, l.now())
	return store.Txn{
		If:   []store.Cond{store.Unchanged(s.beatKV), store.HasValue(l.keys.Epoch(), s.state.raw)},
		Then: []store.Op{store.OpPut(s.beatKV.Key, record.Encode(&value))},
	}
}
