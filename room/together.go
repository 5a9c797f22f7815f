package room

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/metadata"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// together passes calls for single IDs of an ordered tag on, those that wait at the same time as one call for as many
// IDs. The holder takes these after each of the calls came in, so the calls keep their order.
type together struct {
	sync.Mutex
	waiting []*single
	asking  int // goroutines that pass calls on
}

// atOnce is how many calls may be under way: within a room one, as the trip is short, and costs more than the wait for
// the one before; to another room a few, so that no call waits for most of another one's trip.
func (p *passed) atOnce() int {
	if p.elsewhere() {
		return 4
	}
	return 1
}

// single is a call for one ID.
type single struct {
	gaveUp atomic.Bool
	done   chan struct{} // closed when these are there:
	id     int64
	alone  bool // it is to be made by itself
	err    error
}

// join returns an ID that the holder gives.
func (p *passed) join(ctx context.Context) (int64, error) {
	s := &single{done: make(chan struct{})}
	p.together.Lock()
	p.together.waiting = append(p.together.waiting, s)
	if p.together.asking < p.atOnce() {
		p.together.asking++
		p.tags.peers.asking.Go(p.askAll)
	}
	p.together.Unlock()
	select {
	case <-s.done:
	case <-ctx.Done():
		s.gaveUp.Store(true)
		return 0, context.Cause(ctx)
	}
	if s.alone {
		return p.next(ctx)
	}
	return s.id, s.err
}

// next asks the holder for one ID.
func (p *passed) next(ctx context.Context) (int64, error) {
	answer, err := p.to.Next(ctx, &marchv1.NextRequest{Tag: string(p.name)})
	return answer.GetId(), err
}

// askAll passes calls on while any wait.
func (p *passed) askAll() {
	for {
		p.together.Lock()
		var list []*single
		for len(p.together.waiting) > 0 && len(list) < api.MaxBatch {
			if s := p.together.waiting[0]; !s.gaveUp.Load() {
				list = append(list, s)
			}
			p.together.waiting = p.together.waiting[1:]
		}
		if len(list) == 0 {
			p.together.asking--
			p.together.Unlock()
			return
		}
		p.together.Unlock()
		p.share(list)
	}
}

// share makes one call for several. Where the holder refuses it, each of them is to be made by itself: fewer IDs than
// all of them want may be left.
func (p *passed) share(list []*single) {
	ctx, cancel := context.WithTimeout(p.tags.background, p.most())
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, passedOn, string(p.tags.cfg.Room))
	if len(list) == 1 {
		list[0].id, list[0].err = p.next(ctx)
		close(list[0].done)
		return
	}
	answer, err := p.to.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: string(p.name), Count: int64(len(list))})
	kind := allocator.KindOf(err)
	alone := api.FromServer(err) && kind != allocator.Unavailable && kind != allocator.Conflict
	for _, run := range api.AppendRuns(nil, answer.GetRuns()) {
		for id := range run.IDs() {
			if len(list) > 0 {
				list[0].id = id
				close(list[0].done)
				list = list[1:]
			}
		}
	}
	if err == nil && len(list) > 0 {
		err = allocator.Errorf(allocator.Internal, "instance %s answered with %d IDs less", p.holder.Instance, len(list))
	}
	for _, s := range list {
		s.alone, s.err = alone, err
		close(s.done)
	}
}
