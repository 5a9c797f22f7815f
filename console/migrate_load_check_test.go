package console_test

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// phase is the state of the cluster while a call is made.
type phase = int32

const (
	settling phase = iota // is not measured
	quiet
	migrating
	phases
)

// schedule says when calls are due in a phase. Each phase has its own schedule, so that
// late calls of one phase do not show in the next.
type schedule struct {
	phase phase
	began time.Time
	rate  int64        // calls a second
	slots atomic.Int64 // taken slots
}

// due returns when a slot is due.
func (s *schedule) due(slot int64) time.Time {
	return s.began.Add(time.Duration(slot) * time.Second / time.Duration(s.rate))
}

// callersEach is how many callers ask an instance for one tag: enough for one
// instance to take all the load.
const callersEach = 2

// load calls instances of rooms for every tag, on a common schedule. The time of a call
// counts from when it was due, so a call that delays others shows in their times. load
// keeps all issued IDs.
type load struct {
	*world
	tags    int
	began   time.Time
	elapsed time.Duration
	now     atomic.Pointer[schedule]
	warmed  atomic.Int64 // callers that got something
	done    chan struct{}
	once    sync.Once
	work    sync.WaitGroup
	callers []*caller

	mu struct {
		sync.Mutex
		refused []string // calls that failed because their room had no range
		failed  []string // calls that failed for another reason
		took    [phases]*hdrhistogram.Histogram
		fromDue [phases]*hdrhistogram.Histogram // in a call that waits for its turn, too
	}
}

// caller asks one instance for IDs of one tag, again and again. Its counts are read when it
// has ended.
type caller struct {
	room        allocator.Room
	tag         allocator.Tag
	ids         marchv1.IDServiceClient
	issued      []*marchv1.Run
	calls, next int
}

// newLoad returns a load of some tags with rate calls a second.
func newLoad(w *world, tags int, rate int64) *load {
	l := &load{world: w, tags: tags, began: time.Now(), done: make(chan struct{})}
	for p := range l.mu.took {
		l.mu.took[p] = hdrhistogram.New(1000, int64(time.Minute), 3)
		l.mu.fromDue[p] = hdrhistogram.New(1000, int64(time.Minute), 3)
	}
	l.now.Store(&schedule{phase: settling, began: time.Now(), rate: rate})
	return l
}

// enter begins a phase.
func (l *load) enter(p phase) {
	l.now.Store(&schedule{phase: p, began: time.Now(), rate: l.now.Load().rate})
}

// call starts an instance, and callers of it for each tag.
func (l *load) call(in allocator.Room, name allocator.Instance) {
	l.Helper()
	ids := l.server(in, name)
	for k := range callersEach * l.tags {
		c := &caller{room: in, tag: tagOf(k % l.tags), ids: ids}
		l.callers = append(l.callers, c)
		l.work.Go(func() { l.run(c, k) })
	}
}

// warm waits until every caller has got something.
func (l *load) warm() {
	l.Helper()
	testcluster.Await(l, "all callers are warm", func() bool { return l.warmed.Load() == int64(len(l.callers)) })
}

// stop ends the load.
func (l *load) stop() {
	l.once.Do(func() {
		close(l.done)
		l.elapsed = time.Since(l.began)
	})
	l.work.Wait()
}

func (l *load) run(c *caller, k int) {
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	for turn := 0; ; turn++ {
		now := l.now.Load()
		due := now.due(now.slots.Add(1))
		select {
		case <-l.done:
			return
		case <-time.After(time.Until(due)):
		}
		began := time.Now()
		var runs []*marchv1.Run
		var err error
		batch := (turn+k)%64 == 0
		if batch {
			var r *marchv1.NextBatchResponse
			r, err = c.ids.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: string(c.tag), Count: 1 + int64(turn)%60})
			runs = r.GetRuns()
		} else {
			var r *marchv1.NextResponse
			r, err = c.ids.Next(ctx, &marchv1.NextRequest{Tag: string(c.tag)})
			runs = []*marchv1.Run{{First: r.GetId(), Count: 1}}
		}
		if err != nil {
			l.failed(c, err)
			select { // the other callers make the load
			case <-l.done:
			case <-time.After(200 * time.Millisecond):
			}
			continue
		}
		if c.calls++; c.calls == 1 {
			l.warmed.Add(1)
		}
		if !batch {
			c.next++
		}
		l.record(now.phase, time.Since(began), time.Since(due))
		c.issued = append(c.issued, runs...)
	}
}

var noRange = regexp.MustCompile(`room ([a-z]) has no range in layout version (\d+)`)

func (l *load) failed(c *caller, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := status.Convert(err)
	if s.Code() == codes.Unavailable && noRange.MatchString(s.Message()) {
		l.mu.refused = append(l.mu.refused, s.Message())
		return
	}
	l.mu.failed = append(l.mu.failed, fmt.Sprintf("room %s tag %s: %v", c.room, c.tag, err))
}

func (l *load) record(p phase, took, fromDue time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.took[p].RecordValue(int64(took)) != nil || l.mu.fromDue[p].RecordValue(int64(fromDue)) != nil {
		l.Errorf("a call took %v, %v from when it was due", took, fromDue)
	}
}

// tally is the result of a load.
type tally struct {
	calls, next, refused int
	ids                  int64
}

// check checks that no ID came twice, and every failed call. The load has stopped. Chaos checks besides that each ID
// was its room's when it was issued.
func (l *load) check() tally {
	l.Helper()
	history, _, err := l.Admin.Layouts(bg, 0, record.MaxLayouts)
	if err != nil {
		l.Fatal(err)
	}
	layouts := make(map[int64]allocator.Layout)
	for _, r := range history {
		layouts[r.Layout.Version] = r.Layout
	}
	for _, text := range l.mu.refused {
		part := noRange.FindStringSubmatch(text)
		version, _ := strconv.ParseInt(part[2], 10, 64)
		if _, has := layouts[version].Ranges[allocator.Room(part[1])]; has || layouts[version].Version == 0 {
			l.Errorf("%s, but it has one", text)
		}
	}
	sum := tally{refused: len(l.mu.refused)}
	all := make(map[allocator.Tag][]*marchv1.Run)
	for _, c := range l.callers {
		sum.calls += c.calls
		sum.next += c.next
		all[c.tag] = append(all[c.tag], c.issued...)
	}
	for tag, list := range all {
		slices.SortFunc(list, func(a, b *marchv1.Run) int { return cmp.Compare(a.GetFirst(), b.GetFirst()) })
		for k, r := range list {
			sum.ids += r.GetCount()
			if k > 0 && r.GetFirst() < list[k-1].GetFirst()+list[k-1].GetCount() {
				l.Fatalf("tag %s: twice: %v and %v", tag, list[k-1], r)
			}
		}
	}
	return sum
}
