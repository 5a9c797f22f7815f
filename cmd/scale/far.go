package main

import (
	"context"
	"errors"
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
func far(ctx context.Context, s sizes, add func(row)) error {
	near, err := timesFar(ctx, s, 0)
	if err != nil {
		return err
	}
	for _, away := range []time.Duration{60 * time.Millisecond, 200 * time.Millisecond} {
		times, err := timesFar(ctx, s, away)
		if err != nil {
			return err
		}
		for k, of := range farBounds {
			add(row{
				what:     fmt.Sprintf("%s, etcd %v away", of.what, away),
				measured: float64(times[k]-near[k]) / float64(away), goal: of.most, unit: "round trips",
				note: fmt.Sprintf("%.3g s, and %.3g s without the delay", times[k].Seconds(), near[k].Seconds()),
			})
		}
	}
	return nil
}

// timesFar measures at such a distance of rooms from etcd, a round trip.
func timesFar(ctx context.Context, s sizes, away time.Duration) (times farTimes, err error) {
	layout, err := equal("a", "b")
	if err != nil {
		return times, err
	}
	c, err := startCluster(ctx, s.march, layout)
	if err != nil {
		return times, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	link := proxy.New(strings.TrimPrefix(c.etcd.Address, "unix://"))
	defer link.Close()
	link.Set(proxy.Fault{Delay: away / 2})
	listener, err := proxy.Listen(link)
	if err != nil {
		return times, err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	c.roomsAt = listener.Address()
	if times[0], err = least(s.rounds, func(int) (time.Duration, error) { return c.ready(ctx) }); err != nil {
		return times, err
	}
	addresses, err := c.startRooms(ctx, []allocator.Room{"a", "b"})
	if err != nil {
		return times, err
	}
	times[1], err = least(s.rounds, func(round int) (time.Duration, error) {
		return c.cold(ctx, addresses["a"], tagName(round), away)
	})
	if err != nil {
		return times, err
	}
	for k, at := range []string{"", listener.Address()} {
		c.consoleAt = at
		if times[2+k], err = c.farMoves(ctx, s, addresses); err != nil {
			return times, err
		}
	}
	return times, nil
}

// least returns the least of some times.
func least(rounds int, measure func(round int) (time.Duration, error)) (time.Duration, error) {
	times := make([]time.Duration, rounds)
	for k := range times {
		var err error
		if times[k], err = measure(k); err != nil {
			return 0, err
		}
	}
	return slices.Min(times), nil
}

// ready starts an instance, and returns when it was ready.
func (c *cluster) ready(ctx context.Context) (took time.Duration, err error) {
	at, err := freeAddress()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := c.launch(ctx, "a", "--http", at); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/readyz", http.NoBody)
	if err != nil {
		return 0, err
	}
	for took == 0 {
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				took = time.Since(began)
			}
		}
		if ctx.Err() != nil {
			return 0, errors.Join(fmt.Errorf("waiting for an instance to be ready: %w", ctx.Err()), err)
		}
		time.Sleep(time.Millisecond)
	}
	return took, c.stopRooms()
}

// cold returns how long a room takes to issue the first ID of a tag.
func (c *cluster) cold(ctx context.Context, address string, tag allocator.Tag, away time.Duration) (time.Duration,
	error) {
	if _, err := c.admin.CreateTag(ctx, tag, record.DefaultTag(), "scale"); err != nil {
		return 0, err
	}
	conn, err := dial(address, "127.0.0.1")
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	conn.Connect()
	time.Sleep(time.Second + away) // until the room knows that there is a new tag
	began := time.Now()
	_, err = marchv1.NewIDServiceClient(conn).Next(ctx, &marchv1.NextRequest{Tag: string(tag)})
	return time.Since(began), err
}

// farMoves returns how long a console takes to move residues from one room to the other, by a reader that is near etcd.
// A tag is in use in both rooms.
func (c *cluster) farMoves(ctx context.Context, s sizes, addresses map[allocator.Room]string) (took time.Duration,
	err error) {
	console, err := c.startConsole(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, console.close()) }()
	return least(s.rounds, func(int) (time.Duration, error) {
		for _, address := range addresses {
			if err := leaseModel(ctx, address); err != nil {
				return 0, err
			}
		}
		time.Sleep(2 * time.Second) // until leases ahead of need have ended
		stored, err := c.admin.Ledger.Refresh(ctx)
		if err != nil {
			return 0, err
		}
		move := "a:50-100=b"
		if stored.Layout.Ranges["a"].Upper == 50 {
			move = "b:50-100=a"
		}
		plan, err := console.client.PlanMigration(ctx, &marchv1.PlanMigrationRequest{Move: []string{move}})
		if err != nil {
			return 0, err
		}
		m, err := console.client.ApplyMigration(ctx, &marchv1.ApplyMigrationRequest{Plan: plan.GetPlan(),
			Hold: durationpb.New(0), Force: true})
		if err != nil {
			return 0, err
		}
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			now, err := c.admin.Migration(ctx, m.GetMigration().GetId())
			if err != nil || now.State.Ended() {
				return time.Since(began), err
			}
			if time.Since(began) > patience {
				return 0, errors.New("the migration does not end")
			}
		}
	})
}
