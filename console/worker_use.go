package console

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

const (
	// endsEvery is how often a console reads all tags to see when their time bits end, and
	// endsAfter how long after its start it does first: that is years ahead, and a console
	// that starts has more urgent reads.
	endsEvery = time.Hour
	endsAfter = sizeEvery / 2
	// endsSoon is how long before the end a problem says it.
	endsSoon = 365 * 24 * time.Hour
	// mostUsed is the share of a slice's workers in use from which on a problem says it.
	mostUsed = 0.8
)

// workerUse is what a console last saw of the tags of time-ordered IDs. Its lists do not
// change.
type workerUse struct {
	slices []admin.SliceUse
	ends   []tagEnd // of the tags whose time bits end first, at most problemsOfKind and one
}

// tagEnd is when a tag's time bits are used up.
type tagEnd struct {
	tag allocator.Tag
	end int64 // Unix ms
}

// workers keeps a workerUse.
type workers struct {
	due time.Time // when ends are to be read, zero before the first look; only lookAtWorkers uses it

	mu struct {
		sync.Mutex
		workerUse
	}
}

func (w *workers) get() workerUse {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.workerUse
}

// lookAtWorkers takes note of how many workers are in use, and each hour of when tags end.
// Where etcd does not answer, what was seen before stays.
func (s *Server) lookAtWorkers(ctx context.Context) {
	stored, _, err := s.admin.LastLayout(ctx)
	if err != nil {
		return
	}
	if uses, err := s.admin.SliceUses(ctx, stored.Layout); err == nil {
		s.metrics.workersUsed.Set(largestShare(uses))
		s.workers.mu.Lock()
		s.workers.mu.slices = uses
		s.workers.mu.Unlock()
	}
	switch now := time.Now(); {
	case s.workers.due.IsZero():
		s.workers.due = now.Add(endsAfter)
	case !now.Before(s.workers.due) && s.lookAtEnds(ctx) == nil:
		s.workers.due = now.Add(endsEvery)
	}
}

// lookAtEnds takes note of when the time bits of tags end.
func (s *Server) lookAtEnds(ctx context.Context) error {
	ends, err := s.readEnds(ctx)
	if err != nil {
		return err
	}
	s.metrics.timeEnds(ends, time.Now())
	s.workers.mu.Lock()
	defer s.workers.mu.Unlock()
	s.workers.mu.ends = ends
	return nil
}

// readEnds returns the tags whose time bits end first.
func (s *Server) readEnds(ctx context.Context) (ends []tagEnd, err error) {
	first := func() {
		slices.SortFunc(ends, func(a, b tagEnd) int { return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.tag, b.tag)) })
		ends = ends[:min(len(ends), problemsOfKind+1)]
	}
	_, err = s.admin.EachTagIn(ctx, nil, func(t record.Tag, _ map[allocator.Room]record.Mark) error {
		if t.Time == nil {
			return nil
		}
		if ends = append(ends, tagEnd{t.Name, t.Time.Layout().End()}); len(ends) > 10*problemsOfKind {
			first()
		}
		return nil
	})
	first()
	return ends, err
}

// largestShare returns the largest share of a slice's workers that are in use. In a slice of
// one worker that is all or none, as its operator knows.
func largestShare(uses []admin.SliceUse) (most float64) {
	for _, u := range uses {
		most = max(most, share(u))
	}
	return most
}

func share(u admin.SliceUse) float64 {
	if u.Slice.Width() < 2 {
		return 0
	}
	return float64(u.Live) / float64(u.Slice.Width())
}

// timeEnds notes when the first tag ends.
func (n *metrics) timeEnds(ends []tagEnd, now time.Time) {
	left := math.Inf(1)
	if len(ends) > 0 {
		left = max(time.UnixMilli(ends[0].end).Sub(now).Seconds(), 0)
	}
	n.timeLeft.Set(left)
}

// problems lists tags that end soon, and slices with few workers left.
func (w workerUse) problems(now time.Time) []*marchv1.Problem {
	var ending, used []*marchv1.Problem
	for _, e := range w.ends {
		if end := time.UnixMilli(e.end); end.Before(now.Add(endsSoon)) {
			ending = append(ending, problem.TimeEnds(e.tag, end, now))
		}
	}
	for _, u := range w.slices {
		if share(u) > mostUsed {
			used = append(used, problem.WorkersUsed(u.Room, u.Bits, u.Live, u.Slice.Width()))
		}
	}
	return slices.Concat(problem.Some(ending, problemsOfKind, "tags"), problem.Some(used, problemsOfKind, "workers"))
}
