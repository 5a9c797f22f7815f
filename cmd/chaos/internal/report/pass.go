package report

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/cmd/chaos/internal/history"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// caller is one caller's file.
type caller struct {
	file *runlog.Reader[runlog.Answer]
	way  string
	next runlog.Answer
}

// callers are sorted by the times of their next answers.
type callers []*caller

func (c callers) Len() int           { return len(c) }
func (c callers) Less(i, j int) bool { return c[i].next.Received.Before(c[j].next.Received) }
func (c callers) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *callers) Push(x any) {
	if one, ok := x.(*caller); ok {
		*c = append(*c, one)
	}
}
func (c *callers) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// pass goes through all IDs that callers got, in the order of arrival.
type pass struct {
	*check
	taken   map[allocator.Tag]*taken
	finders map[history.Owner]*history.Finder
	growths map[history.Owner]*growth
	served  map[history.Owner]*served // by instance; Tag is empty
	rooms   map[allocator.Room]*Room
	times   *timed
}

func newPass(c *check) *pass {
	p := &pass{
		check: c, taken: make(map[allocator.Tag]*taken),
		finders: make(map[history.Owner]*history.Finder), growths: make(map[history.Owner]*growth),
		served: make(map[history.Owner]*served), rooms: make(map[allocator.Room]*Room),
		times: newTimed(c),
	}
	for _, report := range c.history.Reports {
		o := history.Owner{Room: report.Room, Instance: report.Instance}
		if p.served[o] == nil {
			p.served[o] = &served{}
		}
		p.served[o].reports = append(p.served[o].reports, report)
	}
	return p
}

// each calls use with all answers.
func (p *pass) each(ctx context.Context, use func(way string, i runlog.Answer) error) (err error) {
	paths, err := runlog.Callers(p.dir)
	if err != nil {
		return err
	}
	var all callers
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.file.Close())
		}
	}()
	for _, path := range paths {
		file, openErr := runlog.Open[runlog.Answer](path)
		if openErr != nil {
			return openErr
		}
		c := &caller{file: file, way: runlog.Way(path)}
		if c.next, err = file.Next(); errors.Is(err, io.EOF) {
			err = file.Close()
		} else if err == nil {
			all = append(all, c)
		}
		if err != nil {
			return errors.Join(err, file.Close())
		}
	}
	heap.Init(&all)
	for n := 0; len(all) > 0; n++ {
		if n%1000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		c := all[0]
		if err := use(c.way, c.next); err != nil {
			return err
		}
		if c.next, err = c.file.Next(); errors.Is(err, io.EOF) {
			heap.Pop(&all)
			if err := c.file.Close(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		heap.Fix(&all, 0)
	}
	return nil
}

// take passes one answer to all oracles.
func (p *pass) take(way string, i runlog.Answer) error {
	if i.Failed != "" {
		p.failed(i)
		p.shows(i.Failed + " " + string(i.Tag))
	}
	if len(i.Runs) == 0 {
		return nil
	}
	p.r.Answers++
	if p.taken[i.Tag] == nil {
		p.taken[i.Tag] = &taken{}
	}
	for _, run := range i.Runs {
		p.taken[i.Tag].add(run)
	}
	p.shows(string(i.Tag), way)
	if l, is := p.history.Times[i.Tag]; is {
		return p.times.take(i, l)
	}
	owner := history.Owner{Room: i.Room, Instance: i.Instance, Tag: i.Tag}
	order := p.history.Ordered[i.Tag]
	if order != "" { // any instance, of the room or of all, may have issued it
		p.r.Ordered++
		owner.Instance = ""
		if order == record.OrderCluster {
			owner.Room = ""
		}
	}
	finder := p.finders[owner]
	if finder == nil {
		finder = p.segments.Finder(owner)
		p.finders[owner] = finder
	}
	version := int64(0) // IDs must not be of layouts before it
	if s := p.served[history.Owner{Room: i.Room, Instance: i.Instance}]; s != nil && order == "" {
		version = s.at(i.Sent)
	}
	ids := int64(0)
	for _, run := range i.Runs {
		ids += run.Count
		p.find(owner, finder, run, version, i)
	}
	if i.Instance != "" || order != "" {
		p.grow(owner, i)
		p.skew(owner, i)
	}
	p.count(i, ids)
	return nil
}

// find finds the segments of a run.
func (p *pass) find(owner history.Owner, finder *history.Finder, run allocator.Run, version int64, i runlog.Answer) {
	for run.Count > 0 {
		found, n, line := finder.Find(run)
		// A segment is logged before any caller has it; the clock is the same.
		if found == history.Within && i.Received.Before(line.Time) {
			p.r.Early.add(n, fmt.Sprintf("%v was given %d at %s, and %v was leased at %s", owner, run.First,
				i.Received.Format(stamp), line.Segment, line.Time.Format(stamp)))
		}
		if found == history.Within && p.stale(i, line) {
			p.r.Stale.add(n, fmt.Sprintf("%v issued %d to a call of %s: it is of %v, which the room lost at %s",
				owner, run.First, i.Sent.Format(stamp), line.Segment,
				p.history.Taken(owner.Room, line.Segment, i.Sent).Format(stamp)))
		}
		switch {
		case found == history.Nowhere:
			p.r.NotLeased.add(n, fmt.Sprintf("%v was given %d at %s, which is of no segment of its", owner,
				run.First, i.Received.Format(stamp)))
		case found == history.Foreign:
			p.r.WrongRoom.add(n, fmt.Sprintf("%v was given %d at %s, residue %d, out of %v", owner, run.First,
				i.Received.Format(stamp), run.First%line.Segment.Boundary, line.Segment))
		case line.Segment.Version < version && !p.history.Keeps(version, owner.Room, line.Segment):
			p.r.Retracted.add(n, fmt.Sprintf(
				"%v issued %d to a call of %s: it is of %v, and version %d had been reported, which does not keep it",
				owner, run.First, i.Sent.Format(stamp), line.Segment, version))
		}
		run.First, run.Count = run.First+n, run.Count-n
	}
}

// stale reports whether a call asked for an ID of a strict tag when no room or client may have
// any of its segment any longer: hold after the room lost residues of it. The history sees that
// slightly later, and no instance confirms such a layout then.
func (p *pass) stale(i runlog.Answer, line *history.Line) bool {
	if p.r.Run.Hold <= 0 || !p.history.Strict[i.Tag] {
		return false
	}
	taken := p.history.Taken(line.Room, line.Segment, i.Sent)
	return !taken.IsZero() && i.Sent.After(taken.Add(p.r.Run.Hold+leeway))
}

// stamp is the format of times.
const stamp = "15:04:05.000"

// grow checks that IDs of an instance grow, and those of a tag with a strict order, of whichever instance they are.
func (p *pass) grow(owner history.Owner, i runlog.Answer) {
	g := p.growths[owner]
	if g == nil {
		g = &growth{}
		p.growths[owner] = g
	}
	before := g.before(i.Sent)
	for _, run := range i.Runs {
		if run.First <= before {
			p.r.Inversions.add(1, fmt.Sprintf("%v issued %d to a call of %s, when %d had come before", owner, run.First,
				i.Sent.Format(stamp), before))
		}
		before = max(before, run.First+run.Count-1)
	}
	g.add(i.Received, before)
}

// count counts an answer for the tally.
func (p *pass) count(i runlog.Answer, ids int64) {
	room := p.rooms[i.Room]
	if room == nil {
		room = &Room{Name: string(i.Room), last: i.Received}
		p.rooms[i.Room] = room
	}
	room.IDs += ids
	room.silent(i.Received)
	for k := range p.r.Restores {
		if r := &p.r.Restores[k]; r.Halted && i.Received.After(r.Restored) &&
			i.Received.Before(r.Restored.Add(r.After)) {
			r.IDs += ids
		}
	}
}

// silent records the time until IDs came again, or the run ended.
func (r *Room) silent(until time.Time) {
	if silence := until.Sub(r.last); silence > r.Silence {
		r.Silence, r.At = silence, r.last
	}
	r.last = until
}

// end is called after all answers.
func (p *pass) end() {
	for _, e := range slices.Backward(p.events) {
		if e.What != runlog.Healed { // until then callers ask
			continue
		}
		for _, room := range p.rooms {
			if e.Time.After(room.last) {
				room.silent(e.Time)
			}
		}
		break
	}
	for _, room := range p.rooms {
		p.r.Rooms = append(p.r.Rooms, *room)
	}
	slices.SortFunc(p.r.Rooms, func(a, b Room) int { return strings.Compare(a.Name, b.Name) })
	for tag, t := range p.taken {
		n := t.count()
		if _, timed := p.history.Times[tag]; !timed {
			p.r.IDs += n
		}
		// An ID of each tag comes twice for this oracle, which must find that.
		p.r.Planted++
		if id := t.sorted[len(t.sorted)/2].first; !t.plant(id) {
			p.r.Checker.add(1, fmt.Sprintf("the oracle of duplicates missed what was planted: tag %s, %d", tag, id))
		}
		for _, twice := range t.twice {
			p.r.Duplicates.Count += twice.count()
		}
	}
	p.plantSkews()
	p.r.Unissued = p.segments.IDs - p.r.IDs
}

// who is called with all answers again if IDs came twice. It says who got them.
func (p *pass) who(_ string, i runlog.Answer) error {
	for _, run := range i.Runs {
		if slices.ContainsFunc(p.taken[i.Tag].twice, func(t interval) bool { return t.meets(run) }) {
			p.r.Duplicates.add(0, fmt.Sprintf("%s was given %d IDs from %d on at %s, some of which came twice", i.Who(),
				run.Count, run.First, i.Received.Format(stamp)))
		}
	}
	return nil
}
