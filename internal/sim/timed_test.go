package sim_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/room"
)

// timeTags is the name, among the faults, of a cluster that has time-ordered IDs.
const timeTags = "time-ordered IDs"

// timed is the part of an instance that issues time-ordered IDs: a room's own tags and workers,
// with a clock of its own. It does the same with them as a room's server.
type timed struct {
	w        *world
	cfg      ledger.Registration
	ledger   *ledger.Ledger
	workers  worker.Config
	pin      worker.Pin
	id       string
	clock    *wallClock
	serving  chan struct{}
	instance *ledger.Instance // set once it serves, for leases and tags
	leases   *worker.Workers
	machines *machine.Machines
	tags     atomic.Pointer[timedTags]
}

// timedTags are the tags of an instance in memory, as a room's server has them.
type timedTags struct {
	*room.Windows
	mu struct {
		sync.Mutex
		tags map[allocator.Tag]*room.TimeTag
	}
}

// get returns a tag. If it is not in memory, get puts it there, and tries to take a worker for it.
func (t *timedTags) get(ctx context.Context, tag timeTag) *room.TimeTag {
	t.mu.Lock()
	of, had := t.mu.tags[tag.name]
	if !had {
		of = t.Add(tag.name, tag.settings, nil)
		t.mu.tags[tag.name] = of
	}
	t.mu.Unlock()
	if !had {
		_ = of.Warm(ctx) // what the caller does next finds out, too
	}
	return of
}

// has reports whether of is in memory.
func (t *timedTags) has(of *room.TimeTag) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.tags[of.Name()] == of
}

// names returns the tags in memory.
func (t *timedTags) names() []allocator.Tag {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.mu.tags))
}

// change applies changed settings, if the tag is in memory. Without settings, which cannot be read, the tag
// leaves memory.
func (t *timedTags) change(name allocator.Tag, settings *record.TagSettings) {
	t.mu.Lock()
	of := t.mu.tags[name]
	t.mu.Unlock()
	switch {
	case of == nil:
	case settings == nil:
		of.Close()
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.mu.tags[name] == of { // and not one that was made after an idle drop
			delete(t.mu.tags, name)
		}
	default:
		of.Update(*settings.Time)
	}
}

// dropIdle drops the tags that were unused for idleAfter.
func (t *timedTags) dropIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, of := range t.mu.tags {
		if of.CloseUnused(idleAfter) {
			delete(t.mu.tags, name)
		}
	}
}

// timeTag is a tag of time-ordered IDs.
type timeTag struct {
	name     allocator.Tag
	settings record.TimeTag
}

// beginTimes creates the tags of time-ordered IDs, and starts their instances.
func (w *world) beginTimes(ctx context.Context) {
	if !w.timed {
		return
	}
	d := w.dice("time tags")
	for _, bits := range []int{pick(d, []int{2, 3, 6, 10}), 10, 20} {
		if w.createTimeTags(ctx, d, bits) {
			break
		}
	}
	if len(w.times) == 0 {
		return // the range of some room is too narrow
	}
	w.count("clusters with time-ordered IDs", 1)
	for _, room := range w.rooms {
		pinned := d.chance(3) // in all instances of a room or in none: the others take any free number
		for i := range 1 + d.Int64N(2) {
			name, pin := fmt.Sprintf("%s-timed-%d", room, i+1), worker.Pin{}
			if pinned {
				pin = worker.PinTo(i)
			}
			most := pick(d, []time.Duration{2 * time.Millisecond, 500 * time.Millisecond})
			start := func(id string) *process { return w.startTimed(room, allocator.Instance(name), id, pin) }
			w.timers = append(w.timers, w.keepWithin(room, name, most, start))
		}
	}
	w.slots = append(w.slots, w.timers...)
	for _, room := range w.rooms {
		lane := w.lane()
		if w.lends {
			w.actors.Go(func() { w.callers(room, lane) })
		}
	}
	for i := range 6 {
		name, lane := fmt.Sprint("client-", i+1), w.lane()
		w.actors.Go(func() { w.machineClient(name, lane) })
	}
}

// createTimeTags creates two tags of a width, which share their workers. It returns false if a
// room's range is too narrow for that.
func (w *world) createTimeTags(ctx context.Context, d dice, bits int) bool {
	for i, unit := range []time.Duration{time.Millisecond,
		pick(d, []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second})} {
		s := record.NewTimeTag(timeid.Layout{
			TimeBits: 30, WorkerBits: bits, SequenceBits: 12, Unit: unit,
			Epoch: w.began.Add(-24 * time.Hour).Truncate(time.Second).UnixMilli(),
			Order: pick(d, []timeid.Order{timeid.WorkerMiddle, timeid.WorkerLast}),
		})
		s.Sequence = pick(d, []timeid.Sequence{timeid.Reset, timeid.Carry, timeid.Random})
		// A wait for a clock uses the simulation's processor.
		s.Rollback = pick(d, []timeid.Rollback{timeid.Fail, timeid.Offset})
		name := allocator.Tag(fmt.Sprint("timed-", i+1))
		settings := record.DefaultTag()
		settings.Time = &s
		if _, err := w.admin.CreateTag(ctx, name, settings, "simulation"); err != nil {
			if allocator.KindOf(err) != allocator.Refused {
				w.Errorf("create tag %s: %v", name, err)
			}
			return false
		}
		w.times = append(w.times, timeTag{name, s})
		w.mu.ticks[name] = make(map[int64]timedID)
	}
	return true
}

// startTimed starts an instance of a room that issues time-ordered IDs.
func (w *world) startTimed(in allocator.Room, name allocator.Instance, id string, pin worker.Pin) *process {
	d, lane := w.dice("timed "+id), w.lane()
	link := w.roomLink(in, id, lane)
	link.clock = w.wallClock(w.skew(d))
	t := &timed{w: w, ledger: w.ledger(link), id: id, clock: link.clock, pin: pin, serving: make(chan struct{}),
		workers: worker.DefaultConfig()}
	t.workers.Now, t.workers.Logger = t.clock.now, w.logger(id)
	t.workers.AgreeClock = d.chance(2)
	t.workers.Reserve = pick(d, []time.Duration{2 * time.Second, worker.DefaultReserve})
	t.workers.PinnedWindow = pick(d, []time.Duration{worker.Shortest, worker.DefaultPinnedWindow})
	t.workers.Rand = func(n int64) int64 { return w.dice(fmt.Sprint(id, time.Since(w.began))).Int64N(n) }
	t.cfg = ledger.Registration{Room: in, Name: name, Address: fmt.Sprint("192.0.2.1:", lane),
		Build: "simulation", Hold: w.hold}
	if w.journals != "" { // a double runs on another host
		kept, _, _ := strings.Cut(id, "#")
		if _, double, ok := strings.Cut(id, "/"); ok {
			kept = double
		}
		t.cfg.Journal = filepath.Join(w.journals, kept)
		link.remembers(w.journalsIn(t.cfg.Journal))
	}
	p := w.start(id, t.run)
	p.link, p.timed, p.serving, p.in, p.name = link, t, t.serving, in, name
	p.address, p.journal = t.cfg.Address, t.cfg.Journal
	p.again = func(id string) *process { return w.startTimed(in, name, id, pin) }
	w.mu.Lock()
	w.mu.processes = append(w.mu.processes, p)
	w.mu.Unlock()
	for _, tag := range w.times {
		d, lane := w.dice("caller "+id+string(tag.name)), w.lane()
		w.actors.Go(func() { w.callTimed(p, tag, d, lane) })
	}
	return p
}

// run serves until ctx ends, as the server of a room does.
func (t *timed) run(ctx context.Context) error {
	instance, err := t.ledger.Join(ctx, t.cfg)
	if err != nil {
		return err
	}
	defer func() { _ = instance.Close() }()
	if t.leases, err = worker.New(instance, t.workers); err != nil {
		return err
	}
	t.anew()
	instance.OnDrop(func(string) { t.tags.Load().Drop() })
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	work, background := errgroup.WithContext(background)
	work.Go(func() error {
		return t.ledger.Run(background, t.changed, func() []allocator.Tag { return t.tags.Load().names() })
	})
	work.Go(func() error { return t.renew(background) })
	work.Go(func() error {
		err := instance.Run(background)
		if err != nil { // another process has this one's name
			t.tags.Load().Drop()
		}
		return err
	})
	served := instance.Version()
	work.Go(func() error { return t.adopt(background, instance, served) })
	t.instance, t.machines = instance, machine.New(t.ledger, instance.Room(), reserved)
	close(t.serving)
	select {
	case <-ctx.Done():
	case <-background.Done():
	}
	stop()
	if err := work.Wait(); err != nil {
		return err
	}
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = t.tags.Load().Close(leaving) // a window that is not given back ends by itself
	if err := instance.Leave(leaving); err != nil && !t.w.expected(err) {
		return err
	}
	return nil
}

// anew makes the instance begin again without tags in memory and without workers.
func (t *timed) anew() {
	tags := &timedTags{Windows: room.NewWindows(room.WindowsConfig{
		Workers: t.leases, Pin: t.pin, Hold: t.cfg.Hold, Clock: func() int64 {
			return t.clock.now().UnixMilli()
		}, Logger: t.workers.Logger,
		Rand: func(n uint64) uint64 {
			return t.w.dice(fmt.Sprint("sequence ", t.id, time.Since(t.w.began))).Uint64N(n)
		},
	})}
	tags.mu.tags = make(map[allocator.Tag]*room.TimeTag)
	t.tags.Store(tags)
}

// changed applies a tag's new settings.
func (t *timed) changed(c ledger.TagChange) { t.tags.Load().change(c.Name, c.Settings) }

// idleAfter is how long a tag may be unused before it leaves memory.
const idleAfter = 2 * time.Second

// renew renews the windows of workers, and drops idle tags, until ctx ends.
func (t *timed) renew(ctx context.Context) error {
	for ctx.Err() == nil {
		tags := t.tags.Load()
		running, stop := context.WithCancel(ctx)
		work, running := errgroup.WithContext(running)
		work.Go(func() error { tags.Run(running); return nil })
		for t.tags.Load() == tags && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(700 * time.Millisecond):
				tags.dropIdle()
			}
		}
		stop()
		if err := work.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// adopt moves the instance to every layout after the one that it serves.
func (t *timed) adopt(ctx context.Context, instance *ledger.Instance, served int64) error {
	for {
		layout, changed := t.ledger.Layout()
		if version := layout.Layout.Version; version > served {
			if !t.tags.Load().ExchangeMoved(ctx) {
				return nil
			}
			// If the registration is lost, the heartbeat finds out, too.
			err := instance.Serve(ctx, version)
			if err == nil {
				served = version
			}
			if now, _ := t.ledger.Layout(); now.Layout.Version > version ||
				err != nil && allocator.KindOf(err) != allocator.Refused {
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(50 * time.Millisecond):
				}
				continue
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// report answers a recover, as a room's server does.
func (t *timed) report(ctx context.Context, r *marchv1.ReportMarksRequest) (record.Memory, error) {
	uuid, err := t.ledger.UUID(ctx)
	if err != nil {
		return record.Memory{}, err
	}
	if uuid != r.GetClusterUuid() {
		return record.Memory{}, allocator.Errorf(allocator.Refused, "sim: this is an instance of cluster %s", uuid)
	}
	q := record.Question{After: r.GetAfterSequence()}
	if b := r.GetBarrier(); b != nil {
		q.Barrier = &record.Barrier{Nonce: b.GetHaltNonce(), ClusterID: b.GetEtcdClusterId()}
	}
	return t.instance.Memory(ctx, q), nil
}

// callTimed calls an instance for IDs of a tag until it is gone.
func (w *world) callTimed(p *process, tag timeTag, d dice, lane int) {
	select {
	case <-p.serving:
	case <-p.gone:
		return
	}
	pace := 400 * time.Millisecond
	for w.sleep(p.gone, d.between(time.Millisecond, pace), lane) {
		if d.chance(20) {
			pace = pick(d, []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, time.Second, 4 * time.Second})
		}
		if p.link.paused() {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), d.between(200*time.Millisecond, 2*time.Second))
		err := w.askTimed(ctx, p, tag, d)
		cancel()
		_, pinned := p.timed.pin.Number()
		if err == nil || pinned && allocator.KindOf(err) == allocator.Invalid { // the slice is too small for the number
			continue
		}
		w.log("%-12s %s: %v", p.id, tag.name, kind(err)) // its text has a console's name, which is random
		w.count("time-ordered IDs: "+kind(err), 1)
		if _, wrong := errors.AsType[*worker.ClockError](err); wrong {
			w.count("clocks that were refused", 1)
		}
		if busy, is := errors.AsType[*worker.BusyError](err); is && busy.By == "" {
			w.count("workers not to be had before a recover's time", 1)
		}
		if !w.expected(err) {
			w.Errorf("%s, tag %s: %v", p.id, tag.name, err)
		}
	}
}

// askTimed makes one call, and notes the IDs.
func (w *world) askTimed(ctx context.Context, p *process, tag timeTag, d dice) (err error) {
	batch, n := d.chance(3), 1+d.Int64N(8)
	for {
		tags := p.timed.tags.Load()
		of := tags.get(ctx, tag)
		runs, err := take(ctx, of, batch, n)
		if err == nil {
			now := time.Now()
			w.mu.Lock()
			w.mu.latest[string(tag.name)+" "+string(p.name)] = now
			w.mu.Unlock()
			w.noteTimed(p, tag, runs, w.reported(answered{at: now, by: p}))
		}
		// A tag that left memory is loaded again, as by a room's server.
		if !errors.Is(err, error(timeid.ErrClosed)) || tags == p.timed.tags.Load() && tags.has(of) {
			return err
		}
	}
}

// take takes n IDs of a tag at once, or one.
func take(ctx context.Context, of *room.TimeTag, batch bool, n int64) ([]allocator.Run, error) {
	if batch {
		return of.NextN(ctx, n, nil)
	}
	id, err := of.Next(ctx)
	return []allocator.Run{{First: id, Count: 1}}, err
}
