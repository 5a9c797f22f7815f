package console_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
)

// A room reports that etcd is away if a lease got no answer in time. The test cannot
// rely on that report, because a wrong one is a fault that it must find. So a canary
// writes to the same etcd over its own connection, one transaction after another. A call
// may fail only while the canary could not make, in the time of a lease, as many
// transactions as a lease needs.
const (
	// leaseTrips is how often a cold lease waits for etcd if another instance of its room
	// wins the mark once. The instance probes (a transaction, a status and a beat), reads the
	// mark and writes it. Then it probes, reads and writes again.
	leaseTrips = 8
	// loadWithin is how long a room reads a tag before it gives up. The error then does not
	// say since when etcd is away.
	loadWithin  = 5 * time.Second
	canaryPause = 25 * time.Millisecond
)

// leaseWithin is how long a lease may take.
var leaseWithin = allocator.DefaultRefillerConfig(nil, nil).Timeout

// canary keeps the times at which etcd answered it.
type canary struct {
	mu      sync.Mutex
	answers []time.Time
}

// run writes until done.
func (c *canary) run(etcd store.Store, done <-chan struct{}) {
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	go func() {
		select {
		case <-done:
			cancel()
		case <-ctx.Done():
		}
	}()
	for n := 0; ; n++ {
		_, err := etcd.Txn(ctx,
			store.Txn{Then: []store.Op{{Put: &store.Put{Key: "canary", Value: fmt.Append(nil, n)}}}})
		if err == nil {
			c.answered(time.Now())
		}
		select {
		case <-done:
			return
		case <-time.After(canaryPause):
		}
	}
}

func (c *canary) answered(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = append(c.answers, at)
}

// slow reports whether, at some time between since and told, leaseTrips of the canary's
// transactions took longer than leaseWithin. The last transaction ended at end.
func (c *canary) slow(since, told, end time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, from := range c.answers {
		to := end
		if k+leaseTrips < len(c.answers) {
			to = c.answers[k+leaseTrips]
		}
		if from.Before(told) && to.After(since) && to.Sub(from) > leaseWithin {
			return true
		}
	}
	return false
}

// longest returns the longest time that etcd took for leaseTrips of the canary's
// transactions.
func (c *canary) longest() (most time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := leaseTrips; k < len(c.answers); k++ {
		most = max(most, c.answers[k].Sub(c.answers[k-leaseTrips]))
	}
	return most
}

// awaySince returns since when etcd has been away, according to a room's answer to a call
// that failed at told. away is false if the answer does not say so.
func awaySince(err error, told time.Time) (since time.Time, away bool) {
	s := status.Convert(err)
	if s.Code() != codes.Unavailable {
		return time.Time{}, false
	}
	for _, detail := range s.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != api.Domain {
			continue
		}
		since, err := time.Parse(time.RFC3339, info.GetMetadata()[api.MetadataSince])
		if err != nil {
			since = told.Add(-loadWithin)
		}
		return since, true
	}
	return time.Time{}, false // a broken connection, for example, which is never etcd's doing
}

func TestCanary(t *testing.T) {
	zero := time.Now()
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	every := func(ms, from, to int) (list []time.Time) {
		for ; from < to; from += ms {
			list = append(list, at(from))
		}
		return list
	}
	for _, c := range []struct {
		name        string
		answers     []time.Time
		since, told int
		want        bool
	}{
		{"well", every(30, 0, 10_000), 3000, 5000, false},
		{"slow, but fast enough for a lease", every(240, 0, 10_000), 3000, 5000, false},
		{"too slow for a lease", every(260, 0, 10_000), 3000, 5000, true},
		{"slow at that time", slices.Concat(every(30, 0, 3000), every(900, 3000, 5000), every(30, 5000, 10_000)),
			3000, 5000, true},
		{"slow long before", slices.Concat(every(900, 0, 3000), every(30, 3000, 10_000)), 6000, 8000, false},
		{"slow long after", slices.Concat(every(30, 0, 6000), every(900, 6000, 10_000)), 2000, 4000, false},
		{"a pause that a lease survives", slices.Concat(every(30, 0, 4000), every(30, 5500, 10_000)),
			3000, 5600, false},
		{"away until the end", every(30, 0, 4000), 4500, 6500, true},
		{"never there", []time.Time{zero}, 0, 2000, true},
	} {
		if got := (&canary{answers: c.answers}).slow(at(c.since), at(c.told), at(10_000)); got != c.want {
			t.Errorf("%s: slow %v, want %v", c.name, got, c.want)
		}
	}
}

func TestAwaySince(t *testing.T) {
	told := time.Now()
	since := told.Add(-3 * time.Second).Truncate(time.Second)
	for _, c := range []struct {
		name string
		err  error
		want time.Time
		away bool
	}{
		{"away", api.ToStatus(&allocator.AwayError{Tag: "order", Since: since, Err: context.DeadlineExceeded}),
			since, true},
		{"away, without since", api.ToStatus(allocator.Errorf(allocator.Unavailable, "not read")),
			told.Add(-loadWithin), true},
		{"the connection broke", status.Error(codes.Unavailable, "connection refused"), time.Time{}, false},
		{"another error", api.ToStatus(allocator.Errorf(allocator.WentBack, "halted")), time.Time{}, false},
	} {
		if got, away := awaySince(c.err, told); away != c.away || !got.Equal(c.want) {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, got, away, c.want, c.away)
		}
	}
}

// A room's report that etcd is away excuses a failed call only while the report can be
// true.
func TestFailuresThatEtcdExcuses(t *testing.T) {
	zero := time.Now()
	at := func(s float64) time.Time { return zero.Add(time.Duration(s * float64(time.Second))) }
	l := &load{began: zero, elapsed: 20 * time.Second}
	for s := 0.0; s < 20; s += 0.03 {
		if s < 1 || s > 4 { // etcd is away in between
			l.canary.answers = append(l.canary.answers, at(s))
		}
	}
	l.mu.failed = []failure{
		{since: at(1), told: at(3), away: true, text: "while it is away"},
		{since: at(1), told: at(8), away: true, text: "soon after"},
		{since: at(1), told: at(15), away: true, text: "long after"},
		{since: at(1), told: at(3), text: "for another reason"},
	}
	failed, away := l.failures()
	if want := []string{"long after", "for another reason"}; !slices.Equal(failed, want) || away != 2 {
		t.Errorf("failed %q, %d excused; want %q, 2", failed, away, want)
	}
}
