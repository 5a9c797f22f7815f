package client

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// timed is the client's state of a tag of time-ordered IDs.
type timed struct {
	tag    *Tag
	worker *worker // of the tag's width
	layout timeid.Layout
	wide   bool // layout is timeid.Wide: the IDs exist only as texts

	generator atomic.Pointer[timeid.Generator] // nil while there is no window
	used      atomic.Bool                      // since the keeper looked last

	// Guarded by worker.mu.
	cfg    timeid.Config // the tag's settings
	lately time.Time     // when the keeper last saw the tag in use
	ended  bool          // no generator is made any more
}

// errEnded means that the tag may no longer have time-ordered IDs: it was deleted, or
// dropped from memory. The caller then asks the chain.
var errEnded = &allocator.Error{Kind: allocator.Unavailable, Msg: "tag of time-ordered IDs ended"}

// next returns an ID. If there is no window, the room issues it.
func (d *timed) next(ctx context.Context) (id int64, err error) {
	if d.wide {
		return 0, d.tag.ofText(texts.ErrNoNumber)
	}
	if g := d.generator.Load(); g != nil {
		if id, ok := g.TryNext(); ok {
			d.use()
			return id, nil
		}
	}
	err = d.issue(ctx, func(g *timeid.Generator) error {
		id, err = g.Next(ctx)
		return err
	}, func(ctx context.Context, e *endpoint) error {
		answer, err := e.ids.Next(ctx, &marchv1.NextRequest{Tag: string(d.tag.name)})
		id = answer.GetId()
		return err
	})
	return id, err
}

// nextN appends n IDs to dst.
func (d *timed) nextN(ctx context.Context, n int64, dst []allocator.Run) ([]allocator.Run, error) {
	if d.wide {
		return dst, d.tag.ofText(texts.ErrNoNumber)
	}
	if err := d.checkCount(n); err != nil {
		return dst, err
	}
	had, left := len(dst), n
	batch := func(ctx context.Context, e *endpoint) error {
		if left == n {
			dst = dst[:had] // IDs that the generator appended before its window ended are a gap
		}
		part := min(left, api.MaxBatch)
		answer, err := e.ids.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: string(d.tag.name), Count: part})
		if err != nil {
			return err
		}
		for _, run := range answer.GetRuns() {
			dst = append(dst, allocator.Run{First: run.GetFirst(), Count: run.GetCount(),
				Stride: max(run.GetStride(), 1)})
		}
		left -= part
		return nil
	}
	err := d.issue(ctx, func(g *timeid.Generator) (err error) {
		dst, err = g.NextN(ctx, n, dst[:had])
		if err == nil {
			left = 0
		}
		return err
	}, batch)
	for err == nil && left > 0 {
		err = d.ofRoom(ctx, batch)
	}
	return dst, err
}

// appendNext takes an ID that exists only as a text, and appends that to dst. With an error
// it returns dst as it was.
func (d *timed) appendNext(ctx context.Context, dst []byte, text *tagText) ([]byte, error) {
	if g := d.generator.Load(); g != nil {
		if id, ok := g.TryNext(); ok {
			d.use()
			return text.AppendParts(dst, g.Parts(id))
		}
	}
	full := dst
	err := d.issue(ctx, func(g *timeid.Generator) error {
		id, err := g.Next(ctx)
		if err == nil {
			full, err = text.AppendParts(full, g.Parts(id))
		}
		return err
	}, func(ctx context.Context, e *endpoint) error {
		answer, err := e.ids.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: string(d.tag.name), Count: 1, Texts: true})
		if err != nil {
			return err
		}
		if n := len(answer.GetTexts()); n != 1 {
			return allocator.Errorf(allocator.Internal, "its answer makes no sense: %d texts; asked for: 1", n)
		}
		full = append(full, answer.GetTexts()[0]...)
		return nil
	})
	return full, err
}

// checkCount checks the number of IDs of one call. Its error is Invalid.
func (d *timed) checkCount(n int64) error {
	if n < 1 || n > d.layout.PerSecond() {
		return allocator.Errorf(allocator.Invalid,
			"count: %d; allowed: 1 to %d, what one worker has in a second", n, d.layout.PerSecond())
	}
	return nil
}

// use notes that the tag is used. It writes once for each look of the keeper.
func (d *timed) use() {
	if !d.used.Load() {
		d.used.Store(true)
	}
}

// issue calls own with the tag's generator. If there is no window, it waits for one. If
// the room gives none, it calls room. Its errors are those of own and room, errEnded, and
// Unavailable if ctx ended first.
func (d *timed) issue(ctx context.Context, own func(*timeid.Generator) error,
	room func(context.Context, *endpoint) error) error {
	d.use()
	for {
		g := d.generator.Load()
		if g != nil {
			err := own(g)
			var outside *timeid.WindowError
			switch {
			case errors.As(err, &outside) && outside.Early:
				return d.ofRoom(ctx, room) // the room's clock is ahead of ours
			case outside == nil && !errors.Is(err, error(timeid.ErrClosed)):
				return err
			}
		}
		again, err := d.worker.await(ctx, d, g)
		if err != nil {
			return err
		}
		if !again {
			return d.ofRoom(ctx, room)
		}
	}
}

// ofRoom lets a room issue the IDs, with the worker of the room's instance.
func (d *timed) ofRoom(ctx context.Context, room func(context.Context, *endpoint) error) error {
	_, err := d.tag.client.pool.ask(ctx, "tag "+string(d.tag.name), nil, room)
	if err != nil && allocator.KindOf(err) == allocator.NotFound {
		d.worker.detach(d)
	}
	return err
}
