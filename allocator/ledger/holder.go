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

// Hold takes the key of an ordered tag, whose source was read, for this process, unless another process holds the tag:
// then it returns that one's key. hold is the tag's tenure_hold, and silent the nonce of a tenure whose
// holder does not answer, which is taken, too; empty for none. Its errors are those of a lease, and allocator.ErrClosed
// if the tag has changed since its source was read.
func (i *Instance) Hold(ctx context.Context, of allocator.Source, hold time.Duration,
	silent string) (*Tenure, *record.Holder, error) {
	s, ours := of.(*tagSource)
	if !ours || !s.ordered {
		return nil, nil, allocator.Errorf(allocator.Internal, "no source of an ordered tag")
	}
	if i.holders.releases(s.name) { // the tag is not to wait for its own tenure before
		_ = i.SendReleases(ctx)
	}
	revision, began := s.tagRevision, time.Now()
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
		was, known, err := i.readHolder(ctx, s.name, s.cluster, state)
		if err != nil {
			return nil, nil, err
		}
		if !s.known || !known {
			continue
		}
		if was.Nonce != silent && heldElsewhere(i, &was, state) {
			there, known, err := i.registered(ctx, &was, i.room)
			if err != nil || there {
				return nil, &was, err
			}
			// The home moved here, and the holder releases the key, or is lost.
			if (!known || time.Since(began) < homeMovesIn) && store.Sleep(ctx, homeMovesIn/10) {
				continue
			}
		}
		if t, err := i.takeHolder(ctx, s, hold, state, was); err != nil || t != nil {
			return t, nil, err
		}
	}
	return nil, nil, allocator.Errorf(allocator.Unavailable,
		"tag %s: room %s got no tenure in %d tries: other instances took its key first, or its home was being moved",
		s.name, i.room, leaseAttempts)
}

// homeMovesIn is how long the new home of a tag waits for the old one to release the key. Then it takes it.
const homeMovesIn = 300 * time.Millisecond

// heldElsewhere reports whether another process holds a tag, by its key.
func heldElsewhere(i *Instance, h *record.Holder, state *State) bool {
	return h.HeldIn(state.epoch) && (h.Instance != i.name || h.Room != "" && h.Room != i.room)
}

// registered reports whether a holder of a tag that is ordered over all rooms is a registered process of the home, and
// sets its address. Any room may write the key of all rooms, and only the home's own registrations. It is not known
// where etcd no longer shows the key, or does not show it yet: its member may be behind the one that the key came from.
func (i *Instance) registered(ctx context.Context, h *record.Holder, home allocator.Room) (there, known bool,
	err error) {
	if h.Room == "" || h.Room != home {
		return h.Room == "", true, nil
	}
	answer, err := i.ledger.Try(ctx, store.Txn{If: []store.Cond{store.Unchanged(h.KV)},
		Then: []store.Op{store.OpGet(i.ledger.keys.Registration(home, h.Instance))}})
	if err != nil || !answer.Succeeded {
		return false, false, i.noted(err)
	}
	kv, there := answer.One(0)
	if !there {
		return false, true, nil
	}
	r, err := record.ReadAs[record.Instance](i.ledger.keys, kv)
	h.Address = r.Address
	return err == nil && r.Incarnation == h.Incarnation, true, nil
}

// Holder returns the key of an ordered tag if another process holds it, and otherwise nil. home is that of a tag that
// is ordered over all rooms, and empty for any other.
func (i *Instance) Holder(ctx context.Context, tag allocator.Tag, home allocator.Room) (*record.Holder, error) {
	for {
		state, err := i.ledger.LeasableState(ctx)
		if err != nil {
			return nil, i.noted(err)
		}
		was, known, err := i.readHolder(ctx, tag, home != "", state)
		if known && err == nil && heldElsewhere(i, &was, state) {
			var there bool
			if there, known, err = i.registered(ctx, &was, home); there && err == nil {
				return &was, nil
			}
			if !known && err == nil {
				store.Sleep(ctx, homeMovesIn/10)
			}
		}
		if known || err != nil {
			return nil, err
		}
	}
}

// AnyOf returns the registered instances of a room that do not leave, each as a holder would be named.
func (i *Instance) AnyOf(ctx context.Context, room allocator.Room) (list []record.Holder, err error) {
	l := i.ledger
	answer, err := l.Try(ctx, store.Txn{Then: []store.Op{store.OpGetPrefix(l.keys.In(room, record.Registrations))}})
	if err != nil {
		return nil, i.noted(err)
	}
	for _, kv := range answer.Got[0] {
		if r, err := record.ReadAs[record.Instance](l.keys, kv); err == nil && !r.Leaving {
			list = append(list, record.Holder{Room: room, Instance: r.Name, Address: r.Address})
		}
	}
	return list, nil
}

// readHolder reads a tag's key. False without an error means that state is out of date, and was read again.
func (i *Instance) readHolder(ctx context.Context, tag allocator.Tag, cluster bool, state *State) (h record.Holder,
	known bool, err error) {
	l, room := i.ledger, i.room
	if cluster {
		room = ""
	}
	h.KV.Key = l.keys.Holder(room, tag)
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
	t := &Tenure{instance: i, tag: s.name, hold: hold, over: make(chan struct{})}
	rest := s.restOf(state, was)
	t.mu.rest = rest
	waits, longest, held := !was.ReleasedIn(state.epoch), hold, heldElsewhere(i, &was, state)
	if waits {
		longest = max(hold, was.Hold.Duration())
		if was.Epoch != state.epoch || young(i, &was) { // it may wait itself, for one before it
			longest = max(longest, was.Before.Duration())
		}
	}
	t.holder = record.Holder{Instance: i.name, Incarnation: i.incarnation, Epoch: state.epoch,
		Nonce: record.RandomHex(), Taken: l.now(), Hold: record.DurationOf(hold),
		TookYoung: held && young(i, &was) && i.ledger.sawBefore(0, time.Now().Add(-waitFor(longest)-time.Second))}
	if longest > hold {
		t.holder.Before = record.DurationOf(longest)
	}
	if s.cluster {
		t.holder.Room = i.room
	}
	i.presence.with(func() { t.holder.Address = i.presence.mu.value.Address })
	t.holder.KV = store.KV{Key: was.KV.Key, Value: record.Encode(&t.holder)}
	c := claim{
		state: state, was: was.KV, also: []store.Cond{{Key: l.keys.Tag(s.name), ModRevision: s.tagRevision}},
		then: []store.Op{store.OpPut(t.holder.KV.Key, t.holder.KV.Value)},
		learns: func(ctx context.Context, _ sentAt, _ store.Answer) error {
			s.known = false
			_, err := l.Refresh(ctx)
			return err
		},
	}
	if rest.Count > 0 { // it counts as a lease of this process, which is to remember its end
		c.also = append(c.also, store.Cond{Key: s.markKey(), ModRevision: s.revision, Value: s.value()})
		c.mark = journal.Mark{Tag: s.name, Next: was.Rest.End, Version: rest.Version}
	}
	sent := time.Now()
	revision, ours, err := i.claim(ctx, c)
	if err != nil || !ours {
		return nil, err
	}
	t.holder.KV.ModRevision = revision
	t.confirmed.Store(&sent)
	if waits {
		t.opens = time.Now().Add(waitFor(longest))
	}
	s.tenure = t
	if s.cluster { // these marks may lack what the tenure before leased
		s.floor = nil
	}
	i.holders.add(t)
	l.log.Info("holds an ordered tag", "tag", s.name, "room", i.room, "rest", rest.Count,
		"opens_in", max(0, time.Until(t.opens)).Round(time.Millisecond))
	return t, nil
}

// restOf returns the IDs that the tenure before left in a released key, if none of them can have been issued, and they
// may be issued now.
func (s *tagSource) restOf(state *State, was record.Holder) (rest allocator.Segment) {
	r := was.Rest
	if r == nil || !was.ReleasedIn(state.epoch) || r.Epoch != state.epoch || r.End != s.mark.Next ||
		r.Version != state.layout.Layout.Version || s.mark.Stamp != state.stamp() || s.floor == nil ||
		was.Room != "" {
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

// Sticky reports whether a tag's holder keeps it though it does not answer: its tenure is young, and was taken from a
// young one, or another process took a tenure of this one not long ago. Otherwise processes that do not reach each
// other would take the tag in turn, and none would issue.
func (i *Instance) Sticky(tag allocator.Tag, h *record.Holder) bool {
	lost := i.holders.lost(tag, time.Now().Add(-10*waitFor(h.Hold.Duration())))
	return (lost || h.TookYoung) && young(i, h)
}

// young reports whether a tenure has not issued for a second yet: none before it issues any more where it is not. Its
// age is counted from the first answer of etcd here that was as new as its key.
func young(i *Instance, h *record.Holder) bool {
	wait := waitFor(max(h.Hold.Duration(), h.Before.Duration()))
	return !i.ledger.sawBefore(h.KV.ModRevision, time.Now().Add(-wait-time.Second))
}
