package main

import (
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// midnight measures a good caller of tags with a period in the minute in which a day ends,
// against the same caller in the minute before. The room has its clock set, so that the
// day ends soon. It has half of the processors and etcd the other, as if each had a machine
// of its own.
func midnight(p *part) {
	const minute, before = time.Minute, 10 * time.Second // of the second minute, before the day ends
	c := p.bare(true, onlyRoom, halfTheProcessors())
	c.createDaily(p.busy)
	room := p.start([]string{halfTheProcessors()}, "child-room", strconv.Itoa(p.busy), c.etcd.Address)
	room.ask("load")
	good := p.caller(room, p.busy)
	var day period.Date
	p.measure(p.rounds, &row{
		what: fmt.Sprintf("p99.9 in the server of Next in the minute of midnight to the minute "+
			"before, %d busy tags", p.busy), goal: 1.5, atMost: true, unit: "s",
		yard: func() float64 {
			// The room looks at its clock once a minute, or where it expects the day's end.
			room.ask(fmt.Sprint("midnight ", minute+before+5*time.Second))
			p.times(5*time.Second, good) // the caches are warm
			alone := p.times(minute, good)[0]
			day = p.day(room, 0)
			return alone.P999.Seconds()
		},
		march: func() float64 {
			over := p.times(minute, good)[0]
			for i := range p.busy {
				if p.day(room, i).String() <= day.String() {
					p.Fatalf("only %d of %d tags are of the next day", i, p.busy)
				}
			}
			return over.P999.Seconds()
		},
	})
}

// daily is a tag that counts anew each day.
var daily = period.Period{Unit: period.Day, Digits: 9, Zone: "UTC"}

// createDaily creates tags with a period.
func (c *processes) createDaily(tags int) {
	const atOnce = 32
	group, ctx := errgroup.WithContext(c.ctx)
	group.SetLimit(atOnce)
	for i := range tags {
		group.Go(func() error {
			settings := record.DefaultTag()
			settings.Period = daily
			_, err := c.admin.CreateTag(ctx, tagName(i), settings, "scale")
			return err
		})
	}
	c.check(group.Wait())
}

// day returns the day of the next ID of a tag.
func (p *part) day(room *process, tag int) period.Date {
	answer := must(room.client().Next(p.ctx, &marchv1.NextRequest{Tag: string(tagName(tag))}))
	day, _ := daily.Split(answer.GetId())
	return day
}
