package history

import (
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest/rules"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// state is the content of etcd at a revision.
type state struct {
	revision int64
	kvs      map[string]kv

	epoch      record.Epoch
	layout     record.Layout
	layoutKV   kv
	marks      map[allocator.Tag]map[allocator.Room]record.Mark
	tags       map[allocator.Tag]record.Tag
	registered map[allocator.Room]map[allocator.Instance]bool

	// floors has, by tag, the reach of the marks of all rooms when the present layout and epoch
	// came into force. No room's first lease under them may be below it. nil if that is not
	// known.
	floors map[allocator.Tag]int64
}

func newState(revision int64) *state {
	return &state{
		revision: revision, kvs: make(map[string]kv),
		marks:      make(map[allocator.Tag]map[allocator.Room]record.Mark),
		tags:       make(map[allocator.Tag]record.Tag),
		registered: make(map[allocator.Room]map[allocator.Instance]bool),
	}
}

func (s *state) stamp() record.Stamp {
	return record.Stamp{Epoch: s.epoch.Epoch, Revision: s.layoutKV.Revision}
}

// all returns the keys in order.
func (s *state) all() []store.KV {
	all := make([]store.KV, 0, len(s.kvs))
	for _, key := range slices.Sorted(maps.Keys(s.kvs)) {
		all = append(all, s.kvs[key].ledger())
	}
	return all
}

// apply applies a change of a key.
func (s *state) apply(k kv, e record.Entry) {
	s.revision = max(s.revision, k.Revision)
	gone := k.Revision == 0
	if gone {
		delete(s.kvs, k.Key)
	} else {
		s.kvs[k.Key] = k
	}
	switch e.Kind {
	case "epoch":
		if e.Epoch != nil {
			s.epoch = *e.Epoch
		}
	case "layout":
		if e.Layout != nil {
			s.layout, s.layoutKV = *e.Layout, k
		}
	case "tags":
		delete(s.tags, e.Tag)
		if e.Stored != nil {
			s.tags[e.Tag] = *e.Stored
		}
	case "marks":
		if s.marks[e.Tag] == nil {
			s.marks[e.Tag] = make(map[allocator.Room]record.Mark)
		}
		delete(s.marks[e.Tag], e.Room)
		if e.Mark != nil {
			s.marks[e.Tag][e.Room] = *e.Mark
		}
	case "rooms":
		if s.registered[e.Room] == nil {
			s.registered[e.Room] = make(map[allocator.Instance]bool)
		}
		delete(s.registered[e.Room], e.Instance)
		if !gone {
			s.registered[e.Room][e.Instance] = true
		}
	}
}

// adopted computes the floors of a layout and an epoch that just came into force.
func (s *state) adopted() {
	s.floors = make(map[allocator.Tag]int64, len(s.marks))
	for tag, rooms := range s.marks { // also of tags that are gone
		s.floors[tag] = rules.Floor(s.layout, s.epoch.Margins(), nil, rooms)
	}
	for tag, stored := range s.tags {
		s.floors[tag] = rules.Floor(s.layout, s.epoch.Margins(), &stored, s.marks[tag])
	}
}

// load loads a snapshot.
func (r *replay) load(l line) {
	s := r.s
	for _, k := range l.KVs {
		e, err := r.reader.Entry(k.ledger())
		if err != nil {
			r.problem("values", k.Revision, "%v", err)
			continue
		}
		s.apply(k, e)
		r.settings(e)
		r.window(k.Revision, e)
		switch {
		case e.Registration != nil:
			r.report(l.Time, e)
		case e.Kind == "layout":
			r.h.Layouts = append(r.h.Layouts, Layout{len(r.h.Lives) - 1, l.Time, k.Revision, *e.Layout})
		case e.Kind == "epoch":
			r.h.Epochs = append(r.h.Epochs, Epoch{len(r.h.Lives) - 1, l.Time, *e.Epoch})
			if e.Epoch.Epoch != "" {
				r.epochs[e.Epoch.Epoch] = true
			}
		}
	}
	s.revision = l.Revision
}

// gap loads a snapshot after changes that were not seen: marks have not fallen. (If a key is
// gone that is never deleted, it is another life.)
func (r *replay) gap(l line) {
	was := r.s
	life := r.life()
	life.Gaps = append(life.Gaps, Gap{was.revision, l.Revision})
	life.Checked, life.Known, life.Last = l.Time, l.Time, l.Revision
	r.s = newState(l.Revision)
	r.load(l)
	for tag, rooms := range was.marks {
		for room, mark := range rooms {
			if now := r.s.marks[tag][room]; now.Next < mark.Next {
				r.problem("mark fell", l.Revision, "tag %s room %s: next %d, it was %d", tag, room, now.Next, mark.Next)
			}
		}
	}
	if was.stamp() == r.s.stamp() {
		r.s.floors = was.floors
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
