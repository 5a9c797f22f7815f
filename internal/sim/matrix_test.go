package sim_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/internal/programs"
)

// fell is what became of an instance of counters, and of one of time-ordered IDs, when etcd went back.
type fell string

const (
	nobody    fell = "all answer"
	hangs     fell = "one hangs, is left out, and goes on"
	off       fell = "the machine of one is off"
	lostDisk  fell = "one is back without its journal"
	comesLate fell = "one is left out, and starts again with its journal"
)

// cell is a case of the restore matrix.
type cell struct {
	fell
	mirrors bool // consoles saw all leases, so recover needs no margin
	twice   bool // a second recover follows, and instances may be idle between the two
	lends   bool // instances lend workers to callers
}

func (c cell) String() string {
	text := string(c.fell) + ", mirrors: " + fmt.Sprint(c.mirrors)
	if c.lends {
		text += ", workers are lent"
	}
	if c.twice {
		text += ", then another recover"
	}
	return text
}

// slow is how long a clock that is behind, and a caller that asks seldom, add to a time.
const slow = 12 * time.Second

// within returns how long after the recover each instance issues time-ordered IDs again. Whoever was
// left out may issue in a window that nobody saw, or a caller of it in one that it was lent.
func (c cell) within() time.Duration {
	switch {
	case c.fell == nobody:
		return 10 * time.Second
	case c.fell == off && c.mirrors && !c.lends:
		return 3*record.MaxAhead + time.Second + slow
	}
	return record.LongestWindow + 2*record.MaxAhead + slow
}

// TestRestoreMatrix restores a backup under a cluster with counters, a tag with a period and
// time-ordered IDs, in which etcd has users with roles. It says of each cell how boring the restore is:
// the first recover goes through, with the margin that mirrors give where they saw all; no ID comes
// twice; every instance issues every tag again in time; leasing is not halted again, not by an
// instance either that was left out, comes back, and may not raise the marks of other rooms: the margin
// covers what it leased. A run that has not all variants has each of the ways in which instances fall once, and all of
// mirrors, workers that are lent, and a second recover.
func TestRestoreMatrix(t *testing.T) {
	seed := uint64(0)
	for i, f := range []fell{nobody, hangs, off, lostDisk, comesLate} {
		for k, c := range []cell{{f, true, false, false}, {f, false, false, true}, {f, true, true, true},
			{f, false, true, false}} {
			if seed++; testing.Short() && (c.twice || c.lends) {
				continue
			}
			t.Run(c.String(), func(t *testing.T) {
				if k != i%4 {
					programs.OnlyInAll(t, "of restores in the simulation")
				}
				c.run(t, seed)
			})
		}
	}
}

func (c cell) run(t *testing.T, seed uint64) {
	journals := journals(t)
	cryptotest.SetGlobalRandom(t, seed)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(seed, nil, journals, nil)
		w.fates, w.slow, w.strict, w.required = nil, 0, true, false
		w.journals, w.roles, w.timed, w.wild, w.mirrorless, w.lends = journals, true, true, false, !c.mirrors, c.lends
		w.tags = []allocator.Tag{"order", "bounded", strictTag, yearly}
		w.mu.issued[yearly] = make(map[int64]int)
		w.begin()
		w.sleep(nil, 15*time.Second, 0)
		if w.backUp(w.first); w.mu.past.backup == 0 || len(w.times) == 0 {
			t.Error("there is no backup, or no tag of time-ordered IDs")
		}
		w.sleep(nil, 3*time.Second, 0)
		c.restore(t, w)
		w.healed.Store(true)
		close(w.heal)
		w.settle()
		close(w.end)
		w.actors.Wait()
		w.mem.Arrive()
		w.checkAll()
		for _, problem := range w.mu.problems {
			t.Error(problem)
		}
	})
}

// restore makes two instances fall, goes back to the backup, recovers, and waits until all issue again.
func (c cell) restore(t *testing.T, w *world) {
	var down []*slot
	if c.fell != nobody {
		down = []*slot{w.slots[0], w.timers[0]}
	}
	var out []*process
	for _, s := range down {
		p := s.running()
		out = append(out, p)
		switch c.fell {
		case hangs:
			p.link.stall(time.Hour)
		case lostDisk:
			p.forgets.Store(true)
			p.crash()
		case off, comesLate:
			s.stayDown(time.Hour)
			p.crash()
		}
	}
	w.sleep(nil, 3*time.Second, 0) // what they sent is seen by mirrors
	w.restore(w.first)
	w.sleep(nil, 3*time.Second, 0)
	r := c.recovers(t, w, out)
	began := time.Now()
	for _, s := range down {
		if c.fell == comesLate {
			s.stayDown(0)
		} else if c.fell == hangs {
			s.running().link.stall(time.Second)
		}
	}
	if c.twice {
		w.sleep(nil, 10*time.Second, 0)
		w.halt(w.first)
		r = c.recovers(t, w, nil)
	}
	w.sleep(nil, 3*time.Second, 0)
	if until := time.Until(began.Add(c.within() - slow)); until > time.Minute {
		w.slept.Add(int64(until)) // and so do all machines
	} else {
		w.sleep(nil, until, 0)
	}
	w.sleep(nil, slow, 0)
	for _, s := range w.slots {
		if c.fell == off && slices.Contains(down, s) {
			continue
		}
		for _, tag := range c.tags(w, s) {
			w.mu.Lock()
			at := w.mu.latest[string(tag)+" "+s.name]
			w.mu.Unlock()
			if !at.After(began) {
				t.Errorf("%s issued no ID of tag %s within %v after the recover", s.name, tag, c.within())
			}
		}
	}
	if now, _ := w.mem.Value(keys.Epoch()); w.halted() || epochName(string(now)) != r.Epoch {
		t.Errorf("leasing was halted after the recover: %s", now)
	}
}

// tags returns the tags that an instance must issue again.
func (c cell) tags(w *world, s *slot) (tags []allocator.Tag) {
	layout, err := w.admin.Ledger.Refresh(context.Background())
	if err != nil {
		w.Errorf("layout: %v", err)
	}
	if _, has := layout.Layout.Ranges[s.room]; !has {
		return nil
	}
	if !slices.Contains(w.timers, s) {
		return slices.DeleteFunc(slices.Clone(w.tags), func(tag allocator.Tag) bool {
			return tag == "bounded" || w.ended(tag)
		})
	}
	slice, _ := timeid.SliceOf(layout.Layout, s.room, w.times[0].settings.WorkerBits)
	if slice.Width() < 4 { // so that all instances of the room have a worker
		return nil
	}
	for _, tag := range w.times {
		tags = append(tags, tag.name)
	}
	return tags
}

// recovers recovers without out, as the operator who follows the runbook does, and returns the report.
func (c cell) recovers(t *testing.T, w *world, out []*process) *recovery.Report {
	lane := w.lane()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := &recovering{w: w, d: w.first, link: w.link(fmt.Sprint("recover#", lane), lane), cancel: cancel,
		answered: make(map[string]bool)}
	r.missing = slices.DeleteFunc(slices.Clone(out), func(p *process) bool { return !p.runs() })
	r.link.recovers, r.link.role = r, keys.OperatorRole()
	cfg := recovery.Config{Actor: "simulation", Wait: 6 * time.Second, Console: w.mirrorsAt(r.link),
		Layout: recovery.LayoutKnown,
		Ask: func(ctx context.Context, s record.SeenInstance, q record.Question,
			use record.UseMarks) (record.Memory, error) {
			if slices.ContainsFunc(out, func(p *process) bool { return p.address == s.Address }) {
				return record.Memory{}, allocator.Errorf(allocator.Unavailable, "sim: %s does not answer", s.Address)
			}
			return r.ask(ctx, s, q, use)
		}}
	l := w.ledger(r.link)
	dry, err := recovery.Run(ctx, l, cfg)
	if (err != nil) != (len(out) > 0) || len(dry.Missing) != len(out) {
		t.Errorf("a dry run: %v; missing %v; want %d", err, dry.Missing, len(out))
	}
	for _, m := range dry.Missing {
		if cfg.Without = append(cfg.Without, m.ID); c.fell == off {
			cfg.Stopped = append(cfg.Stopped, m.ID)
		}
	}
	if len(out) > 0 && !c.mirrors {
		cfg.Margin = w.margin()
	}
	cfg.Apply = true
	w.mu.Lock()
	w.remember()
	w.mu.Unlock()
	report, err := recovery.Run(ctx, l, cfg)
	if err != nil {
		t.Fatalf("recover: %v", err)
	}
	if (c.mirrors || len(out) == 0) && report.Margin != 2*int64(len(out)) {
		t.Errorf("recover's own margin is %d steps; want 2 for each of %d instances", report.Margin, len(out))
	}
	w.mu.Lock()
	w.mu.past.lostTimes = append(w.mu.past.lostTimes, stretch{w.mu.past.forgot, time.Now()})
	w.mu.past.forgot = time.Time{}
	w.mu.Unlock()
	r.heard()
	return report
}
