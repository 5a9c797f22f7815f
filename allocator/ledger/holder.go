package ledger

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// How a process becomes the holder of an ordered tag. What it does in its tenure is in tenure.go.

// Hold takes the key of an ordered tag, whose source was read, for this process, unless another process of the room
// holds the tag: then it returns that one's key. hold is the tag's tenure_hold, and silent the nonce of a tenure whose
// holder does not answer, which is taken, too; empty for none. Its errors are those of a lease, and allocator.ErrClosed
// if the tag has changed since its source was read.
func (i *Instance) Hold(ctx context.Context, of allocator.Source, hold time.Duration,
	silent string) (*Tenure, *record.Holder, error) {
	s, ours := of.(*tagSource)
	if !ours || !s.ordered {
		return nil, nil, allocator.Errorf(allocator.Internal, "no source of an ordered tag")
	}
	_ = i.SendReleases(ctx) // one of them may be this tag's: it is not to wait for its own tenure before
	revision := s.tagRevision
	for range leaseAttempts {
		state, err := i.ledger.LeasableState(ctx)
		if err != nil {
			return nil, nil, i.noted(err)
		}
		if !s.known {
			if _, err := s.read(ctx, state); err != nil {
				return nil, nil, err
			}
		}
		if s.tagRevision != revision {
			return nil, nil, allocator.ErrClosed
		}
		was, known, err := i.readHolder(ctx, s.name, state)
		if err != nil {
			return nil, nil, err
		}
		if !s.known || !known {
			continue
		}
		if was.Nonce != silent && was.HeldIn(state.epoch) && was.Instance != i.name {
			return nil, &was, nil
		}
		if t, err := i.takeHolder(ctx, s, hold, state, was); err != nil || t != nil {
			return t, nil, err
		}
	}
	return nil, nil, allocator.Errorf(allocator.Unavailable,
		"tag %s: other instances of room %s took its key first, %d times in a row", s.name, i.room, leaseAttempts)
}

// Holder returns the key of an ordered tag if another process of the room holds it, and otherwise nil.
func (i *Instance) Holder(ctx context.Context, tag allocator.Tag) (*record.Holder, error) {
	for {
		state, err := i.ledger.LeasableState(ctx)
		if err != nil {
			return nil, i.noted(err)
		}
		was, known, err := i.readHolder(ctx, tag, state)
		switch {
		case err != nil:
			return nil, err
		case known && was.HeldIn(state.epoch) && was.Instance != i.name:
			return &was, nil
		case known:
			return nil, nil
		}
	}
}

// readHolder reads a tag's key. False without an error means that state is out of date, and was read again.
func (i *Instance) readHolder(ctx context.Context, tag allocator.Tag, state *State) (h record.Holder, known bool,
	err error) {
	l := i.ledger
	h.KV.Key = l.keys.Holder(i.room, tag)
	answer, err := l.Try(ctx, store.Txn{If: l.Holds(state), Then: []store.Op{store.OpGet(h.KV.Key)}})
	if err != nil {
		return h, false, i.noted(err)
	}
	if !answer.Succeeded {
		_, err := l.Refresh(ctx)
		return h, false, err
	}
	if kv, there := answer.One(0); there {
		h, err = record.ReadAs[record.Holder](l.keys, kv)
	}
	return h, err == nil, err
}

// takeHolder takes a key over what was read there. Nil without an error means that a known value was out of date, or
// that the answer does not count: then no tenure begins, whatever etcd has.
func (i *Instance) takeHolder(ctx context.Context, s *tagSource, hold time.Duration, state *State,
	was record.Holder) (*Tenure, error) {
	l := i.ledger
	t := &Tenure{instance: i, tag: s.name, hold: hold, rest: s.restOf(state, was), over: make(chan struct{})}
	t.holder = record.Holder{Instance: i.name, Incarnation: i.incarnation, Epoch: state.epoch,
		Nonce: record.RandomHex(), Taken: l.now(), Hold: record.DurationOf(hold)}
	i.presence.with(func() { t.holder.Address = i.presence.mu.value.Address })
	t.holder.KV = store.KV{Key: was.KV.Key, Value: record.Encode(&t.holder)}
	c := claim{
		state: state, was: was.KV, also: []store.Cond{{Key: l.keys.Tag(s.name), ModRevision: s.tagRevision}},
		then:    []store.Op{store.OpPut(t.holder.KV.Key, t.holder.KV.Value)},
		sends:   func() bool { return false },
		accepts: func(int64) bool { return true },
		learns: func(ctx context.Context, _ sentAt, _ store.Answer) error {
			s.known = false
			_, err := l.Refresh(ctx)
			return err
		},
	}
	if t.rest.Count > 0 { // it counts as a lease of this process, which is to remember its end
		end, version := was.Rest.End, t.rest.Version
		c.also = append(c.also, store.Cond{Key: s.markKey(), ModRevision: s.revision, Value: s.value()})
		c.note = journal.Record{Marks: []journal.Mark{{Tag: s.name, Next: end, Version: version}}}
		c.sends = func() bool { i.sends(s.name, end, state.margins.Total); return false }
		c.accepts = func(revision int64) bool { i.accepts(s.name, revision, version, end); return true }
	}
	sent := time.Now()
	revision, ours, err := i.claim(ctx, c)
	if err != nil || !ours {
		return nil, err
	}
	t.holder.KV.ModRevision = revision
	t.confirmed.Store(&sent)
	if !was.ReleasedIn(state.epoch) {
		t.opens = time.Now().Add(waitFor(max(hold, was.Hold.Duration())))
	}
	s.tenure = t
	i.holders.add(t)
	l.log.Info("holds an ordered tag", "tag", s.name, "room", i.room, "rest", t.rest.Count,
		"opens_in", time.Until(t.opens).Round(time.Millisecond))
	return t, nil
}

// restOf returns the IDs that the tenure before left in a released key, if none of them can have been issued, and they
// may be issued now.
func (s *tagSource) restOf(state *State, was record.Holder) (rest allocator.Segment) {
	r := was.Rest
	if r == nil || !was.ReleasedIn(state.epoch) || r.Epoch != state.epoch || r.End != s.mark.Next ||
		r.Version != state.layout.Layout.Version || s.mark.Stamp != state.stamp() || s.floor == nil {
		return rest
	}
	before := *s // as it was before these IDs were leased
	before.mark.Next = r.First
	terms, present := before.terms.At(s.instance.Now())
	base, span, opens, err := before.base(state, terms, present)
	if err != nil || opens {
		return rest
	}
	limit := min(terms.Limit, r.End)
	if span.End > 0 {
		limit = min(limit, span.End)
	}
	rest, _ = state.layout.Layout.Segment(s.instance.room, max(base, r.First), r.End-r.First, limit)
	return rest
}

// waitFor is how long a process may go on in its tenure after another one took the key: its hold, by a clock that is
// slower by a tenth.
func waitFor(hold time.Duration) time.Duration { return hold + hold/10 }

// Sticky reports whether a tenure is so young that its holder keeps it though it does not answer: otherwise processes
// that do not reach each other would take the tag in turn, and none would issue. A younger one has not issued for a
// second yet. Its age is counted from the first answer of etcd here that was as new as its key.
func (i *Instance) Sticky(h *record.Holder) bool {
	return !i.ledger.sawBefore(h.KV.ModRevision, time.Now().Add(-waitFor(h.Hold.Duration())-time.Second))
}
