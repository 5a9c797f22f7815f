package report

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/history"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// Check checks the run in dir with all oracles. Its errors are those of reading the run's
// files.
func Check(ctx context.Context, dir string) (*Report, error) {
	c := &check{dir: dir, r: &Report{Faults: make(map[string]int), Rows: make(map[string]int64),
		Columns: make(map[string]int64)}}
	if err := c.run(ctx); err != nil {
		return nil, fmt.Errorf("check of %s: %w", dir, err)
	}
	return c.r, nil
}

type check struct {
	dir      string
	r        *Report
	events   []runlog.Event
	history  *history.History
	segments *history.Segments
	skews    skews
	faults   spans
	// told and felt are the times of restores; see restores.
	told, felt spans
	resumed    map[string]spans // by instance
}

func (c *check) run(ctx context.Context) (err error) {
	if c.r.Run, err = runlog.ReadRun(c.dir); err != nil {
		return err
	}
	if c.events, err = runlog.ReadEvents(c.dir); err != nil {
		return err
	}
	if c.history, err = history.Read(filepath.Join(c.dir, runlog.Dir), c.r.Run.Cluster); err != nil {
		return err
	}
	lines, err := history.ReadLeases(c.dir)
	if err != nil {
		return err
	}
	c.segments = history.Match(lines, c.history)
	c.happened()
	c.told, c.felt = restores(c.events)
	c.resumed = resumed(c.events, c.felt)
	if c.skews, err = readSkews(c.dir); err != nil {
		return err
	}
	if err := c.logs(); err != nil {
		return err
	}
	c.etcd()
	c.leases(lines)
	c.last()
	if err := c.issued(ctx); err != nil {
		return err
	}
	if err := c.machines(); err != nil {
		return err
	}
	c.weak()
	c.r.Verdict = c.r.verdict()
	return nil
}

// happened counts events.
func (c *check) happened() {
	var recoveries []time.Duration
	began := make(map[int]time.Time)
	var ended, restoring time.Time
	for _, e := range c.events {
		ended = e.Time
		if e.Violation != "" {
			c.r.Measured.add(1, e.What+" "+e.Kind+" "+e.Target+": "+e.Violation)
		}
		switch e.What {
		case runlog.FaultBegan:
			c.r.Faults[e.Kind]++
			began[e.Fault] = e.Time
		case runlog.FaultEnded:
			c.faults = append(c.faults, span{began[e.Fault], e.Time})
		case runlog.Issuing:
			if e.Fault > 0 && e.Limit > 0 {
				recoveries = append(recoveries, e.Took)
			}
			if e.Fault != 0 && len(c.faults) > 0 { // under the fault until that is over
				c.faults = append(c.faults, span{e.Time.Add(-e.Took), e.Time})
			}
			delete(began, e.Fault)
		case runlog.Used:
			c.shows(e.Kind)
		case runlog.Moved:
			c.r.Columns[e.Kind]++
		case runlog.Restoring:
			restoring = e.Time
		case runlog.Restored:
			c.r.Restores = append(c.r.Restores, Restore{Kind: e.Kind, Restored: e.Time, from: restoring})
		}
	}
	for _, from := range began { // and never ended
		c.faults = append(c.faults, span{from, ended})
	}
	c.faults = c.faults.merged()
	c.r.Recovery = times(recoveries)
}

// shows counts the features that something shows; see runlog.Run.
func (c *check) shows(keys ...string) {
	for _, key := range keys {
		if row := c.r.Run.Rows[key]; row != "" {
			c.r.Rows[row]++
		}
	}
}

// etcd counts what is in the history.
func (c *check) etcd() {
	h := c.history
	c.r.Layouts, c.r.Migrations, c.r.Lives = len(h.Layouts)-max(len(h.Lives)-1, 0), h.Ended, len(h.Lives)
	for _, p := range h.Problems {
		c.r.Rules.add(1, p.String())
	}
	c.r.Rules.Count += int64(h.More)
	for i, life := range h.Lives {
		c.r.HistoryGaps += len(life.Gaps)
		if i > 0 && !c.forgot(h.Lives[i-1].Began, life.Began) {
			c.r.Rules.add(1, fmt.Sprintf("etcd went back in time without a restore by which it forgets, at %s: %s",
				life.Began.Format(time.TimeOnly), life.Why))
		}
	}
	for i := range c.r.Restores {
		restore := &c.r.Restores[i]
		until := time.Time{}
		if i+1 < len(c.r.Restores) {
			until = c.r.Restores[i+1].from
		}
		for _, epoch := range h.Epochs {
			if epoch.Halted == nil || epoch.Halted.Why == recovers || epoch.Time.Before(restore.from) ||
				!until.IsZero() && epoch.Time.After(until) {
				continue
			}
			restore.Halted, restore.After = true, max(epoch.Time.Sub(restore.Restored), 0)
			break
		}
	}
}

// recovers is the reason of a halt that march recover writes itself, after any other halt: it
// does not show that an instance saw what etcd forgot.
const recovers = "march recover"

// forgot reports whether a restore by which etcd forgets began after one life and before the
// next.
func (c *check) forgot(after, before time.Time) bool {
	return slices.ContainsFunc(c.events, func(e runlog.Event) bool {
		return e.What == runlog.Restoring && e.Loses() && e.Time.After(after) && e.Time.Before(before)
	})
}

// last compares the history's end with etcd's, if the run came to its end: by then no process
// wrote any longer, and the recorder of the history had time to see everything.
func (c *check) last() {
	n := slices.IndexFunc(c.events, func(e runlog.Event) bool { return e.What == runlog.Ended })
	if n < 0 {
		return
	}
	end := c.events[n]
	if n := c.segments.Past; n > 0 {
		c.r.Checker.add(int64(n), fmt.Sprintf("%d leases are not seen in the last life of etcd's history, "+
			"though it was kept until the run had ended", n))
	}
	if end.Revision == 0 { // the run did not record it
		return
	}
	var life history.Life
	if lives := c.history.Lives; len(lives) > 0 {
		life = lives[len(lives)-1]
	}
	if id := fmt.Sprintf("%x", life.Cluster); id != end.ClusterID {
		c.r.Checker.add(1, fmt.Sprintf("the run ended in etcd cluster %s, and its history in %s", end.ClusterID, id))
	}
	if seen := max(life.Last, life.Shown); seen < end.Revision { // only a shown revision includes deletes
		c.r.Checker.add(1, fmt.Sprintf("etcd was at revision %d when the run ended, "+
			"and its history was last held against it at %d", end.Revision, seen))
	}
}

// leases counts the leases in the instances' logs.
func (c *check) leases(lines []history.Line) {
	s := c.segments
	c.r.Segments = s.Leased
	c.r.Transactions = Transactions{
		OK: s.Leased, Refused: s.Refused, Failed: s.Lost, Applied: len(s.Applied), GivenUp: len(s.GivenUp),
		Orphans: len(s.Orphans), Unseen: s.Unseen,
	}
	c.r.Skipped = s.Skipped
	for _, problem := range s.Problems {
		c.r.Leases.add(1, problem)
	}
	c.r.Leases.Count += int64(s.More)
	var calm, hurt []time.Duration
	for _, l := range lines {
		switch {
		case l.Outcome != history.Leased:
		case c.faults.meet(l.Time.Add(-l.Took), l.Time):
			hurt = append(hurt, l.Took)
		default:
			calm = append(calm, l.Took)
		}
	}
	c.r.Refill.Calm, c.r.Refill.Faults = times(calm), times(hurt)
}

// issued goes through all answers that callers got.
func (c *check) issued(ctx context.Context) error {
	c.r.FailedCalls = make(map[string]int64)
	p := newPass(c)
	if err := p.each(ctx, p.take); err != nil {
		return err
	}
	if p.end(); c.r.Duplicates.Count == 0 {
		return nil
	}
	return p.each(ctx, p.who)
}
