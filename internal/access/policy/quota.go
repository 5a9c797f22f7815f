package policy

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
)

const (
	// maxUsages bounds the subjects whose quotas are counted.
	maxUsages = 100_000
	// maxTags bounds the tags of one subject that are counted one by one.
	maxTags = 10_000
	// tagIdle is how long a tag counts against the quota of tags after its last request.
	tagIdle = time.Hour
	// tagNoted is how exactly a tag's last request is known.
	tagNoted = time.Second
	// burst is how long a subject may be ahead of its rate.
	burst = time.Second
)

// Usages counts what subjects use of their quotas. It outlives a policy, so that a reload
// gives no subject a fresh quota. The zero value is ready to use.
type Usages struct {
	mu struct {
		sync.Mutex
		by map[usageKey]*usage
	}
}

// usageKey names a subject's use of a grant.
type usageKey struct {
	grant   int // its place in the file
	subject string
}

// of returns the usage of a subject. One whose quotas changed begins anew.
func (u *Usages) of(key usageKey, q Quotas) *usage {
	u.mu.Lock()
	defer u.mu.Unlock()
	if used := u.mu.by[key]; used != nil && used.quotas == q {
		return used
	}
	if u.mu.by == nil || len(u.mu.by) >= maxUsages {
		u.mu.by = make(map[usageKey]*usage)
	}
	used := &usage{quotas: q}
	u.mu.by[key] = used
	return used
}

// usage is what a subject uses of a grant's quotas.
type usage struct {
	quotas  Quotas
	streams atomic.Int64 // open
	ids     rate
	lastTag atomic.Pointer[tagUsage] // that of the last request, which most often has the next one's tag
	mu      struct {
		sync.Mutex
		tags map[string]*tagUsage
	}
}

// tagUsage is what a subject uses of one tag.
type tagUsage struct {
	name string
	ids  rate
	last atomic.Int64 // the last request, to within tagNoted; Unix ns
}

// note notes a request.
func (t *tagUsage) note(now time.Time) {
	if at := now.UnixNano(); at-t.last.Load() >= int64(tagNoted) {
		t.last.Store(at)
	}
}

// take counts a request. Its errors are those of may.
func (u *usage) take(now time.Time, c *Caller, r Request) error {
	q := &u.quotas
	tag, err := u.admit(now, c, r, r.IDs)
	if err != nil || r.IDs == 0 {
		return err
	}
	// The tag's rate first: a request that it refuses costs nothing of the subject's.
	quota, most, after := u.wait(now, tag)
	if after == 0 && q.IDsPerSecond > 0 {
		after = u.ids.take(now, r.IDs, q.IDsPerSecond)
	}
	if after == 0 && q.TagIDsPerSecond > 0 {
		after = tag.ids.take(now, r.IDs, q.TagIDsPerSecond)
	}
	if after > 0 {
		return overRate(c, quota, most, after)
	}
	return nil
}

// may returns why a request is refused that takes IDs of one tag, and with other tags inOne
// IDs in one call; nil if it is not. It counts no IDs: charge does. Calls at the same moment
// may pass together; then the next ones wait until the rates have caught up with all of them.
// Its errors are Denied and TooMany.
func (u *usage) may(now time.Time, c *Caller, r Request, inOne int64) error {
	tag, err := u.admit(now, c, r, inOne)
	if err != nil || r.IDs == 0 {
		return err
	}
	if quota, most, after := u.wait(now, tag); after > 0 {
		return overRate(c, quota, most, after)
	}
	return nil
}

// charge counts IDs of a request that may has let pass.
func (u *usage) charge(now time.Time, t TagIDs) {
	if u.quotas.IDsPerSecond > 0 {
		u.ids.add(now, t.IDs, u.quotas.IDsPerSecond)
	}
	if u.quotas.TagIDsPerSecond > 0 {
		if tag := u.tag(now, t.Tag); tag != nil {
			tag.ids.add(now, t.IDs, u.quotas.TagIDsPerSecond)
		}
	}
}

// admit checks the quotas that are no rates: those of one call, of which inOne is the number
// of IDs, and of tags. It returns the usage of the tag; nil where no quota needs it.
func (u *usage) admit(now time.Time, c *Caller, r Request, inOne int64) (tag *tagUsage, err error) {
	q := &u.quotas
	if q.IDsPerLease > 0 && inOne > q.IDsPerLease {
		return nil, &allocator.RightError{Right: wanted(r), Err: allocator.Errorf(allocator.Denied,
			"count: %d IDs in one call; subject %s may take up to %d by its quota ids_per_lease",
			inOne, c.Name(), q.IDsPerLease)}
	}
	if r.IDs == 0 || q.Tags == 0 && q.TagIDsPerSecond == 0 {
		return nil, nil
	}
	if tag = u.tag(now, r.Tag); tag == nil {
		return nil, &allocator.WaitError{After: time.Minute, Err: allocator.Errorf(allocator.TooMany,
			"subject %s asked for %d tags in the last hour, and for another one; allowed by its quota tags: %d",
			c.Name(), u.mostTags(), u.mostTags())}
	}
	return tag, nil
}

// wait returns how long the rates refuse further IDs, and the quota that does so longest.
func (u *usage) wait(now time.Time, tag *tagUsage) (quota string, most int64, after time.Duration) {
	q := &u.quotas
	quota, most = "ids_per_second", q.IDsPerSecond
	if q.IDsPerSecond > 0 {
		after = u.ids.wait(now)
	}
	if q.TagIDsPerSecond > 0 {
		if forTag := tag.ids.wait(now); forTag > after {
			quota, most, after = "tag_ids_per_second", q.TagIDsPerSecond, forTag
		}
	}
	return quota, most, after
}

func overRate(c *Caller, quota string, most int64, after time.Duration) error {
	after = after.Round(time.Millisecond) + time.Millisecond
	return &allocator.WaitError{After: after, Err: allocator.Errorf(allocator.TooMany,
		"subject %s takes more than %d IDs/s, which is its quota %s; try again in %v", c.Name(), most, quota, after)}
}

func (u *usage) mostTags() int64 {
	if u.quotas.Tags > 0 {
		return u.quotas.Tags
	}
	return maxTags
}

// tag returns the usage of a tag; nil if the subject uses too many tags already.
func (u *usage) tag(now time.Time, name string) *tagUsage {
	if t := u.lastTag.Load(); t != nil && t.name == name {
		t.note(now)
		return t
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if t := u.mu.tags[name]; t != nil {
		t.note(now)
		u.lastTag.Store(t)
		return t
	}
	if int64(len(u.mu.tags)) >= u.mostTags() {
		for other, t := range u.mu.tags {
			if now.UnixNano()-t.last.Load() >= int64(tagIdle) {
				delete(u.mu.tags, other)
				u.lastTag.CompareAndSwap(t, nil)
			}
		}
		if int64(len(u.mu.tags)) >= u.mostTags() {
			return nil
		}
	}
	if u.mu.tags == nil {
		u.mu.tags = make(map[string]*tagUsage)
	}
	t := &tagUsage{name: name}
	t.last.Store(now.UnixNano())
	u.mu.tags[name] = t
	u.lastTag.Store(t)
	return t
}

// rate bounds IDs per second, by the generic cell rate algorithm: it keeps the time until
// which the IDs taken so far would last at the rate. A large request may go far ahead of it;
// then later requests wait until the rate has caught up. So one lease of a million IDs costs
// as much as a million calls.
type rate struct {
	until atomic.Int64 // Unix ns
}

// take takes n IDs, and returns 0; or it takes none, and returns how long to wait.
func (a *rate) take(now time.Time, n, perSecond int64) time.Duration {
	at := now.UnixNano()
	for {
		until := a.until.Load()
		if after := ahead(until, at); after > 0 {
			return after
		}
		if a.until.CompareAndSwap(until, max(until, at)+cost(n, perSecond)) {
			return 0
		}
	}
}

// add takes n IDs, however far the rate is ahead.
func (a *rate) add(now time.Time, n, perSecond int64) {
	at := now.UnixNano()
	for {
		until := a.until.Load()
		if a.until.CompareAndSwap(until, max(until, at)+cost(n, perSecond)) {
			return
		}
	}
}

// cost returns how long n IDs last at a rate, in ns.
func cost(n, perSecond int64) int64 {
	return int64(math.Ceil(float64(n) * float64(time.Second) / float64(perSecond)))
}

// wait returns how long to wait until IDs may be taken.
func (a *rate) wait(now time.Time) time.Duration { return ahead(a.until.Load(), now.UnixNano()) }

func ahead(until, at int64) time.Duration { return max(time.Duration(until-at)-burst+1, 0) }
