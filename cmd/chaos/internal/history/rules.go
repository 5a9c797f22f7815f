package history

import (
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

// change is a key that a transaction wrote.
type change struct {
	kv
	ledger.Entry
}

// transaction holds what one transaction wrote to the rules, and takes it over.
// Its conditions were met by what was there before it, so that is what it is
// held to.
type transaction struct {
	*replay
	at       time.Time
	revision int64 // 0 where it deleted only
	changes  []change
}

func (r *replay) transaction(at time.Time, kvs []kv) {
	t := transaction{replay: r, at: at}
	for _, k := range kvs {
		t.revision = max(t.revision, k.Revision)
		e, err := r.reader.Entry(k.ledger())
		if err != nil {
			r.problem("values", k.Revision, "%v", err)
			continue
		}
		t.changes = append(t.changes, change{k, e})
	}
	for _, c := range t.changes {
		t.rules(c)
	}
	adopted := false
	for _, c := range t.changes {
		r.s.apply(c.kv, c.Entry)
		r.settings(c.Entry)
		adopted = adopted || c.Kind == "layout" || c.Epoch != nil && c.Epoch.Epoch != ""
		if c.Kind == "rooms" {
			r.report(at, c.Entry)
		}
	}
	if adopted {
		r.s.adopted()
	}
	r.life().Last = max(r.life().Last, t.revision)
}

func (t *transaction) problem(rule, format string, args ...any) {
	t.replay.problem(rule, t.revision, format, args...)
}

// begins reports whether the transaction begins an epoch: a cluster's first, or
// one after a halt.
func (t *transaction) begins() bool {
	for _, c := range t.changes {
		if c.Epoch != nil && c.Epoch.Epoch != "" {
			return true
		}
	}
	return false
}

func (t *transaction) halted() bool { return t.s.epoch.Halted }

func (t *transaction) rules(c change) {
	was, there := t.s.kvs[c.Key]
	if c.Revision == 0 {
		if t.reader.Kept(c.Key) {
			t.problem("kept key deleted", "%s", c.Key)
		}
		return
	}
	if c.Revision <= was.Revision {
		t.problem("revisions", "%s is written at revision %d, it was at %d", c.Key, c.Revision, was.Revision)
	}
	switch c.Kind {
	case "marks":
		t.mark(c)
	case "eras":
		t.era(c, was, there)
	case "layout":
		t.layout(c, there)
	case "layouts":
		if there && was.Value != c.Value {
			t.problem("kept key rewritten", "%s", c.Key)
		}
		if !t.wrote("layout", c.Value) {
			t.problem("layout history", "%s is written, and not the layout", c.Key)
		}
	case "epoch":
		t.h.Epochs = append(t.h.Epochs, Epoch{len(t.h.Lives) - 1, t.at, *c.Epoch})
		if epoch := c.Epoch.Epoch; epoch != "" {
			if t.epochs[epoch] {
				t.problem("epoch again", "%s was in force before", epoch)
			}
			if t.s.epoch.Epoch != "" {
				t.problem("epoch without a halt", "%s follows %s", epoch, t.s.epoch.Epoch)
			}
			t.epochs[epoch] = true
		}
	case "identity":
		if there && !t.begins() {
			t.problem("kept key rewritten", "%s, with no new epoch", c.Key)
		}
	case "migrations":
		if before, err := t.reader.Entry(was.ledger()); c.Migration.State.Ended() && (!there || err == nil && !before.Migration.State.Ended()) {
			t.h.Ended++
		}
	case "audit":
		if there {
			t.problem("kept key rewritten", "%s", c.Key)
		}
	}
}

// wrote reports whether the transaction wrote a value to a key of a kind.
func (t *transaction) wrote(kind, value string) bool {
	for _, c := range t.changes {
		if c.Kind == kind && c.Value == value {
			return true
		}
	}
	return false
}

// layout: versions grow, by one but at a recover; rooms that ever were stay; the
// history has it, too; and nothing changes it while leasing is halted, but what
// ends the halt.
func (t *transaction) layout(c change, there bool) {
	now, was := c.Layout, t.s.layout
	t.h.Layouts = append(t.h.Layouts, Layout{len(t.h.Lives) - 1, t.at, c.Revision, *now})
	if !t.wrote("layouts", c.Value) {
		t.problem("layout history", "version %d is written without its history", now.Layout.Version)
	}
	if t.halted() && !t.begins() {
		t.problem("layout while halted", "version %d", now.Layout.Version)
	}
	if !there {
		return
	}
	if grown := now.Layout.Version - was.Layout.Version; grown < 1 || grown > 1 && !t.begins() {
		t.problem("layout version", "%d follows %d", now.Layout.Version, was.Layout.Version)
	}
	ever := make(map[allocator.Room]bool)
	for _, room := range now.Ever {
		ever[room] = true
	}
	for _, room := range was.Ever {
		if !ever[room] {
			t.problem("rooms that ever were", "room %s is gone in version %d", room, now.Layout.Version)
		}
	}
}

// era: one that ended is written with the mark that ends it, and never again; a
// recover, under its halt, writes the stretch that was lost, more than once
// perhaps.
func (t *transaction) era(c change, was kv, there bool) {
	if t.halted() {
		return
	}
	if there && was.Value != c.Value {
		t.problem("kept key rewritten", "%s", c.Key)
	}
	if mark := t.s.marks[c.Tag][c.Room]; *c.Era != mark.Era {
		t.problem("era", "tag %s room %s: %+v is written as ended, the mark has %+v", c.Tag, c.Room, *c.Era, mark.Era)
	}
}

// mark: next never falls; and it rises by a lease, or keeps its era.
func (t *transaction) mark(c change) {
	now, was := *c.Mark, t.s.marks[c.Tag][c.Room]
	if now.Next < was.Next {
		t.problem("mark fell", "tag %s room %s: next %d, it was %d", c.Tag, c.Room, now.Next, was.Next)
	}
	rise := Rise{
		Life: len(t.h.Lives) - 1, Time: t.at, Revision: c.Revision, Room: c.Room, Tag: c.Tag,
		Was: was.Next, Next: now.Next, Mark: now, Layout: t.s.layout.Layout,
	}
	if now.Era != was.Era {
		rise.Lease, rise.NewEra = true, now.Era.Version != was.Era.Version
		// A lease compares its tag's revision, so these are the settings it was made by.
		settings := t.s.tags[c.Tag]
		rise.Floor = max(settings.Start, settings.Skips[c.Room])
		if was.Era.Stamp != now.Era.Stamp {
			rise.Floor = max(rise.Floor, t.s.floors[c.Tag])
		}
		t.lease(rise, was)
	}
	t.h.Rises = append(t.h.Rises, rise)
}

func (t *transaction) lease(rise Rise, was ledger.Mark) {
	era, layout := rise.Mark.Era, t.s.layout.Layout
	say := func(rule, format string, args ...any) {
		t.problem(rule, "tag %s room %s: "+format, append([]any{rise.Tag, rise.Room}, args...)...)
	}
	if era == (ledger.Era{}) {
		say("era", "it is gone, it was %+v", was.Era)
		return
	}
	switch stamp := t.s.stamp(); {
	case t.halted():
		say("lease while halted", "up to %d, in epoch %s", rise.Next, era.Stamp.Epoch)
	case era.Stamp.Epoch != stamp.Epoch:
		say("stamp", "epoch %s, but %s is in force", era.Stamp.Epoch, stamp.Epoch)
	case era.Stamp.Revision != stamp.Revision || era.Version != layout.Version:
		say("stamp", "layout version %d at revision %d, but version %d at %d is in force", era.Version, era.Stamp.Revision, layout.Version, stamp.Revision)
	}
	if era.End != rise.Next {
		say("era", "it ends at %d, and next is %d", era.End, rise.Next)
	}
	if era.End <= was.Next {
		say("overlap", "up to %d is leased, where next was %d", era.End, was.Next)
	}
	if rise.NewEra {
		if era.First < max(was.Next, rise.Floor) {
			say("floor", "an era begins at %d; next was %d, the floor %d", era.First, was.Next, rise.Floor)
		}
		if !t.keeps(rise, was.Era) {
			say("era", "%+v ends, and is not written", was.Era)
		}
	} else if era.First != was.Era.First {
		say("era", "it goes on and begins at %d, it began at %d", era.First, was.Era.First)
	}
	if era.End <= rise.Floor {
		say("floor", "up to %d is leased, the floor is %d", era.End, rise.Floor)
	}
	r, ok := layout.Ranges[rise.Room]
	if !ok || era.First < 0 || era.End < 1 || !r.Contains((era.End-1)%layout.Boundary) || rise.NewEra && !r.Contains(era.First%layout.Boundary) {
		say("range", "from %d up to %d is leased; the room has %v mod %d in version %d", era.First, era.End, r, layout.Boundary, layout.Version)
	}
	settings, ok := t.s.tags[rise.Tag]
	switch {
	case !ok:
		say("tag", "there is no such tag")
	case era.End > settings.Limit:
		say("tag", "up to %d is leased, the limit is %d", era.End, settings.Limit)
	case era.End <= max(settings.Start, settings.Skips[rise.Room]):
		say("tag", "up to %d is leased, the tag starts at %d and the room was skipped to %d", era.End, settings.Start, settings.Skips[rise.Room])
	}
	if len(t.s.registered[rise.Room]) == 0 {
		say("registration", "no instance of the room is registered")
	}
}

// keeps reports whether the transaction writes the era that ended, if there was
// one.
func (t *transaction) keeps(rise Rise, ended ledger.Era) bool {
	if ended.Version == 0 {
		return true
	}
	for _, c := range t.changes {
		if c.Era != nil && *c.Era == ended && c.Room == rise.Room && c.Tag == rise.Tag {
			return true
		}
	}
	return false
}
