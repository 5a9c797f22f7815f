package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/embedded"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/internal/testcluster"
)

const (
	tag      = "bench"
	otherTag = "other"
)

// cluster starts an etcd in this process, which syncs its log, with a layout of two rooms and two tags.
func (p *part) cluster() *testcluster.Cluster {
	etcd := ledgertest.StartEtcd(p, func(cfg *embedded.Config) { cfg.NoSync = false })
	c := testcluster.Over(p, ledger.DefaultConfig().Cluster, etcd.Store)
	c.Init(must(allocator.EqualLayout(1000, []allocator.Room{"a", "b"})), "bench")
	// No service issues 200 million IDs per second for long, as this benchmark does. A step
	// must last for some time at that rate; otherwise each refill is a race against etcd.
	c.Tag(func(s *record.TagSettings) { s.MaxStep = 100_000_000_000 }, "bench", tag)
	c.Tag(nil, "bench", otherTag)
	return c
}

// chain returns a chain of room a over the real ledger, with its own refiller.
func (p *part) chain(c *testcluster.Cluster, now func() time.Time) *allocator.Chain {
	instance := must(c.Ledger().Join(p.ctx, ledger.Registration{Room: "a", Name: "bench", Address: "none"}))
	source, settings, err := instance.Source(p.ctx, tag)
	p.check(err)
	refiller := must(allocator.NewRefiller(allocator.DefaultRefillerConfig(now, rand.Float64)))
	chain := must(allocator.NewChain(allocator.ChainConfig{Tag: tag, Source: source, Refiller: refiller,
		Settings: settings.Chain()}))
	p.Cleanup(chain.Close)
	testcluster.Start(p, func(ctx context.Context) error {
		_ = refiller.Run(ctx) // until the part ends
		return nil
	})
	return chain
}

func chainRows(p *part) {
	chain := p.chain(p.cluster(), time.Now)
	next := func() { _ = must(chain.Next(p.ctx)) }
	runs := make([]allocator.Run, 0, 8)
	batch := func() (_ int64, err error) {
		runs, err = chain.NextN(p.ctx, 1000, runs[:0])
		return 0, err
	}
	var c counter
	add := func(goroutines int) func() float64 {
		return func() float64 { return p.perSecond(goroutines, addLoop(&c)) }
	}
	ours := func(goroutines int) func() float64 {
		return func() float64 { return p.perSecond(goroutines, chainLoop(p.ctx, chain)) }
	}
	p.during(2*p.unit, 2, chainLoop(p.ctx, chain)) // let the step grow
	p.measure(p.rounds,
		&row{what: "chain Next, 1 goroutine, vs atomic.Int64.Add", unit: "/s", goal: 0.95,
			yard: add(1), march: ours(1)},
		&row{what: "chain Next, 2 goroutines, vs contended Add", unit: "/s", goal: 0.90, yard: add(2), march: ours(2)},
		&row{what: "the same, Next not inlined, 1 goroutine", unit: "/s", yard: add(1), march: func() float64 {
			return p.perSecond(1, callLoop(func() (int64, error) { return chain.Next(p.ctx) }))
		}},
		&row{what: "chain NextN(1000), IDs, vs Add", unit: "/s", goal: 100, yard: add(1), march: func() float64 {
			return 1000 * p.perSecond(1, callLoop(batch))
		}},
		&row{what: "chain Next p99.99, refilled from etcd, vs Add", unit: "ns", goal: 2, atMost: true,
			yard: p.tail(func() { c.n.Add(1) }), march: p.tail(next)},
		allocations("chain Next", next))
}

// writeRows counts etcd's writes for six hours of a steady 100,000 IDs/s on
// one tag, with the clock moved by hand.
func writeRows(p *part) {
	c := p.cluster()
	var elapsed atomic.Int64
	start := time.Now()
	chain, etcd := p.chain(c, func() time.Time { return start.Add(time.Duration(elapsed.Load())) }), c.Open(p)
	const rate, tick = 100_000, 10 * time.Second
	var first, ids int64
	var runs []allocator.Run
	for at := time.Duration(0); at < 7*time.Hour; at += tick {
		if at == time.Hour { // the steps are steady by now
			first, ids = p.revision(etcd), 0
		}
		n := int64(rate * tick / time.Second)
		for left := n; left > 0; left -= 1000 {
			runs = must(chain.NextN(p.ctx, 1000, runs[:0]))
		}
		ids += n
		elapsed.Add(int64(tick))
		chain.Observe()
	}
	p.figure(row{what: "etcd writes per million IDs, steady 100,000/s", goal: 1, atMost: true},
		float64(p.revision(etcd)-first)/float64(ids)*1e6)
}

// revision returns etcd's revision: it grows by one with each write.
func (p *part) revision(etcd store.Store) int64 {
	return must(etcd.Txn(p.ctx,
		store.Txn{Then: []store.Op{{Get: &store.Get{Interval: store.Interval{Key: "none"}}}}})).Revision
}

// textRows measures the texts of IDs.
func textRows(p *part) {
	key := must(format.NewKey("bench", make([]byte, format.KeySize)))
	parse := func(description string) *format.Format { return must(format.Parse(description, key)) }
	radix, opaque := parse("radix62(11)"), parse("opaque(bench, 10^12) | decimal(12)")
	worst := parse("opaque(bench, 549755813889) | radix62(11)") // 2^39+1: half of all numbers of its bits are outside
	// texts appends texts of numbers in no order to one buffer, as a server does for its answers.
	texts := func(largest int64, text func(to []byte, id int64) ([]byte, error)) func() float64 {
		ids := make([]int64, 1024)
		for i := range ids {
			ids[i] = int64(rand.Uint64() % (uint64(largest) + 1))
		}
		buffer, at := make([]byte, 0, 64), 0
		return func() float64 {
			return p.perSecond(1, callLoop(func() (_ int64, err error) {
				at++
				buffer, err = text(buffer[:0], ids[at%1024])
				return int64(len(buffer)), err
			}))
		}
	}
	in := func(f *format.Format) func() float64 {
		return texts(f.Domain().Largest, func(to []byte, id int64) ([]byte, error) {
			return f.Append(to, format.Value{ID: id})
		})
	}
	each := func(rate func() float64) func() float64 { return func() float64 { return 1e9 / rate() } }
	buffer := make([]byte, 0, 64)
	p.measure(p.rounds,
		&row{what: "texts radix62(11), appended, vs strconv.AppendInt of radix 36", unit: "/s", goal: 1,
			yard: texts(radix.Domain().Largest, func(to []byte, id int64) ([]byte, error) {
				return strconv.AppendInt(to, id, 36), nil
			}), march: in(radix)},
		&row{what: "time per opaque text of 12 digits", unit: "ns", goal: 500, atMost: true, march: each(in(opaque))},
		&row{what: "the same, a domain just above a power of 2", unit: "ns", goal: 500, atMost: true,
			march: each(in(worst))},
		allocations("text", func() {
			buffer = must(radix.Append(buffer[:0], format.Value{ID: 1_234_567}))
			buffer = must(opaque.Append(buffer[:0], format.Value{ID: 1}))
		}))
}

// paced is the number of IDs per second at which the client's calls to the room are counted.
const paced = 10_000_000

// pacedLoop takes IDs of t one by one for four units, paced of them per second, and returns how many it took.
func (p *part) pacedLoop(t *client.Tag) (ids int64) {
	for start := time.Now(); time.Since(start) < 4*p.unit; {
		for due := int64(time.Since(start).Seconds() * paced); ids < due; ids++ {
			if _, ok := t.TryNext(); !ok {
				_ = must(t.Next(p.ctx))
			}
		}
		time.Sleep(time.Millisecond)
	}
	return ids
}

// client returns a client of a room that holds some tags, and counts its calls.
func (p *part) client(address string, warm ...string) (ids *client.Client, calls *atomic.Int64) {
	calls = new(atomic.Int64)
	ids = must(client.New(p.ctx, client.Options{Addresses: []string{address}, WarmTags: warm,
		Dial: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
			conn *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			calls.Add(1)
			return invoker(ctx, method, req, reply, conn, opts...)
		})}}))
	p.Cleanup(ids.Close)
	return ids, calls
}

// clientRows measures a client in this process against the chain alone, over a room on
// loopback, and counts the client's calls to the room.
func clientRows(p *part) {
	c := p.cluster()
	chain := p.chain(c, time.Now)
	ids, calls := p.client(p.room(c, "served", nil, tag, otherTag).Address, tag, otherTag)
	t, pace := must(ids.Tag(tag)), must(ids.Tag(otherTag))
	one := &row{what: "client Next, 1 goroutine, vs the chain's", unit: "/s", goal: 0.95}
	plain := &row{what: "the same, Next not inlined, vs the chain's", unit: "/s"}
	loops := []struct {
		to   *[]float64
		loop loop
	}{
		{&one.yards, chainLoop(p.ctx, chain)}, {&one.measured, clientLoop(p.ctx, t)},
		{&plain.yards, callLoop(func() (int64, error) { return chain.Next(p.ctx) })},
		{&plain.measured, callLoop(func() (int64, error) { return t.Next(p.ctx) })},
	}
	p.during(2*p.unit, 1, loops[0].loop) // let the steps grow
	p.during(2*p.unit, 1, loops[1].loop)
	// Both run the same instructions, and a machine differs more from one second to the next:
	// use many short rounds, and take turns in going first.
	const parts = 20
	for range parts * p.rounds {
		for _, l := range loops {
			*l.to = append(*l.to, p.during(p.unit/parts, 1, l.loop))
		}
		slices.Reverse(loops)
	}
	p.add(one, plain)
	rate := &row{what: fmt.Sprintf("client paced to %s, IDs", number(paced)), unit: "/s"}
	rpcs := &row{what: "its calls to the room", unit: "/s", goal: 10, atMost: true}
	cold := &row{what: "the same, in all, in the first round, from cold", unit: "calls"}
	for round := range p.rounds {
		before, start := calls.Load(), time.Now()
		n, took := float64(p.pacedLoop(pace)), time.Since(start).Seconds()
		made := float64(calls.Load() - before)
		if round == 0 {
			cold.measured = []float64{made}
		}
		rate.measured, rpcs.measured = append(rate.measured, n/took), append(rpcs.measured, made/took)
	}
	p.add(rate, rpcs, cold)
}

// orderRows compares Next of a tag with a strict order, at its holder and through another instance of the room, with
// that of a tag without.
func orderRows(p *part) {
	const ordered = "ordered"
	c := p.cluster()
	c.Tag(func(s *record.TagSettings) {
		s.StrictOrder, s.TenureHold = record.OrderRoom, record.DefaultTenureHold
	}, "bench", ordered)
	holder := p.conns(p.room(c, "holder", nil, tag, ordered).Address)
	other := p.conns(p.room(c, "other", nil, tag, ordered).Address)
	at := &row{what: "ordered Next at the holder vs one without order", unit: "/s", goal: 0.95}
	through := &row{what: "ordered Next through another instance vs one without order", unit: "/s", goal: 0.4}
	for range max(p.rounds, 5) { // the first difference is small
		with, without := p.sides(load.Unary(holder, ordered), load.Unary(holder, tag))
		at.measured, at.yards = append(at.measured, with.rate()), append(at.yards, without.rate())
		with, without = p.sides(load.Unary(other, ordered), load.Unary(other, tag))
		through.measured, through.yards = append(through.measured, with.rate()), append(through.yards, without.rate())
	}
	p.add(at, through)
}
