package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
)

// sight is what one look saw, and what was known when it was sent.
type sight struct {
	before   moment
	certain  bool // it went through consensus, as a write does
	full     bool // with beat and status
	answer   Answer
	state    *state
	identity identityValue
	beat     beatValue // zero where there is none
	beatKV   KV
	status   Status
}

// sender is Ledger.read or Ledger.try.
type sender func(context.Context, Txn) (Answer, error)

// looks bounds how often a look starts over because it met a change.
const looks = 8

// look reads epoch and layout, adopts them, and looks whether etcd went back in
// time; with beat and status where full is set. What it sees wrong it looks at
// again, and halts leasing where that confirms it. Its errors are those of
// attach, WentBack, Unavailable, and Refused for a layout that cannot be used.
// send is how often it tries: read, or try for who has a back-off of its own, and
// wants to hear.
func (l *Ledger) look(ctx context.Context, full bool, send sender) (LayoutRecord, error) {
	if err := l.attach(ctx); err != nil {
		return LayoutRecord{}, err
	}
	for range looks {
		s, err := l.sight(ctx, full, send)
		if l.moved(ctx, err) {
			continue
		}
		if err != nil {
			return LayoutRecord{}, err
		}
		if s == nil {
			continue // two members answered
		}
		record, verdict, evidence, err := l.judge(s)
		switch verdict {
		case settled:
			if err == nil && s.full && s.state.halted == nil {
				l.beatOn(ctx, s)
			}
			return record, err
		case confirmed:
			if err := l.stop(ctx, s, evidence); err != nil {
				return LayoutRecord{}, err
			}
		case askAgain:
		}
	}
	return LayoutRecord{}, allocator.Errorf(allocator.Unavailable, "the epoch, or the member that answers, changed %d times while it was read", looks)
}

// stop halts leasing because of what s saw. An operator's command does not halt:
// it says what it saw. See HaltAs.
func (l *Ledger) stop(ctx context.Context, s *sight, evidence string) error {
	who := l.haltsAs()
	if who == "" {
		return l.sawBack(ctx, allocator.Errorf(allocator.WentBack, "etcd went back in time: %s; see `march recover`", evidence))
	}
	// Where the epoch was changed meanwhile, the next look shows it.
	_, err := l.halt(ctx, s.state.raw, haltValue{By: who, Why: evidence})
	if err != nil && allocator.KindOf(err) == allocator.Conflict {
		return nil
	}
	return err
}

// sight looks once. It returns nil where the answers were not of one member
// over one connection.
func (l *Ledger) sight(ctx context.Context, full bool, send sender) (*sight, error) {
	s := &sight{before: l.before()}
	s.certain = s.before.doubt != nil
	s.full = full || s.certain && l.haltsAs() != ""
	gets := []Op{
		get(l.keys.epoch()), get(l.keys.layout()), {Get: &Get{
			Interval: Interval{Key: l.keys.layouts(), End: prefixEnd(l.keys.layouts())}, Limit: 2, Descending: true,
		}}, get(l.keys.identity()), get(l.keys.beat()), get(l.keys.settings()),
	}
	fixed := len(gets)
	var marks []string
	txn := Txn{Then: gets}
	if s.certain {
		for _, key := range slices.Sorted(maps.Keys(s.before.doubt.marks)) {
			marks = append(marks, key)
			gets = append(gets, get(key))
		}
		// The condition does not hold, and nothing is deleted; but a transaction
		// that might write is in the order of all writes, whatever becomes of reads.
		txn = Txn{If: []Cond{absent(l.keys.identity())}, Then: []Op{{Delete: l.keys.beat()}}, Else: gets}
	}
	var err error
	if s.answer, err = send(ctx, txn); err != nil {
		return nil, err
	}
	if len(s.answer.Got) != len(gets) {
		return nil, allocator.Errorf(allocator.Refused, "there is no key %s any longer", l.keys.identity())
	}
	if err := l.readIdentity(s); err != nil {
		return nil, err
	}
	if s.full {
		bounded, cancel := context.WithTimeout(ctx, l.cfg.TryTimeout)
		s.status, err = l.store.Status(bounded)
		cancel()
		if err != nil {
			return nil, err
		}
		if s.status.Sender != s.answer.Sender || s.status.Connection == 0 {
			return nil, nil
		}
	}
	s.state = l.parseState(s.answer)
	for i, key := range marks {
		// Kept until the state is judged: only under the same epoch it means
		// something.
		if next := nextOf(s.answer.Got[fixed+i]); next < s.before.doubt.marks[key] {
			s.state.fallen = fmt.Sprintf("%s is %d, and was %d", key, next, s.before.doubt.marks[key])
		}
	}
	return s, nil
}

// nextOf returns a mark's next, 0 where there is none. One that cannot be read
// is no evidence: nothing is leased on it.
func nextOf(found []KV) int64 {
	if len(found) == 0 {
		return 0
	}
	mark, err := decodeMark(found[0])
	if err != nil {
		return allocator.MaxID
	}
	return mark.Next
}

// readIdentity reads identity and beat. Its error is Refused where another
// cluster answers: that stops only who asks, it is no reason to halt anybody.
func (l *Ledger) readIdentity(s *sight) error {
	kv, ok := s.answer.one(3)
	if !ok {
		return allocator.Errorf(allocator.Refused, "there is no key %s any longer", l.keys.identity())
	}
	if err := decode(kv, &s.identity); err != nil {
		return err
	}
	l.mu.Lock()
	mine := l.mu.identity.UUID
	l.mu.Unlock()
	if s.identity.UUID != mine {
		return allocator.Errorf(allocator.Refused, "%s belongs to cluster %s by now, and was cluster %s: a wrong endpoint, or another etcd's data", l.keys, s.identity.UUID, mine)
	}
	if kv, ok := s.answer.one(4); ok {
		s.beatKV = kv
		if err := decode(kv, &s.beat); err != nil {
			return err
		}
	}
	s.beatKV.Key = l.keys.beat()
	return nil
}

// otherClusterError says that another etcd cluster answered than the one that
// the cluster lives in.
type otherClusterError struct {
	uuid         string
	pinned, told uint64
}

func (e *otherClusterError) Error() string {
	return fmt.Sprintf("etcd cluster %x answered, but cluster %s lives in etcd cluster %x: wrong endpoint, or etcd was restored; see `march recover`", e.told, e.uuid, e.pinned)
}

// moved reports whether err is of another etcd cluster that the cluster was
// moved to, so that what was asked is to be asked again.
func (l *Ledger) moved(ctx context.Context, err error) bool {
	var other *otherClusterError
	if !errors.As(err, &other) {
		return false
	}
	follows, followErr := l.follow(ctx)
	if followErr == nil && !follows {
		_ = l.sawBack(ctx, err) // the caller has the error
	}
	return followErr == nil && follows
}

// follow takes over the ID of the etcd cluster that answers, where `march
// recover` wrote it into the identity together with an epoch that was never
// seen here. It reports whether it did.
func (l *Ledger) follow(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.TryTimeout)
	defer cancel()
	answer, err := l.store.Txn(ctx, Txn{Then: []Op{get(l.keys.identity()), get(l.keys.epoch())}})
	if err != nil {
		return false, err
	}
	identity, ok := answer.one(0)
	epoch, there := answer.one(1)
	if !ok || !there {
		return false, nil
	}
	var id identityValue
	var e epochValue
	if err := errors.Join(decode(identity, &id), decode(epoch, &e)); err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.timeline
	if id.UUID != l.mu.identity.UUID || id.ClusterID != answer.ClusterID || e.Epoch == "" || e.Epoch == t.current || t.knows(e.Epoch) {
		return false, nil
	}
	l.log.Warn("the cluster moved to another etcd cluster, with a new epoch", "etcd_cluster_id", fmt.Sprintf("%x", id.ClusterID))
	l.mu.identity = id
	// What follows is asked anew, so nothing that was seen of the old one counts.
	t.turn("moved "+e.Epoch, 0)
	return true, nil
}

// verdict is what became of a sight.
type verdict int

const (
	settled   verdict = iota // it was adopted
	askAgain                 // it says nothing, or is to be confirmed
	confirmed                // etcd went back in time
)

// judge adopts what s saw, or says what is wrong with it.
func (l *Ledger) judge(s *sight) (record LayoutRecord, v verdict, evidence string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.timeline
	if t.order != s.before.order {
		return record, askAgain, "", nil // the epoch changed while it was under way
	}
	id := s.state.id()
	switch {
	case id == "":
		record, err = l.adopt(s.state)
		return record, settled, "", err
	case s.state.halted != nil && id != t.current && (s.certain || !t.knows(id)):
		// Believed, as nothing is leased under it; but one that was in force before
		// only in the order of all writes. By a stale read of it, the epoch that
		// followed it would be one that is in force again.
		t.turn(id, s.answer.Revision)
	case s.state.halted != nil:
		t.doubt = nil // there is nothing left to stop
	case id != t.current && !t.knows(id):
		if t.current != "" {
			l.log.Info("a new epoch", "epoch", id)
		}
		t.turn(id, s.answer.Revision)
		evidence = s.restored()
	case id != t.current:
		evidence = fmt.Sprintf("epoch %s is in force again, after %s", id, t.current)
	case s.answer.Revision < s.before.seen:
		evidence = fmt.Sprintf("etcd answered at revision %d after it had shown revision %d", s.answer.Revision, s.before.seen)
	case s.state.fallen != "":
		evidence = s.state.fallen
	default:
		evidence = s.restored()
	}
	switch {
	case evidence != "" && s.certain && s.before.doubt == t.doubt:
		return record, confirmed, evidence, nil
	case evidence != "":
		if t.doubt == nil {
			l.log.Warn("etcd may have gone back in time: looking again", "why", evidence)
		}
		t.suspect(evidence, nil)
		return record, askAgain, "", nil
	case t.doubt != nil && t.doubt != s.before.doubt:
		return record, askAgain, "", nil // a doubt came up while it was under way
	}
	if t.doubt != nil {
		l.log.Info("a second look did not confirm that etcd went back in time", "why", t.doubt.why)
		t.doubt = nil
	}
	if s.full {
		t.checked = check{at: s.before.at, by: s.answer.Sender}
	}
	version := s.state.layout.Layout.Version
	record, err = l.adopt(s.state)
	if s.state.problem == nil && record.Layout.Version == version {
		l.mu.confirmed.add(version, s.before.at)
	}
	return record, settled, "", err
}

// shared is a look that several leases wait for.
type shared struct {
	done chan struct{}
	err  error
	left bool // who made it gave up: it says nothing of etcd
}

// lessableState returns the state under which a lease may be made, after a
// look where the last one is too old, or nothing may be leased under what is
// known. Leases that want a look at once share one.
func (l *Ledger) lessableState(ctx context.Context) (*state, error) {
	for {
		l.mu.Lock()
		s, err := l.ready()
		flight := l.mu.flight
		lead := err != nil && flight == nil
		if lead {
			flight = &shared{done: make(chan struct{})}
			l.mu.flight = flight
		}
		l.mu.Unlock()
		switch {
		case err == nil:
			return s, nil
		case lead:
			_, flight.err = l.look(ctx, l.haltsAs() != "", l.try)
			flight.left = over(ctx)
			l.mu.Lock()
			l.mu.flight = nil
			if flight.err == nil {
				s, flight.err = l.mu.state, l.lessable()
			}
			l.mu.Unlock()
			close(flight.done)
			return s, flight.err
		}
		select {
		case <-flight.done:
		case <-ctx.Done():
		}
		switch { // not what select makes of both at once: that is chance
		case over(ctx):
			return nil, allocator.Errorf(allocator.Unavailable, "etcd was not looked at in time: %w", cmp.Or(context.Cause(ctx), context.DeadlineExceeded))
		case flight.err != nil && !flight.left:
			return nil, flight.err
		}
	}
}

// over reports whether ctx has ended, or is about to: its timer may be a moment
// late.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// ready returns the state where a lease may be made under it without a look.
// The caller holds the lock.
func (l *Ledger) ready() (*state, error) {
	if err := l.lessable(); err != nil {
		return nil, err
	}
	if l.mu.haltsAs != "" && !l.mu.timeline.checked.fresh() {
		return nil, errUnchecked
	}
	return l.mu.state, nil
}

var errUnchecked = errors.New("the last look is too long ago")

// haltsAs returns who halts leasing where this process sees etcd go back in
// time, empty where it only says so.
func (l *Ledger) haltsAs() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.haltsAs
}
