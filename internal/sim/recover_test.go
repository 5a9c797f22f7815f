package sim_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// recovering is a recover, with what its operator learned.
type recovering struct {
	w        *world
	d        dice
	link     *link
	cancel   context.CancelFunc
	mu       sync.Mutex
	answered map[string]bool // by address, of all that were asked; under mu
	needed   bool            // every instance that answered must answer again
	missing  []*process      // running processes that did not answer
	left     bool            // the missing are left out, with a small margin
	epoch    string          // begun by the recover
	failed   error           // of the recover, where it had changed something
}

// ask asks an instance for its memory: see recovery.Config.
func (r *recovering) ask(ctx context.Context, s record.SeenInstance, q record.Question,
	use record.UseMarks) (record.Memory, error) {
	request := &marchv1.ReportMarksRequest{ClusterUuid: q.UUID, AfterSequence: q.After}
	if q.Barrier != nil {
		request.Barrier = &marchv1.Barrier{HaltNonce: q.Barrier.Nonce, EtcdClusterId: q.Barrier.ClusterID}
	}
	m, err := r.w.memory(ctx, r.link, s.Address, request)
	r.w.log("%-12s asks %s: %v %v%s", r.link.name, s.Address, kind(err), m.Barred, m.Unbarred)
	if err == nil {
		err = use(m.Room, m.Marks)
	}
	ok := err == nil && (q.Barrier == nil || m.Barred)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.needed && r.answered[s.Address] && !ok {
		time.AfterFunc(align(1, r.link.lane), r.cancel) // a later instant: nothing orders this one's questions
	}
	r.answered[s.Address] = ok
	return m, err
}

// memory asks the instance at an address over a link. An instance that is cut off from etcd may
// be cut off from recover as well, or not.
func (w *world) memory(ctx context.Context, l *link, address string,
	request *marchv1.ReportMarksRequest) (record.Memory, error) {
	unreachable := allocator.Errorf(allocator.Unavailable, "sim: no instance answers at %s", address)
	for _, p := range w.alive() {
		if p.address != address {
			continue
		}
		d := p.link.toss("asked by " + l.name)
		out := w.toLeaveOut()
		if p.link.held(false) > 0 && d.chance(2) || out != nil && out.process == p {
			return record.Memory{}, unreachable
		}
		return call(ctx, l, d, func() (record.Memory, error) {
			answer := reports{ctx: ctx}
			if !p.runs() {
				return record.Memory{}, unreachable
			}
			if p.timed != nil {
				return p.timed.report(ctx, request)
			}
			if err := p.room.ReportMarks(request, &answer); err != nil {
				return record.Memory{}, err
			}
			return answer.memory()
		})
	}
	w.waitsFor(ctx, l, address)
	return record.Memory{}, unreachable
}

// decide decides, after a dry run, which instances to go on without, and with which margin.
func (r *recovering) decide(cfg *recovery.Config, report *recovery.Report) error {
	w := r.w
	alive := w.alive()
	r.missing = slices.DeleteFunc(slices.Clone(alive), func(p *process) bool {
		return r.answered[p.address] || p.link.nothingSince()
	})
	cfg.Apply, cfg.Margin = true, w.marginFor(report)
	healed := w.healed.Load()
	out := w.toLeaveOut()
	if out == nil && r.d.chance(3) && !healed && !slices.ContainsFunc(alive, func(p *process) bool {
		_, asked := r.answered[p.address]
		return !asked
	}) {
		w.log("%-12s names no instance", r.link.name)
		r.needed = cfg.Margin == nil
		return nil
	}
	switch {
	case cfg.Margin != nil:
	case out != nil && slices.Contains(r.missing, out.process):
		steps := r.d.Int64N(3)
		cfg.Margin, r.left, r.needed = &steps, true, true
	case len(r.missing) == 0:
		if r.d.chance(3) {
			cfg.Margin = new(int64) // all leases are known
		}
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
			steps := r.d.Int64N(3)
			cfg.Margin, r.left = &steps, true
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

// nameStranger has the operator name, now and then, an instance that nobody has ever heard of, and
// returns its name. Recover must count it as missing.
func (r *recovering) nameStranger(cfg *recovery.Config) record.InstanceID {
	ever := r.w.everRooms()
	if len(ever) == 0 || !r.d.chance(6) {
		return ""
	}
	named := ledger.Registration{Room: pick(r.d, ever), Name: "stranger"}.ID()
	cfg.Without = append(cfg.Without, named)
	r.w.count("recovers without an instance that nobody knows", 1)
	return named
}

// nameStopped has the operator say, of half of those to go on without, that their machines are off,
// where that is so.
func (r *recovering) nameStopped(cfg *recovery.Config) {
	d := r.w.dice("stopped " + r.link.name)
	r.w.mu.Lock()
	all := slices.Clone(r.w.mu.processes)
	r.w.mu.Unlock()
	off := func(id record.InstanceID) (was bool) {
		for _, p := range all {
			if (ledger.Registration{Room: p.in, Name: p.name}).ID() != id {
				continue
			}
			select {
			case <-p.gone:
				was = true
			default:
				return false
			}
		}
		return was
	}
	for _, id := range cfg.Without {
		if off(id) && d.chance(2) {
			cfg.Stopped = append(cfg.Stopped, id)
			r.w.count("instances whose machines are off, by the operator's word", 1)
		}
	}
}

// misspell has the operator, now and then, misspell a name at first: of an instance whose room never
// was. Recover must refuse that, and have changed nothing.
func (r *recovering) misspell(ctx context.Context, cfg recovery.Config) {
	if !r.d.chance(6) {
		return
	}
	typo := &recovering{w: r.w, d: r.d, link: r.w.link(r.link.name+" misspelled", r.w.lane()), cancel: r.cancel,
		answered: make(map[string]bool)}
	cfg.Ask, cfg.Wait = typo.ask, 0
	cfg.Without = append(slices.Clone(cfg.Without), "roon-a/a1")
	_, err := recovery.Run(ctx, r.w.ledger(typo.link), cfg)
	switch {
	case err == nil:
		r.w.Errorf("recover went on without %v, though there never was such a room", cfg.Without)
	case typo.link.wrote.Load():
		r.w.Errorf("recover without %v changed something before it said: %v", cfg.Without, err)
	case allocator.KindOf(err) == allocator.Refused:
		r.w.count("recovers without a misspelled instance, refused", 1)
	case !r.w.expected(err):
		r.w.Errorf("recover: %v", err)
	}
}

// elsewhere reports whether all running processes that did not answer live in another etcd
// cluster than the one that answers: none of them will register again, however long the
// operator waits.
func (r *recovering) elsewhere() bool {
	here := r.w.answers()
	return !slices.ContainsFunc(r.missing, func(p *process) bool { return p.link.livesIn() == here })
}

// leaveOut notes, when a recover begins an epoch and leaves instances out, which of their IDs
// other processes may also get: none if the margin was above all of them.
func (r *recovering) leaveOut(epoch string) {
	if r.epoch == epoch {
		return // the instance's leases are known
	}
	w := r.w
	r.epoch = epoch
	out := outside{time.Now(), epoch, make(map[numbers]int64)}
	for _, tag := range w.tags {
		for _, id := range w.someIDs(tag) {
			out.marks[w.numbers(tag, id)] = w.floorOver(tag, id)
		}
	}
	for _, p := range r.missing {
		w.log("--- %s is left out", p.id)
		if r.left {
			w.count("instances left out of a recover", 1)
		}
		w.mu.Lock()
		processes := w.mu.processes
		w.mu.Unlock()
		for _, other := range processes { // and earlier ones whose memory only it has
			if other == p || p.journal != "" && other.journal == p.journal {
				other.link.leaveOut(out)
			}
		}
	}
}

// outside is a recover that went on without an instance.
type outside struct {
	at    time.Time
	epoch string            // that it began
	marks map[numbers]int64 // the floor that it gave to all rooms
}

// beginning is a recover's transaction that begins an epoch, with this value.
type beginning struct {
	link  *link
	value string
}

// begins notes which instances were left out when a recover's transaction has begun an epoch: txn, or an earlier one
// that came late, when its recover had ended with an error. It runs before any process leases under that epoch.
func (l *link) begins(txn store.Txn) {
	w := l.w
	puts := func(key string) func(op store.Op) bool {
		return func(op store.Op) bool { return op.Put != nil && op.Put.Key == "/march/default/"+key }
	}
	w.mu.Lock()
	if at := slices.IndexFunc(txn.Then, puts("epoch")); l.recovers != nil && slices.ContainsFunc(txn.Then,
		puts("answered")) {
		w.mu.beginning = append(w.mu.beginning, beginning{l, string(txn.Then[at].Put.Value)})
	}
	all := w.mu.beginning
	w.mu.Unlock()
	for k, b := range all {
		if value, _ := w.mem.Value("/march/default/epoch"); b.value == string(value) {
			w.mu.Lock()
			w.mu.beginning = slices.Concat(all[:k], all[k+1:])
			w.mu.Unlock()
			r := b.link.recovers
			if r.failed != nil && !strings.Contains(r.failed.Error(), "unless the new epoch comes late") {
				w.Errorf("%s said that leasing stays halted, and its epoch has begun: %v", b.link.name, r.failed)
			}
			r.leaveOut(epochName(b.value))
			w.noteNotBefore(b.link)
			return
		}
	}
}

// nothingSince reports whether a process has leased nothing since a recover went on without it:
// then the next one may do so, too.
func (l *link) nothingSince() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.mu.outside)
	return n > 0 && !slices.ContainsFunc(l.mu.leases, func(have lease) bool {
		return have.sent.After(l.mu.outside[n-1].at)
	})
}

func (l *link) leaveOut(o outside) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.outside = append(l.mu.outside, o)
}

// leftWith reports whether an instance leased an issued ID before a recover that left the
// instance out, above the floor of that recover. The documentation says that only such an ID
// may be issued twice.
func (p *process) leftWith(tag allocator.Tag, id int64) bool {
	return slices.ContainsFunc(p.link.leftOut(), func(o outside) bool { return p.leftBy(o, tag, id) })
}

// leftBy is leftWith for one recover.
func (p *process) leftBy(o outside, tag allocator.Tag, id int64) bool {
	return id >= o.marks[p.link.w.numbers(tag, id)] &&
		slices.ContainsFunc(p.link.leasesWith(tag, id), func(l lease) bool { return l.sent.Before(o.at) })
}

// leftOut returns the recovers that left a process out: few, and mostly none.
func (l *link) leftOut() []outside {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.outside
}

// mayShare reports whether an ID that p issued may also be another process's. p was left out
// with the ID, and the other process leased it before p leased anything in the epoch that began
// then. Before its first lease in that epoch p compares its segments with the marks of all
// rooms.
func (p *process) mayShare(tag allocator.Tag, id int64, other *process) bool {
	theirs := other.link.leasesWith(tag, id)
	return slices.ContainsFunc(p.link.leftOut(), func(o outside) bool {
		entered := p.link.entered(o)
		late := func(l lease) bool { return l.lost == "" && !entered.IsZero() && l.sent.After(entered) }
		return p.leftBy(o, tag, id) && !slices.ContainsFunc(theirs, late)
	})
}

// entered returns when a process had leased in the epoch of a recover that left it out, zero if
// it has not.
func (l *link) entered(o outside) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, have := range l.mu.leases {
		if have.lost == "" && have.epoch == o.epoch {
			return have.done
		}
	}
	return time.Time{}
}

// leftRun is leftWith for a run: of one lease, or of several in a row.
func (p *process) leftRun(tag allocator.Tag, run allocator.Run) bool {
	return p.leftWith(tag, run.First) || p.leftWith(tag, run.First+run.Count-1)
}

// reported returns the last reported layout version of the processes that answered a call. It
// counts reports since the last recover, which may have forgotten layouts of a process that it
// left out.
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

// heard notes which instances answered a recover, under the epoch that it began.
func (r *recovering) heard() {
	epoch, _ := r.w.mem.Value("/march/default/epoch")
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.mu.past.heard[string(epoch)] = r.answered
}

// checkRaise checks an instance that raises a mark over its own earlier leases. It may do so if
// a recover did not know of them, but not if the recover asked the instance, or an earlier process
// of its journal: that one answered with all leases until then.
func (w *world) checkRaise(l *link, epoch, tag string) {
	w.mu.Lock()
	heard, at := w.mu.past.heard[epoch], slices.IndexFunc(w.mu.processes, func(p *process) bool { return p.link == l })
	said := at >= 0 && slices.ContainsFunc(w.mu.processes[:at+1], func(p *process) bool {
		by := w.mu.processes[at]
		mine := p == by || p.journal != "" && p.journal == by.journal && !p.forgets.Load()
		return mine && heard[p.address]
	})
	w.mu.Unlock()
	if at >= 0 {
		w.count("marks raised by instances", 1)
	}
	if said {
		w.Errorf("%s, tag %s: it holds more than it said when recover asked it", l.name, tag)
	}
}
