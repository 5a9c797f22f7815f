package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
)

// A rollback of raft's own data (most members' directories copied back) keeps
// cluster ID, term and index: only what processes and journals remember shows
// it. Where a cluster requires journals, an instance that starts without its own
// is blank, and leases nothing before its marks are confirmed: that the store
// has all that a memory has which is older than this process. In this order:
//
//  1. Nothing was ever leased in this store: there is nothing to confirm. So a
//     new cluster comes up by itself.
//  2. A live instance vouches for them: one that is not blank itself. So trust
//     begins with a journal, an operator or an empty store, and is handed on;
//     instances that are all blank do not vouch for each other. It looks at etcd
//     first, by its own memory (Instance.Vouch). Then we hold the store against
//     what it remembers, as if that were our journal (Instance.against): it may
//     look at another etcd than we do.
//  3. An operator says so (Ledger.ConfirmInstance).
//
// Blank is whose journal is new or gone, whose journal the process that was last
// registered under its name did not write, and who began blank and was not
// confirmed since: the journal says so until the first lease. Not blank is who
// ran, or begins, while no journal is required.
//
// So whose journal is there but leased nothing since etcd's data was copied is not
// blank, and sees nothing: it may lease what others did whose journals are gone.
// The README says so.

// blank is why this process leases nothing where journals are required.
// Immutable.
type blank struct {
	room allocator.Room
	name allocator.Instance
	why  string // nobody has vouched for it yet
}

func (b *blank) refused() error {
	return allocator.Errorf(allocator.Refused, "instance %s/%s started without its journal, and this cluster requires one: it leases nothing until a live instance that has its memory, or an operator, has confirmed its marks; %s; if etcd did not go back in time, `march instance confirm %s %s`, else `march recover`",
		b.room, b.name, b.why, b.room, b.name)
}

// lessable returns why nothing can be leased at present. The caller holds the
// lock.
func (l *Ledger) lessable() error {
	if err := l.mu.timeline.lessable(l.mu.state); err != nil {
		return err
	}
	if b := l.mu.blank; b != nil && l.requiresJournal(l.mu.state) && !mutant("blank-leases") {
		return b.refused()
	}
	return nil
}

// requiresJournal reports whether a journal is required under s. The caller
// holds the lock.
func (l *Ledger) requiresJournal(s *state) bool { return l.mu.demands || s.settings.RequireJournal }

// settle ends blankness where no journal is required: who runs then has a memory
// of its own from then on. A halted store does not count: it may be one that was
// restored, and has forgotten that. The caller holds the lock.
func (l *Ledger) settle() {
	if s := l.mu.state; s.problem == nil && s.epoch != "" && !l.requiresJournal(s) {
		l.mu.blank = nil
	}
}

// become makes this process blank.
func (i *Instance) become() {
	l := i.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	i.memory.blank = true
	l.mu.blank = &blank{room: i.room, name: i.name, why: "nobody was asked yet"}
	l.settle()
}

// isBlank reports whether this process is blank, and whether that keeps it from
// leasing.
func (l *Ledger) isBlank() (is, matters bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.blank != nil, l.mu.blank != nil && l.requiresJournal(l.mu.state)
}

// confirmMarks ends blankness, unless the epoch is no longer that of order.
func (l *Ledger) confirmMarks(order int64, by string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.timeline.order != order {
		return errEpochChanged
	}
	l.unblank(by)
	return nil
}

// unblank ends blankness. The caller holds the lock.
func (l *Ledger) unblank(by string) {
	if b := l.mu.blank; b != nil {
		l.log.Info("an instance's marks are confirmed: it leases", "instance", b.name, "room", b.room, "by", by)
	}
	l.mu.blank = nil
}

var errEpochChanged = &allocator.Error{Kind: allocator.Unavailable, Msg: "the epoch, or the layout, changed meanwhile"}

// succeeds makes this process blank where the one that it takes the place of is
// not among those whose memory it has. It is written down before that one's
// registration goes.
func (i *Instance) succeeds(found []KV) error {
	var was registrationValue
	if len(found) == 0 || i.memory.blank {
		return nil
	}
	if err := decode(found[0], &was); err != nil {
		return err
	}
	if slices.Contains(i.memory.incarnations, was.Incarnation) {
		return nil
	}
	i.become()
	return i.noteBlank()
}

// seek seeks who confirms our marks, until that is done or ctx ends.
func (i *Instance) seek(ctx context.Context) {
	for ctx.Err() == nil {
		_, adopted := i.ledger.current()
		if i.sought(ctx) {
			return
		}
		retry := time.NewTimer(heartbeatEvery)
		select {
		case <-ctx.Done():
		case <-adopted:
		case <-retry.C:
		}
		retry.Stop()
	}
}

// sought makes one try of seek, and has the registration say what came of it,
// for operators. It reports whether nothing is left to do.
func (i *Instance) sought(ctx context.Context) bool {
	l := i.ledger
	if _, matters := l.isBlank(); matters {
		if err := i.confirmation(ctx); err != nil {
			i.stays(err.Error())
		}
	}
	is, matters := l.isBlank()
	var known registrationValue
	i.mu.Lock()
	if decode(i.mu.kv, &known) != nil {
		known.Unconfirmed = i.mu.value.Unconfirmed
	}
	// It is never taken away while we are blank: who finds it gone takes that for an
	// operator's word. See adopt.
	i.mu.value.Unconfirmed = matters || is && known.Unconfirmed
	same := i.mu.value.Unconfirmed == known.Unconfirmed
	i.mu.Unlock()
	if !same && i.write(ctx) != nil {
		return false
	}
	return !is
}

// stays notes why nobody has confirmed our marks yet.
func (i *Instance) stays(why string) {
	l := i.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if was := l.mu.blank; was != nil && was.why != why {
		l.log.Warn("started without its journal, and its marks are not confirmed: nothing is leased", "instance", i.name, "room", i.room, "why", why)
		l.mu.blank = &blank{room: i.room, name: i.name, why: why}
	}
}

const (
	// askPeer bounds how long an instance is waited for that is asked to vouch, and
	// askPeers how many are asked in one try.
	askPeer  = 10 * time.Second // it may remember a million marks
	askPeers = 4
)

// confirmation looks whether there is anything to confirm, and asks those that
// may vouch for us, of our own room first. Its error says why nobody did.
func (i *Instance) confirmation(ctx context.Context) error {
	l := i.ledger
	s, _ := l.current()
	order := l.before().order
	if err := s.lessable(); err != nil {
		return err
	}
	marks, eras := getPrefix(string(l.keys)+"marks/"), getPrefix(string(l.keys)+"eras/")
	marks.Get.Limit, eras.Get.Limit = 1, 1
	answer, err := l.try(ctx, Txn{If: l.holds(s), Then: []Op{marks, eras}})
	switch {
	case err != nil:
		return err
	case !answer.Succeeded:
		if _, err := l.Refresh(ctx); err != nil {
			return err
		}
		return errEpochChanged
	case len(answer.Got[0])+len(answer.Got[1]) == 0:
		return l.confirmMarks(order, "nothing was ever leased")
	}
	peers, err := i.peers(ctx)
	if err != nil {
		return err
	}
	why := errors.New("no other instance is alive whose marks are confirmed")
	for _, p := range peers {
		asking, cancel := context.WithTimeout(ctx, askPeer)
		m, err := i.ask(asking, SeenInstance{Room: p.Room, Name: p.Name, Incarnation: p.incarnation, Address: p.Address})
		cancel()
		if err == nil {
			order, err = i.against(ctx, m)
		}
		if err == nil {
			return l.confirmMarks(order, "instance "+string(p.ID()))
		}
		why = fmt.Errorf("instance %s at %s does not: %w", p.ID(), p.Address, err)
	}
	return why
}

// peers returns those that are asked to vouch: other ones at each try, where
// there are many.
func (i *Instance) peers(ctx context.Context) ([]InstanceRecord, error) {
	if i.ask == nil {
		return nil, nil
	}
	all, err := i.ledger.Instances(ctx, "")
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(r InstanceRecord) bool {
		return !r.Alive || r.Unconfirmed || r.Address == "" || r.incarnation == i.incarnation
	})
	if len(all) == 0 {
		return nil, nil
	}
	i.tries++
	from := (i.tries - 1) * askPeers % len(all)
	all = slices.Concat(all[from:], all[:from])
	slices.SortStableFunc(all, func(a, b InstanceRecord) int {
		return cmp.Compare(i.distance(a), i.distance(b))
	})
	return all[:min(len(all), askPeers)], nil
}

// distance is 0 to an instance of our own room, which knows of the marks that we
// lease from. Every other try all rooms are as near: ours may be cut off.
func (i *Instance) distance(r InstanceRecord) int {
	if r.Room == i.room || i.tries%2 == 0 {
		return 0
	}
	return 1
}

// against holds the store against what another instance remembers. It returns
// the order of the epoch under which nothing of that is missing; its error says
// what is, or what keeps it from being seen. Where it shows that etcd went back in
// time, leasing is halted.
func (i *Instance) against(ctx context.Context, m Memory) (order int64, err error) {
	l := i.ledger
	if mutant("vouched-by-word") {
		return l.before().order, nil
	}
	if err := l.recallOf(m); err != nil {
		return 0, err
	}
	// After the answer, so that the store must show all of it.
	record, err := l.look(ctx, true, l.read)
	if err != nil {
		return 0, err
	}
	order = l.before().order
	s, _ := l.current()
	switch {
	case s.lessable() != nil:
		return 0, s.lessable()
	case len(m.Epochs) == 0 || s.epoch != m.Epochs[len(m.Epochs)-1]:
		return 0, errEpochChanged
	case record.Layout.Version < m.Version || !containsAll(record.Ever, m.Rooms):
		return 0, allocator.Errorf(allocator.Refused, "it remembers layout version %d and the rooms %v; etcd has version %d and %v", m.Version, m.Rooms, record.Layout.Version, record.Ever)
	}
	below := make(map[string]int64)
	for page := range slices.Chunk(sortedTags(m.Marks), comparePage) {
		ops := make([]Op, len(page))
		for k, tag := range page {
			ops[k] = get(l.keys.mark(m.Room, tag))
		}
		answer, err := l.read(ctx, Txn{If: l.holds(s), Then: ops})
		if err != nil {
			return 0, err
		}
		if !answer.Succeeded {
			return 0, errEpochChanged
		}
		for k, tag := range page {
			if nextOf(answer.Got[k]) < m.Marks[tag] {
				below[ops[k].Get.Key] = m.Marks[tag]
			}
		}
	}
	if len(below) > 0 {
		l.suspect("instance "+string(m.ID())+" remembers larger marks than etcd has", below)
		if _, err := l.look(ctx, true, l.read); err != nil {
			return 0, err
		}
		return 0, allocator.Errorf(allocator.Unavailable, "it remembers larger marks than etcd had, which a second look did not confirm")
	}
	return order, nil
}

// recallOf takes over what another instance remembers of epochs and revisions,
// as if it had been in our own journal: the next look judges by it.
func (l *Ledger) recallOf(m Memory) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.timeline
	switch n := len(m.Epochs); {
	case m.UUID != l.mu.identity.UUID:
		return allocator.Errorf(allocator.Refused, "an instance of another cluster answers there")
	case n == 0 || !slices.Contains(m.Epochs, t.current):
		return allocator.Errorf(allocator.Unavailable, "it has not heard of the epoch in force yet")
	case m.Epochs[n-1] != t.current:
		// It knows a later one, which began just now; else etcd went back in time.
		t.turn(m.Epochs[n-1], m.Revision)
	default:
		t.seen = max(t.seen, m.Revision)
	}
	past := make(map[string]struct{}, len(t.past)+len(m.Epochs)) // a copy: moments share the map
	for id := range t.past {
		past[id] = struct{}{}
	}
	for _, id := range m.Epochs[:len(m.Epochs)-1] {
		past[id] = struct{}{}
	}
	t.past = past
	return nil
}

// Vouch returns what this instance remembers of the epoch in force, for another
// one that is without its journal. It looks at etcd first: should that have gone
// back in time, it is halted, and nobody vouched for. Its errors are Refused (this
// one is blank itself), WentBack and Unavailable.
func (i *Instance) Vouch(ctx context.Context) (Memory, error) {
	l := i.ledger
	if _, err := l.look(ctx, true, l.read); err != nil {
		return Memory{}, err
	}
	if err := l.Lessable(); err != nil {
		return Memory{}, err
	}
	m := i.report(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.timeline
	if len(m.Epochs) == 0 || m.Epochs[len(m.Epochs)-1] != t.current {
		return Memory{}, errEpochChanged
	}
	m.Revision = t.seen
	for tag := range m.Marks {
		// A mark of an earlier epoch may lie above etcd's, where `march recover` went
		// on without us.
		if own := i.memory.marks[tag]; own.order == t.order {
			m.Marks[tag] = own.next
		} else {
			delete(m.Marks, tag)
		}
	}
	return m, nil
}

// soughtAtOnce is one try of seek as the instance starts, so that in most cases
// it leases from the first call on.
func (i *Instance) soughtAtOnce(ctx context.Context) {
	if _, matters := i.ledger.isBlank(); matters {
		ctx, cancel := context.WithTimeout(ctx, 2*i.ledger.cfg.TryTimeout)
		defer cancel()
		i.sought(ctx)
	}
}
