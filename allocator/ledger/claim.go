package ledger

import (
	"context"
	"strconv"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/crash"
)

// claim is one conditional write of a key that only this room writes, and whose measure grows: a mark's next, a
// window's end. It compares epoch, layout, the instance's own registration and the key, each as known. Steps 5 to 7
// of section 3.2 of the design hold for it. A machine ID is no claim: any instance may write any client's number.
type claim struct {
	state  *State
	was    store.KV       // the key as known; without a mod revision and a value if it is not there
	also   []store.Cond   // other keys, which must be as known, too
	then   []store.Op     // the write, and what is written beside it
	mark   journal.Mark   // how far it leases a tag; zero if it leases no IDs
	window *record.Lease  // the window that it writes; nil for none
	note   journal.Record // what the journal must have besides these two
	// learns takes the answer to a refused claim: the registration, the key and those of also, as they are.
	learns func(ctx context.Context, before sentAt, answer store.Answer) error
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
	note, first := c.record(), i.sends(c)
	if first {
		if err := i.toJournal(ctx, c.state, note); err != nil {
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
	if ours, err := i.accept(before, answer, c); err != nil || !ours {
		return 0, false, err
	}
	if !first {
		// If the process crashes before this, the journal has less than etcd, which does no harm.
		if err := i.toJournal(ctx, c.state, note); err != nil {
			return 0, false, i.noted(err)
		}
	}
	l.confirmLayout(c.state.layout.Layout, before.at)
	return answer.Revision, true, nil
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

// record returns what the journal must have of a claim.
func (c claim) record() journal.Record {
	r := c.note
	if c.mark.Tag != "" {
		r.Marks = []journal.Mark{c.mark}
	}
	if w := c.window; w != nil {
		r.Windows = []journal.Window{{WorkerID: w.WorkerID, Incarnation: w.Incarnation, From: w.From, Until: w.Until,
			Epoch: w.Stamp.Epoch, Revision: w.Stamp.Revision, Clock: w.Clock}}
	}
	return r
}

// sends remembers that a claim is sent: it may happen, whether its answer comes or not. If only accepted leases were
// remembered, a recover would add its margin to a mark that is lower than the store's. True means that the journal must
// have the claim before: it lowers the end of a window, and an instance that crashes in between would later take the
// lower end for evidence.
func (m *memory) sends(c claim) (lowers bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if tag := c.mark.Tag; tag != "" {
		own := m.mu.marks.of(tag)
		m.mu.sequence++
		own.sent, own.sequence = max(own.sent, c.mark.Next), m.mu.sequence
		own.total = max(own.total, c.state.margins.Total)
		m.mu.marks.set(tag, own)
	}
	if w := c.window; w != nil {
		own := m.mu.windows[w.WorkerID]
		own.sent, own.taken = own.sent.Raised(w.Worker), 0
		if lowers = w.Until < own.worker.Until; lowers {
			own.worker = w.Worker // from now on etcd may have the lower end
		}
		m.mu.windows.set(w.WorkerID, own)
	}
	return lowers
}

// accept decides whether a claim that succeeded is ours, and remembers it then. It is not ours if the answer's
// revision is not above every revision that was seen before the transaction was sent; if `march recover` barred this
// instance, or another epoch came up meanwhile; or if the answer did not come through the connection that was checked.
// Then what was written is lost. False without an error means that another try is due, which probes first.
func (m *memory) accept(before sentAt, answer store.Answer, c claim) (bool, error) {
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
	if !m.accepts(c, answer.Revision) {
		return false, nil
	}
	m.mu.leaser = m.incarnation
	m.leased()
	return true, nil
}

// accepts remembers a claim as this instance's. False means that it is not: another process wrote the window's key
// since. The caller holds the lock.
func (m *memory) accepts(c claim, revision int64) bool {
	if tag, next := c.mark.Tag, c.mark.Next; tag != "" {
		own := m.mu.marks.of(tag)
		// If a tag has two sources, the answer to one may overtake the answer to the
		// other.
		if revision > own.revision {
			own.next, own.revision = next, revision
		}
		if next > own.leased {
			own.leased, own.version = next, c.mark.Version
		}
		own.sent, own.sequence, own.shown = max(own.sent, next), m.mu.sequence, true
		m.mu.marks.set(tag, own)
	}
	if w := c.window; w != nil {
		own := m.mu.windows[w.WorkerID]
		if revision < own.taken {
			return false
		}
		if revision > own.revision {
			// Earlier requests can no longer succeed, because they compare the revision.
			own.worker, own.sent, own.key, own.revision, own.held = w.Worker, w.Worker, c.was.Key, revision, true
		}
		m.mu.windows.set(w.WorkerID, own)
	}
	return true
}

// toJournal writes a lease to the journal, of a segment or a window, before it is used. An empty record stands for the
// epoch of state, before the instance is in it.
func (m *memory) toJournal(ctx context.Context, state *State, r journal.Record) error {
	if m.journal == nil {
		return nil
	}
	lease := len(r.Marks)+len(r.Windows) > 0
	// Wait for the disk however long it takes: the IDs are leased, and giving up
	// would make them a gap. Append notices a disk that hangs.
	if err := m.journal.Append(context.WithoutCancel(ctx), m.toNote(state, r, lease)); err != nil {
		return err
	}
	m.written(state, lease)
	return nil
}

// toNote adds to r, which is noted under a state, the memory that the journal does not have
// yet. A lease shows that the instance is confirmed.
func (m *memory) toNote(state *State, r journal.Record, lease bool) journal.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	known, version := m.mu.written, state.layout.Layout.Version
	r.Confirmed = lease && m.mu.unconfirmed
	if t := m.ledger.before(); t.current == state.epoch { // otherwise the epoch has changed
		r.Epoch, r.Revision = state.epoch, t.seen
	}
	// This does not count as written yet, so that a lease made meanwhile writes it,
	// too.
	if known.epoch != state.epoch {
		r.Epochs = []string{state.epoch}
	}
	if version > known.version {
		r.Version = version
	}
	if state.margins.Total > known.total {
		r.MarginTotal = state.margins.Total
	}
	if state.notBefore > known.notBefore {
		r.NotBefore = state.notBefore
	}
	if state.layout.Formats > known.formats {
		r.Formats = state.layout.Formats
	}
	if !record.ContainsAll(known.rooms, state.layout.Ever) {
		r.Rooms = state.layout.Ever
	}
	return r
}

// written remembers that the journal has what toNote returned, perhaps with a lease.
func (m *memory) written(state *State, lease bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &m.mu.written
	w.epoch, w.version = state.epoch, max(w.version, state.layout.Layout.Version)
	w.total = max(w.total, state.margins.Total)
	w.notBefore, w.formats = max(w.notBefore, state.notBefore), max(w.formats, state.layout.Formats)
	w.rooms = record.Union(w.rooms, state.layout.Ever)
	m.mu.unconfirmed = m.mu.unconfirmed && !lease
}

// refused takes the answer to a transaction of conditional whose condition did not hold.
func (i *Instance) refused(ctx context.Context, c claim, before sentAt, answer store.Answer) error {
	if err := i.presence.check(ctx, answer.Got[0]); err != nil {
		return err
	}
	return c.learns(ctx, before, answer)
}

// compared calls compare, which compares what an answer showed with the memory, under both locks. It returns false if
// compare does, or if the request was sent under another epoch, before a barrier say: then the answer shows a store
// that no longer exists. The caller reads again, after a probe.
func (m *memory) compared(before sentAt, compare func(t *epochClock) bool) bool {
	l := m.ledger
	m.mu.Lock()
	defer m.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return before.epochSeq == l.mu.clock.epochSeq && compare(&l.mu.clock)
}

// compareMark compares a mark, as an answer showed it, with the remembered one. If
// the mark is lower, etcd may have gone back in time. False means that the caller
// must read the mark again, after a probe.
func (m *memory) compareMark(before sentAt, answer store.Answer, tag allocator.Tag, next int64) bool {
	return m.compared(before, func(t *epochClock) bool {
		own := m.mu.marks.of(tag)
		if next < own.next {
			if answer.Revision >= own.revision { // otherwise another answer overtook this one
				key := m.ledger.keys.Mark(m.room, tag)
				t.suspect("the mark "+key+" is "+strconv.FormatInt(next, 10)+", and was "+
					strconv.FormatInt(own.next, 10), map[string]int64{key: own.next})
			}
			return false
		}
		if own.next != next {
			m.mu.sequence++
			own.sequence = m.mu.sequence
		}
		own.next, own.revision = next, max(answer.Revision, own.revision)
		own.shown = own.shown || t.shows(before, answer.Sender, answer.Revision) && next >= own.leased
		m.mu.marks.set(tag, own)
		return true
	})
}
