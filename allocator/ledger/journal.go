package ledger

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
)

// openJournal opens this instance's journal in a directory, and loads the memory of
// earlier processes of its name.
//
// A journal is of one cluster: a directory may hold those of several clusters,
// rooms and instances.
func (i *Instance) openJournal(ctx context.Context, dir string) error {
	l := i.ledger
	uuid := l.pinned().UUID
	path := filepath.Join(dir, uuid, string(i.room), string(i.name)+".journal")
	j, s, err := journal.Open(ctx, path, journal.Record{UUID: uuid, Room: i.room, Name: i.name}, l.log)
	if err != nil {
		return err
	}
	m, err := memoryOf(s)
	if err != nil {
		return errors.Join(err, j.Close())
	}
	i.journal = j
	i.loadMemory(s, m)
	return nil
}

// loadMemory adds the memory of earlier processes of this instance, from its journal.
func (i *Instance) loadMemory(s journal.State, m record.Memory) {
	l := i.ledger
	i.mu.Lock()
	defer i.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.clock
	if n := len(m.Epochs); n > 0 && t.current == "" {
		t.knew(m.Epochs[:n-1]...)
		t.current, t.seen = m.Epochs[n-1], s.Revision
	}
	if n := len(m.Epochs); n > 0 && t.current == m.Epochs[n-1] {
		i.admission.enter(t.began) // that the process before was in
	}
	if m.Version > t.version {
		t.version, t.latest = m.Version, m.Latest
	}
	t.total, t.notBefore = max(t.total, m.MarginTotal), max(t.notBefore, m.NotBefore)
	for tag, mark := range s.Marks {
		// The leases of earlier processes count as leases of this one.
		i.memory.setMark(tag, ownMark{next: mark.Next, leased: mark.Next, version: mark.Version})
	}
	for tag, by := range s.Steps {
		// A floor, a skip or the next period makes a single step far larger, and a chain that starts grows less.
		if step := min(by[0], 100*by[1]); step > 0 {
			i.memory.steps[tag] = step
		}
	}
	for _, lease := range m.Workers {
		i.memory.setWindow(lease.WorkerID, ownWindow{worker: lease.Worker})
	}
	i.memory.seen, i.memory.seenUnder = m.Seen, s.SeenUnder
	i.memory.incarnations = slices.Concat(m.Incarnations, []string{i.incarnation})
	i.memory.epochs, i.memory.leaser = m.Epochs, s.Leaser
	i.memory.written = written{version: m.Version, total: m.MarginTotal, notBefore: m.NotBefore, rooms: m.Rooms,
		formats: m.Formats}
	if n := len(m.Epochs); n > 0 {
		i.memory.written.epoch = m.Epochs[n-1]
	}
	i.memory.unconfirmed = s.Unconfirmed || len(m.Incarnations) == 0
}

// ReadJournal returns the memory in a journal, for `march recover` if the instance
// does not run. Its error is Refused.
func ReadJournal(path string) (record.Memory, error) {
	s, err := journal.Read(path)
	if err != nil {
		return record.Memory{}, err
	}
	m, err := memoryOf(s)
	if err != nil {
		return record.Memory{}, allocator.Errorf(allocator.Refused, "journal %s: %w", path, err)
	}
	return m, nil
}

// memoryOf checks a journal's content and returns it as a memory.
func memoryOf(s journal.State) (record.Memory, error) {
	m := record.Memory{
		UUID: s.UUID, Room: s.Room, Name: s.Name, Incarnations: slices.Clone(s.Incarnations),
		Epochs: slices.Clone(s.Epochs), Version: s.Version, MarginTotal: s.MarginTotal,
		Rooms: slices.Clone(s.Rooms), Seen: slices.Clone(s.Seen), SeenUnder: s.SeenUnder,
		Workers: windowsOf(s), NotBefore: s.NotBefore, Formats: s.Formats,
		Marks: make([]record.RememberedMark, 0, len(s.Marks)),
	}
	if n := len(m.Epochs); n > 0 {
		m.Latest = m.Epochs[n-1]
	}
	for tag, mark := range s.Marks {
		m.Marks = append(m.Marks, record.RememberedMark{Tag: tag, Next: mark.Next})
	}
	m.SortMarks()
	return m, m.Validate()
}

// noteSeen writes the processes that were seen under an epoch to the journal. It
// does not wait for the disk, because the watch calls it. The caller holds the lock.
func (i *Instance) noteSeen(said *pending.Lines, all []record.SeenInstance, under string) {
	if i.journal == nil || len(all) == 0 {
		return
	}
	if err := i.journal.Note(journal.Record{SeenUnder: under, Seen: slices.Clone(all)}); err != nil {
		said.Warn("could not write to the journal which instances are registered", "error", err)
	}
}

// begin records in the journal that this process writes it from now on.
func (i *Instance) begin(ctx context.Context, dir string) error {
	i.memory.marks = make(map[allocator.Tag]*ownMark)
	i.memory.steps = make(map[allocator.Tag]int64)
	i.memory.incarnations = []string{i.incarnation}
	if dir == "" {
		i.startUnconfirmed()
		return nil
	}
	if err := i.ledger.Attach(ctx); err != nil {
		return err
	}
	if err := i.openJournal(ctx, dir); err != nil {
		return err
	}
	if i.memory.unconfirmed {
		i.startUnconfirmed()
	}
	if err := i.journal.Append(ctx, journal.Record{Incarnations: []string{i.incarnation},
		Unconfirmed: i.memory.unconfirmed}); err != nil {
		return errors.Join(err, i.journal.Close())
	}
	return nil
}

// noteUnconfirmed records in the journal that this process is unconfirmed. The next
// process is then unconfirmed, too, unless IDs were leased in between.
func (i *Instance) noteUnconfirmed(ctx context.Context) error {
	if i.journal == nil {
		return nil
	}
	return i.journal.Append(ctx, journal.Record{Unconfirmed: true})
}

// Close closes the journal, after the last lease.
func (i *Instance) Close() error {
	if i.journal == nil {
		return nil
	}
	return i.journal.Close()
}
