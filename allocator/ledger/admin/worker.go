package admin

import (
	"context"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
)

// TimeOrigin returns the parts of an ID of a tag of kind time, and the room that
// issued it. Its errors are timeid.Layout.DecomposeBefore's, and Unavailable.
func (a *Admin) TimeOrigin(ctx context.Context, tag record.TimeTag, id int64) (worker.Origin, error) {
	parts, err := tag.Layout().DecomposeBefore(id, a.now().Add(record.MaxAhead).UnixMilli())
	if err != nil {
		return worker.Origin{}, err
	}
	return a.PartsOrigin(ctx, tag, parts)
}

// PartsOrigin is TimeOrigin of the parts of an ID, which a text may have without a number.
// Its errors are worker.OriginOf's, and Unavailable.
func (a *Admin) PartsOrigin(ctx context.Context, tag record.TimeTag, parts timeid.Parts) (worker.Origin, error) {
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
	return worker.OriginOf(tag, parts, a.now().Truncate(time.Millisecond), key, layouts)
}
