package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/internal/load"
)

// midnight measures a good caller of tags with a period in the minute in which a day ends,
// against the same caller in the minute before. The room has its clock set, so that the
// day ends soon. It has half of the processors and etcd the other, as if each had a machine
// of its own.
func midnight(ctx context.Context, s sizes, add func(row)) (err error) {
	const minute, before = time.Minute, 10 * time.Second // of the second minute, before the day ends
	c, err := newCluster(ctx, true, onlyRoom, halfTheProcessors())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.createDaily(ctx, s.busy); err != nil {
		return err
	}
	p, err := startChild(ctx, []string{halfTheProcessors()}, "child-room", strconv.Itoa(s.busy), c.etcd.Address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if _, err := p.ask("load"); err != nil {
		return err
	}
	var ratios, befores, overs []float64
	for range s.rounds {
		// The room looks at its clock once a minute, or where it expects the day's end.
		if _, err := p.ask(fmt.Sprint("midnight ", minute+before+5*time.Second)); err != nil {
			return err
		}
		if _, err := timesOf(ctx, p, s.busy, 5*time.Second); err != nil { // the caches are warm
			return err
		}
		alone, err := timesOf(ctx, p, s.busy, minute)
		if err != nil {
			return err
		}
		day, err := dayOf(ctx, p, 0)
		if err != nil {
			return err
		}
		over, err := timesOf(ctx, p, s.busy, minute)
		if err != nil {
			return err
		}
		if turned, err := allAfter(ctx, p, s.busy, day); err != nil || turned < s.busy {
			return errors.Join(err, fmt.Errorf("only %d of %d tags are of the next day", turned, s.busy))
		}
		ratios = append(ratios, float64(over.P999)/float64(alone.P999))
		befores = append(befores, float64(alone.P999)/float64(time.Millisecond))
		overs = append(overs, float64(over.P999)/float64(time.Millisecond))
	}
	add(row{
		what: fmt.Sprintf("p99.9 in the server of Next in the minute of midnight to the minute "+
			"before, %d busy tags", s.busy),
		measured: load.Median(ratios), goal: 1.5, unit: "times",
		note: fmt.Sprintf("%.3g ms to %.3g ms", load.Median(overs), load.Median(befores)),
	})
	return nil
}

// daily is a tag that counts anew each day.
var daily = period.Period{Unit: period.Day, Digits: 9, Zone: "UTC"}

// createDaily creates tags with a period.
func (c *cluster) createDaily(ctx context.Context, tags int) error {
	const atOnce = 32
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range tags {
		group.Go(func() error {
			settings := record.DefaultTag()
			settings.Period = daily
			_, err := c.admin.CreateTag(ctx, tagName(i), settings, "scale")
			return err
		})
	}
	return group.Wait()
}

// dayOf returns the day of the next ID of a tag.
func dayOf(ctx context.Context, p *process, tag int) (period.Date, error) {
	conn, err := dial(p.Address, "127.0.0.1")
	if err != nil {
		return period.Date{}, err
	}
	defer func() { _ = conn.Close() }()
	answer, err := marchv1.NewIDServiceClient(conn).Next(ctx, &marchv1.NextRequest{Tag: string(tagName(tag))})
	day, _ := daily.Split(answer.GetId())
	return day, err
}

// allAfter returns how many tags issue IDs of a later day.
func allAfter(ctx context.Context, p *process, tags int, day period.Date) (later int, err error) {
	conn, err := dial(p.Address, "127.0.0.1")
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	client := marchv1.NewIDServiceClient(conn)
	for i := range tags {
		answer, err := client.Next(ctx, &marchv1.NextRequest{Tag: string(tagName(i))})
		if err != nil {
			return later, err
		}
		if is, _ := daily.Split(answer.GetId()); is.String() > day.String() {
			later++
		}
	}
	return later, nil
}
