package ledger

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
)

// openJournal opens this instance's journal in a directory, and recalls what
// earlier processes of its name wrote there.
//
// A journal is of one cluster: a directory may hold those of several clusters,
// rooms and instances.
func (i *Instance) openJournal(dir string) error {
	l := i.ledger
	l.mu.Lock()
	uuid := l.mu.identity.UUID
	l.mu.Unlock()
	path := filepath.Join(dir, uuid, string(i.room), string(i.name)+".journal")
	j, s, err := journal.Open(path, journal.Record{UUID: uuid, Room: string(i.room), Name: string(i.name)})
	if err != nil {
		return err
	}
	m, err := memoryOf(s)
	if err != nil {
		return errors.Join(err, j.Close())
	}
	i.journal = j
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.timeline
	if n := len(m.Epochs); n > 0 && t.current == "" {
		t.past = make(map[string]struct{}, n)
		for _, epoch := range m.Epochs[:n-1] {
			t.past[epoch] = struct{}{}
		}
		t.current, t.seen, t.barred = m.Epochs[n-1], s.Revision, s.Barred
	}
	for tag, next := range m.Marks {
		i.memory.marks[tag] = ownMark{next: next, order: t.order}
	}
	i.memory.seen, i.memory.seenUnder = m.Seen, s.SeenUnder
	i.memory.incarnations = slices.Concat(m.Incarnations, []string{i.incarnation})
	i.memory.epochs, i.memory.version, i.memory.rooms = m.Epochs, m.Version, m.Rooms
	i.memory.blank = s.Blank || len(m.Incarnations) == 0
	return nil
}

// ReadJournal returns what a journal holds: for `march recover`, of an instance
// that does not run. Its error is Refused.
func ReadJournal(path string) (Memory, error) {
	s, err := journal.Read(path)
	if err != nil {
		return Memory{}, err
	}
	m, err := memoryOf(s)
	if err != nil {
		return Memory{}, allocator.Errorf(allocator.Refused, "journal %s: %w", path, err)
	}
	return m, nil
}

// memoryOf checks what a journal holds.
func memoryOf(s journal.State) (Memory, error) {
	m := Memory{
		UUID: s.UUID, Room: allocator.Room(s.Room), Name: allocator.Instance(s.Name), Incarnations: slices.Clone(s.Incarnations),
		Epochs: slices.Clone(s.Epochs), Revision: s.Revision, Version: s.Version, Marks: make(map[allocator.Tag]int64, len(s.Marks)),
	}
	for _, name := range s.Rooms {
		m.Rooms = append(m.Rooms, allocator.Room(name))
	}
	for _, seen := range s.Seen {
		m.Seen = append(m.Seen, SeenInstance{Room: allocator.Room(seen.Room), Name: allocator.Instance(seen.Name), Incarnation: seen.Incarnation, Address: seen.Address})
	}
	for name, next := range s.Marks {
		m.Marks[allocator.Tag(name)] = next
	}
	return m, m.Validate()
}

// Validate checks the names and numbers of a memory that came from outside: from
// a journal, or from another instance. Its errors are Invalid.
func (m Memory) Validate() error {
	var errs []error
	room := func(r allocator.Room) {
		_, err := allocator.ParseRoom(string(r))
		errs = append(errs, err)
	}
	instance := func(i allocator.Instance) {
		_, err := allocator.ParseInstance(string(i))
		errs = append(errs, err)
	}
	room(m.Room)
	instance(m.Name)
	for _, r := range m.Rooms {
		room(r)
	}
	for _, seen := range m.Seen {
		room(seen.Room)
		instance(seen.Name)
	}
	for tag, next := range m.Marks {
		_, err := allocator.ParseTag(string(tag))
		if err == nil && next < 0 {
			err = allocator.Errorf(allocator.Invalid, "tag %s: next %d; allowed: 0 or more", tag, next)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// journalReady returns why the journal cannot be written: known before a lease,
// so that none is wasted.
func (i *Instance) journalReady() error {
	if i.journal == nil {
		return nil
	}
	return i.journal.Ready()
}

// write down what is remembered of a lease, before its segment is returned. If
// we crash before it is there, the segment is a gap; and the journal knows less
// than etcd, which is no harm.
func (i *Instance) note(state *state, tag allocator.Tag, next int64) error {
	if i.journal == nil {
		return nil
	}
	l := i.ledger
	l.mu.Lock()
	r := journal.Record{Epoch: state.epoch, Revision: l.mu.timeline.seen, Marks: []journal.Mark{{Tag: string(tag), Next: next}}}
	if l.mu.timeline.current != state.epoch {
		r.Epoch, r.Revision = "", 0 // it is of another epoch by now
	}
	known := &i.memory
	// Not taken as known before it is written: whoever leases meanwhile writes it too.
	epoch, version, rooms := len(known.epochs) == 0 || known.epochs[len(known.epochs)-1] != state.epoch, state.layout.Layout.Version, state.layout.Ever
	newRooms := !containsAll(known.rooms, rooms)
	r.Vouched = known.blank // else nothing would be leased
	if epoch {
		r.Epochs = []string{state.epoch}
	}
	if version > known.version {
		r.Version = version
	}
	if newRooms {
		for _, room := range rooms {
			r.Rooms = append(r.Rooms, string(room))
		}
	}
	l.mu.Unlock()
	if err := i.journal.Append(r); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i.memory.knows(state)
	i.memory.blank = false
	return nil
}

// knows notes an epoch and a layout.
func (known *recollection) knows(state *state) {
	if state.epoch != "" && !slices.Contains(known.epochs, state.epoch) {
		known.epochs = append(known.epochs, state.epoch)
	}
	known.version = max(known.version, state.layout.Layout.Version)
	if !containsAll(known.rooms, state.layout.Ever) {
		known.rooms = append(slices.Clone(known.rooms), state.layout.Ever...)
		slices.Sort(known.rooms)
		known.rooms = slices.Compact(known.rooms)
	}
}

// noteSeen writes down who was seen under an epoch.
func (i *Instance) noteSeen(all []SeenInstance, under string) {
	if i.journal == nil || len(all) == 0 {
		return
	}
	r := journal.Record{SeenUnder: under}
	for _, s := range all {
		r.Seen = append(r.Seen, journal.Seen{Room: string(s.Room), Name: string(s.Name), Incarnation: s.Incarnation, Address: s.Address})
	}
	if err := i.journal.Append(r); err != nil {
		i.ledger.log.Warn("who is registered was not written down", "error", err)
	}
}

// begin writes down that this process writes the journal from now on.
func (i *Instance) begin(ctx context.Context, dir string) error {
	i.memory.marks = make(map[allocator.Tag]ownMark)
	i.memory.incarnations = []string{i.incarnation}
	if dir == "" {
		i.become()
		return nil
	}
	if err := i.ledger.attach(ctx); err != nil {
		return err
	}
	if err := i.openJournal(dir); err != nil {
		return err
	}
	if i.memory.blank {
		i.become()
	}
	if err := i.journal.Append(journal.Record{Incarnations: []string{i.incarnation}, Blank: i.memory.blank}); err != nil {
		return errors.Join(err, i.journal.Close())
	}
	return nil
}

// noteBlank writes down that this process is blank: one that comes after it is,
// too, unless something was leased in between.
func (i *Instance) noteBlank() error {
	if i.journal == nil {
		return nil
	}
	return i.journal.Append(journal.Record{Blank: true})
}

// Close closes the journal, after the last lease.
func (i *Instance) Close() error {
	if i.journal == nil {
		return nil
	}
	return i.journal.Close()
}
