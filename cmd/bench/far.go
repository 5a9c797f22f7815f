package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/internal/proxy"
	"github.com/march-id/march/internal/testcluster"
)

// farBounds are what is measured far from etcd, and how many round trips each may take.
var farBounds = [...]struct {
	what string
	most float64
}{
	{"an instance is ready", 6},
	{"a cold ID", 2.1},
	{"retract and expand, rooms far", 12},
	{"retract and expand, all far", 13},
}

// farTimes are the least times of farBounds: what else the machine does meanwhile is no round trip.
type farTimes [len(farBounds)]time.Duration

// far measures the round trips of a room that is far from etcd: the time that each thing takes beyond what it takes
// without the delay, in delays.
func far(p *part) {
	near := p.timesFar(0)
	for _, away := range []time.Duration{60 * time.Millisecond, 200 * time.Millisecond} {
		times := p.timesFar(away)
		for k, of := range farBounds {
			p.figure(row{
				what: fmt.Sprintf("%s, etcd %v away", of.what, away), goal: of.most, atMost: true, unit: "round trips",
				note: fmt.Sprintf("%.3g s, and %.3g s without the delay", times[k].Seconds(), near[k].Seconds()),
			}, float64(times[k]-near[k])/float64(away))
		}
	}
}

// timesFar measures at such a distance of rooms from etcd, a round trip.
func (p *part) timesFar(away time.Duration) (times farTimes) {
	c := p.processes(equal("a", "b"))
	link := proxy.New(strings.TrimPrefix(c.etcd.Address, "unix://"))
	p.Cleanup(link.Close)
	link.Set(proxy.Fault{Delay: away / 2})
	listener := must(proxy.Listen(link))
	p.Cleanup(func() { _ = listener.Close() })
	c.roomsAt = listener.Address()
	times[0] = p.least(func(int) time.Duration { return c.ready() })
	addresses := c.startRooms("a", "b")
	times[1] = p.least(func(round int) time.Duration { return c.cold(addresses["a"], tagName(round), away) })
	for k, at := range []string{"", listener.Address()} {
		c.consoleAt = at
		times[2+k] = c.farMoves(addresses)
	}
	c.stopRooms()
	return times
}

// least returns the least time of some rounds.
func (p *part) least(measure func(round int) time.Duration) time.Duration {
	times := make([]time.Duration, p.rounds)
	for k := range times {
		times[k] = measure(k)
	}
	return slices.Min(times)
}

// ready starts an instance, and returns when it was ready.
func (c *processes) ready() (took time.Duration) {
	at, began := c.freeAddress(), time.Now()
	c.launch("a", "--http", at)
	for code := 0; code != http.StatusOK; time.Sleep(time.Millisecond) {
		if code, _ = testcluster.Get(at, "/readyz"); time.Since(began) > patience {
			c.Fatal("an instance is not ready")
		}
	}
	took = time.Since(began)
	c.stopRooms()
	return took
}

// cold returns how long a room takes to issue the first ID of a tag.
func (c *processes) cold(address string, tag allocator.Tag, away time.Duration) time.Duration {
	_ = must(c.admin.CreateTag(c.ctx, tag, record.DefaultTag(), "scale"))
	conn := c.dial(address)
	conn.Connect()
	time.Sleep(time.Second + away) // until the room knows that there is a new tag
	began := time.Now()
	_ = must(marchv1.NewIDServiceClient(conn).Next(c.ctx, &marchv1.NextRequest{Tag: string(tag)}))
	return time.Since(began)
}

// farMoves returns how long a console takes to move residues from one room to the other, by a reader that is near etcd.
// A tag is in use in both rooms.
func (c *processes) farMoves(addresses map[allocator.Room]string) time.Duration {
	console := c.startConsole()
	defer c.end(console.cmd)
	return c.least(func(int) time.Duration {
		for _, address := range addresses {
			c.lease(address, model)
		}
		time.Sleep(2 * time.Second) // until leases ahead of need have ended
		move := "a:50-100=b"
		if must(c.admin.Ledger.Refresh(c.ctx)).Layout.Ranges["a"].Upper == 50 {
			move = "b:50-100=a"
		}
		plan := must(console.client.PlanMigration(c.ctx, &marchv1.PlanMigrationRequest{Move: []string{move}}))
		m := must(console.client.ApplyMigration(c.ctx, &marchv1.ApplyMigrationRequest{Plan: plan.GetPlan(),
			Hold: durationpb.New(0), Force: true}))
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			if must(c.admin.Migration(c.ctx, m.GetMigration().GetId())).State.Ended() {
				return time.Since(began)
			}
			if time.Since(began) > patience {
				c.Fatal("the migration does not end")
			}
		}
	})
}
