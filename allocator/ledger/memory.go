package ledger

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
)

// Memory is what one instance remembers: what `march recover` asks for.
type Memory struct {
	UUID         string // of the cluster
	Room         allocator.Room
	Name         allocator.Instance
	Incarnations []string // of the processes whose memory this is, the last one last
	Epochs       []string // that were in force, the last one last
	Revision     int64    // the highest under the last epoch; 0 where that is not known
	Version      int64    // the highest layout version
	Rooms        []allocator.Room
	Seen         []SeenInstance
	Marks        map[allocator.Tag]int64 // of its own room: the next ID not yet leased, at least
}

// ID returns the instance's name in the cluster.
func (m Memory) ID() InstanceID { return Registration{Room: m.Room, Name: m.Name}.ID() }

// SeenInstance is a process that was registered.
type SeenInstance struct {
	Room        allocator.Room
	Name        allocator.Instance
	Incarnation string
	Address     string
}

// ID returns the instance's name in the cluster.
func (s SeenInstance) ID() InstanceID { return Registration{Room: s.Room, Name: s.Name}.ID() }

// maxSeen bounds how many registrations are remembered.
const maxSeen = 1000

// recollection is an instance's memory of its own. The ledger's lock guards it:
// what is leased is accepted and remembered in one step, so that Report misses
// nothing.
type recollection struct {
	marks        map[allocator.Tag]ownMark
	seen         []SeenInstance // the oldest first
	seenUnder    string         // the last epoch that seen is of
	incarnations []string
	epochs       []string // as far as they are written down, as all below
	version      int64
	rooms        []allocator.Room // sorted
	blank        bool             // it begins with this process, and nothing was leased yet: see vouch.go
}

// ownMark is the next of a mark as it was read or written, and under which
// epoch.
type ownMark struct {
	next  int64
	order int64
	told  bool // that it is left behind; see left
}

// accept decides whether what a transaction leased is ours. It is not where its
// revision is not above every revision that was seen before it was sent; where
// anything came up meanwhile by which etcd may have gone back in time, or
// `march recover` asked (a new generation); and where it did not come through
// the connection that was checked. It is leased and lost then: a gap. False
// without an error means that another try is due, which looks first.
func (i *Instance) accept(before moment, answer Answer, tag allocator.Tag, next int64) (bool, error) {
	l := i.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.timeline
	switch {
	case answer.Revision <= before.seen && !mutant("no-revision-check"):
		t.suspect("etcd wrote at revision "+itoa(answer.Revision)+" after it had shown revision "+itoa(before.seen), nil)
		return false, allocator.Errorf(allocator.WentBack,
			"etcd wrote at revision %d after it had shown revision %d: it went back in time; nothing of this lease is used", answer.Revision, before.seen)
	case t.generation != before.generation:
		return false, nil
	case answer.Connection == 0 || answer.Sender != t.checked.by:
		t.checked = check{}
		return false, nil
	}
	i.memory.marks[tag] = ownMark{next: next, order: t.order}
	return true, nil
}

// recall holds a mark that was read against what is remembered of it. Where it
// is below that under the same epoch, etcd may have gone back in time. Where the
// epoch is a new one, whoever recovered did not know of us: what we hold may be
// leased by others too, and behind is what we remember. False means that the
// mark is to be read again, after a look.
func (i *Instance) recall(before moment, tag allocator.Tag, next int64) (behind int64, ok bool) {
	l := i.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.timeline
	own, remembered := i.memory.marks[tag]
	switch {
	case before.order != t.order || before.generation != t.generation && !mutant("stale-floor"):
		// Sent before `march recover` asked, say: it tells of marks that we did not
		// answer with, and of a store that is no more.
		return 0, false
	case !remembered || next >= own.next:
		i.memory.marks[tag] = ownMark{next: next, order: t.order}
		return 0, true
	case own.order != t.order:
		return own.next, true
	}
	key := l.keys.mark(i.room, tag)
	t.suspect("the mark "+key+" is "+itoa(next)+", and was "+itoa(own.next), map[string]int64{key: own.next})
	return 0, false
}

// Report returns all that this instance remembers. Where bar is set it is a
// barrier, too: from then on no answer to a transaction that was sent before is
// accepted, and nothing is leased under the epoch in force, nor under one that
// was in force before.
//
// The barrier is written down, too: a process that comes after this one keeps it.
// Its error is Unavailable.
func (i *Instance) Report(bar bool) (Memory, error) {
	m := i.report(bar)
	if bar && i.journal != nil && len(m.Epochs) > 0 {
		if err := i.journal.Append(journal.Record{Barred: m.Epochs[len(m.Epochs)-1]}); err != nil {
			return Memory{}, err
		}
	}
	return m, nil
}

func (i *Instance) report(bar bool) Memory {
	l := i.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.timeline
	if bar && !mutant("no-barrier") {
		t.generation++
		if l.mu.state.epoch != "" { // else it is halted, and the one before it never believed again
			t.barred = l.mu.state.epoch
		}
		l.log.Warn("`march recover` asks: nothing is leased until it has begun a new epoch")
	}
	// More than is written down: what was seen since the last lease.
	now := recollection{epochs: slices.Clone(i.memory.epochs), version: i.memory.version, rooms: slices.Clone(i.memory.rooms)}
	now.knows(l.mu.state)
	m := Memory{
		UUID: l.mu.identity.UUID, Room: i.room, Name: i.name, Incarnations: slices.Clone(i.memory.incarnations),
		Epochs: now.epochs, Version: now.version, Rooms: now.rooms, Seen: slices.Clone(i.memory.seen),
		Marks: make(map[allocator.Tag]int64, len(i.memory.marks)),
	}
	for tag, own := range i.memory.marks {
		if own.next > 0 {
			m.Marks[tag] = own.next
		}
	}
	return m
}

// OnBehind has told called with each tag of which this instance held IDs that
// others may have leased too: a recover did not know of them. What is held of it
// must be dropped. It must be set before the first Source.
func (i *Instance) OnBehind(told func(tag allocator.Tag, next int64)) { i.behind = told }

// left raises a mark over what this instance leased below it, under a new
// epoch, and has what is held of the tag dropped.
func (i *Instance) left(ctx context.Context, tag allocator.Tag, next int64) error {
	l := i.ledger
	l.mu.Lock()
	own := i.memory.marks[tag]
	tell := !own.told && own.order != l.mu.timeline.order // else another goroutine found it, too
	if tell {
		own.told = true
		i.memory.marks[tag] = own
	}
	l.mu.Unlock()
	if tell && i.behind != nil {
		i.behind(tag, next)
	}
	s, _ := l.current()
	key := l.keys.mark(i.room, tag)
	for range leaseAttempts {
		before := l.before()
		answer, err := l.try(ctx, Txn{If: l.holds(s), Then: []Op{get(key)}})
		if err != nil {
			return err
		}
		if !answer.Succeeded {
			_, err := l.Refresh(ctx)
			return err // what comes next looks again
		}
		kv, there := answer.one(0)
		var mark Mark
		cond := absent(key)
		if there {
			if mark, err = decodeMark(kv); err != nil {
				return err
			}
			cond = unchanged(kv)
		}
		if mark.Next < next {
			answer, err := l.try(ctx, Txn{If: append(l.holds(s), cond), Then: []Op{put(key, mutated("raise-stamps", mark.raised(next), Mark{next, Era{s.stamp(), s.layout.Layout.Version, mark.Era.First, next}}).encode())}})
			if err != nil {
				return err
			}
			if !answer.Succeeded {
				continue
			}
		}
		i.recall(before, tag, max(next, mark.Next))
		return nil
	}
	return allocator.Errorf(allocator.Unavailable, "tag %s: its mark was changed by others all the while", tag)
}

const (
	// followEvery is how often an instance looks who is registered: for what a watch
	// missed, which tells at once.
	followEvery = time.Minute
	// comparePage is how many marks are compared with memory at once.
	comparePage = 100
)

// follow notes who is registered, and compares what is remembered with the
// marks whenever there is a new epoch, until ctx ends.
func (i *Instance) follow(ctx context.Context) {
	l := i.ledger
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	order := l.before().order
	i.lookAround(ctx)
	for {
		_, adopted := l.current()
		if now := l.before().order; now != order && l.Lessable() == nil {
			if err := i.compare(ctx); err == nil {
				order = now
			} else {
				l.log.Warn("what is held could not be compared with the marks yet", "error", err)
			}
			i.lookAround(ctx)
		}
		retry := time.NewTimer(heartbeatEvery)
		select {
		case <-ctx.Done():
			retry.Stop()
			return
		case <-adopted:
		case <-retry.C:
		case <-ticker.C:
			i.lookAround(ctx)
		}
		retry.Stop()
	}
}

// compare compares all marks that are remembered from earlier epochs with those
// in etcd.
func (i *Instance) compare(ctx context.Context) error {
	l := i.ledger
	l.mu.Lock()
	order := l.mu.timeline.order
	var tags []allocator.Tag
	for tag, own := range i.memory.marks {
		if own.order != order {
			tags = append(tags, tag)
		}
	}
	l.mu.Unlock()
	slices.Sort(tags)
	for page := range slices.Chunk(tags, comparePage) {
		ops := make([]Op, len(page))
		for k, tag := range page {
			ops[k] = get(l.keys.mark(i.room, tag))
		}
		before := l.before()
		answer, err := l.gets(ctx, ops...)
		if err != nil {
			return err
		}
		for k, tag := range page {
			next := nextOf(answer.Got[k])
			if next == allocator.MaxID {
				continue // it cannot be read, or is at its end: nothing is leased of it
			}
			behind, ok := i.recall(before, tag, next)
			if !ok {
				return allocator.Errorf(allocator.Unavailable, "the epoch, or the mark of tag %s, changed meanwhile", tag)
			}
			if behind > 0 {
				if err := i.left(ctx, tag, behind); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// lookAround notes who is registered. Under a new epoch it begins anew: `march
// recover` has asked those that were seen before, or has gone on without them.
func (i *Instance) lookAround(ctx context.Context) {
	epoch := i.ledger.epoch()
	if all, err := i.ledger.registrations(ctx, epoch); err == nil { // else next time
		i.see(all, epoch)
	}
}

// watched notes who registered just now: should etcd be restored from a backup
// that was made before, `march recover` has to know of them.
func (i *Instance) watched(registrations []KV) {
	epoch := i.ledger.epoch()
	if all, err := i.ledger.parseRegistrations(registrations, epoch); err == nil {
		i.see(all, epoch)
	}
}

// see notes who is registered under an epoch.
func (i *Instance) see(all []SeenInstance, epoch string) {
	i.ledger.mu.Lock()
	seen := i.memory.seen
	if epoch != "" && epoch != i.memory.seenUnder {
		i.memory.seenUnder, seen = epoch, nil
	}
	var added []SeenInstance
	for _, s := range all {
		if !slices.Contains(seen, s) {
			added = append(added, s)
		}
	}
	seen = append(seen, added...)
	i.memory.seen = seen[max(len(seen)-maxSeen, 0):]
	under := i.memory.seenUnder
	i.ledger.mu.Unlock()
	i.noteSeen(added, under)
}

// registrations returns all processes that are registered, and those in whose
// place they are without their memory: under an epoch, or where that is empty
// under any.
func (l *Ledger) registrations(ctx context.Context, epoch string) ([]SeenInstance, error) {
	answer, err := l.gets(ctx, getPrefix(l.keys.registrations("")))
	if err != nil {
		return nil, err
	}
	return l.parseRegistrations(answer.Got[0], epoch)
}

func (l *Ledger) parseRegistrations(found []KV, epoch string) ([]SeenInstance, error) {
	var all []SeenInstance
	for _, kv := range found {
		key, err := l.keys.parse(kv.Key)
		if err != nil {
			return nil, err
		}
		var v registrationValue
		if err := decode(kv, &v); err != nil {
			return nil, err
		}
		if epoch != "" {
			v.under(epoch)
		}
		for _, incarnation := range append(v.Lost, v.Incarnation) {
			all = append(all, SeenInstance{Room: key.room, Name: key.instance, Incarnation: incarnation, Address: v.Address})
		}
	}
	return all, nil
}

// sortedTags returns the tags of marks in order.
func sortedTags[V any](marks map[allocator.Tag]V) []allocator.Tag {
	return slices.Sorted(maps.Keys(marks))
}
