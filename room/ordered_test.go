package room_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// ordered gives a tag a strict order, and instances fewer IDs than a test asks for.
func ordered(s *record.TagSettings) {
	s.StrictOrder, s.TenureHold, s.MinStep, s.MaxStep = record.OrderRoom, record.DefaultTenureHold, 5, 10
}

// grows has the largest ID that was issued, and checks the next ones.
type grows struct {
	testing.TB
	last int64
}

func (g *grows) check(ids ...int64) {
	g.Helper()
	for _, id := range ids {
		if id <= g.last {
			g.Errorf("%d was issued after %d", id, g.last)
		}
		g.last = max(g.last, id)
	}
}

// await asks an instance until it issues, and returns after how long.
func (g *grows) await(i *instance) time.Duration {
	g.Helper()
	start := time.Now()
	i.await("it issues", func() bool {
		id, err := i.next("o")
		if err == nil {
			g.check(id)
		}
		return err == nil
	})
	return time.Since(start)
}

// issuing returns a client of an instance.
func issuing(t *testing.T, i *instance) *client.Client {
	t.Helper()
	c, err := client.New(bg, client.Options{Addresses: []string{i.Address},
		Dial: []grpc.DialOption{grpc.WithContextDialer(testcluster.DialContext)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestOrderedTagGrowsOverAllInstances(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(ordered, "o")
		a, b := c.start("a", "a1", nil), c.start("a", "a2", nil)
		g := &grows{TB: t}
		g.await(a)
		for range 50 {
			g.check(a.mustNext("o"), b.mustNext("o"))
			batch, err := b.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "o", Count: 3})
			if err != nil {
				t.Fatal(err)
			}
			for _, run := range batch.GetRuns() {
				g.check(run.GetFirst())
				g.last = run.GetFirst() + run.GetCount() - 1
			}
		}
		run, err := b.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "o", Count: 4, Contiguous: true})
		if err != nil || len(run.GetRuns()) != 1 || run.GetRuns()[0].GetCount() != 4 {
			t.Errorf("a run: %v, %v", run.GetRuns(), err)
		}
		g.check(run.GetRuns()[0].GetFirst())
		id, err := issuing(t, b).Next(bg, "o")
		if err != nil {
			t.Fatal(err)
		}
		g.check(id)
		refused := want{codes.FailedPrecondition, "refused", []string{"strict order"}}
		for _, i := range []*instance{a, b} {
			if _, err := i.Lease(bg, &marchv1.LeaseRequest{Tag: "o", Count: 5}); refused.check(err) != "" {
				t.Errorf("lease of an ordered tag: %v", err)
			}
		}
	})
}

func TestOrderedTagGoesToAnotherInstance(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(ordered, "o")
		a, b := c.start("a", "a1", nil), c.start("a", "a2", nil)
		g := &grows{TB: t}
		g.await(a)
		g.await(b)
		issued := g.last
		time.Sleep(time.Second) // a refill that is under way as an instance stops is lost, with the rest before it
		a.Stop()
		g.await(b)
		if g.last != issued+1 {
			t.Errorf("after a clean stop %d follows %d", g.last, issued)
		}
		d := c.start("a", "a3", nil)
		g.await(d)
		time.Sleep(10 * time.Second)
		b.store.cut.Store(true) // its tenure is not confirmed, and it still answers
		time.Sleep(4 * time.Second)
		if _, err := b.next("o"); err == nil {
			t.Error("an ID was issued without etcd")
		}
		if took := g.await(d); took > 6*time.Second {
			t.Errorf("nothing was issued for %v", took)
		}
		b.store.cut.Store(false)
		g.await(b)
		g.check(b.mustNext("o"), d.mustNext("o"))
	})
}

// slowLeases calls way before leases of a tag, and back after them.
type slowLeases struct {
	store.Store
	way, back func()
	armed     atomic.Bool
	under     atomic.Int64
}

func (s *slowLeases) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	slow := s.armed.Load() && slices.ContainsFunc(txn.Then, func(op store.Op) bool {
		return op.Put != nil && strings.HasSuffix(op.Put.Key, "/marks/a/o")
	})
	if slow {
		s.under.Add(1)
		s.way()
	}
	answer, err := s.Store.Txn(ctx, txn)
	if slow {
		s.back()
	}
	return answer, err
}

// A holder that stops with a refill under way wastes nothing if etcd has the release first, which refuses the lease. If
// etcd has the lease first, what the holder held and that lease are a gap: at most what an instance may hold.
func TestHolderStopsWithARefillUnderWay(t *testing.T) {
	for name, late := range map[string]struct{ way, back time.Duration }{
		"not in etcd": {way: time.Second}, "in etcd": {back: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			const most = 20 // two of the largest steps
			testcluster.Bubble(t, func(t *testing.T) {
				slow := &slowLeases{way: func() { time.Sleep(late.way) }, back: func() { time.Sleep(late.back) }}
				c := newCluster(t, testcluster.Halves())
				c.tag(ordered, "o")
				a := c.start("a", "a1", func(cfg *room.Config) {
					slow.Store = c.store()
					cfg.Ledger = c.LedgerOver(slow, nil)
				})
				b, g := c.start("a", "a2", nil), &grows{TB: t}
				g.await(a)
				time.Sleep(time.Second)
				slow.armed.Store(true)
				for slow.under.Load() == 0 {
					g.check(a.mustNext("o"))
					synctest.Wait()
				}
				last, held := g.last, a.chain("o").GetHeld()
				a.Stop()
				g.await(b)
				switch wasted := g.last - last - 1; {
				case late.back == 0 && wasted > 0:
					t.Errorf("%d IDs are wasted", wasted)
				case late.back > 0 && (wasted <= held || wasted > most):
					t.Errorf("%d IDs are wasted, of which %d were held; at most %d are", wasted, held, most)
				}
			})
		})
	}
}

// peers is the network between the instances of a room.
type peers struct {
	deny  atomic.Bool  // each call is denied,
	cut   atomic.Bool  // no call arrives,
	away  atomic.Value // nor one at this address
	hangs atomic.Bool  // but hangs there
	hung  atomic.Int64 // how many did
	many  atomic.Bool  // batches are answered with too many IDs
	trip  atomic.Int64 // how long each takes, in nanoseconds
	calls atomic.Int64 // that were made
}

// to cuts an address off.
func (p *peers) to(address string) { p.away.Store(address) }

// on makes an instance call others over the network.
func (p *peers) on(cfg *room.Config) {
	cfg.Dial = func(address string, options ...grpc.DialOption) (grpc.ClientConnInterface, error) {
		over := func(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn,
			invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			p.calls.Add(1)
			if p.hangs.Load() && p.away.Load() == any(address) {
				p.hung.Add(1)
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			}
			if p.cut.Load() || p.away.Load() == any(address) {
				return status.Error(codes.Unavailable, "connection refused")
			}
			if p.deny.Load() {
				return api.ToStatus(allocator.Errorf(allocator.Denied, "not allowed"))
			}
			select {
			case <-time.After(time.Duration(p.trip.Load())):
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
			err := invoke(ctx, method, request, answer, conn, o...)
			if batch, is := answer.(*marchv1.NextBatchResponse); is && p.many.Load() {
				batch.Runs = []*marchv1.Run{{First: 1 << 50, Count: 1 << 62}}
				if n := p.calls.Load(); n%2 == 0 {
					count := request.(*marchv1.NextBatchRequest).GetCount()
					batch.Runs = []*marchv1.Run{{First: 1 << 50, Count: count}, {}, {First: 1 << 51, Count: 1}}
				}
			}
			return err
		}
		return testcluster.DialInstance(address, append(options, grpc.WithChainUnaryInterceptor(over))...)
	}
}

func TestOrderedTagOfAKilledInstance(t *testing.T) {
	for name, c := range map[string]struct{ age, most time.Duration }{
		"old":   {time.Minute, 4300 * time.Millisecond},
		"young": {0, 4300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				cluster, network := newCluster(t, testcluster.Halves()), &peers{}
				cluster.tag(ordered, "o")
				a, b := cluster.start("a", "a1", network.on), cluster.start("a", "a2", network.on)
				g := &grows{TB: t}
				g.await(a)
				g.await(b)
				time.Sleep(c.age)
				a.store.cut.Store(true)
				network.cut.Store(true)
				calls := network.calls.Load()
				if took := g.await(b); took > c.most {
					t.Errorf("nothing was issued for %v", took)
				}
				if calls = network.calls.Load() - calls; calls > 100 {
					t.Errorf("%d calls were made to an instance that was killed", calls)
				}
				if id, err := a.next("o"); err == nil {
					t.Errorf("an instance that does not reach etcd issued %d", id)
				}
			})
		})
	}
}

// Of twenty holders in a row, each of which is killed, or stops in good order. The longest of twenty is at least their
// 99th percentile.
func TestStallsOfTwentyFailovers(t *testing.T) {
	for name, most := range map[string]time.Duration{
		"killed": 4300 * time.Millisecond, "stopped": 50 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				cluster, network := newCluster(t, testcluster.Halves()), &peers{}
				cluster.tag(ordered, "o")
				holder := cluster.start("a", "a0", network.on)
				g := &grows{TB: t}
				g.await(holder)
				var longest time.Duration
				for n := range 20 {
					next := cluster.start("a", allocator.Instance(fmt.Sprint("a", n+1)), network.on)
					g.await(next)
					time.Sleep(10 * time.Second)
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						if name == "stopped" {
							holder.Stop()
							return
						}
						holder.store.cut.Store(true)
						network.to(holder.Address)
					}()
					last := time.Now()
					for over := false; !over; time.Sleep(time.Millisecond) {
						select {
						case <-ended:
							over = true
						default:
						}
						g.check(next.mustNext("o"))
						longest, last = max(longest, time.Since(last)), time.Now()
					}
					holder = next
				}
				t.Logf("the longest of 20 stalls: %v", longest)
				if longest > most {
					t.Errorf("nothing was issued for %v, more than %v", longest, most)
				}
			})
		})
	}
}

func TestInstancesThatDoNotReachEachOtherIssueInTurn(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		cluster, network := newCluster(t, testcluster.Halves()), &peers{}
		cluster.tag(ordered, "o")
		both := []*instance{cluster.start("a", "a1", network.on), cluster.start("a", "a2", network.on)}
		g := &grows{TB: t}
		network.cut.Store(true)
		issued := [2]int{}
		for range 1000 {
			for n, i := range both {
				ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
				answer, err := i.Next(ctx, &marchv1.NextRequest{Tag: "o"})
				cancel()
				if err == nil {
					g.check(answer.GetId())
					issued[n]++
				}
			}
		}
		if issued[0] < 10 || issued[1] < 10 {
			t.Errorf("issued: %v", issued)
		}
	})
}

func TestClientOfAnOrderedTag(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(ordered, "o")
		c.tag(func(s *record.TagSettings) { ordered(s); s.Format = "prefix(O-) | decimal" }, "p")
		c.tag(nil, "plain")
		a := c.start("a", "a1", nil)
		c.start("a", "a2", nil)
		g := &grows{TB: t}
		g.await(a)
		a.await("it issues p", func() bool { _, err := a.next("p"); return err == nil })
		asks := issuing(t, a)
		last := int64(0)
		for range 3 {
			all, err := asks.NextMany(bg, client.TagCount{Tag: "plain", Count: 2}, client.TagCount{Tag: "o", Count: 2},
				client.TagCount{Tag: "p", Count: 1})
			if err != nil {
				t.Fatal(err)
			}
			g.check(all[1].IDs...)
			text, id, err := asks.NextText(bg, "p")
			if want := fmt.Sprint("O-", id); err != nil || text != want || id <= last || all[2].IDs[0] <= last {
				t.Errorf("got %q, %d, %v after %d and %v; want %q", text, id, err, last, all[2].IDs, want)
			}
			last = id
		}
		if text, id, err := asks.NextText(bg, "o"); err == nil {
			t.Errorf("a tag without a format has the text %q of %d", text, id)
		}
	})
}

// everywhere orders a tag over all rooms, with room a as its home.
func everywhere(s *record.TagSettings) {
	ordered(s)
	s.StrictOrder, s.Home = record.OrderCluster, "a"
}

func TestOrderOverAllRooms(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(everywhere, "o")
		b := c.start("b", "b1", nil)
		alone := want{codes.Unavailable, "no_range", []string{"in room a, its home"}}
		if _, err := b.next("o"); alone.check(err) != "" {
			t.Errorf("without an instance of the home: %v", err)
		}
		a1 := c.start("a", "a1", nil)
		g := &grows{TB: t}
		g.await(b) // a1 takes the tag for a call of another room
		a2 := c.start("a", "a2", nil)
		for range 50 {
			g.check(b.mustNext("o"), a2.mustNext("o"), a1.mustNext("o"), b.mustNext("o"))
		}
		if residue := g.last % 100; residue >= 50 {
			t.Errorf("%d is of room b", g.last)
		}
		issued := g.last
		a1.Stop()
		if g.await(b); g.last <= issued {
			t.Errorf("after a clean stop %d follows %d", g.last, issued)
		}
	})
}

func TestHolderInAnotherRoomIsKilled(t *testing.T) {
	for name, age := range map[string]time.Duration{"old": time.Minute, "young": 0} {
		t.Run(name, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				cluster, network := newCluster(t, testcluster.Halves()), &peers{}
				cluster.tag(everywhere, "o")
				a1, b := cluster.start("a", "a1", network.on), cluster.start("b", "b1", network.on)
				g := &grows{TB: t}
				g.await(b)
				g.check(a1.mustNext("o"))
				cluster.start("a", "a2", network.on)
				time.Sleep(age)
				a1.store.cut.Store(true)
				network.to(a1.Address)
				calls := network.calls.Load()
				if took := g.await(b); took > 5300*time.Millisecond {
					t.Errorf("nothing was issued for %v", took)
				}
				if calls = network.calls.Load() - calls; calls > 200 {
					t.Errorf("%d calls were made", calls)
				}
				if g.last%100 >= 50 {
					t.Errorf("%d is of room b", g.last)
				}
			})
		})
	}
}

func TestHomeMoves(t *testing.T) {
	for name, lost := range map[string]bool{"a home that runs": false, "a lost home": true} {
		t.Run(name, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				cluster, network := newCluster(t, testcluster.Halves()), &peers{}
				cluster.tag(everywhere, "o")
				a, b := cluster.start("a", "a1", network.on), cluster.start("b", "b1", network.on)
				g := &grows{TB: t}
				g.await(a)
				g.check(b.mustNext("o"))
				time.Sleep(time.Minute)
				most := 500 * time.Millisecond
				if lost {
					a.store.cut.Store(true)
					network.to(a.Address)
					most = 5 * time.Second
				}
				cluster.update("o", func(s *record.TagSettings) { s.Home = "b" })
				if took := g.await(b); took > most {
					t.Errorf("nothing was issued for %v", took)
				}
				if g.last%100 < 50 {
					b.await("it issues itself", func() bool { g.check(b.mustNext("o")); return g.last%100 >= 50 })
				}
				if lost {
					return
				}
				g.check(a.mustNext("o"), b.mustNext("o"))
				cluster.update("o", func(s *record.TagSettings) { s.Home = "a" })
				a.await("it issues itself", func() bool { g.check(a.mustNext("o")); return g.last%100 < 50 })
			})
		})
	}
}

// A call without a deadline ends, too. Once the home's policy is right, the next call is answered.
func TestHomeThatRefuses(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		cluster, network := newCluster(t, testcluster.Halves()), &peers{}
		cluster.tag(everywhere, "o")
		cluster.start("a", "a1", nil)
		cluster.start("a", "a2", nil)
		b := cluster.start("b", "b1", network.on)
		network.deny.Store(true)
		if _, err := b.next("o"); err == nil || !strings.Contains(err.Error(), "refuses this instance") {
			t.Errorf("the error is %v", err)
		}
		if n := network.calls.Load(); n != 3 {
			t.Errorf("instances of the home were asked %d times, want 3", n)
		}
		network.deny.Store(false)
		b.mustNext("o")
	})
}

func TestTagsOfALostHomeLeaveTheOthersALittle(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		cluster, network := newCluster(t, testcluster.Halves()), &peers{}
		lost := make([]allocator.Tag, 500)
		for i := range lost {
			lost[i] = allocator.Tag(fmt.Sprint("o", i))
		}
		cluster.tag(everywhere, lost...)
		cluster.tag(nil, "plain")
		a, b := cluster.start("a", "a1", nil), cluster.start("b", "b1", network.on)
		network.to(a.Address)
		b.store.onTxn(func(store.Txn) { time.Sleep(100 * time.Millisecond) })
		ctx, cancel := context.WithCancel(bg)
		var calls sync.WaitGroup
		for _, tag := range lost {
			calls.Go(func() { _, _ = b.Next(ctx, &marchv1.NextRequest{Tag: string(tag)}) })
		}
		time.Sleep(20 * time.Second)
		began := time.Now()
		b.mustNext("plain")
		if took := time.Since(began); took > time.Second {
			t.Errorf("the first ID of another tag came after %v", took)
		}
		cancel()
		calls.Wait()
	})
}

// The others of the home are registered, and lost.
func TestSilentHolderIsAskedAgain(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		cluster, network := newCluster(t, testcluster.Halves()), &peers{}
		cluster.tag(everywhere, "o")
		a1, b := cluster.start("a", "a1", nil), cluster.start("b", "b1", network.on)
		g := &grows{TB: t}
		g.await(b)
		for _, name := range []allocator.Instance{"a2", "a3"} {
			lost := cluster.start("a", name, nil)
			lost.store.cut.Store(true)
			lost.Stop()
		}
		network.cut.Store(true)
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		if _, err := b.Next(ctx, &marchv1.NextRequest{Tag: "o"}); err == nil {
			t.Error("a call went over a network that is cut")
		}
		network.cut.Store(false)
		if took := g.await(b); took > 20*time.Second {
			t.Errorf("the holder answers, and was not asked for %v", took)
		}
		g.check(a1.mustNext("o"))
	})
}

// Of three instances of the home, one has the tag, which another room does not reach.
func TestHolderThatOnlyItsRoomReaches(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		cluster, network, home := newCluster(t, testcluster.Halves()), &peers{}, &peers{}
		cluster.tag(everywhere, "o")
		a1 := cluster.start("a", "a1", home.on)
		g := &grows{TB: t}
		g.await(a1)
		a2 := cluster.start("a", "a2", home.on)
		cluster.start("a", "a3", home.on)
		b := cluster.start("b", "b1", func(cfg *room.Config) {
			network.on(cfg)
			cfg.Rand = func() float64 { return 0.99 } // of the instances that it may ask the last one
		})
		network.to(a1.Address)
		g.await(b)
		if n := home.calls.Load(); n == 0 {
			t.Error("no instance passed a call on in the home")
		}
		a1.Stop()
		g.check(a2.mustNext("o"), b.mustNext("o"))
		time.Sleep(10 * time.Minute)
		g.check(b.mustNext("o")) // it reads the key again
		time.Sleep(time.Second)
		before := home.calls.Load()
		g.check(b.mustNext("o"))
		if n := home.calls.Load() - before; n != 0 {
			t.Errorf("the call was passed on %d times in the home", n)
		}
	})
}

// No call waits while an instance tries again whether it reaches the holder, and none is lost by that.
func TestHolderThatAFirewallHides(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		cluster, network, home := newCluster(t, testcluster.Halves()), &peers{}, &peers{}
		cluster.tag(everywhere, "o")
		a1 := cluster.start("a", "a1", nil)
		g := &grows{TB: t}
		g.await(a1)
		cluster.start("a", "a2", home.on)
		b := cluster.start("b", "b1", network.on)
		network.to(a1.Address)
		network.hangs.Store(true)
		g.await(b)
		tried := network.hung.Load()
		for began := time.Now(); time.Since(began) < 35*time.Minute; time.Sleep(5 * time.Second) {
			want, before := g.last+1, time.Now()
			if want%100 == 50 { // the rest of the block is room b's
				want += 50
			}
			g.check(b.mustNext("o"))
			if took := time.Since(before); took > 100*time.Millisecond || g.last != want {
				t.Fatalf("a call got %d instead of %d, and took %v", g.last, want, took)
			}
		}
		if n := network.hung.Load() - tried; n < 2 || n > 4 {
			t.Errorf("the holder was tried %d times in 35 minutes", n)
		}
		network.hangs.Store(false)
		network.to("")
		time.Sleep(10 * time.Minute)
		g.check(b.mustNext("o"))
		time.Sleep(time.Second)
		through := home.calls.Load()
		g.check(b.mustNext("o"))
		if n := home.calls.Load() - through; n != 0 {
			t.Errorf("the call was passed on %d times in the home", n)
		}
	})
}

// A holder that answers in time is asked on, though calls wait for each other, and a call failed long before.
func TestCallsThatWaitTogetherRobNoHolder(t *testing.T) {
	for name, home := range map[string]func(*record.TagSettings){"room": ordered, "cluster": everywhere} {
		t.Run(name, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				cluster, network := newCluster(t, testcluster.Halves()), &peers{}
				cluster.tag(home, "o")
				a1 := cluster.start("a", "a1", nil)
				other := allocator.Room("a")
				if name == "cluster" {
					other = "b"
				}
				i := cluster.start(other, "other", network.on)
				g := &grows{TB: t}
				g.await(a1)
				g.await(i)
				time.Sleep(time.Minute)
				network.cut.Store(true) // one call looks, and another one is answered before it has
				ctx, cancel := context.WithTimeout(bg, time.Millisecond)
				_, _ = i.Next(ctx, &marchv1.NextRequest{Tag: "o"})
				cancel()
				network.cut.Store(false)
				g.check(i.mustNext("o"))
				time.Sleep(time.Minute)
				network.trip.Store(int64(250 * time.Millisecond))
				looks := i.store.txns.Load()
				began := time.Now()
				var calls sync.WaitGroup
				for range 40 {
					calls.Go(func() {
						if _, err := i.next("o"); err != nil {
							t.Error(err)
						}
					})
				}
				calls.Wait()
				if took := time.Since(began); took > 600*time.Millisecond {
					t.Errorf("calls that waited together took %v", took)
				}
				if n := i.store.txns.Load() - looks; n > 2 { // heartbeats
					t.Errorf("%d reads were made", n)
				}
				network.trip.Store(0)
				g.check(a1.mustNext("o")) // it has the tag still
			})
		})
	}
}

// A holder that answers with other than as many IDs as were asked for hangs no instance.
func TestHolderThatAnswersWithTooMany(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		cluster, network := newCluster(t, testcluster.Halves()), &peers{}
		cluster.tag(ordered, "o")
		a1, a2 := cluster.start("a", "a1", nil), cluster.start("a", "a2", network.on)
		g := &grows{TB: t}
		g.await(a1)
		g.await(a2)
		network.trip.Store(int64(100 * time.Millisecond))
		network.many.Store(true)
		for range 4 {
			var calls sync.WaitGroup
			for range 10 {
				calls.Go(func() {
					if id, err := a2.next("o"); err == nil && id > 1<<40 {
						t.Errorf("got %d", id)
					}
				})
			}
			calls.Wait()
		}
		network.many.Store(false)
		a2.mustNext("o")
	})
}

func TestPassedCallsAreCountedOnce(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(ordered, "o")
		all := []*instance{c.start("a", "a1", nil), c.start("a", "a2", nil)}
		g := &grows{TB: t}
		g.await(all[0])
		issued := int64(1)
		for _, i := range all {
			for range 10 {
				g.check(i.mustNext("o"))
				issued++
			}
		}
		for _, i := range all {
			got, err := marchv1.NewRoomServiceClient(i.Conn).GetInstance(bg, &marchv1.GetInstanceRequest{})
			if err != nil {
				t.Fatal(err)
			}
			issued -= got.GetStatus().GetIssued()
		}
		if issued != 0 {
			t.Errorf("%d more were issued than the instances counted", issued)
		}
	})
}
