package rules

import (
	"slices"

	"github.com/march-id/march/allocator/ledger/record"
)

// Check returns the rules that a transaction breaks. The transaction's conditions held on the
// state before it, so its writes are compared with that state.
func Check(keys record.Keys, before Before, writes []Write) []Broken {
	t := &transaction{Before: before, keys: keys, writes: writes}
	for _, w := range writes {
		t.check(w)
	}
	return t.broken
}

func (t *transaction) check(w Write) {
	was, there := t.Get(w.Key)
	if w.Kind == record.Tags {
		t.tag(w, was)
	}
	if w.ModRevision == 0 {
		if t.keys.Kept(w.Key) || !t.inTurn(w) {
			t.breaks("kept key deleted", "%s", w.Key)
		}
		return
	}
	if w.ModRevision <= was.ModRevision {
		t.breaks("revisions", "%s is written at revision %d, it was at %d", w.Key, w.ModRevision, was.ModRevision)
	}
	switch w.Kind {
	case record.Marks:
		t.mark(w)
	case record.Workers, record.Windows:
		t.worker(w)
	case record.Tokens:
		t.token(w)
	case record.LayoutKey:
		t.layout(w, there)
	case record.Layouts:
		if there && string(was.Value) != string(w.Value) {
			t.breaks("kept key rewritten", "%s", w.Key)
		}
		if !t.writesTo(record.LayoutKey, w.Value) {
			t.breaks("layout history", "%s is written, and not the layout", w.Key)
		}
	case record.EpochKey:
		t.epoch(*w.Entry.Epoch)
	case record.IdentityKey:
		if there && !Begins(t.writes) {
			t.breaks("kept key rewritten", "%s, with no new epoch", w.Key)
		}
	case record.Audits, record.Refusals:
		if there {
			t.breaks("kept key rewritten", "%s", w.Key)
		}
	}
}

// token checks that a token comes with the end of its process, and is of the epoch in force.
func (t *transaction) token(w Write) {
	if epoch := t.Epoch(); w.Token.Epoch != epoch.Epoch {
		t.breaks("token", "%s is of epoch %s, but %s is in force", w.Key, w.Token.Epoch, epoch.Epoch)
	}
	if !slices.ContainsFunc(t.writes, func(o Write) bool {
		return o.Registration != nil && o.Room == w.Room && o.Instance == w.Instance && o.Registration.Leaving
	}) {
		t.breaks("token", "%s is written, and its process does not leave", w.Key)
	}
}

func (t *transaction) epoch(now record.Epoch) {
	was := t.Epoch()
	if now.Epoch != "" {
		if t.WasInForce(now.Epoch) {
			t.breaks("epoch again", "%s was in force before", now.Epoch)
		}
		if was.Epoch != "" {
			t.breaks("epoch without a halt", "%s follows %s", now.Epoch, was.Epoch)
		}
	}
	if now.MarginTotal < was.MarginTotal {
		t.breaks("margin total", "%d, it was %d", now.MarginTotal, was.MarginTotal)
	}
}

func (t *transaction) layout(w Write, there bool) {
	now, was := w.Entry.Layout, t.Layout()
	if !t.writesTo(record.Layouts, w.Value) {
		t.breaks("layout history", "version %d is written without its history", now.Layout.Version)
	}
	if t.Epoch().Halted != nil && !Begins(t.writes) {
		t.breaks("layout while halted", "version %d", now.Layout.Version)
	}
	if !there {
		return
	}
	if grown := now.Layout.Version - was.Layout.Version; grown < 1 || grown > 1 && !Begins(t.writes) {
		t.breaks("layout version", "%d follows %d", now.Layout.Version, was.Layout.Version)
	}
	if now.Formats < was.Formats {
		t.breaks("formats", "%d are turned on in version %d, they were %d", now.Formats, now.Layout.Version,
			was.Formats)
	}
	for _, room := range was.Ever {
		if !slices.Contains(now.Ever, room) {
			t.breaks("rooms that ever were", "room %s is gone in version %d", room, now.Layout.Version)
		}
	}
}
