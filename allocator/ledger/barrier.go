package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Barred is the recover that has barred an instance. The zero value is none.
type Barred struct {
	By    string    // the operator
	Since time.Time // by the instance's clock
	nonce string
}

// Memory returns all that this instance remembers. Where the question has a barrier
// that the instance accepts, no answer to a transaction that was sent before is
// accepted from then on, and nothing is leased under an epoch that the instance has
// seen. An instance accepts a barrier only if its own etcd shows exactly that halt,
// in the order of all writes. So a rehearsal on a copy, a late request or a call
// from elsewhere bars no instance.
func (i *Instance) Memory(ctx context.Context, q record.Question) record.Memory {
	l := i.ledger
	var shown halted
	var err error
	if q.Barrier != nil {
		shown, err = l.showsHalt(ctx, *q.Barrier)
	}
	m := i.answer(q, shown, err)
	m.SortMarks() // not under the lock: there may be a million
	return m
}

// answer answers a question. If the question has a barrier, shown is the halt that
// etcd shows, and err why it shows none.
func (i *Instance) answer(q record.Question, shown halted, err error) record.Memory {
	now := i.ledger.now() // after etcd showed the halt: keepAnswered relies on that
	var said pending.Lines
	defer said.Write(i.ledger.log)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ledger.mu.Lock()
	defer i.ledger.mu.Unlock()
	unbarred := ""
	switch {
	case q.Barrier == nil:
	case err != nil:
		unbarred = err.Error()
	case !i.bar(&said, now, shown):
		unbarred = "another epoch came into force meanwhile"
	}
	m := i.remembered(q.After)
	m.Barred, m.Unbarred = q.Barrier != nil && unbarred == "", unbarred
	return m
}

// bar sets the instance's epoch to the halt that was shown. Leases that were sent under
// the epoch before are lost. If that epoch is in force again later, this is evidence that
// etcd went back. It returns false if another epoch came into force after that halt. The
// caller holds both locks.
func (i *Instance) bar(said *pending.Lines, now time.Time, h halted) bool {
	l, id := i.ledger, haltID(h.value.Nonce)
	t := &l.mu.clock
	if t.current != id && t.knows(id) {
		return false
	}
	if t.current != id {
		t.turn(id, h.revision)
	}
	if l.mu.identity.ClusterID != h.clusterID {
		said.Warn("a recover moves the cluster to another etcd cluster", "etcd_cluster_id",
			fmt.Sprintf("%x", h.clusterID))
		l.mu.identity.ClusterID = h.clusterID
	}
	if i.memory.barred.nonce != h.value.Nonce {
		i.memory.barred = Barred{By: h.value.By, Since: now, nonce: h.value.Nonce}
		said.Warn("barred by a recover: nothing is leased until it has begun a new epoch", "by", h.value.By)
	}
	return true
}

// halted is a halt as etcd showed it.
type halted struct {
	value     record.Halt
	clusterID uint64
	revision  int64
}

// showsHalt reads the epoch in the order of all writes, and returns the halt that a
// barrier names. Its error says that etcd shows something else.
func (l *Ledger) showsHalt(ctx context.Context, b record.Barrier) (h halted, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.tryFor())
	defer cancel()
	// Not by Try, which would refuse an answer from an etcd cluster that is new to
	// this process.
	answer, err := l.store.Txn(ctx, l.ordered(store.OpGet(l.keys.Epoch()), store.OpGet(l.keys.Identity())))
	if err != nil {
		return h, err
	}
	if len(answer.Got) != 2 || len(answer.Got[0]) == 0 || len(answer.Got[1]) == 0 {
		return h, allocator.Errorf(allocator.Refused, "the etcd of this instance holds no cluster under %s", l.keys)
	}
	var e record.Epoch
	var id record.Identity
	if err := errors.Join(record.Decode(answer.Got[0][0], &e), record.Decode(answer.Got[1][0], &id)); err != nil {
		return h, err
	}
	switch {
	case id.UUID != l.pinned().UUID:
		return h, allocator.Errorf(allocator.Refused, "the etcd of this instance holds cluster %s", id.UUID)
	case answer.ClusterID != b.ClusterID:
		return h, allocator.Errorf(allocator.Refused,
			"the instance is connected to etcd cluster %x, the recover works on %x", answer.ClusterID, b.ClusterID)
	case e.Halted == nil || e.Halted.Nonce != b.Nonce:
		return h, allocator.Errorf(allocator.Refused,
			"the etcd of this instance does not show the halt of that recover")
	}
	return halted{*e.Halted, answer.ClusterID, answer.Revision}, nil
}

// ordered returns a transaction that reads in the order of all writes. Its condition
// never holds, so it deletes nothing. But etcd puts a transaction that might write
// into the order of all writes, which it does not always do with reads.
func (l *Ledger) ordered(gets ...store.Op) store.Txn {
	return store.Txn{If: []store.Cond{store.Absent(l.keys.Identity())},
		Then: []store.Op{{Delete: l.keys.Beat()}}, Else: gets}
}

// Barred returns the recover that has barred this instance, if one has.
func (i *Instance) Barred() (Barred, bool) {
	l := i.ledger
	i.mu.Lock()
	defer i.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := i.memory.barred
	return b, b.nonce != "" && l.mu.clock.current == haltID(b.nonce)
}

// HaltOver writes a halt over the epoch's value, if that is still in force, and returns
// the key as it wrote it. A value that cannot be read counts as an epoch without a name
// and margins. The operations in also are done in the same transaction. Its errors are
// Conflict and Unavailable. Only a recover writes a halt over another halt. The
// halt has the value's margin total, or the given one if that is larger: a recover knows it from a memory.
func (l *Ledger) HaltOver(ctx context.Context, epoch []byte, total int64, by, why string,
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
func (l *Ledger) haltsAs() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.haltsAs
}

// PinAnew pins this ledger to the etcd cluster that answers, even if the identity has
// another one, as a recover does. It reads the identity and also in one transaction, and
// returns the identity with the ID of that etcd cluster; the answer has the identity's key
// first. Its errors are those of the read, a KeyError, and Refused: if there is no
// cluster, with the zero identity, or if it is another one than configured.
func (l *Ledger) PinAnew(ctx context.Context, also ...store.Op) (id record.Identity, answer store.Answer, err error) {
	ops := append([]store.Op{store.OpGet(l.keys.Identity())}, also...)
	if answer, err = l.Gets(ctx, append(ops, l.countAudits())...); err != nil {
		return id, answer, err
	}
	kv, ok := answer.One(0)
	if !ok {
		return id, answer, l.noIdentity(ctx, nothingToRecover)
	}
	if err := record.Decode(kv, &id); err != nil {
		return record.Identity{}, answer, err
	}
	l.countedAudits(answer.Counts[len(ops)])
	id.ClusterID = answer.ClusterID
	return id, answer, l.pin(id, answer.ClusterID)
}
