package ledger

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// CheckVersion opens the check of an etcd server's version.
var CheckVersion = store.CheckVersion

// Answered notes an answer.
var Answered = (*Contact).answered

// Uncheck has the next lease look before it is made.
func (l *Ledger) Uncheck() { l.uncheck() }

// Suspect has the ledger suspect that etcd went back in time.
func (l *Ledger) Suspect() { l.suspect("a test says so", nil) }

// Beat sends a heartbeat.
func (i *Instance) Beat(ctx context.Context) error { return i.presence.send(ctx) }

// Keep lowers how many layouts, migrations and audit entries are kept.
func (l *Ledger) Keep(layouts, migrations, audits int64) {
	l.bounds = bounds{layouts, migrations, audits}
}

// See reads which processes are registered, as Run does.
func (i *Instance) See(ctx context.Context) { i.seeRegistered(ctx) }

// Watched notes registrations as the watch shows them.
func (i *Instance) Watched(registrations []store.KV) { i.watched(registrations) }

// NextLease returns the segment of at most n IDs that a source of a room leases next by a layout, an
// epoch and its room's mark, and the base of it. marks are those that it read the floor from.
func NextLease(layout record.Layout, e record.Epoch, t record.Tag, room allocator.Room, mark record.Mark,
	marks map[allocator.Room]record.Mark, n int64, now time.Time) (allocator.Segment, int64, error) {
	s := &State{epoch: e.Epoch, margins: e.Margins(), layout: layout}
	source := &tagSource{instance: &Instance{process: process{room: room}}, name: t.Name, mark: mark}
	source.terms = t.Terms()
	terms, _ := t.Terms().At(now)
	source.floor = &floor{Floor: layout.Floor(room, s.margins, terms, marks)}
	base, seg, _, err := source.next(s, n, now)
	return seg, base, err
}
