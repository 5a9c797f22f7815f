package ledger

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/throttle"
)

// Contact says when and how etcd last answered a ledger.
type Contact struct {
	Away    time.Time     // since when tries fail, zero while they do not
	Outages time.Duration // for how long tries failed, in all
	Last    time.Time     // of the last answer, zero before the first
	Cause   error         // of the last failure, nil while tries do not fail
	Latency time.Duration // of an answer, a moving average; zero before the first
	Members store.Members // that answer while tries fail, as last asked

	late int // how many tries in a row had all their time, and no answer
}

// latencyWeight is about the number of answers in the moving average of the
// latency, as in TCP: one slow answer shows, but not for long.
const latencyWeight = 8

// answered notes an answer that came after took.
func (c *Contact) answered(now time.Time, took time.Duration) {
	c.Outages += c.lasts(now)
	c.Away, c.Cause, c.Members, c.late = time.Time{}, nil, store.Members{}, 0
	if c.Last.IsZero() {
		c.Latency = took
	} else {
		c.Latency += (took - c.Latency) / latencyWeight
	}
	c.Last = now
}

// lasts returns for how long tries have failed, 0 while they do not.
func (c *Contact) lasts(now time.Time) time.Duration {
	if c.Away.IsZero() {
		return 0
	}
	return max(now.Sub(c.Away), 0)
}

// contacts is when and how etcd answered this process.
type contacts struct {
	tryTimeout time.Duration // Config.TryTimeout

	line struct {
		sync.Mutex
		contact  Contact
		awayLog  throttle.Log
		saidAway bool // the log says that etcd is away, so its return will be logged, too
	}
}

// answered notes an answer that came after took.
func (l *contacts) answered(ctx context.Context, said *pending.Lines, now time.Time, took time.Duration) {
	l.line.Lock()
	defer l.line.Unlock()
	if c := &l.line.contact; !c.Away.IsZero() && l.line.saidAway {
		said.Add(hclog.Info, "etcd answers again", append(traceID(ctx), "away",
			now.Sub(c.Away).Round(time.Millisecond))...)
	}
	l.line.contact.answered(now, took)
}

// unanswered notes that a try failed because etcd did not answer: late says that the try had all its time.
func (l *contacts) unanswered(ctx context.Context, said *pending.Lines, now time.Time, err error, late bool) {
	l.line.Lock()
	defer l.line.Unlock()
	c := &l.line.contact
	c.Cause = err
	if late {
		c.late++
	}
	if c.Away.IsZero() {
		c.Away = now
		l.line.saidAway = l.line.awayLog.Log(now, said.Warn, "etcd does not answer",
			append(traceID(ctx), "error", err)...)
	}
}

// pinged notes that etcd answered what is no transaction.
func (l *contacts) pinged(took time.Duration) {
	l.line.Lock()
	defer l.line.Unlock()
	if l.line.contact.Last.IsZero() {
		l.line.contact.Latency = took
	}
}

// tryFor returns how long one try may take: TryTimeout, or longer where etcd is far away, by what its answers took.
// After each try without an answer the next one may take twice as long, as the way may have become longer; four times
// at most.
func (l *contacts) tryFor() time.Duration {
	c := l.Contact()
	return min(max(l.tryTimeout, 4*c.Latency)<<min(c.late, 2), 4*l.tryTimeout)
}

// Patience returns how long a few round trips may take where nothing else bounds the wait.
func (l *contacts) Patience() time.Duration { return max(l.tryTimeout, 10*l.Contact().Latency) }

// LongestWork bounds a piece of work of some round trips, of which the ledger bounds each: it is well above six of them
// with 2 s each, which is how far away etcd may be.
const LongestWork = 30 * time.Second

// askMembers is how often etcd's members are asked for themselves while etcd does not answer, and how long each may
// take where etcd is near.
const askMembers = time.Second

// WatchMembers keeps Contact's Members up to date until ctx ends.
func (l *client) WatchMembers(ctx context.Context) {
	for ctx.Err() == nil {
		if !l.Contact().Away.IsZero() {
			members := l.Members(ctx)
			l.line.Lock()
			if !l.line.contact.Away.IsZero() {
				l.line.contact.Members = members
			}
			l.line.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(askMembers):
		}
	}
}

// Members asks each member of etcd for itself.
func (l *client) Members(ctx context.Context) store.Members {
	ctx, cancel := context.WithTimeout(ctx, max(askMembers, 8*l.Contact().Latency))
	defer cancel()
	return store.ReadMembers(ctx, l.store)
}

// Etcdctl is the command that asks the etcd of this ledger.
func (l *knowledge) Etcdctl() string { return cmp.Or(l.cfg.Etcdctl, "etcdctl") }

// EtcdUser is etcd's user of this process; empty for none, or for that of its certificate.
func (l *knowledge) EtcdUser() string { return l.cfg.EtcdUser }

// Contact returns when and how etcd last answered this ledger.
func (l *contacts) Contact() Contact {
	l.line.Lock()
	defer l.line.Unlock()
	c := l.line.contact
	c.Outages += c.lasts(time.Now())
	return c
}

// confirmation is when a layout was last known to be the current one. A linearizable
// read or a committed lease shows that; the time is when its request was sent.
type confirmation struct {
	layout allocator.Layout
	at     time.Time
}

// confirmations is the data of Confirmed. It is immutable and is replaced under the
// ledger's lock, so that gates read it without the lock.
type confirmations struct {
	newest allocator.Layout // known, as the state has it
	all    []confirmation   // one for each version, the newest version first
}

// maxConfirmations bounds how many versions are remembered, the newest.
const maxConfirmations = 64

// with returns c with a confirmation added.
func (c *confirmations) with(layout allocator.Layout, sent time.Time) *confirmations {
	i, known := slices.BinarySearchFunc(c.all, layout.Version, func(of confirmation, version int64) int {
		return cmp.Compare(version, of.layout.Version)
	})
	if known && !sent.After(c.all[i].at) {
		return c
	}
	all := slices.Clone(c.all)
	if known {
		all[i] = confirmation{layout, sent}
	} else {
		all = slices.Insert(all, i, confirmation{layout, sent})
	}
	return &confirmations{c.newest, all[:min(len(all), maxConfirmations)]}
}

// confirmLayout notes that layout was the current one at some time after sent.
func (l *knowledge) confirmLayout(layout allocator.Layout, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.confirmations.Store(l.confirmations.Load().with(layout, sent))
}

// Confirmed returns a time, by this process's clock, after which a layout that
// keeps s with room was still the current one. The layout of the lease is such a
// layout; of several the newest counts. The time is zero if none is known.
//
// An instance that issues IDs of s only for a while after this time is sure to stop
// that long after its room lost the residues. For if a layout that keeps s was
// current after this time, the layout that took the residues away came later. Or it
// came earlier, and the residues were given back since. It does not matter which
// layouts were between, or whether the process knows them.
//
// newest is the room's part of the newest known layout.
func (l *knowledge) Confirmed(room allocator.Room, s allocator.Segment) (at time.Time, newest allocator.Part) {
	confirmed := l.confirmations.Load()
	newest = confirmed.newest.Part(room)
	for i := range confirmed.all {
		if c := &confirmed.all[i]; c.layout.Part(room).Keeps(s) {
			return c.at, newest
		}
	}
	return time.Time{}, newest
}
