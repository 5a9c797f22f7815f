package room_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

var days = period.Period{Unit: period.Day, Digits: 9, Zone: "UTC"}

// midnight lets the clock of instances launched from now on be so long before a midnight.
// It returns that clock, and the two days.
func (c *cluster) midnight(before time.Duration) (now func() time.Time, today, tomorrow period.Span) {
	border := time.Date(2030, 6, 15, 0, 0, 0, 0, time.UTC)
	return c.before(border, before), days.At(border.Add(-1)), days.At(border)
}

// before lets the clock of instances launched from now on be so long before a time, and
// returns that clock.
func (c *cluster) before(border time.Time, by time.Duration) (now func() time.Time) {
	ahead := time.Until(border.Add(-by))
	c.now = func() time.Time { return time.Now().Add(ahead) }
	return c.now
}

func daily(s *record.TagSettings) { s.Period = days }

// Midnight under load: no call fails, no ID comes twice, each ID is of the day before or of
// the day after, and soon all are of the day after, also of a tag that another room has.
func TestMidnight(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		const tags = 10
		var names []allocator.Tag
		for i := range tags {
			names = append(names, allocator.Tag(fmt.Sprint("daily-", i)))
		}
		c.tag(daily, names...)
		now, today, tomorrow := c.midnight(time.Second)
		all := []*instance{c.start("a", "a1", nil), c.start("a", "a2", nil), c.start("b", "b1", nil)}
		ctx, stop := context.WithCancel(bg)
		defer stop()
		var ids sync.Map
		var issued, before atomic.Int64
		var callers sync.WaitGroup
		for k, name := range names {
			callers.Go(func() {
				for i := k; ctx.Err() == nil; i++ {
					at := now()
					id, err := all[i%len(all)].next(string(name))
					if err != nil {
						t.Errorf("%v: %v", at, err)
						return
					}
					if _, twice := ids.LoadOrStore(fmt.Sprint(name, " ", id), true); twice {
						t.Errorf("%s: ID %d came twice", name, id)
					}
					switch {
					case id >= tomorrow.First && id < tomorrow.End && !now().Before(tomorrow.Begins):
					case id >= today.First && id < today.End:
						before.Add(1)
					default:
						t.Errorf("%v: ID %d", at, id)
					}
					issued.Add(1)
				}
			})
		}
		turned := func() bool {
			if now().Before(tomorrow.Begins) {
				return false
			}
			for _, name := range names {
				for _, i := range all {
					if chain := i.chain(string(name)); chain == nil || chain.GetHeld() == 0 ||
						chain.GetFirst() < tomorrow.First {
						return false
					}
				}
			}
			return true
		}
		all[0].await("all tags have turned", turned)
		if was, now := before.Load(), issued.Load(); was == 0 || now == was {
			t.Fatalf("%d IDs were issued, %d of them of the day before", now, was)
		}
		for i := range 3 {
			for _, name := range names {
				if id := all[i].mustNext(string(name)); id < tomorrow.First {
					t.Errorf("%s: ID %d of yesterday after the tag has turned", name, id)
				}
			}
		}
		stop()
		callers.Wait()
	})
}

// An instance whose clock is a minute late goes on with the new day where the other one has
// opened it.
func TestMidnightOfTwoClocks(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(daily, "order")
		_, today, tomorrow := c.midnight(2 * time.Second)
		early := c.start("a", "early", nil)
		c.midnight(time.Minute)
		late := c.start("a", "late", nil)
		if id := early.mustNext("order"); id < today.First || id >= today.End {
			t.Errorf("ID %d", id)
		}
		if id := late.mustNext("order"); id < today.First || id >= today.End {
			t.Errorf("ID %d", id)
		}
		early.await("the early instance turns", func() bool { return early.mustNext("order") >= tomorrow.First })
		// The late one has IDs of today in memory. Its next lease is of tomorrow.
		late.await("the late instance follows", func() bool {
			r, err := late.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: 1000})
			return err == nil && r.GetRuns()[0].GetFirst() >= tomorrow.First
		})
	})
}

// Clients may use the IDs of a period some seconds after its end, and no longer. Doors
// refuse callers that keep IDs for ever.
func TestLeasesEndWithThePeriod(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(daily, "order")
		now, _, tomorrow := c.midnight(30 * time.Second)
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Hold = time.Hour })
		sent := now()
		r, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: "order", Count: 10})
		if err != nil {
			t.Fatal(err)
		}
		if ends := sent.Add(r.GetTtl().AsDuration()); ends.Before(tomorrow.Begins) ||
			ends.After(tomorrow.Begins.Add(20*time.Second)) {
			t.Errorf("the lease ends at %v", ends)
		}
	})
}

// A tag that is deleted and made anew without a period has none, and the other way round:
// only the leases of one with a period end with it.
func TestATagAnewWithoutItsPeriod(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(daily, "was-daily")
		c.tag(nil, "is-daily")
		c.midnight(time.Hour)
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Hold = 5 * time.Hour })
		lasts := func(tag string) time.Duration {
			r, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: tag, Count: 1})
			if err != nil {
				t.Fatal(err)
			}
			return r.GetTtl().AsDuration()
		}
		if with, without := lasts("was-daily"), lasts("is-daily"); with > 2*time.Hour || without < 2*time.Hour {
			t.Errorf("leases last %v and %v", with, without)
		}
		for _, tag := range []allocator.Tag{"was-daily", "is-daily"} {
			if err := c.Admin.DeleteTag(bg, tag, "test"); err != nil {
				t.Fatal(err)
			}
		}
		c.tag(nil, "was-daily")
		c.tag(daily, "is-daily")
		a.await("the tags as they are now", func() bool {
			return lasts("was-daily") > 2*time.Hour && lasts("is-daily") < 2*time.Hour
		})
	})
}

// A period that is full says when the next one begins.
func TestAFullPeriod(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) {
			s.Period = period.Period{Unit: period.Day, Digits: 4, Zone: "UTC"}
		}, "small")
		c.midnight(time.Hour)
		a := c.start("a", "a1", nil)
		issued := 0
		for {
			r, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "small", Count: 100})
			if err != nil {
				if err := api.FromStatus(err); allocator.KindOf(err) != allocator.Exhausted ||
					!strings.Contains(err.Error(),
						"the period 2030-06-14 is full; the next one begins at 2030-06-15T00:00:00Z") {
					t.Errorf("got %v", err)
				}
				break
			}
			issued += len(r.GetRuns())
		}
		if issued == 0 {
			t.Error("nothing was issued")
		}
	})
}

// While etcd is away over midnight, a room goes on with the IDs of the old day that it
// holds: it drops them only after it has leased of the new one.
func TestMidnightWithoutEtcd(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(daily, "order")
		now, today, tomorrow := c.midnight(5 * time.Second)
		a := c.start("a", "a1", nil)
		a.mustNext("order")
		a.store.cut.Store(true)
		for now().Before(tomorrow.Begins.Add(3 * time.Second)) {
			if id, err := a.next("order"); err != nil || id < today.First || id >= today.End {
				t.Fatalf("at %v with etcd away: ID %d, %v; want one of the old day", now(), id, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		a.store.cut.Store(false)
		a.await("the new day", func() bool { return a.mustNext("order") >= tomorrow.First })
	})
}

// An instance with a clock an hour ahead of the median of three opens no period.
func TestAClockThatIsAheadOpensNoPeriod(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(daily, "order")
		border := time.Date(2030, 6, 15, 0, 0, 0, 0, time.UTC)
		c.before(border, 30*time.Minute)
		a, b := c.start("a", "a1", nil), c.start("b", "b1", nil)
		c.start("b", "b2", nil)
		c.before(border, -30*time.Minute)
		ahead := c.start("a", "ahead", nil)
		tomorrow := days.At(border)
		for _, i := range []*instance{a, b} {
			if id := i.mustNext("order"); id >= tomorrow.First {
				t.Errorf("ID %d of a day that has not begun", id)
			}
		}
		time.Sleep(5 * time.Second) // heartbeats show the clocks
		if id, err := ahead.next("order"); err == nil && id >= tomorrow.First {
			t.Errorf("a clock that is an hour ahead opened the period: ID %d", id)
		}
	})
}

// A clock leaps a day ahead and is mended. Of three instances, this one opens no period, and no caller notices. Before,
// a leap within five seconds of an earlier look opened it, and after a longer one the tag waited for the next day.
func TestALeapOfADayIsMended(t *testing.T) {
	for name, lasts := range map[string]time.Duration{"6 s": 6 * time.Second, "a minute": time.Minute} {
		t.Run(name, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				c := newCluster(t, testcluster.Halves())
				c.tag(daily, "order", "other")
				now, today, _ := c.midnight(6 * time.Hour)
				var leap atomic.Int64
				c.start("b", "b1", nil)
				c.start("b", "b2", nil)
				c.now = func() time.Time { return now().Add(time.Duration(leap.Load())) }
				a := c.start("a", "a1", nil)
				take := func(count int64) {
					t.Helper()
					for _, tag := range []string{"order", "other"} {
						r, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: tag, Count: count})
						if err != nil {
							t.Fatalf("tag %s, %v ahead: %v", tag, time.Duration(leap.Load()), err)
						}
						for _, run := range r.GetRuns() {
							if run.GetFirst() < today.First || run.GetFirst() >= today.End {
								t.Fatalf("tag %s: ID %d, not of %v", tag, run.GetFirst(), today)
							}
						}
					}
				}
				a.mustNext("order") // which compares the clock
				take(1)
				time.Sleep(time.Second)
				leap.Store(int64(24 * time.Hour))
				for range lasts / time.Second {
					time.Sleep(time.Second)
					take(1)
				}
				leap.Store(0)
				time.Sleep(10 * time.Second)
				take(50_000)
			})
		})
	}
}

// A tag that one instance opened too early, by a clock that is a day ahead, is in a period to come for all others.
// Where two instances have no guard, status says so; before, nothing did.
func TestPeriodOpenedTooEarlyIsAProblem(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(daily, "daily")
		_, today, tomorrow := c.midnight(time.Hour)
		right := c.now
		c.now = func() time.Time { return right().Add(24 * time.Hour) }
		early := c.start("a", "early", nil)
		early.mustNext("daily")
		if err := early.problems(); err != nil {
			t.Errorf("the instance whose clock is ahead: %v", err)
		}
		early.Stop()
		c.now = right
		b := c.start("b", "right", nil)
		if id := b.mustNext("daily"); id < tomorrow.First || id < today.End {
			t.Fatalf("ID %d is not of tomorrow", id)
		}
		b.await("the problem", func() bool {
			err := b.problems()
			return err != nil && contains(err.Error(), "tag daily is in its period 2030-06-15",
				"which begins at 2030-06-15T00:00:00Z")
		})
		time.Sleep(time.Hour + time.Minute)
		b.mustNext("daily")
		b.await("its end", func() bool { return b.problems() == nil })
	})
}

// One of two instances, which have no guard, opens tomorrow's period under a leap of its clock. When the clock is
// mended, the instance where it happened says that the tag is in a period to come, and so does status.
func TestALeapWithTwoInstancesIsShown(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(daily, "order")
		hours := 6
		if !programs.All() {
			hours = 2
		}
		now, today, tomorrow := c.midnight(time.Duration(hours) * time.Hour)
		c.start("b", "b1", nil)
		var leap atomic.Int64
		c.now = func() time.Time { return now().Add(time.Duration(leap.Load())) }
		a := c.start("a", "a1", nil)
		if id := a.mustNext("order"); id < today.First || id >= today.End {
			t.Fatalf("ID %d is not of today", id)
		}
		leap.Store(int64(24 * time.Hour))
		a.await("an ID of tomorrow", func() bool { return a.mustNext("order") >= tomorrow.First })
		leap.Store(0)
		a.await("the problem", func() bool {
			err := a.problems()
			return err != nil && contains(err.Error(), "tag order is in its period 2030-06-15",
				"which begins at 2030-06-15T00:00:00Z")
		})
		console := c.Console(nil)
		a.await("status says so", func() bool {
			o, err := console.GetOverview(bg, &marchv1.GetOverviewRequest{})
			return err == nil && slices.ContainsFunc(o.GetProblems(), func(p *marchv1.Problem) bool {
				return p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_PERIOD_AHEAD && p.GetOf() == "order" &&
					slices.Contains(p.GetHits(), "a/a1")
			})
		})
		for range 6 * (hours - 1) { // until that day has come
			time.Sleep(10 * time.Minute)
			a.mustNext("order")
			if err := a.problems(); err == nil || !contains(err.Error(), "tag order is in its period 2030-06-15") {
				t.Errorf("%v before midnight: %v", tomorrow.Begins.Sub(c.now()), err)
			}
		}
		time.Sleep(time.Hour + time.Minute)
		a.mustNext("order")
		a.await("its end", func() bool { return a.problems() == nil })
	})
}
