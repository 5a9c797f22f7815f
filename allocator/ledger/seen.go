package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// An instance remembers which processes were registered under the epoch in force,
// and which of these left in good order. If etcd is restored from an older backup,
// `march recover` has to ask all processes that may have leased since.

// registrationsEvery is how often an instance reads which processes are registered, in
// case the watch, which is faster, missed some.
const registrationsEvery = time.Minute

// watchRegistrations notes which processes are registered until ctx ends.
func (i *Instance) watchRegistrations(ctx context.Context) {
	ticker := time.NewTicker(registrationsEvery)
	defer ticker.Stop()
	epochSeq := i.ledger.before().epochSeq - 1
	for {
		_, adopted := i.ledger.State()
		if now := i.ledger.before().epochSeq; now != epochSeq {
			epochSeq = now
			i.seeRegistered(ctx)
			i.askRights(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-adopted:
		case <-ticker.C:
			i.seeRegistered(ctx)
			i.askRights(ctx)
		}
	}
}

// seeRegistered notes which processes are registered. Under a new epoch it begins anew:
// `march recover` has asked those that were seen before, or has gone on without them.
func (i *Instance) seeRegistered(ctx context.Context) {
	epoch := i.ledger.epoch()
	if all, err := i.ledger.registrations(ctx, epoch); err == nil { // otherwise next time
		i.see(all, epoch)
	}
}

// watched notes which processes registered or left just now. Before this one has registered
// there is nothing to note: it reads them all as it begins to run.
func (i *Instance) watched(registrations []store.KV) {
	if i.registered().ModRevision == 0 {
		return
	}
	epoch := i.ledger.epoch()
	i.see(i.ledger.parseRegistrations(registrations, epoch), epoch)
}

// fewSeen is how many processes are searched for without an index: a watch reports one
// at a time, also if a thousand register or serve a new layout.
const fewSeen = 4

// see notes processes that are registered under an epoch.
func (i *Instance) see(all []record.SeenInstance, epoch string) {
	var said pending.Lines
	defer said.Write(i.ledger.log)
	i.mu.Lock()
	defer i.mu.Unlock()
	seen := i.memory.seen
	if epoch != "" && epoch != i.memory.seenUnder {
		i.memory.seenUnder, seen = epoch, nil
	}
	seen = slices.Clone(seen)
	var places map[record.SeenInstance]struct{} // by all fields except Left; nil if a search is cheaper
	if len(all) > fewSeen {
		places = make(map[record.SeenInstance]struct{}, len(seen))
		for _, s := range seen {
			s.Left = 0
			places[s] = struct{}{}
		}
	}
	var changed []record.SeenInstance
	for k, s := range all {
		name := s
		name.Left = 0
		_, known := places[name]
		if places == nil {
			known = slices.ContainsFunc(seen, func(o record.SeenInstance) bool { o.Left = 0; return o == name })
		}
		// Of the processes that a leave covers only those are noted that are known already. Recover
		// asks for the leaver, which has their memory. Up to 100 others with each leave would push
		// processes out of the list that recover must ask.
		covered := s.Left != 0 && k+1 < len(all) && all[k+1].ID() == s.ID() && all[k+1].Left == s.Left
		if !known && !covered {
			if places != nil {
				places[name] = struct{}{}
			}
			seen, changed = append(seen, s), append(changed, s)
		}
		if s.Left == 0 {
			continue
		}
		for at := range seen { // it may have been registered at other addresses
			if seen[at].Incarnation == s.Incarnation && seen[at].Left == 0 {
				seen[at].Left = s.Left
				changed = append(changed, seen[at])
			}
		}
	}
	i.memory.seen = record.TrimSeen(seen, maxSeen)
	i.noteSeen(&said, changed, i.memory.seenUnder) // under the lock, to keep the order
}

// registrations returns all registered processes, and the processes that they replaced
// without having their memory, under an epoch, or under any if epoch is empty.
func (l *Ledger) registrations(ctx context.Context, epoch string) ([]record.SeenInstance, error) {
	answer, err := l.Gets(ctx, store.OpGetPrefix(l.keys.Registrations("")))
	if err != nil {
		return nil, err
	}
	return l.parseRegistrations(answer.Got[0], epoch), nil
}

// parseRegistrations returns the processes that registrations name. One that cannot
// be read is logged and skipped.
func (l *Ledger) parseRegistrations(found []store.KV, epoch string) []record.SeenInstance {
	var all []record.SeenInstance
	for _, kv := range found {
		seen, err := l.keys.SeenIn(kv, epoch)
		if err != nil {
			l.refusedLog.Log(time.Now(), l.log.Warn, "a registration cannot be read", "error", err)
		}
		all = append(all, seen...)
	}
	return all
}
