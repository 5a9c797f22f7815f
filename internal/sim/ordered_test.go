package sim_test

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// orderedTag has a strict order in each room, and clusterTag has one over all rooms.
const (
	orderedTag = allocator.Tag("ordered")
	clusterTag = allocator.Tag("everywhere")
)

// peer is an instance's connection to another one, by the network of its link.
type peer struct {
	w       *world
	from    *link
	address string
}

// taggedID is an ID of a tag.
type taggedID struct {
	tag allocator.Tag
	id  int64
}

// passed is an answer that one instance had from another one.
type passed struct {
	by *process
	at time.Time // when it answered
}

// Invoke implements grpc.ClientConnInterface.
func (c peer) Invoke(ctx context.Context, method string, request, answer any, _ ...grpc.CallOption) error {
	sent, _ := metadata.FromOutgoingContext(ctx)
	_, err := call(ctx, c.from, c.from.toss("pass "+method), func() (bool, error) {
		p := c.w.at(c.address)
		if p == nil || p.room == nil { // or an instance of time-ordered IDs only
			return false, allocator.Errorf(allocator.Unavailable, "sim: connection refused")
		}
		// Its link carries the request when it carries anything again.
		for wait := p.link.held(false); wait > 0; wait = p.link.held(false) {
			select {
			case <-time.After(align(wait, c.from.lane)):
			case <-ctx.Done():
				return false, ctx.Err()
			case <-p.gone:
				return false, allocator.Errorf(allocator.Unavailable, "sim: connection refused")
			}
		}
		serving, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		err := c.w.serve(metadata.NewIncomingContext(serving, sent), p, request, answer)
		if err != nil {
			err = api.FromStatus(api.ToStatus(err)) // as over gRPC
		}
		return true, err
	})
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (c peer) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, allocator.Errorf(allocator.Internal, "sim: no call streams")
}

// serve answers a call that was passed on.
func (w *world) serve(ctx context.Context, p *process, request, answer any) error {
	began := time.Now()
	note := func(tag string, runs ...allocator.Run) { // of each ID: several calls may be passed on as one
		w.mu.Lock()
		defer w.mu.Unlock()
		w.count1("calls passed on")
		for _, run := range runs {
			for number := range run.IDs() {
				id := taggedID{allocator.Tag(tag), number}
				if was, ok := w.mu.passed[id]; ok && !was.at.Before(began) {
					w.count1("calls passed on twice")
					return
				}
				w.mu.passed[id] = passed{p, time.Now()}
			}
		}
	}
	switch r := request.(type) {
	case *marchv1.NextRequest:
		got, err := p.room.Next(ctx, r)
		if err == nil {
			answer.(*marchv1.NextResponse).Id = got.GetId() //nolint:forcetypeassert // of the request's method
			note(r.GetTag(), allocator.Run{First: got.GetId(), Count: 1})
		}
		return err
	case *marchv1.NextBatchRequest:
		got, err := p.room.NextBatch(ctx, r)
		if err == nil {
			answer.(*marchv1.NextBatchResponse).Runs = got.GetRuns() //nolint:forcetypeassert // likewise
			note(r.GetTag(), api.AppendRuns(nil, got.GetRuns())...)
		}
		return err
	case *marchv1.LeaseRequest: // to find out whether the instance answers: it refuses that
		_, err := p.room.Lease(ctx, r)
		return err
	}
	return allocator.Errorf(allocator.Internal, "sim: %T is not passed on", request)
}

// at returns the instance that serves at an address, nil for none.
func (w *world) at(address string) *process {
	w.mu.Lock()
	at := slices.IndexFunc(w.mu.processes, func(p *process) bool { return p.address == address })
	var p *process
	if at >= 0 {
		p = w.mu.processes[at]
	}
	w.mu.Unlock()
	if p == nil {
		return nil
	}
	select {
	case <-p.gone:
		return nil
	case <-p.serving:
		return p
	default:
		return nil
	}
}

// passedOn finds out which instance issued the IDs of an answer.
func (w *world) passedOn(a *answered) {
	if a.tag != orderedTag && a.tag != clusterTag {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// An instance that a recover left out may have issued the same ID to an earlier call.
	if by, ok := w.mu.passed[taggedID{a.tag, a.runs[0].First}]; ok && !by.at.Before(a.began) {
		a.by, a.at = by.by, by.at
	}
}

// restOf returns what a take of an ordered tag brings of what the tenure before left.
func (l *link) restOf(txn store.Txn) (lease, bool) {
	if len(txn.Then) == 0 || txn.Then[0].Put == nil {
		return lease{}, false
	}
	key, err := keys.Parse(txn.Then[0].Put.Key)
	if err != nil || key.Kind != record.Holders && key.Kind != record.Orders {
		return lease{}, false
	}
	l.w.count("takes and releases of an ordered tag", 1)
	at := slices.IndexFunc(txn.If, func(c store.Cond) bool { return c.Key == txn.Then[0].Put.Key })
	was, err := record.ReadAs[record.Holder](keys, store.KV{Key: txn.If[at].Key, Value: txn.If[at].Value})
	if err != nil || was.Rest == nil || len(txn.If) < 6 { // it compares the mark, too
		return lease{}, false
	}
	return lease{tag: key.Tag, first: was.Rest.First, end: was.Rest.End, sent: time.Now(),
		epoch: epochName(epochOf(txn)), version: was.Rest.Version}, true
}

// checkOrder checks that each call for IDs of the ordered tag got IDs above all that were answered in its room before
// it began, and of the tag that is ordered over all rooms, in any room.
func (w *world) checkOrder() {
	for _, room := range w.rooms {
		w.checkCalls("calls of an ordered tag checked", func(a answered) bool {
			return a.tag == orderedTag && a.by.in == room
		})
	}
	w.checkCalls("calls of a tag that is ordered over all rooms checked", func(a answered) bool {
		return a.tag == clusterTag
	})
}

// checkCalls checks the order of the calls that belong to it. Instances that a recover left out may break it.
func (w *world) checkCalls(count string, belongs func(answered) bool) {
	type end struct {
		at   time.Time
		call int
		last int64
	}
	var calls []answered
	var ends []end
	for _, a := range w.mu.calls {
		if !belongs(a) || slices.ContainsFunc(a.runs, func(run allocator.Run) bool {
			return a.by.leftRun(a.tag, run)
		}) {
			continue
		}
		run := a.runs[len(a.runs)-1]
		ends = append(ends, end{a.done, len(calls), run.First + run.Count - 1})
		calls = append(calls, a)
	}
	slices.SortStableFunc(ends, func(a, b end) int { return a.at.Compare(b.at) })
	most := make([]int, len(ends)) // of the ends up to here, the one with the largest ID
	for i := range ends {
		if most[i] = i; i > 0 && ends[most[i-1]].last > ends[i].last {
			most[i] = most[i-1]
		}
	}
	for _, a := range calls {
		before, _ := slices.BinarySearchFunc(ends, a.began, func(e end, at time.Time) int {
			return cmp.Or(e.at.Compare(at), 1)
		})
		w.count(count, 1)
		if before == 0 {
			continue
		}
		if last := ends[most[before-1]]; last.last >= a.runs[0].First {
			other := calls[last.call]
			w.Errorf("INVERSION: tag %s: a call that began at %v got %v of %s, and %v of %s were answered at %v",
				a.tag, a.began.Sub(w.began), a.runs, a.by.id, other.runs, other.by.id, last.at.Sub(w.began))
		}
	}
}

// moveHome makes one of some rooms the home of the tag that is ordered over all rooms: any of them, or with stays
// another one only if the home is none of them.
func (w *world) moveHome(ctx context.Context, d dice, to []allocator.Room, stays bool) error {
	_, err := w.admin.UpdateTag(ctx, clusterTag, func(s *record.TagSettings) error {
		if !stays || !slices.Contains(to, s.Home) {
			s.Home = pick(d, to)
		}
		return nil
	}, "simulation")
	if kind := allocator.KindOf(err); kind == allocator.Invalid || kind == allocator.Refused {
		return nil // the layout changed just then, or a migration is under way
	}
	return err
}
