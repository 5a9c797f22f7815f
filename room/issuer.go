package room

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/texts"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// issuer issues the IDs of one tag in memory: a counter those of its chain, a TimeTag those of
// a worker's windows. It may be closed at any time, because it was unused for long or its tag
// was deleted. Its methods then return allocator.ErrClosed.
type issuer interface {
	ask()              // counts a request
	Text() *texts.Text // how its IDs are texts; nil for a tag without a format
	Next(ctx context.Context) (int64, error)
	// NextN appends the runs of n IDs to dst. Those that it appended before an error are lost, a gap.
	NextN(ctx context.Context, n int64, dst []allocator.Run) ([]allocator.Run, error)
	// NextRun returns n consecutive IDs, and how many it skipped before them.
	NextRun(ctx context.Context, n int64) (run allocator.Run, skipped int64, err error)
	// prepare returns what can be known to fail before n IDs are taken.
	prepare(ctx context.Context, n int64) error
	// lease gives the caller IDs, or a window, to issue itself.
	lease(ctx context.Context, m *tags, r *marchv1.LeaseRequest) (*marchv1.LeaseResponse, error)
	// Warm waits until a caller need not wait for etcd.
	Warm(ctx context.Context) error

	// update applies a tag's changed settings. It returns false if the issuer cannot go on with
	// them, as that of a tag that was deleted and made anew.
	update(m *tags, settings record.TagSettings) (keeps bool, err error)
	// report adds the issuer to a round of the scan, whose lock is held.
	report(m *tags, r *round, now time.Time)
	counts() *tally
	totals() totals
	// CloseUnused closes the issuer if no caller asked for an ID for some time. Only the sweep calls it.
	CloseUnused(after time.Duration) bool
	Close()
}

// tally has what an issuer of any kind counts, and what was read of it.
type tally struct {
	asked atomic.Int64 // requests for its IDs, failed ones included
	seen  totals       // its totals when the scan last saw it; guarded by scan
}

func (t *tally) ask()           { t.asked.Add(1) }
func (t *tally) counts() *tally { return t }
