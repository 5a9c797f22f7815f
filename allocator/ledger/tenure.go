package ledger

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Of a tag with a strict order one process of a room, or of all rooms, issues IDs at a time, the holder, for a
// tenure: section 3.6 of the design. It takes the tag's key of the room (Hold, in holder.go), leases under it,
// waits, asks the gate for each ID, confirms the tenure, and releases it, in this order.

// holders are the tenures of an instance.
type holders struct {
	came    chan struct{} // holds a token when a tenure came,
	left    chan struct{} // and when a release came
	sending chan struct{} // holds a token while releases are sent
	mu      struct {
		sync.Mutex
		held     map[*Tenure]time.Time // when each was last to be confirmed
		queued   []release
		releases map[allocator.Tag]int       // queued, or under way
		taken    map[allocator.Tag]time.Time // when another process last took the tag from this one
	}
}

func (h *holders) init() {
	h.came, h.left, h.sending = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	h.mu.held, h.mu.releases = make(map[*Tenure]time.Time), make(map[allocator.Tag]int)
	h.mu.taken = make(map[allocator.Tag]time.Time)
}

// release is the write that releases the key of a tenure that has ended.
type release struct {
	tag allocator.Tag
	was store.Cond
	put store.Op
}

// Tenure is the time in which this process alone issues IDs of an ordered tag in its room. It ends for good.
type Tenure struct {
	instance *Instance
	tag      allocator.Tag
	hold     time.Duration
	holder   record.Holder // with the key as this process wrote it
	opens    time.Time     // nothing is issued before; zero where the tenure before it was released
	opened   atomic.Bool   // the time came
	leased   bool          // a lease was made in it; the rest is none

	confirmed atomic.Pointer[time.Time] // when the last confirmation was sent
	over      chan struct{}             // closed as it ends
	mu        struct {
		sync.Mutex
		rest  allocator.Segment // that it began with; none once it was leased or released
		ended bool
		onEnd func() // see OnEnd; nil for none
	}
}

// leaseRest returns the rest that the tenure began with, once, if the room serves its layout still.
func (s *tagSource) leaseRest() (rest allocator.Segment) {
	if s.tenure == nil {
		return rest
	}
	rest = s.tenure.takeRest()
	if state, _ := s.instance.ledger.State(); state.epoch != s.tenure.holder.Epoch ||
		state.layout.Layout.Version != rest.Version {
		return allocator.Segment{}
	}
	return rest
}

func (t *Tenure) takeRest() (rest allocator.Segment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest, t.mu.rest = t.mu.rest, rest
	return rest
}

// mayLease returns why an ordered tag is not leased now: a lease is made in a tenure of the epoch.
func (s *tagSource) mayLease(state *State) error {
	t := s.tenure
	switch {
	case !s.ordered:
		return nil
	case t == nil:
		return allocator.Errorf(allocator.Refused, "its calls are ordered, and this process does not hold it")
	case t.holder.Epoch != state.epoch:
		t.end("another epoch is in force")
	}
	if t.Ended() {
		return allocator.Errorf(allocator.Conflict, "its tenure here has ended")
	}
	return nil
}

// stillHeld ends the tenure if a transaction showed a later one in the key. A read may show the past.
func (s *tagSource) stillHeld(shown []store.KV) {
	if t := s.tenure; t != nil && (len(shown) == 0 || shown[0].ModRevision > t.holder.KV.ModRevision) {
		t.isTaken()
	}
}

// is reports whether a key shows this tenure.
func (t *Tenure) is(shown []store.KV) bool {
	return len(shown) == 1 && shown[0].ModRevision == t.holder.KV.ModRevision &&
		string(shown[0].Value) == string(t.holder.KV.Value)
}

// unchanged holds if the key shows this tenure.
func (t *Tenure) unchanged() store.Cond {
	kv := t.holder.KV
	return store.Cond{Key: kv.Key, ModRevision: kv.ModRevision, Value: kv.Value}
}

// Wait returns nil once the tenure may issue. Its errors are allocator.ErrClosed and Unavailable.
func (t *Tenure) Wait(ctx context.Context) error {
	if t.opened.Load() {
		return nil
	}
	timer := time.NewTimer(time.Until(t.opens))
	defer timer.Stop()
	select {
	case <-timer.C:
		t.opened.Store(true)
		return nil
	case <-t.over:
		return allocator.ErrClosed
	case <-ctx.Done():
		return allocator.Errorf(allocator.Unavailable, "tag %s: this instance holds it since %s and issues nothing "+
			"before tenure_hold and a tenth have passed, as the one that held it before may still issue: %w", t.tag,
			t.holder.Taken.UTC().Format(time.RFC3339), context.Cause(ctx))
	}
}

// OpenFor returns for how long the tenure may have issued; it is negative while it waits.
func (t *Tenure) OpenFor() time.Duration { return time.Since(t.opens) }

// Admits returns nil if an ID that was leased in the tenure, and taken before this call, may be issued. Its errors are
// allocator.ErrClosed and Unavailable.
func (t *Tenure) Admits() error {
	now := time.Now()
	switch {
	case t.Ended():
		return allocator.ErrClosed
	case now.Before(t.opens): // by the monotonic clock
		return allocator.Errorf(allocator.Unavailable, "tag %s: the tenure before may still issue", t.tag)
	case t.Lasts(now) <= 0:
		return allocator.Errorf(allocator.Unavailable, "tag %s: no ID is issued, because its calls are ordered, and "+
			"etcd has not confirmed for tenure_hold (%v) that this instance holds it", t.tag, t.hold)
	}
	return nil
}

// Lasts returns how long the tenure may issue without another confirmation, 0 or less if no longer.
func (t *Tenure) Lasts(now time.Time) time.Duration {
	return t.hold - allocator.Elapsed(*t.confirmed.Load(), now)
}

// OnEnd sets a function that is called when the tenure ends, but for Release; at once if it has.
func (t *Tenure) OnEnd(f func()) {
	t.mu.Lock()
	ended := t.mu.ended
	t.mu.onEnd = f
	t.mu.Unlock()
	if ended {
		f()
	}
}

// Ended reports whether the tenure is over.
func (t *Tenure) Ended() bool {
	select {
	case <-t.over:
		return true
	default:
		return false
	}
}

// stop ends the tenure for good, and returns false if it had ended.
func (t *Tenure) stop() (onEnd func(), first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.ended {
		return nil, false
	}
	t.mu.ended = true
	close(t.over)
	t.instance.holders.remove(t)
	return t.mu.onEnd, true
}

// end ends the tenure because of what etcd showed.
func (t *Tenure) end(why string) {
	onEnd, first := t.stop()
	if !first {
		return
	}
	t.instance.ledger.log.Info("no longer holds an ordered tag", "tag", t.tag, "room", t.instance.room, "why", why)
	if onEnd != nil {
		onEnd()
	}
}

// isTaken ends the tenure because another process took the tag.
func (t *Tenure) isTaken() {
	if !t.Ended() {
		t.instance.holders.take(t.tag)
	}
	t.end("another process took it")
}

// Release ends the tenure, and has Run, or SendReleases, release its key, with the last of the segments that it did not
// issue, or with the rest that it began with if it leased nothing. held returns these segments after the end. The key
// stays as it is while the tenure has not opened: the one before may still issue.
func (t *Tenure) Release(held func() []allocator.Segment) {
	if _, first := t.stop(); !first || time.Now().Before(t.opens) {
		return
	}
	released := t.holder
	if released.Released = true; released.Room == "" { // other rooms may write the key of all rooms: it has no rest
		rest := t.takeRest() // before held: a refill that has it by then comes too late for that, too
		left := held()
		if rest.Count > 0 {
			left = []allocator.Segment{rest}
		}
		released.Rest = t.restIn(left)
	}
	t.instance.holders.release(release{t.tag, t.unchanged(), store.OpPut(t.holder.KV.Key, record.Encode(&released))})
}

// restIn returns the last stretch of what a tenure holds.
func (t *Tenure) restIn(held []allocator.Segment) *record.Era {
	if len(held) == 0 {
		return nil
	}
	rest := held[len(held)-1]
	first := rest.First
	for _, seg := range slices.Backward(held[:len(held)-1]) {
		in := allocator.Layout{Boundary: seg.Boundary}
		if seg.Version != rest.Version || in.CountIDs(seg.Range, seg.Last()+1, first) > 0 {
			break
		}
		first = seg.First
	}
	return &record.Era{Version: rest.Version, Epoch: t.holder.Epoch, First: first, End: rest.Last() + 1}
}

func (h *holders) add(t *Tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.held[t] = *t.confirmed.Load()
	wake(h.came)
}

func (h *holders) remove(t *Tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.mu.held, t)
}

func (h *holders) release(r release) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.queued = append(h.mu.queued, r)
	h.mu.releases[r.tag]++
	wake(h.left)
}

// sent notes that a release is no longer under way.
func (h *holders) sent(r release) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.releases[r.tag]--; h.mu.releases[r.tag] == 0 {
		delete(h.mu.releases, r.tag)
	}
}

// releases reports whether a release of a tag is queued, or under way.
func (h *holders) releases(tag allocator.Tag) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.releases[tag] > 0
}

// take notes that another process took a tag from this one.
func (h *holders) take(tag allocator.Tag) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.taken[tag] = time.Now()
}

// lost reports whether another process took a tag from this one since a time.
func (h *holders) lost(tag allocator.Tag, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.taken[tag].After(since) {
		return true
	}
	delete(h.mu.taken, tag)
	return false
}

func wake(loop chan<- struct{}) {
	select {
	case loop <- struct{}{}:
	default:
	}
}

// confirmationsInHold is how many confirmations are sent in a hold, so that one of them may be lost.
const confirmationsInHold = 3

// due returns the tenures that are to be confirmed now, the shortest hold first, and after how long others are. Where
// one is, those go with it that are halfway there, so that few requests confirm many tenures.
func (h *holders) due(now time.Time) (list []*Tenure, after time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for after = 0; after <= 0; {
		after = time.Hour // none: the next one wakes the loop
		for t, last := range h.mu.held {
			after = min(after, last.Add(t.hold/confirmationsInHold).Sub(now))
		}
		for t, last := range h.mu.held {
			if after <= 0 && now.Sub(last) >= t.hold/confirmationsInHold/2 {
				list, h.mu.held[t] = append(list, t), now
			}
		}
	}
	slices.SortFunc(list, func(a, b *Tenure) int { return cmp.Compare(a.hold, b.hold) })
	return list, after
}

// confirmAll confirms tenures until ctx ends. A request that is slow holds up no other one.
func (i *Instance) confirmAll(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.holders.came:
		case <-timer.C:
		}
		list, after := i.holders.due(time.Now())
		for len(list) > 0 {
			n := min(len(list), keysAtOnce)
			for list[n-1].hold > 2*list[0].hold { // its request may take longer
				n--
			}
			page := list[:n]
			list = list[n:]
			asking.Go(func() { i.confirm(ctx, page) })
		}
		timer.Reset(after)
	}
}

// confirm confirms tenures. A confirmation reads their keys in the order of all writes, and counts as a lease's answer
// does, from its sending on.
func (i *Instance) confirm(ctx context.Context, page []*Tenure) {
	ctx, cancel := context.WithTimeout(ctx, page[0].hold) // a later answer confirms nothing
	defer cancel()
	l := i.ledger
	_ = l.Check(ctx) // no answer counts without it
	registration := i.presence.registered()
	gets := []store.Op{store.OpGet(l.keys.Epoch()), store.OpGet(registration.Key)}
	for _, t := range page {
		gets = append(gets, store.OpGet(t.holder.KV.Key))
	}
	before := l.before()
	answer, err := l.Try(ctx, l.ordered(gets...))
	if err != nil || answer.Succeeded {
		return
	}
	if ours, err := i.presence.takeOurs(answer.Got[1]); err != nil || !ours {
		return // a heartbeat finds out what happened
	}
	counts, epoch := false, record.Epoch{}
	l.with(func() { counts = l.mu.clock.shows(before, answer.Sender, answer.Revision) })
	if kv, there := answer.One(0); there {
		_ = record.Decode(kv, &epoch) // one that cannot be read is none
	}
	if !counts {
		l.uncheck()
	}
	for k, t := range page {
		switch {
		case epoch.Epoch != t.holder.Epoch:
			t.end("leasing is halted, or another epoch is in force")
		case !t.is(answer.Got[2+k]):
			t.isTaken()
		case counts:
			t.confirm(&before.at)
		}
	}
}

// confirm notes a confirmation that was sent at a time. Their answers may overtake each other.
func (t *Tenure) confirm(sent *time.Time) {
	for was := t.confirmed.Load(); was.Before(*sent) && !t.confirmed.CompareAndSwap(was, sent); {
		was = t.confirmed.Load()
	}
}

// releaseAll sends releases until ctx ends.
func (i *Instance) releaseAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.holders.left:
			_ = i.SendReleases(ctx) // the key then stays as it is, and the next tenure waits
		}
	}
}

// releasesAtOnce bounds the releases under way at once.
const releasesAtOnce = 64

// SendReleases releases the keys of the tenures that the room has released; those under way are through when it
// returns. Its error is that of etcd: such a key may be released or not.
func (i *Instance) SendReleases(ctx context.Context) error {
	h, l := &i.holders, i.ledger
	select {
	case h.sending <- struct{}{}:
		defer func() { <-h.sending }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	h.mu.Lock()
	list := h.mu.queued
	h.mu.queued = nil
	h.mu.Unlock()
	var sending errgroup.Group
	sending.SetLimit(releasesAtOnce)
	for _, r := range list {
		sending.Go(func() error {
			_, err := l.Try(ctx, store.Txn{If: []store.Cond{r.was}, Then: []store.Op{r.put}})
			if err != nil && ctx.Err() != nil {
				h.release(r) // the process ends, and sends it once more when it leaves
			}
			h.sent(r)
			return err
		})
	}
	return sending.Wait()
}
