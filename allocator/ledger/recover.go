package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
)

// Recover makes a cluster lease again after its etcd went back in time.
//
// What makes it safe, in this order:
//
//  1. It halts the store first. A lease compares the epoch, so none is made in
//     this store from then on: no mark moves but by Recover.
//  2. The question to an instance is a barrier: who answers accepts no answer to
//     a transaction that was sent before, and leases nothing until it sees an
//     epoch that it has never seen. So what it reports is all that it will ever
//     issue; without that, the answer of a lease that was still under way would
//     be issued on top.
//  3. For each tag the marks of all rooms go above all that any source knows, and
//     a margin, to one number: no room, under whatever layout, leases below it.
//  4. One transaction, which compares its own halt's nonce, begins a new random
//     epoch. Leases under the old one cannot happen in this store; and not in
//     another one, as who answered is barred.
//
// What is left: an instance that did not answer and issues what it holds above
// the margin. See Missing.

// RecoverConfig says how to recover.
type RecoverConfig struct {
	Actor string
	// Apply does it; otherwise nothing is changed, nobody is barred, and the
	// report says what would be done.
	Apply bool
	// Ask asks an instance for its memory; bar is the barrier.
	Ask func(ctx context.Context, s SeenInstance, bar bool) (Memory, error)
	// Memories are those of journals.
	Memories []Memory
	// Without are instances to go on without.
	Without []InstanceID
	// Wait is how long to wait, after halting, for instances that etcd has
	// forgotten to register again.
	Wait time.Duration
	// Margin is how far above what is known marks are raised; 0 for a tag's
	// max_step for each instance.
	Margin int64
	// Progress, if it is not nil, is called now and then.
	Progress func(RecoverProgress)
}

// RecoverProgress is how far a recover is.
type RecoverProgress struct {
	Doing       string
	Tags, Marks int64 // so far
}

// RecoverReport is what a recover saw and did.
type RecoverReport struct {
	UUID     string
	Halt     HaltRecord // that was in force; zero where there was none
	Answered []InstanceID
	Missing  []MissingInstance
	Tags     int64
	AtLimit  []allocator.Tag // that the margin brings to their limits, or above
	Marks    int64           // raised, or to be raised
	Version  int64           // of the layout that ends it
	Epoch    string
}

// MissingInstance is a process whose memory nobody has: what it leased since the
// backup is covered by the margin only, and what it holds it may still issue.
type MissingInstance struct {
	ID          InstanceID
	Incarnation string
	Why         string
	Left        bool // to be gone on without, as was said
}

const (
	// recoverVersions is how far above all that are known the layout version of a
	// recover lies at least: see newVersion.
	recoverVersions = 100
	// recoverBatch is how many marks are raised at once: three operations each, of
	// the 128 that etcd takes.
	recoverBatch = 40
	// recoverForgets bounds the operations by which instances are forgotten at
	// once, three for each.
	recoverForgets = 100
)

type recovery struct {
	l        *Ledger
	cfg      RecoverConfig
	report   *RecoverReport
	identity KV
	epoch    KV           // our halt
	layout   LayoutRecord // that the store has,
	seen     LayoutRecord // and the newest that we saw it have
	again    bool         // the halt that was found is of a recover that did not end
	rooms    []allocator.Room
	version  int64
	present  int      // how many instances there may be
	memories []Memory // of journals and answers
	tags     map[allocator.Tag]*recoverTag
}

// Recover recovers. Its errors are Refused (instances did not answer, the layout
// cannot be used), Conflict (another recover began meanwhile) and Unavailable,
// after which it may be run again: it goes on. The report is never nil.
func (l *Ledger) Recover(ctx context.Context, cfg RecoverConfig) (*RecoverReport, error) {
	r := &recovery{l: l, cfg: cfg, report: &RecoverReport{}, tags: make(map[allocator.Tag]*recoverTag)}
	return r.report, r.run(ctx)
}

func (r *recovery) run(ctx context.Context) error {
	if err := r.attach(ctx); err != nil {
		return err
	}
	if _, err := r.l.Refresh(ctx); err != nil {
		return err
	}
	if err := r.halt(ctx); err != nil {
		return err
	}
	var err error
	if r.memories, err = r.ask(ctx); err != nil {
		return err
	}
	r.learn()
	if err := r.read(ctx); err != nil {
		return err
	}
	r.report.Tags = int64(len(r.tags))
	for _, name := range sortedTags(r.tags) {
		if t := r.tags[name]; t.known < t.limit && r.target(t) >= t.limit {
			r.report.AtLimit = append(r.report.AtLimit, name)
		}
	}
	if r.cfg.Apply && !mutant("recover-unanswered") && slices.ContainsFunc(r.report.Missing, func(m MissingInstance) bool { return !m.Left }) {
		return allocator.Errorf(allocator.Refused, "not all instances answered; nothing was raised, and leasing stays halted: start them, or give their journals (--journal FILE), or stop them for good and go on --without %s", r.unanswered())
	}
	if err := r.raise(ctx); err != nil || !r.cfg.Apply {
		return err
	}
	return r.finish(ctx)
}

// forget returns what takes the registrations of those away that are gone on
// without, so that the next recover has nothing to do with them. It is done with
// the new epoch and not before: who lives after all, and finds its registration
// gone under an epoch that it knows, would stop; under a new one it registers
// again.
func (r *recovery) forget(ctx context.Context) ([]Op, error) {
	l, left := r.l, make(map[string]bool)
	for _, m := range r.report.Missing {
		left[m.Incarnation] = true
	}
	answer, err := r.gets(ctx, getPrefix(l.keys.registrations("")))
	if err != nil {
		return nil, err
	}
	var ops []Op
	for _, kv := range answer.Got[0] {
		var v registrationValue
		key, err := l.keys.parse(kv.Key)
		if err := errors.Join(err, decode(kv, &v)); err != nil {
			return nil, err
		}
		if left[v.Incarnation] && len(ops) < recoverForgets {
			ops = append(ops, Op{Delete: kv.Key}, Op{Delete: l.keys.silent(key.room, key.instance)},
				l.audit(r.cfg.Actor, "forget instance", kv.Key, kv.Value, nil))
		}
	}
	return ops, nil
}

// unanswered returns the instances to be gone on without, ROOM/INSTANCE separated
// by commas.
func (r *recovery) unanswered() string {
	var ids []string
	for _, m := range r.report.Missing {
		ids = append(ids, string(m.ID))
	}
	return strings.Join(slices.Compact(ids), ",") // Missing is sorted
}

// StoredUUID returns the uuid that the store has, be its etcd another one than
// the cluster's: what `march recover` goes by. Its errors are Refused and
// Unavailable.
func (l *Ledger) StoredUUID(ctx context.Context) (string, error) {
	id, _, _, err := l.storedIdentity(ctx)
	return id.UUID, err
}

// storedIdentity reads the identity, and the ID of the etcd cluster that answers.
func (l *Ledger) storedIdentity(ctx context.Context) (id identityValue, kv KV, clusterID uint64, err error) {
	answer, err := l.gets(ctx, get(l.keys.identity()))
	if err != nil {
		return id, kv, 0, err
	}
	var ok bool
	if kv, ok = answer.one(0); !ok {
		return id, kv, 0, allocator.Errorf(allocator.Refused, "there is no cluster under %s: nothing to recover", l.keys)
	}
	err = decode(kv, &id)
	return id, kv, answer.ClusterID, err
}

// attach pins the cluster's uuid and the etcd cluster that answers, be it
// another one than the identity has: finish writes that.
func (r *recovery) attach(ctx context.Context) error {
	id, kv, clusterID, err := r.l.storedIdentity(ctx)
	if err != nil {
		return err
	}
	r.identity, r.report.UUID = kv, id.UUID
	id.ClusterID = clusterID
	return r.l.pin(id, clusterID)
}

// halt writes a halt of our own, over whatever is there: of two who recover at
// once, the first finds its nonce gone.
func (r *recovery) halt(ctx context.Context) error {
	s, _ := r.l.current()
	if s.raw == nil {
		return s.lessable()
	}
	r.report.Halt, _ = r.l.Halted()
	r.again = s.halted != nil && s.halted.Recover
	r.layout = s.layout
	if !r.cfg.Apply {
		return nil
	}
	var err error
	if r.epoch, err = r.l.halt(ctx, s.raw, haltValue{By: r.cfg.Actor, Why: "march recover", Recover: true}); err != nil {
		return err
	}
	// Read again, under the halt: nothing changes it any longer.
	if r.layout, err = r.l.Refresh(ctx); err != nil {
		return err
	}
	if s, _ := r.l.current(); string(s.raw) != string(r.epoch.Value) {
		return errOtherRecover
	}
	return r.readLayout(ctx)
}

// readLayout reads the layout that the store has. Where etcd went back after we
// first looked, that is an older one than the ledger serves under: what is lost
// begins after the store's, and the new one comes after both.
func (r *recovery) readLayout(ctx context.Context) error {
	answer, err := r.gets(ctx, get(r.l.keys.layout()))
	if err != nil {
		return err
	}
	kv, ok := answer.one(0)
	if !ok {
		return allocator.Errorf(allocator.Refused, "there is no key %s", r.l.keys.layout())
	}
	r.seen = r.layout
	if r.layout, err = decodeLayout(kv); err != nil {
		return err
	}
	r.layout.revision = kv.ModRevision
	return nil
}

// gets reads keys in one transaction, under the condition that our own halt is in
// force: what another recover makes of the store after us is not mixed with what
// we found. A dry run halts nothing. Its errors are Conflict and Unavailable.
func (r *recovery) gets(ctx context.Context, ops ...Op) (Answer, error) {
	if !r.cfg.Apply {
		return r.l.gets(ctx, ops...)
	}
	answer, err := r.l.read(ctx, Txn{If: []Cond{hasValue(r.epoch.Key, r.epoch.Value)}, Then: ops})
	if err == nil && !answer.Succeeded {
		err = errOtherRecover
	}
	return answer, err
}

func (r *recovery) progress(doing string, tags, marks int64) {
	if r.cfg.Progress != nil {
		r.cfg.Progress(RecoverProgress{Doing: doing, Tags: tags, Marks: marks})
	}
}

// finish begins the new epoch: with the etcd cluster's present ID, a fresh beat,
// and the layout written again as a new version, so that what comes now is an
// era of its own.
func (r *recovery) finish(ctx context.Context) error {
	r.progress("beginning a new epoch", r.report.Tags, r.report.Marks)
	l, k := r.l, r.l.keys
	forget, err := r.forget(ctx)
	if err != nil {
		return err
	}
	status, err := l.store.Status(ctx)
	if err != nil {
		return err
	}
	var id identityValue
	if err := decode(r.identity, &id); err != nil {
		return err
	}
	id.ClusterID = status.ClusterID
	layout := r.layout.Layout
	layout.Version = r.version
	record := LayoutRecord{Layout: layout, Ever: r.rooms, Time: now(), Actor: r.cfg.Actor, Lost: r.lost()}
	value, epoch, beat := record.encode(randomHex()), encode(&epochValue{Epoch: mutated("epoch-counts", randomHex(), fmt.Sprintf("%032x", r.lost()))}), newBeat(status)
	txn := Txn{
		If: []Cond{
			hasValue(k.epoch(), r.epoch.Value), {Key: k.layout(), ModRevision: r.layout.revision},
			unchanged(r.identity), absent(k.layoutAt(record.Layout.Version)),
		},
		Then: append(forget,
			put(k.epoch(), epoch), put(k.layout(), value), put(k.layoutAt(record.Layout.Version), value),
			put(k.beat(), encode(&beat)), l.audit(r.cfg.Actor, "recover", k.epoch(), r.epoch.Value, epoch),
		),
	}
	if identity := encode(&id); string(identity) != string(r.identity.Value) {
		txn.Then = append(txn.Then, put(k.identity(), identity))
	}
	answer, err := l.try(ctx, txn)
	if err == nil && answer.ClusterID != status.ClusterID {
		err = allocator.Errorf(allocator.Unavailable, "two etcd clusters answer")
	}
	if err != nil || !answer.Succeeded { // unknown, or perhaps sent twice: the epoch is random
		check, checkErr := l.gets(ctx, get(k.epoch()))
		kv, ok := check.firstIfAny()
		if checkErr != nil || !ok || string(kv.Value) != string(epoch) {
			return cmp.Or(err, error(errOtherRecover))
		}
	}
	var e epochValue
	if err := decode(KV{Key: k.epoch(), Value: epoch}, &e); err != nil {
		return err
	}
	r.report.Epoch = e.Epoch
	_, err = l.Refresh(ctx)
	return err
}
