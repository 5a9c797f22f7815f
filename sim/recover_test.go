package sim_test

import (
	"context"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// recovering is a recover, and who does it.
type recovering struct {
	w        *world
	d        dice
	link     *link
	cancel   context.CancelFunc
	uuid     string
	answered map[string]bool // by address, of all that were asked
	needed   bool            // whoever answered must do so again
	missing  []*process      // that run, and did not answer
	left     bool            // and are left out, with a small margin
}

// ask asks an instance for its memory: see ledger.RecoverConfig.
func (r *recovering) ask(ctx context.Context, s ledger.SeenInstance, bar bool) (ledger.Memory, error) {
	m, err := r.w.memory(ctx, r.link, s.Address, &marchv1.ReportMarksRequest{ClusterUuid: r.uuid, Bar: bar})
	r.w.log("%-12s asks %s: %v", r.link.name, s.Address, kind(err))
	if r.needed && r.answered[s.Address] && err != nil {
		r.cancel()
	}
	r.answered[s.Address] = err == nil
	return m, err
}

// memory asks the instance at an address, over a link. An instance that is cut off
// from etcd may be cut off from who asks as well, or not.
func (w *world) memory(ctx context.Context, l *link, address string, request *marchv1.ReportMarksRequest) (ledger.Memory, error) {
	unreachable := allocator.Errorf(allocator.Unavailable, "sim: nobody answers at %s", address)
	for _, p := range w.alive() {
		if p.address != address {
			continue
		}
		d := p.link.toss("asked by " + l.name)
		if p.link.held(false) > 0 && d.chance(2) {
			return ledger.Memory{}, unreachable
		}
		return call(ctx, l, d, func() (ledger.Memory, error) {
			answer := reports{ctx: ctx}
			if !p.runs() {
				return ledger.Memory{}, unreachable
			}
			if err := p.room.ReportMarks(request, &answer); err != nil {
				return ledger.Memory{}, err
			}
			return answer.memory(), nil
		})
	}
	return ledger.Memory{}, unreachable
}

// decide decides, after a dry run, whom to go on without, and with what margin.
func (r *recovering) decide(cfg *ledger.RecoverConfig, report *ledger.RecoverReport) error {
	w := r.w
	alive := w.alive()
	r.missing = slices.DeleteFunc(slices.Clone(alive), func(p *process) bool { return r.answered[p.address] || p.link.nothingSince() })
	cfg.Apply, cfg.Margin = true, w.marginFor()
	healed := w.healed.Load()
	if r.d.chance(3) && !healed && !slices.ContainsFunc(alive, func(p *process) bool { _, asked := r.answered[p.address]; return !asked }) {
		w.log("%-12s names nobody", r.link.name)
		r.needed = cfg.Margin == 0
		return nil
	}
	switch {
	case cfg.Margin > 0:
	case len(r.missing) == 0:
		cfg.Margin = pick(r.d, []int64{0, 1, 1}) // all that was leased is known
		r.needed = true
	case r.elsewhere() && w.journals == "":
		cfg.Margin = w.margin()
	case r.elsewhere():
		for _, p := range r.missing {
			cfg.Memories = append(cfg.Memories, w.journalsIn(p.journal)...)
		}
		r.needed = true
	case healed:
		return allocator.Errorf(allocator.Refused, "sim: not all that run answered")
	default:
		switch r.d.IntN(4) {
		case 0:
			cfg.Margin = w.margin()
		case 1, 2:
			cfg.Margin, r.left = 1+r.d.Int64N(20), true
			r.needed = true
		default:
			return allocator.Errorf(allocator.Refused, "sim: not all that run answered")
		}
	}
	for _, m := range report.Missing {
		cfg.Without = append(cfg.Without, m.ID)
	}
	return nil
}

// elsewhere reports whether all who run, and did not answer, live in another etcd
// cluster than the one that answers: nobody registers again there, however long
// one waits.
func (r *recovering) elsewhere() bool {
	here := r.w.answers()
	return !slices.ContainsFunc(r.missing, func(p *process) bool { return p.link.livesIn() == here })
}

// leaveOut notes, after a recover that left out who runs, which IDs those may
// issue that others are given too: none where the margin was over all of them.
func (r *recovering) leaveOut() {
	w := r.w
	marks := make(map[allocator.Tag]int64)
	for _, tag := range w.tags {
		marks[tag] = w.highest(tag)
	}
	for _, p := range r.missing {
		w.log("--- %s is left out", p.id)
		if r.left {
			w.count("instances left out of a recover", 1)
		}
		w.mu.Lock()
		processes := w.mu.processes
		w.mu.Unlock()
		for _, other := range processes { // and those before it whose memory only it has
			if other == p || p.journal != "" && other.journal == p.journal {
				other.link.leaveOut(outside{time.Now(), marks})
			}
		}
	}
}

// outside is what a recover did without an instance.
type outside struct {
	at    time.Time
	marks map[allocator.Tag]int64 // that it raised all rooms to
}

// nothingSince reports whether a process has leased nothing since a recover went
// on without it: then the next one may do so, too.
func (l *link) nothingSince() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.mu.outside)
	return n > 0 && !slices.ContainsFunc(l.mu.leases, func(have lease) bool { return have.sent.After(l.mu.outside[n-1].at) })
}

func (l *link) leaveOut(o outside) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.outside = append(l.mu.outside, o)
}

// leftWith reports whether an ID that an instance issued is one that it leased
// before a recover which left it out, and above what that raised the marks to: the
// one ID of which the documentation says that it may be issued twice.
func (p *process) leftWith(tag allocator.Tag, id int64) bool {
	p.link.mu.Lock()
	left := p.link.mu.outside
	p.link.mu.Unlock()
	for _, o := range left { // of few, and mostly of none
		if id >= o.marks[tag] && slices.ContainsFunc(p.link.leasesWith(tag, id), func(l lease) bool { return l.sent.Before(o.at) }) {
			return true
		}
	}
	return false
}

// leftRun is leftWith of a run: of one lease, or of several in a row.
func (p *process) leftRun(tag allocator.Tag, run allocator.Run) bool {
	return p.leftWith(tag, run.First) || p.leftWith(tag, run.First+run.Count-1)
}

// reported returns the layout version that who answered a call had reported last:
// since the last recover, which may have forgotten layouts that somebody serves
// whom it left out.
func (w *world) reported(a answered) (version int64) {
	var since time.Time
	for _, s := range w.mu.past.lostTimes {
		if s.until.Before(a.at) {
			since = s.until
		}
	}
	l := a.by.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.mu.reports {
		if r.at.After(since) && r.at.Before(a.at) {
			version = r.version
		}
	}
	return version
}

// heard notes whom a recover had answers from, under the epoch that it began.
func (r *recovering) heard() {
	epoch, _ := r.w.mem.Value("/march/default/epoch")
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.mu.past.heard[string(epoch)] = r.answered
}

// checkRaise checks an instance that raises a mark over what it leased below: it
// may where a recover did not know of that, but not where the instance answered
// it, since all that it ever leased is what it answered with.
func (w *world) checkRaise(l *link, epoch, tag string) {
	w.mu.Lock()
	heard, at := w.mu.past.heard[epoch], slices.IndexFunc(w.mu.processes, func(p *process) bool { return p.link == l })
	said := at >= 0 && heard[w.mu.processes[at].address]
	w.mu.Unlock()
	if at >= 0 {
		w.count("marks raised by instances", 1)
	}
	if said {
		w.Errorf("%s, tag %s: it holds more than it said when recover asked it", l.name, tag)
	}
}
