package console_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
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
	ended   atomic.Int64 // as in issue
	reached atomic.Int64
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
	reported    *atomic.Int64
	issued      []issue
	calls, next int
}

// issue is a run of IDs that a call returned, with the state when the call began: the
// version that the last migration ended with, the layout that its successor had reached,
// and the version that the instance had reported.
type issue struct {
	first, count, ended, reached, reported int64
}

// newLoad returns a load of some tags with rate calls a second.
func newLoad(w *world, tags int, rate int64) *load {
	l := &load{world: w, tags: tags, began: time.Now(), done: make(chan struct{})}
	for p := range l.mu.took {
		l.mu.took[p] = hdrhistogram.New(1000, int64(time.Minute), 3)
		l.mu.fromDue[p] = hdrhistogram.New(1000, int64(time.Minute), 3)
	}
	l.now.Store(&schedule{phase: settling, began: time.Now(), rate: rate})
	l.ended.Store(1)
	l.reached.Store(1)
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
	reported := &atomic.Int64{}
	l.work.Go(func() { l.reports(in, name, reported) })
	for k := range callersEach * l.tags {
		c := &caller{room: in, tag: tagOf(k % l.tags), ids: ids, reported: reported}
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

// reports follows which layout an instance has reported.
func (l *load) reports(in allocator.Room, name allocator.Instance, reported *atomic.Int64) {
	for {
		list, _, err := l.Admin.Instances(bg, in)
		if err == nil {
			for _, i := range list {
				if i.Name == name {
					reported.Store(i.Version)
				}
			}
		}
		select {
		case <-l.done:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
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
		i := issue{ended: l.ended.Load(), reached: l.reached.Load(), reported: c.reported.Load()}
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
		for _, r := range runs {
			i.first, i.count = r.GetFirst(), r.GetCount()
			c.issued = append(c.issued, i)
		}
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

// check checks every issued ID and every failed call. The load has stopped.
func (l *load) check() tally {
	l.Helper()
	dump, err := l.Admin.Ledger.Cluster().Dump(bg)
	if err != nil {
		l.Fatal(err)
	}
	layouts := make(map[int64]allocator.Layout)
	for _, r := range dump.History {
		layouts[r.Layout.Version] = r.Layout
	}
	for _, text := range l.mu.refused {
		part := noRange.FindStringSubmatch(text)
		version, _ := strconv.ParseInt(part[2], 10, 64)
		if _, has := layouts[version].Ranges[allocator.Room(part[1])]; has || layouts[version].Version == 0 {
			l.Errorf("%s, but it has one", text)
		}
	}
	everyEra, err := ledgertest.Eras(bg, l.Open(l), "default")
	if err != nil {
		l.Fatal(err)
	}
	sum := tally{refused: len(l.mu.refused)}
	all := make(map[allocator.Tag][]issue)
	for _, c := range l.callers {
		sum.calls += c.calls
		sum.next += c.next
		all[c.tag] = append(all[c.tag], c.issued...)
		eras := everyEra[c.tag][c.room]
		slices.SortFunc(eras, func(a, b record.Era) int { return int(min(max(a.First-b.First, -1), 1)) })
		for _, i := range c.issued {
			sum.ids += i.count
			for id := i.first; id < i.first+i.count; id++ {
				if problem := wrong(layouts, eras, c.room, i, id); problem != "" {
					l.Fatalf("room %s tag %s ID %d of %+v: %s; eras %v", c.room, c.tag, id, i, problem, eras)
				}
			}
		}
	}
	for tag, list := range all {
		slices.SortFunc(list, func(a, b issue) int { return int(min(max(a.first-b.first, -1), 1)) })
		for k := 1; k < len(list); k++ {
			if before := list[k-1]; list[k].first < before.first+before.count {
				l.Fatalf("tag %s: twice: %+v and %+v", tag, before, list[k])
			}
		}
	}
	return sum
}

// wrong says what is wrong with an ID, or returns an empty string.
func wrong(layouts map[int64]allocator.Layout, eras []record.Era, in allocator.Room, i issue, id int64) string {
	k := sort.Search(len(eras), func(k int) bool { return eras[k].End > id })
	if k == len(eras) || id < eras[k].First {
		return "never leased"
	}
	version := eras[k].Version
	if l := layouts[version]; !l.Ranges[in].Contains(id % l.Boundary) {
		return fmt.Sprintf("not in its room's range of version %d", version)
	}
	// IDs that the room's range of the reported layout contains stay valid.
	was, is := layouts[version], layouts[i.reported]
	had, has := was.Ranges[in], is.Ranges[in]
	keeps := was.Boundary == is.Boundary && has.Contains(had.Lower) && has.Contains(had.Upper-1)
	if version < i.reported && !keeps {
		return fmt.Sprintf("of version %d, but its instance had reported version %d before", version, i.reported)
	}
	if l := layouts[i.ended]; version < i.ended && !l.Ranges[in].Contains(id%l.Boundary) {
		return fmt.Sprintf("of version %d, retracted: the migration to version %d had ended before", version, i.ended)
	}
	if l := layouts[i.reached]; version < i.reached && l.Boundary == layouts[version].Boundary {
		for other, r := range l.Ranges {
			if other != in && r.Contains(id%l.Boundary) {
				return fmt.Sprintf("of version %d, retracted: room %s has it in version %d, which was made before",
					version, other, i.reached)
			}
		}
	}
	return ""
}
