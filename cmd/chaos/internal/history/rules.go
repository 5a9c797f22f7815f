package history

import (
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// change is a key that a transaction wrote.
type change struct {
	kv
	record.Entry
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

func (t *transaction) halted() bool { return t.s.epoch.Halted != nil }

func (t *transaction) rules(c change) {
	was, there := t.s.kvs[c.Key]
	if c.Revision == 0 {
		if t.reader.Kept(c.Key) || !t.inTurn(c) {
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
		if was := t.s.epoch.MarginTotal; c.Epoch.MarginTotal < was || c.Epoch.Halted != nil && c.Epoch.MarginTotal != was {
			t.problem("margin total", "%d, it was %d", c.Epoch.MarginTotal, was)
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

// inTurn reports whether a key that is deleted may be: of layouts, migrations and
// audit entries the oldest goes when another one comes.
func (t *transaction) inTurn(c change) bool {
	if c.Kind != "layouts" && c.Kind != "migrations" && c.Kind != "audit" {
		return true
	}
	kind := strings.TrimRight(c.Key, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	gone := make(map[string]bool)
	comes := false
	for _, other := range t.changes {
		gone[other.Key] = other.Revision == 0
		comes = comes || other.Kind == c.Kind && other.Revision != 0
	}
	for key := range t.s.kvs {
		if strings.HasPrefix(key, kind) && key < c.Key && !gone[key] {
			return false
		}
	}
	return comes
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

// mark: next never falls; and it rises by a lease, or keeps its stamp and eras.
func (t *transaction) mark(c change) {
	now, was := *c.Mark, t.s.marks[c.Tag][c.Room]
	if now.Next < was.Next {
		t.problem("mark fell", "tag %s room %s: next %d, it was %d", c.Tag, c.Room, now.Next, was.Next)
	}
	rise := Rise{
		Life: len(t.h.Lives) - 1, Time: t.at, Revision: c.Revision, Room: c.Room, Tag: c.Tag,
		Was: was.Next, Next: now.Next, Mark: now, Layout: t.s.layout.Layout,
	}
	if now.Stamp != was.Stamp || now.Total != was.Total || now.Began != was.Began || !slices.Equal(now.Eras, was.Eras) {
		rise.Lease, rise.NewEra = true, now.Stamp != was.Stamp
		// A lease compares its tag's revision, so these are the settings it was made by.
		settings := t.s.tags[c.Tag].TagSettings
		rise.Floor = max(settings.Start, settings.Skips[c.Room])
		if rise.NewEra {
			rise.Floor = max(rise.Floor, t.s.floors[c.Tag])
		}
		t.lease(rise, was)
	}
	t.h.Rises = append(t.h.Rises, rise)
}

func (t *transaction) lease(rise Rise, was record.Mark) {
	mark, era, layout := rise.Mark, rise.Mark.Last(), t.s.layout.Layout
	say := func(rule, format string, args ...any) {
		t.problem(rule, "tag %s room %s: "+format, append([]any{rise.Tag, rise.Room}, args...)...)
	}
	if era == (record.Era{}) {
		say("era", "it is gone, it was %+v", was.Last())
		return
	}
	switch stamp := t.s.stamp(); {
	case t.halted():
		say("lease while halted", "up to %d, in epoch %s", rise.Next, era.Epoch)
	case mark.Stamp.Epoch != stamp.Epoch || era.Epoch != stamp.Epoch:
		say("stamp", "epoch %s, but %s is in force", era.Epoch, stamp.Epoch)
	case mark.Stamp.Revision != stamp.Revision || era.Version != layout.Version:
		say("stamp", "layout version %d at revision %d, but version %d at %d is in force",
			era.Version, mark.Stamp.Revision, layout.Version, stamp.Revision)
	case mark.Total != t.s.epoch.MarginTotal:
		say("stamp", "margin total %d, but the epoch has %d", mark.Total, t.s.epoch.MarginTotal)
	}
	if era.End != rise.Next {
		say("era", "it ends at %d, and next is %d", era.End, rise.Next)
	}
	if era.End <= was.Next {
		say("overlap", "up to %d is leased, where next was %d", era.End, was.Next)
	}
	before := was.Eras
	if rise.NewEra {
		if era.First < max(was.Next, rise.Floor) {
			say("floor", "an era begins at %d; next was %d, the floor %d", era.First, was.Next, rise.Floor)
		}
	} else {
		before = before[:max(len(before)-1, 0)]
		if era.First != was.Last().First {
			say("era", "it goes on and begins at %d, it began at %d", era.First, was.Last().First)
		}
	}
	if kept := mark.Eras[:len(mark.Eras)-1]; !slices.Equal(kept, before[max(len(before)-keptEras, 0):]) {
		say("era", "%v follow %v", mark.Eras, was.Eras)
	}
	began := mark.Began != was.Began || mark.Total != was.Total
	if began && was.Stamp.Epoch == mark.Stamp.Epoch || mark.Began > era.First {
		say("era", "the room began at %d with total %d, and was at %d with total %d", mark.Began, mark.Total, was.Began, was.Total)
	}
	if era.End <= rise.Floor {
		say("floor", "up to %d is leased, the floor is %d", era.End, rise.Floor)
	}
	r, ok := layout.Ranges[rise.Room]
	if !ok || era.First < 0 || era.End < 1 || !r.Contains((era.End-1)%layout.Boundary) || rise.NewEra && !r.Contains(era.First%layout.Boundary) {
		say("range", "from %d up to %d is leased; the room has %v mod %d in version %d", era.First, era.End, r, layout.Boundary, layout.Version)
	}
	tag, ok := t.s.tags[rise.Tag]
	settings := tag.TagSettings
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

// keptEras is how many eras a mark keeps besides the latest.
const keptEras = 7
