package client

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// NextRun returns n consecutive IDs of a tag; see Tag.NextRun.
func (c *Client) NextRun(ctx context.Context, tag string, n int64) (run allocator.Run, err error) {
	err = c.with(tag, func(t *Tag) error {
		run, err = t.NextRun(ctx, n)
		return err
	})
	return run, err
}

// NextRun returns n consecutive IDs, 1 to 100,000: of what the client holds, or else of the
// room, which issues them in one call (NextBatch with contiguous). n is at most the width of
// the room's range, and at most half of the tag's max_step. If the rest of a block is too
// short, it is skipped, a gap. Its errors are Next's; Invalid (n); and Refused for a tag of
// kind time, which has no consecutive IDs, and if the room's release knows no contiguous.
func (t *Tag) NextRun(ctx context.Context, n int64) (run allocator.Run, err error) {
	if n < 1 || n > api.MaxBatch {
		return run, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, api.MaxBatch)
	}
	if t.timed.Load() == nil {
		if run, ok := t.chain.TryRun(n); ok {
			return run, nil
		}
	}
	_, err = t.client.pool.ask(ctx, "consecutive IDs of tag "+string(t.name), nil,
		func(ctx context.Context, e *endpoint) error {
			answer, err := e.ids.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: string(t.name),
				Count: n, Contiguous: true})
			if err == nil {
				run, err = runOf(n, answer)
			}
			return err
		})
	if err != nil {
		return allocator.Run{}, t.ofClient(err)
	}
	return run, nil
}

// runOf returns the run of a room's answer, which must be what was asked for. Rooms of
// earlier releases do not know the field contiguous, and may answer with several runs.
func runOf(n int64, answer *marchv1.NextBatchResponse) (allocator.Run, error) {
	runs := answer.GetRuns()
	if len(runs) > 1 {
		return allocator.Run{}, allocator.Errorf(allocator.Refused,
			"it answered with %d runs, because its release does not know contiguous; "+
				"upgrade the room (these IDs are a gap)", len(runs))
	}
	if len(runs) == 0 || runs[0].GetCount() != n {
		return allocator.Run{}, allocator.Errorf(allocator.Internal,
			"its answer makes no sense: %v; asked for: %d consecutive IDs", runs, n)
	}
	return allocator.Run{First: runs[0].GetFirst(), Count: n}, nil
}
