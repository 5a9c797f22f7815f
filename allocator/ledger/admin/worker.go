package admin

import (
	"context"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
)

// TimeOrigin returns the parts of an ID of a tag of kind time, and the room that
// issued it. Its errors are worker.OriginOf's, and Unavailable.
func (a *Admin) TimeOrigin(ctx context.Context, tag record.TimeTag, id int64) (worker.Origin, error) {
	now := a.now()
	parts, err := tag.Layout().DecomposeBefore(id, now.Add(record.MaxAhead).UnixMilli())
	if err != nil {
		return worker.Origin{}, err
	}
	layouts, _, err := a.Layouts(ctx, 0, record.MaxLayouts) // unreadable layouts are ignored
	if err != nil {
		return worker.Origin{}, err
	}
	answer, err := a.Ledger.Gets(ctx, store.OpGet(a.keys.Worker(record.WorkerID{Bits: tag.WorkerBits, Number: parts.Worker})))
	if err != nil {
		return worker.Origin{}, err
	}
	var key *record.Worker
	if kv, ok := answer.One(0); ok {
		if _, w, err := a.keys.DecodeWorker(kv); err == nil {
			key = &w
		}
	}
	return worker.OriginOf(tag, id, now.Truncate(time.Millisecond), key, layouts)
}
