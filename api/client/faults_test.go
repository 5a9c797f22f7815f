package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// quick returns options with which a fault that hangs takes little time.
func quick(addresses ...string) client.Options {
	return client.Options{Addresses: addresses, Timeout: 200 * time.Millisecond}
}

// TestFaults injects each fault of a lease under load, once and three times in a row.
// No call fails and no ID comes twice. The client never issues a segment if the
// answer with it was lost.
func TestFaults(t *testing.T) {
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				front := newFront(t, newCluster(t).room("a", "a1"))
				var lost []allocator.Segment
				var mu sync.Mutex
				harm := func(ctx context.Context,
					lease func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
					return f(ctx, func() (*marchv1.LeaseResponse, error) {
						answer, err := lease()
						if err == nil {
							seg, err := api.SegmentFromProto(answer.GetSegment())
							if err != nil {
								t.Error(err)
							}
							mu.Lock()
							defer mu.Unlock()
							lost = append(lost, seg)
						}
						return answer, err
					})
				}
				order := tagOf(t, newClient(t, quick(front.address)), slug(name))
				var got issued
				stop := load(t, order, &got)
				for _, times := range []int{1, 3} {
					got.some(t, 300)
					front.fault(nil, slices.Repeat([]fault{harm}, times)...)
					testcluster.Await(t, "the faults", func() bool {
						front.mu.Lock()
						defer front.mu.Unlock()
						return len(front.mu.next) == 0
					})
				}
				got.some(t, 1000)
				if errs := stop(); errs != nil {
					t.Errorf("%d calls failed: %v", len(errs), errs[0])
				}
				got.unique(t, "a", testcluster.Halves())
				mu.Lock()
				defer mu.Unlock()
				happened := len(name) > 10 && name[len(name)-8:] == "happened"
				if happened != (len(lost) == 4) {
					t.Errorf("%d segments were lost", len(lost))
				}
				for _, seg := range lost {
					for _, run := range got.runs {
						if run.First <= seg.Last() && seg.First <= run.First+run.Count-1 {
							t.Errorf("%v was lost, and %v issued", seg, run)
						}
					}
				}
			})
		})
	}
}

// slug returns a fault's name as a tag.
func slug(name string) string {
	b := []byte(name)
	for i := range b {
		if b[i] == ' ' || b[i] == ',' {
			b[i] = '-'
		}
	}
	return string(b)
}

// TestSenselessAnswers: the client refuses answers that no room gives, with their IDs.
func TestSenselessAnswers(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		f := newFront(t, c.room("a", "a1"))
		ids := newClient(t, quick(f.address))
		for says, change := range map[string]func(*marchv1.LeaseResponse){
			"no segment is given":    func(r *marchv1.LeaseResponse) { r.Segment = nil },
			"count 0":                func(r *marchv1.LeaseResponse) { r.Segment.Count = 0 },
			"it leased ":             func(r *marchv1.LeaseResponse) { r.Segment.Count = 1_000_000 },
			"first ID 77 is not in ": func(r *marchv1.LeaseResponse) { r.Segment.First = 77 },
			"ttl: seconds:-1":        func(r *marchv1.LeaseResponse) { r.Ttl = durationpb.New(-time.Second) },
			"ttl: nanos:-1":          func(r *marchv1.LeaseResponse) { r.Ttl = &durationpb.Duration{Nanos: -1} },
			"ttl: seconds:1": func(r *marchv1.LeaseResponse) {
				r.Ttl = &durationpb.Duration{Seconds: 1, Nanos: -5}
			},
		} {
			f.alter(change)
			name := fmt.Sprintf("tag-%d", len(says))
			_, err := ids.Next(t.Context(), name)
			ledgertest.WantKind(t, err, allocator.Internal, "room at "+f.address, says)
		}
		// If a segment ended before its answer arrived, neither side is at fault.
		f.alter(func(*marchv1.LeaseResponse) { time.Sleep(time.Millisecond) })
		f.setTTL(time.Nanosecond)
		_, err := ids.Next(t.Context(), "late")
		ledgertest.WantKind(t, err, allocator.Unavailable, "its answer took longer than the 1ns")
		// If the same IDs come a second time, the room is.
		f.setTTL(0)
		var first *marchv1.Segment
		f.alter(func(r *marchv1.LeaseResponse) {
			if first == nil {
				first = r.GetSegment()
			}
			r.Segment = first
		})
		tag, err := ids.Tag("twice")
		if err != nil {
			t.Fatal(err)
		}
		testcluster.Await(t, "the client has seen that the room is back", func() bool {
			return tag.Warm(t.Context()) == nil
		})
		_, err = tag.NextN(t.Context(), first.GetCount()+1, nil)
		ledgertest.WantKind(t, err, allocator.WentBack, "for the second time")
	})
}

// TestInstances has the instances of a room stop and start in turn under load.
// No call fails, no ID comes twice.
func TestInstances(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		instances := []*instance{c.room("a", "a1"), c.room("a", "a2"), c.room("a", "a3")}
		order := tagOf(t, newClient(t, quick(instances[0].address, instances[1].address, instances[2].address)),
			"order")
		var got issued
		stop := load(t, order, &got)
		for n := range 6 {
			got.some(t, 500)
			i := instances[n%3]
			i.end()
			got.some(t, 1000)
			i.start()
		}
		if errs := stop(); errs != nil {
			t.Errorf("%d calls failed: %v", len(errs), errs[0])
		}
		t.Logf("%d IDs, %d leases", got.unique(t, "a", testcluster.Halves()), order.Status().Refills)
	})
}

// TestSticks: a client stays with the instance that answers. It asks an instance that
// fails only a few times more.
func TestSticks(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.room("a", "a1")
		fronts := []*front{newFront(t, a), newFront(t, a), newFront(t, a)}
		ids := newClient(t, quick(fronts[0].address, fronts[1].address, fronts[2].address))
		lease := func(name string) {
			t.Helper()
			if _, err := ids.Next(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		asked := func() int { return slices.IndexFunc(fronts, func(f *front) bool { return f.calls() > 0 }) }
		for n := range 20 {
			lease(fmt.Sprintf("one-%d", n))
		}
		one := fronts[asked()]
		if one.calls() != 20 {
			t.Errorf("%d of 20 calls at one instance", one.calls())
		}
		one.fault(faults["away"])
		for n := range 20 {
			lease(fmt.Sprintf("two-%d", n))
		}
		if n := one.calls() - 20; n > 3 {
			t.Errorf("an instance that fails was asked %d times more", n)
		}
	})
}

// TestFallback: a client takes IDs of another room while its own is away, if its options
// allow that, and then returns to its own.
func TestFallback(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := newFront(t, c.room("a", "a1")), newFront(t, c.room("b", "b1"))
		opts := quick(a.address)
		alone := newClient(t, opts)
		opts.Fallback = []string{b.address}
		both := newClient(t, opts)
		take := func(name string) int64 {
			t.Helper()
			id, err := both.Next(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			return id % 100
		}
		if r := take("one"); r >= 50 || b.calls() != 0 {
			t.Errorf("residue %d, %d calls to room b", r, b.calls())
		}
		for n, f := range []fault{
			faults["away"], faults["hang, happened"],
			answers(allocator.Errorf(allocator.WentBack, "leasing is halted")),
			answers(allocator.Errorf(allocator.NoRange, "room a has no range in layout version 1")),
		} {
			a.fault(f)
			if r := take(fmt.Sprintf("away-%d", n)); r < 50 {
				t.Errorf("residue %d of room a, which is away", r)
			}
		}
		_, err := alone.Next(t.Context(), "none")
		ledgertest.WantKind(t, err, allocator.NoRange, "room at "+a.address, "no range in layout version 1")
		a.down()
		if r := take("down"); r < 50 {
			t.Errorf("residue %d of room a, which is down", r)
		}
		_, err = alone.Next(t.Context(), "gone")
		ledgertest.WantKind(t, err, allocator.Unavailable, "room at "+a.address, "since")
		var away *allocator.AwayError
		if !errors.As(err, &away) || away.Tag != "gone" || away.Since.IsZero() {
			t.Errorf("%v does not say since when", err)
		}
		a.fault(nil)
		a.listen()
		n := 0
		testcluster.Await(t, "home again", func() bool { n++; return take(fmt.Sprintf("home-%d", n)) < 50 })
	})
}

// TestRefusals: a refusal is no reason to ask another instance.
func TestRefusals(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.room("a", "a1")
		fronts := []*front{newFront(t, a), newFront(t, a)}
		ids := newClient(t, quick(fronts[0].address, fronts[1].address))
		for _, kind := range []allocator.Kind{
			allocator.Exhausted, allocator.NotFound, allocator.Refused, allocator.Denied, allocator.Unauthenticated,
			allocator.Invalid,
		} {
			before := fronts[0].calls() + fronts[1].calls()
			for _, f := range fronts {
				f.fault(answers(allocator.Errorf(kind, "no")))
			}
			_, err := ids.Next(t.Context(), "order-"+slug(kind.Error()[:3])+"x")
			ledgertest.WantKind(t, err, kind, "no")
			if n := fronts[0].calls() + fronts[1].calls() - before; n != 1 {
				t.Errorf("%v: %d calls", kind, n)
			}
		}
	})
}

// TestCallersDeadline: where a caller's own deadline ends a call, the instance has not failed: the next call goes to it
// again, and to no other room.
func TestCallersDeadline(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := newFront(t, c.room("a", "a1")), newFront(t, c.room("b", "b1"))
		opts := quick(a.address)
		opts.Fallback = []string{b.address}
		ids := newClient(t, opts)
		a.fault(faults["hang"])
		ctx, cancel := context.WithTimeout(t.Context(), opts.Timeout/4)
		defer cancel()
		_, err := ids.Lease(ctx, "order", 5)
		ledgertest.WantKind(t, err, allocator.Unavailable, "lease of tag order: context deadline exceeded")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v has no cause", err)
		}
		a.fault(nil)
		if seg, err := ids.Lease(t.Context(), "order", 5); err != nil || seg.First%100 >= 50 || b.calls() != 0 {
			t.Errorf("%v, %v, %d calls to room b", seg, err, b.calls())
		}
	})
}
