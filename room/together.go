package room

import (
	"context"
	"errors"
	"sync"
	"time"

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
	asking  bool // a goroutine passes calls on: one at a time, as a trip costs more than the wait for the one before
}

// single is a call for one ID.
type single struct {
	ctx  context.Context //nolint:containedctx // the call's own
	done chan struct{}   // closed when these are there:
	id   int64
	err  error
}

// errAlone is the error of a call that is to be made by itself.
var errAlone = errors.New("room: the holder refused the call that it shared")

// aloneFor is how long calls are not shared after one that was.
const aloneFor = 10 * time.Second

// join returns an ID that the holder gives. A request has most() from its sending on, however long the call waited.
func (p *passed) join(ctx context.Context) (int64, error) {
	s := &single{ctx: ctx, done: make(chan struct{})}
	p.together.Lock()
	p.together.waiting = append(p.together.waiting, s)
	if !p.together.asking {
		p.together.asking = true
		p.tags.peers.asking.Go(p.askAll)
	}
	p.together.Unlock()
	select {
	case <-s.done:
		return s.id, s.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
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
			if s := p.together.waiting[0]; s.ctx.Err() == nil {
				list = append(list, s)
			}
			p.together.waiting = p.together.waiting[1:]
		}
		if len(list) == 0 {
			p.together.asking = false
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(list[0].ctx), p.most())
	defer cancel()
	defer context.AfterFunc(p.tags.background, cancel)()
	ctx = metadata.AppendToOutgoingContext(ctx, passedOn, string(p.tags.cfg.Room))
	if len(list) == 1 {
		defer context.AfterFunc(list[0].ctx, cancel)()
		list[0].id, list[0].err = p.next(ctx)
		close(list[0].done)
		return
	}
	answer, err := p.to.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: string(p.name), Count: int64(len(list))})
	runs := api.AppendRuns(nil, answer.GetRuns())
	left := int64(len(list))
	for _, run := range runs {
		if run.Count < 1 || run.Count > left {
			left = -1
			break
		}
		left -= run.Count
	}
	switch kind := allocator.KindOf(err); {
	case err == nil && left != 0:
		err = allocator.Errorf(allocator.Internal, "instance %s answered with other than %d IDs", p.holder.Instance,
			len(list))
	case api.FromServer(err) && kind != allocator.Unavailable && kind != allocator.Conflict:
		err = errAlone
	}
	if err == nil {
		k := 0
		for _, run := range runs {
			for id := range run.IDs() {
				list[k].id = id
				k++
			}
		}
	}
	for _, s := range list {
		s.err = err
		close(s.done)
	}
}
