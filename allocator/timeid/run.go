package timeid

import (
	"context"

	"github.com/march-id/march/allocator"
)

// NextN appends n IDs, n from 1 to Layout.PerSecond, to dst as runs in growing order and
// returns the longer slice. It waits as Next does, for every tick that it fills. Its errors are
// those of Next, and Invalid. After an error the runs that it appended are lost, a gap. A run's
// Stride is the layout's.
func (g *Generator) NextN(ctx context.Context, n int64, dst []allocator.Run) ([]allocator.Run, error) {
	if n < 1 || n > g.cfg.Layout.PerSecond() {
		return dst, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d, what one worker has in a second",
			n, g.cfg.Layout.PerSecond())
	}
	for n > 0 {
		word, count, err := g.claim(ctx, uint64(n))
		if err != nil {
			return dst, err
		}
		first, stride := g.id(word), g.cfg.Layout.Stride()
		if last := len(dst) - 1; last >= 0 && dst[last].First+dst[last].Count*stride == first &&
			dst[last].Stride == stride {
			dst[last].Count += int64(count)
		} else {
			dst = append(dst, allocator.Run{First: first, Count: int64(count), Stride: stride})
		}
		n -= int64(count)
	}
	return dst, nil
}
