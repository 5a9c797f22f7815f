package client

import (
	"context"
	"math"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// lease is what a room leased: a segment of a counter's IDs, or a window of time-ordered ones.
type lease struct {
	from   *endpoint
	serves allocator.Part // the part of the layout that the instance serves
	limit  int64          // the tag's limit; 0 if the answer has none

	seg allocator.Segment // with its end
	ttl time.Duration     // of the segment; 0 for no end

	timed  *timeid.Config        // the settings of a tag of time-ordered IDs; nil for a counter
	window *marchv1.WorkerWindow // nil where none was asked for
	sent   int64                 // the clock of IDs when the window was asked for
}

// lease asks the rooms, prefer first, for n IDs or a window of a tag, and notes what the answer says
// of the tag and of the layout. A request is sent once: if its answer is lost, its IDs are a gap.
// failed gets the error of each endpoint.
func (t *Tag) lease(ctx context.Context, n int64, window *marchv1.WindowRequest, prefer *endpoint,
	failed func(*endpoint, error)) (l lease, err error) {
	c, answer := t.client, (*marchv1.LeaseResponse)(nil)
	from, err := c.pool.ask(ctx, "lease of tag "+string(t.name), prefer, func(ctx context.Context, e *endpoint) error {
		began := time.Now()
		l = lease{sent: c.clock()}
		answer, err = e.ids.Lease(ctx, &marchv1.LeaseRequest{Tag: string(t.name), Count: n, Window: window})
		if err != nil {
			failed(e, err)
			return err
		}
		return l.read(answer, n, began)
	})
	if err != nil {
		return l, err
	}
	l.from = from
	t.setText(answer.GetFormat(), answer.GetKeyCheck())
	if !from.other && l.serves.Version > 0 && !c.heard(l.serves) {
		c.pool.avoid(&from.lags) // but what it leases is valid
	}
	return l, nil
}

// Lease returns a segment of up to n IDs of a tag, 1 to 1,000,000,000, of a room: for a caller that issues them itself,
// in another process say. None of them may be issued from the segment's Until on, and none is of what the client
// holds. Its errors are Next's; Invalid (n); and Refused for a tag of time-ordered IDs.
func (c *Client) Lease(ctx context.Context, tag string, n int64) (Segment, error) {
	if n < 1 || n > api.MaxLease {
		return Segment{}, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, int64(api.MaxLease))
	}
	return with(c, tag, func(t *Tag) (Segment, error) {
		l, err := t.lease(ctx, n, nil, nil, func(*endpoint, error) {})
		return l.seg, t.ofClient(err)
	})
}

// read checks the answer to a request for n IDs that was sent at a time.
func (l *lease) read(answer *marchv1.LeaseResponse, n int64, sent time.Time) (err error) {
	l.serves, l.limit = api.PartFromProto(answer.GetServes()), answer.GetLimit()
	if timed := answer.GetTime(); timed != nil {
		cfg, err := api.TimeTagFromProto(timed.GetTag())
		w := timed.GetWindow()
		if err == nil && w != nil && (w.GetFromMs() >= w.GetUntilMs() || w.GetWorker() < 0 ||
			w.GetWorker() >= cfg.Layout.Workers()) {
			err = allocator.Errorf(allocator.Internal, "worker %d from %d until %d ms", w.GetWorker(), w.GetFromMs(),
				w.GetUntilMs())
		}
		if err != nil {
			return allocator.Errorf(allocator.Internal, "its answer makes no sense: %w", err)
		}
		l.timed, l.window = &cfg, w
		return nil
	}
	if l.seg, err = api.SegmentFromProto(answer.GetSegment()); err != nil {
		return allocator.Errorf(allocator.Internal, "its answer makes no sense: %w", err)
	}
	if l.serves.Version < l.seg.Version { // the instance leased under a layout that it does not report yet
		l.serves = l.seg.Part()
	}
	l.ttl = answer.GetTtl().AsDuration()
	switch {
	case l.seg.Count > n:
		return allocator.Errorf(allocator.Internal, "it leased %d IDs; %d were asked for", l.seg.Count, n)
	case answer.GetTtl() != nil && (answer.GetTtl().CheckValid() != nil || l.ttl < 0):
		return allocator.Errorf(allocator.Internal,
			"ttl: %v; allowed: 0s or more, in whole nanoseconds", answer.GetTtl())
	case l.ttl == 0:
		return nil
	case allocator.Elapsed(sent, time.Now()) >= l.ttl:
		return allocator.Errorf(allocator.Unavailable,
			"its answer took longer than the %v for which its IDs may be used", l.ttl)
	}
	l.seg.Until = sent.Add(l.ttl)
	return nil
}

// source leases a tag's segments.
type source struct{ *Tag }

// errTimed ends the wait of a chain's callers if the tag has time-ordered IDs.
var errTimed = &allocator.Error{Kind: allocator.Conflict, Msg: "the tag has time-ordered IDs, or had until now: retry"}

func (s source) Lease(ctx context.Context, n int64) (allocator.Segment, error) {
	l, err := s.lease(ctx, n, &marchv1.WindowRequest{}, nil, func(*endpoint, error) {})
	if err != nil {
		l.limit = api.LimitOf(err)
		if api.Ordered(err) {
			s.setOrdered()
		}
	}
	if l.limit > 0 {
		s.chain.Limit(l.limit)
	}
	if err == nil && l.timed != nil {
		if w := s.client.worker(l.timed.Layout.WorkerBits); w != nil {
			w.attach(s.Tag, *l.timed)
		}
		err = errTimed
	}
	if err != nil {
		return allocator.Segment{}, err
	}
	s.last.Store(&l)
	s.client.keeperLooksBefore(l.seg.Until)
	return l.seg, nil
}

const (
	// renewPart: a segment is replaced when a third of its time to live is left.
	// With the default of ten minutes that is longer than the reserve.
	renewPart = 3
	// renewPause is the least time between two replacements of one tag.
	renewPause = 100 * time.Millisecond
	// followMost is the longest pause between two attempts to replace segments of
	// an old layout while the room's instances lag behind.
	followMost = time.Minute
)

// keeping is what the keeper remembers of a tag's segments.
type keeping struct {
	unused     time.Duration
	renewAt    time.Time // the earliest time of the next replacement
	version    int64     // of the layout to which the tag is moved,
	followAt   time.Time // the next attempt,
	followWait time.Duration
}

// tend looks after a tag's segments and returns when to do so again, or the zero time.
func (t *Tag) tend(now time.Time, newest allocator.Part) (again time.Time) {
	var last lease
	if l := t.last.Load(); l != nil {
		last = *l
	}
	unusedAfter := last.ttl
	if unusedAfter == 0 {
		unusedAfter = math.MaxInt64
	}
	t.keeping.unused = t.chain.Observe()
	end := t.chain.Expire(unusedAfter)
	if t.chain.Outdated(newest) {
		t.followLayout(now, newest)
	}
	again = end
	if last.seg.Until.After(now) {
		again = earlier(end, last.seg.Until) // the chain may not have the segment yet
	}
	if end.IsZero() || t.keeping.unused >= unusedAfter { // unused: let it end
		return again
	}
	renewAt := end.Add(-last.ttl / renewPart)
	if renewAt.Before(t.keeping.renewAt) {
		renewAt = t.keeping.renewAt
	}
	if !renewAt.After(now) {
		t.chain.Replace(allocator.Part{}, now.Add(last.ttl/renewPart))
		renewAt = now.Add(max(end.Sub(now)/2, renewPause))
		t.keeping.renewAt = renewAt
	}
	return earlier(again, renewAt)
}

// followLayout asks for a segment that newest does not outdate, at once. While the leased
// segments are still outdated, it asks again after growing pauses.
func (t *Tag) followLayout(now time.Time, newest allocator.Part) {
	k := &t.keeping
	if k.version != newest.Version {
		k.version, k.followAt, k.followWait = newest.Version, now, lookEvery
	}
	if !now.Before(k.followAt) {
		t.chain.Replace(newest, time.Time{})
		k.followAt = now.Add(k.followWait)
		k.followWait = min(2*k.followWait, followMost)
	}
}
