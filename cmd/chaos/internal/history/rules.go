package history

import (
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest/rules"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// before is the content of etcd before a transaction: rules.Before.
type before struct {
	*state
	epochs map[string]bool // all that were ever in force
}

func (b before) Get(key string) (store.KV, bool) {
	k, there := b.kvs[key]
	return k.ledger(), there
}

func (b before) Older(prefix, key string) (older []string) {
	for other := range b.kvs {
		if len(other) > len(prefix) && other[:len(prefix)] == prefix && other < key {
			older = append(older, other)
		}
	}
	return older
}

func (b before) Epoch() record.Epoch   { return b.epoch }
func (b before) Layout() record.Layout { return b.layout }

func (b before) Tag(tag allocator.Tag) (record.Tag, bool) {
	t, there := b.tags[tag]
	return t, there
}

func (b before) Mark(room allocator.Room, tag allocator.Tag) record.Mark { return b.marks[tag][room] }
func (b before) Floor(tag allocator.Tag) int64                           { return b.floors[tag] }
func (b before) Registered(room allocator.Room) bool                     { return len(b.registered[room]) > 0 }
func (b before) WasInForce(epoch string) bool                            { return b.epochs[epoch] }

// transaction compares the writes of one transaction with the rules, and applies them.
func (r *replay) transaction(at time.Time, kvs []kv) {
	revision := int64(0) // if it only deleted
	var writes []rules.Write
	for _, k := range kvs {
		revision = max(revision, k.Revision)
		e, err := r.reader.Entry(k.ledger())
		if err != nil {
			r.problem("values", k.Revision, "%v", err)
			continue
		}
		writes = append(writes, rules.Write{KV: k.ledger(), Entry: e})
	}
	was := before{r.s, r.epochs}
	for _, broken := range rules.Check(r.reader, was, writes) {
		r.problem(broken.Rule, revision, "%s", broken.Text)
	}
	for _, w := range writes {
		if w.ModRevision != 0 {
			r.note(at, was, w)
		}
	}
	adopted := false
	for _, w := range writes {
		r.s.apply(kv{w.Key, string(w.Value), w.ModRevision}, w.Entry)
		r.settings(w.Entry)
		adopted = adopted || w.Kind == "layout" || w.Epoch != nil && w.Epoch.Epoch != ""
		if w.Kind == "rooms" {
			r.report(at, w.Entry)
		}
	}
	if adopted {
		r.s.adopted()
	}
	r.life().Last = max(r.life().Last, revision)
}

// note adds the writes of a transaction to the history.
func (r *replay) note(at time.Time, was before, w rules.Write) {
	life := len(r.h.Lives) - 1
	r.window(w.ModRevision, w.Entry)
	switch w.Kind {
	case "layout":
		r.h.Layouts = append(r.h.Layouts, Layout{life, at, w.ModRevision, *w.Entry.Layout})
	case "epoch":
		r.h.Epochs = append(r.h.Epochs, Epoch{life, at, *w.Entry.Epoch})
		if w.Entry.Epoch.Epoch != "" {
			r.epochs[w.Entry.Epoch.Epoch] = true
		}
	case "migrations":
		kv, there := was.Get(w.Key)
		earlier, err := r.reader.Entry(kv)
		if w.Migration.State.Ended() && (!there || err == nil && !earlier.Migration.State.Ended()) {
			r.h.Ended++
		}
	case "marks":
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
