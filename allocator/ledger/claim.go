package ledger

import (
	"context"
	"strconv"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/crash"
)

// claim is one conditional write of a key that only this room writes, and whose measure grows: a mark's next, a
// window's end. It compares epoch, layout, the instance's own registration and the key, each as known. Steps 5 to 7
// of section 3.2 of the design hold for it. A machine ID is no claim: any instance may write any client's number.
type claim struct {
	state *State
	was   store.KV       // the key as known; without a mod revision and a value if it is not there
	also  []store.Cond   // other keys, which must be as known, too
	then  []store.Op     // the write, and what is written beside it
	note  journal.Record // of the write

	// sends remembers that it is sent: it may happen, whether its answer comes or not. True means that the journal
	// must have it before.
	sends func() bool
	// accepts remembers it as this instance's, or returns false if it is not. It is called under the locks of
	// Instance.accept.
	accepts func(revision int64) bool
	// learns takes the answer to a refused claim: the registration, the key and those of also, as they are.
	learns func(ctx context.Context, before sentAt, answer store.Answer) error
}

// conditional returns a transaction that does nothing yet, on the conditions of a claim. If one of them does not hold,
// the answer is one for claim.learns.
func (i *Instance) conditional(c claim) store.Txn {
	registration := i.presence.registered()
	txn := store.Txn{
		If: append(i.ledger.Holds(c.state), store.Unchanged(registration),
			store.Cond{Key: c.was.Key, ModRevision: c.was.ModRevision, Value: c.was.Value}),
		Else: []store.Op{store.OpGet(registration.Key), store.OpGet(c.was.Key)},
	}
	for _, cond := range c.also {
		txn.If, txn.Else = append(txn.If, cond), append(txn.Else, store.OpGet(cond.Key))
	}
	return txn
}

// refused takes the answer to a transaction of conditional whose condition did not hold.
func (i *Instance) refused(ctx context.Context, c claim, before sentAt, answer store.Answer) error {
	if err := i.presence.check(ctx, answer.Got[0]); err != nil {
		return err
	}
	return c.learns(ctx, before, answer)
}

// claim makes a claim. True means that it is this instance's, and the journal has it; revision is the key's then.
// False without an error means that a known value was out of date, or that the answer does not count: the caller
// begins anew.
func (i *Instance) claim(ctx context.Context, c claim) (revision int64, ours bool, err error) {
	l, txn := i.ledger, i.conditional(c)
	txn.Then = c.then
	if err := i.journalReady(); err != nil {
		return 0, false, i.noted(err)
	}
	first := c.sends()
	if first {
		if err := i.toJournal(ctx, c.state, c.note); err != nil {
			return 0, false, i.noted(err)
		}
	}
	before := l.before() // the request is sent: answers may overtake each other
	crash.Here(crash.BeforeLease)
	answer, err := l.Try(ctx, txn)
	crash.Here(crash.AfterLease)
	// If the process crashes here, or the answer is lost, the key may have been written: a gap, or a window in which no
	// process issues, and which ends by itself.
	if err != nil {
		return 0, false, i.noted(err)
	}
	if !answer.Succeeded {
		return 0, false, i.refused(ctx, c, before, answer)
	}
	if ours, err := i.accept(before, answer, c.accepts); err != nil || !ours {
		return 0, false, err
	}
	if !first {
		// If the process crashes before this, the journal has less than etcd, which does no harm.
		if err := i.toJournal(ctx, c.state, c.note); err != nil {
			return 0, false, i.noted(err)
		}
	}
	l.confirmLayout(c.state.layout.Layout, before.at)
	return answer.Revision, true, nil
}

// accept decides whether a claim that succeeded is ours, and remembers it then. It is not ours if the answer's
// revision is not above every revision that was seen before the transaction was sent; if `march recover` barred this
// instance, or another epoch came up meanwhile; or if the answer did not come through the connection that was checked.
// Then what was written is lost. False without an error means that another try is due, which probes first.
func (m *memory) accept(before sentAt, answer store.Answer, remember func(revision int64) bool) (bool, error) {
	l := m.ledger
	m.mu.Lock()
	defer m.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.clock
	switch {
	case answer.Revision <= before.seen:
		t.suspect("etcd wrote at revision "+strconv.FormatInt(answer.Revision,
			10)+" after it had shown revision "+strconv.FormatInt(before.seen, 10), nil)
		return false, allocator.Errorf(allocator.WentBack,
			"etcd wrote at revision %d after it had shown revision %d: it went back in time; "+
				"nothing of this lease is used", answer.Revision, before.seen)
	case !t.shows(before, answer.Sender, answer.Revision):
		t.checked = check{}
		return false, nil
	}
	m.mu.sequence++
	if !remember(answer.Revision) {
		return false, nil
	}
	m.mu.leaser = m.incarnation
	m.leased()
	return true, nil
}
