package history

import (
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/ledgertest/rules"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// load loads a snapshot, the keys after changes that were not seen.
func (r *replay) load(l line) {
	var kvs []store.KV
	for _, k := range l.KVs {
		e, err := r.keys.Entry(k.ledger())
		if err != nil {
			r.problem("values", k.Revision, "%v", err)
			continue
		}
		kvs = append(kvs, k.ledger())
		r.settings(e)
		r.window(k.Revision, e)
		switch {
		case e.Registration != nil:
			r.report(l.Time, e)
		case e.Kind == record.LayoutKey:
			r.h.Layouts = append(r.h.Layouts, Layout{len(r.h.Lives) - 1, l.Time, k.Revision, *e.Layout})
		case e.Kind == record.EpochKey:
			r.h.Epochs = append(r.h.Epochs, Epoch{len(r.h.Lives) - 1, l.Time, *e.Epoch})
		}
	}
	r.s.Load(kvs, l.Revision)
}

// gap loads a snapshot after changes that were not seen: marks have not fallen. (If a key is
// gone that is never deleted, it is another life.)
func (r *replay) gap(l line) {
	life, were := r.life(), r.s.All()
	life.Gaps = append(life.Gaps, Gap{r.s.Revision(), l.Revision})
	life.Checked, life.Known, life.Last = l.Time, l.Time, l.Revision
	r.load(l)
	now := r.s.Before()
	for _, kv := range were {
		if e, err := r.keys.Entry(kv); err == nil && e.Mark != nil && now.Mark(e.Room, e.Tag).Next < e.Mark.Next {
			r.problem("mark fell", l.Revision, "tag %s room %s: next %d, it was %d", e.Tag, e.Room,
				now.Mark(e.Room, e.Tag).Next, e.Mark.Next)
		}
	}
}

// transaction compares the writes of one transaction with the rules, and applies them.
func (r *replay) transaction(at time.Time, kvs []kv) {
	revision := int64(0) // if it only deleted
	var writes []rules.Write
	for _, k := range kvs {
		revision = max(revision, k.Revision)
		e, err := r.keys.Entry(k.ledger())
		if err != nil {
			r.problem("values", k.Revision, "%v", err)
			continue
		}
		writes = append(writes, rules.Write{KV: k.ledger(), Entry: e})
	}
	was := r.s.Before()
	for _, broken := range rules.Check(r.keys, was, writes) {
		r.problem(broken.Rule, revision, "%s", broken.Text)
	}
	for _, w := range writes {
		if w.ModRevision != 0 {
			r.note(at, was, w)
		}
	}
	r.s.Apply(writes)
	for _, w := range writes {
		r.settings(w.Entry)
		if w.Kind == record.Registrations {
			r.report(at, w.Entry)
		}
	}
	r.life().Last = max(r.life().Last, revision)
}

// note adds the writes of a transaction to the history.
func (r *replay) note(at time.Time, was rules.Before, w rules.Write) {
	life := len(r.h.Lives) - 1
	r.window(w.ModRevision, w.Entry)
	switch w.Kind {
	case record.LayoutKey:
		r.h.Layouts = append(r.h.Layouts, Layout{life, at, w.ModRevision, *w.Entry.Layout})
	case record.EpochKey:
		r.h.Epochs = append(r.h.Epochs, Epoch{life, at, *w.Entry.Epoch})
	case record.Migrations:
		kv, there := was.Get(w.Key)
		earlier, err := r.keys.Entry(kv)
		if w.Migration.State.Ended() && (!there || err == nil && !earlier.Migration.State.Ended()) {
			r.h.Ended++
		}
	case record.Marks:
		now, earlier := *w.Entry.Mark, was.Mark(w.Room, w.Entry.Tag)
		rise := Rise{
			Life: life, Time: at, Revision: w.ModRevision, Room: w.Room, Tag: w.Entry.Tag,
			Was: earlier.Next, Next: now.Next, Mark: now, Layout: was.Layout().Layout,
		}
		if rules.Leased(now, earlier) {
			rise.Lease, rise.NewEra = true, now.Stamp != earlier.Stamp
			rise.Floor = rules.Least(was, w.Room, w.Entry.Tag, rise.NewEra, earlier, now.Next)
		}
		r.h.Rises = append(r.h.Rises, rise)
	}
}

// report stores an instance's report of its layout.
func (r *replay) report(at time.Time, e record.Entry) {
	life := len(r.h.Lives) - 1
	for i := range slices.Backward(r.h.Reports) {
		last := &r.h.Reports[i]
		if last.Room == e.Room && last.Instance == e.Instance {
			if last.Life == life && last.Until.IsZero() {
				if e.Registration != nil && e.Registration.Version == last.Version {
					return // the report continues
				}
				last.Until = at
			}
			break
		}
	}
	if e.Registration != nil {
		r.h.Reports = append(r.h.Reports, Report{Life: life, Room: e.Room, Instance: e.Instance,
			Version: e.Registration.Version, From: at})
	}
}
