package recovery

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Witness is a console's mirror, or the file of one.
type Witness struct {
	Name string // of the console, or the file
	Ask  AskMirror
	// Needed says that the operator named it: recover does not go on if it does not answer.
	Needed bool
}

// AskMirror asks a mirror for what it learned after a tick. It calls use with each part.
type AskMirror func(ctx context.Context, q mirror.Question, use func(mirror.Part) error) (mirror.Answer, error)

// Witnessed says what a mirror saw.
type Witnessed struct {
	Name      string
	Views     []mirror.View
	Err       error // why it did not answer
	processes map[string]mirror.Process
	epochs    []string
}

// tagBounds are what mirrors saw of a tag's settings that is more than the store has.
type tagBounds struct {
	step, least int64
	life        string                   // of a tag of which the store has no key
	skips       map[allocator.Room]int64 // "" for all rooms
}

const (
	// clockTolerance is how far another clock may be ahead of recover's: it may be 24 hours ahead of the
	// time, and recover's 24 hours behind.
	clockTolerance = 49 * time.Hour
	// mostVersion bounds the version of a layout that a mirror saw: a recover adds 1,000 to it.
	mostVersion = 1 << 60
	// witnessedSteps is how many steps of a tag a lost instance may have leased after all that a
	// mirror saw of it: one whose change was still on the way, and one that it sent then.
	witnessedSteps = 2
	// mirrorsAtOnce is how many mirrors are asked at once: their parts are in memory meanwhile.
	mirrorsAtOnce = 16
)

// findConsoles adds the consoles whose addresses etcd has.
func (r *witnesses) findConsoles(keys []store.KV) {
	if r.cfg.Console == nil {
		return
	}
	for _, kv := range keys {
		var c record.Console
		if err := record.Decode(kv, &c); err != nil {
			r.unreadable(kv.Key, err)
			continue
		}
		named := func(w Witness) bool { return w.Name == c.Address }
		if !slices.ContainsFunc(r.cfg.Witnesses, named) {
			r.cfg.Witnesses = append(r.cfg.Witnesses, Witness{Name: c.Address, Ask: r.cfg.Console(c.Address)})
		}
	}
}

// askMirrors asks all mirrors, many at once, for what they learned since they were asked before. It does not ask
// again where none answered: recover does not wait for it twice.
func (r *witnesses) askMirrors(ctx context.Context) error {
	all := slices.DeleteFunc(slices.Clone(r.cfg.Witnesses), func(w Witness) bool {
		return slices.Contains(r.cfg.NoMirrors, w.Name)
	})
	for _, name := range r.cfg.NoMirrors {
		if !slices.ContainsFunc(r.cfg.Witnesses, func(w Witness) bool { return w.Name == name }) {
			return allocator.Errorf(allocator.Invalid, "no-mirror: %q; allowed: a console or a file that recover "+
				"would ask: one whose address etcd has, or that was given (--console, --mirror)", name)
		}
	}
	r.progress("asking mirrors", 0, int64(len(all)))
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(mirrorsAtOnce)
	for _, w := range all {
		var asked, answered bool
		r.with(func() { _, asked = r.mirrors[w.Name]; _, answered = r.ticks[w.Name] })
		if answered || !asked {
			group.Go(func() error { return r.askMirror(asking, w) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	r.report.Mirrors = nil
	for _, w := range all {
		r.report.Mirrors = append(r.report.Mirrors, *r.mirrors[w.Name])
	}
	return r.checkMirrored(ctx)
}

func (r *witnesses) askMirror(ctx context.Context, w Witness) error {
	var before mirror.Answer
	var answered bool
	r.with(func() { before, answered = r.ticks[w.Name] })
	q := mirror.Question{UUID: r.report.UUID, After: before.Tick}
	var failed error
	use := func(p mirror.Part) error {
		failed = r.takePart(ctx, w.Name, p)
		return failed
	}
	a, err := w.Ask(ctx, q, use)
	if err == nil && before.Process != "" && a.Process != before.Process {
		q.After = 0 // another process answers now
		a, err = w.Ask(ctx, q, use)
	}
	switch {
	case failed != nil:
		return failed
	case err != nil && ctx.Err() != nil:
		return brokenOff(ctx)
	case err != nil && w.Needed:
		return err
	case err != nil && answered:
		// The second answers decide: what it said before still raises, and permits nothing more.
		err = fmt.Errorf("it answered before, and no more: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.mirrors[w.Name] = &Witnessed{Name: w.Name, Err: err}
	} else {
		r.ticks[w.Name] = a
	}
	return nil
}

// takePart takes a part of a mirror: from every history what only raises. What permits something
// is taken as it is needed: see witnessed, and chooseLayout.
func (r *witnesses) takePart(ctx context.Context, name string, p mirror.Part) error {
	if p.UUID != r.report.UUID {
		return allocator.Errorf(allocator.Refused, "mirror %s is of cluster %s; this is cluster %s", name, p.UUID,
			r.report.UUID)
	}
	if err := p.Validate(); err != nil {
		return allocator.Errorf(allocator.Refused, "mirror %s: %w", name, err)
	}
	if p.Marks != nil {
		marks := make([]record.RememberedMark, len(p.Marks.Tags))
		for i, tag := range p.Marks.Tags {
			marks[i] = record.RememberedMark{Tag: tag, Next: p.Marks.Next[i], Total: p.Marks.Total[i]}
		}
		if err := r.compare(ctx, name, p.Marks.Room, marks); err != nil {
			return err
		}
	}
	if p.Tags != nil {
		if err := r.compareTags(ctx, name, p.Tags); err != nil {
			return err
		}
	}
	if p.Rest == nil {
		return nil
	}
	if err := r.checkRest(name, p.Rest); err != nil {
		return err
	}
	r.takeRest(name, p.Rest)
	return nil
}

// checkRest refuses numbers that no store has: they would halt time-ordered IDs, or leave no version
// for a layout.
func (r *witnesses) checkRest(name string, rest *mirror.Rest) error {
	latest, longest := r.cluster.Now().Add(clockTolerance), record.LongestWindow
	without := fmt.Sprintf("recover without this mirror (--no-mirror %s)", name)
	for _, c := range rest.Machines {
		if c.Last > latest.UnixMilli() {
			return allocator.Errorf(allocator.Refused, "mirror %s: machine ID %v was in use at %d; allowed: up to %d: "+
				"%s", name, c.WorkerID, c.Last, latest.UnixMilli(), without)
		}
	}
	for _, l := range rest.Workers {
		if l.Clock > latest.UnixMilli() || l.Until > l.Clock+longest.Milliseconds() {
			return allocator.Errorf(allocator.Refused,
				"mirror %s: the window of worker %v ends at %d, by a clock at %d; "+
					"allowed: a clock up to %d, a window of %v: %s",
				name, l.WorkerID, l.Until, l.Clock, latest.UnixMilli(), longest, without)
		}
	}
	if most := latest.Add(longest + 2*record.MaxAhead).UnixMilli(); rest.NotBefore > most {
		return allocator.Errorf(allocator.Refused, "mirror %s: not before %d; allowed: up to %d: %s",
			name, rest.NotBefore, most, without)
	}
	if version := rest.Layout.Layout.Version; version > mostVersion {
		return allocator.Errorf(allocator.Refused, "mirror %s: layout version %d; allowed: up to %d: %s", name, version,
			int64(mostVersion), without)
	}
	return nil
}

func (r *witnesses) takeRest(name string, rest *mirror.Rest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &Witnessed{Name: name, Views: rest.Views, epochs: rest.Epochs, processes: make(map[string]mirror.Process)}
	for _, p := range rest.Processes {
		w.processes[p.Incarnation] = p
		if !p.Left && !p.Vanished {
			r.know(p.SeenInstance, false)
		}
	}
	r.mirrors[name] = w
	r.total = max(r.total, rest.Total)
	r.takeWorkers(rest.Workers, rest.NotBefore)
	for _, c := range rest.Machines {
		if was, known := r.machines[c.WorkerIn]; !known || c.Last > was.Last {
			r.machines[c.WorkerIn] = c.Machine
		}
	}
	l := rest.Layout
	r.rooms = record.Union(r.rooms, l.Ever)
	r.mirrored = max(r.mirrored, l.Layout.Version)
	r.extremes = r.extremes.After(l)
	if l.Layout.Version != 0 && rest.Latest != "" {
		r.layouts = append(r.layouts, mirroredIn{rest.Latest, l.Layout})
	}
}

// mirroredLayout returns the latest layout that an instance or the store knows, or that a mirror
// saw in the latest epoch. An epoch that only mirrors know is never the latest. The caller holds
// mu.
func (r *witnesses) mirroredLayout() allocator.Layout {
	latest := r.newest
	for _, k := range r.layouts {
		if k.epoch == r.latest && k.layout.Version > latest.Version {
			latest = k.layout
		}
	}
	return latest
}

// mirroredIn is a layout with the epoch in which it was in force.
type mirroredIn struct {
	epoch  string
	layout allocator.Layout
}

// compareTags compares what a mirror saw of tags with the store's tags, and keeps what is more.
func (r *findings) compareTags(ctx context.Context, by string, t *mirror.TagBounds) error {
	all := make([]int, len(t.Tags))
	for at := range all {
		all[at] = at
	}
	key := func(at int) string { return r.keys.Tag(t.Tags[at]) }
	use := func(at int, found []store.KV) error { return r.keepBounds(by, t, at, found) }
	return each(ctx, &r.session, all, key, use)
}

// keepBounds keeps a mirror's bounds of a tag if the store's tag has less, or if the store has no
// key. A tag that cannot be read issues nothing. A start or skip above the tag's limits is refused: it would leave the
// tag no ID for good.
func (r *findings) keepBounds(by string, t *mirror.TagBounds, at int, found []store.KV) error {
	name := t.Tags[at]
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.Limit[at] > 0 {
		r.limits[name] = max(r.limits[name], t.Limit[at])
	}
	b, tag := r.bounds[name], record.Tag{}
	if len(found) > 0 {
		var err error
		if tag, err = record.ReadAs[record.Tag](r.keys, found[0]); err != nil || tag.Time != nil {
			return nil //nolint:nilerr // nothing is leased of it: see listUnreadable
		}
		r.limits[name] = max(r.limits[name], tag.Limit)
	} else if b.life = cmp.Or(b.life, t.Lives[t.Life[at]]); b.life == "" {
		return nil
	}
	least := t.Least[at]
	for _, to := range t.Skips[name] {
		least = max(least, to)
	}
	if limit := max(r.limits[name], tag.LeastEver()); least > limit {
		return allocator.Errorf(allocator.Refused, "mirror %s: tag %s starts, or was skipped to, %d; allowed: "+
			"up to %d, the tag's limit: recover without this mirror (--no-mirror %s)", by, name, least, limit, by)
	}
	more := t.Step[at] > tag.LargestStep || t.Least[at] > tag.LeastEver() || b.life != ""
	b.step, b.least = max(b.step, t.Step[at]), max(b.least, t.Least[at])
	for room, to := range t.Skips[name] {
		if to > skipOf(tag, room) {
			if more = true; b.skips == nil {
				b.skips = make(map[allocator.Room]int64)
			}
			b.skips[room] = max(b.skips[room], to)
		}
	}
	if more {
		r.bounds[name] = b
	}
	return nil
}

// checkMirrored refuses marks that lie above the limits of their tags, and names those that
// mirrors alone raise by more than max_jump.
func (r *findings) checkMirrored(ctx context.Context) error {
	r.report.Jumps = nil
	mirrored := r.higherMarks(func(h reached) bool { return h.by != "" && h.next > h.known })
	key := func(at roomTag) string { return r.keys.Tag(at.tag) }
	err := each(ctx, &r.session, mirrored, key, func(at roomTag, found []store.KV) (err error) {
		tag := record.Tag{TagSettings: record.TagSettings{MaxJump: math.MaxInt64}}
		if len(found) > 0 {
			if tag, err = record.ReadAs[record.Tag](r.keys, found[0]); err != nil || tag.Time != nil {
				return nil //nolint:nilerr // nothing is leased of it: see listUnreadable
			}
		}
		return r.checkMark(at, tag)
	})
	slices.Sort(r.report.Jumps)
	return err
}

func (r *findings) checkMark(at roomTag, tag record.Tag) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.higher[at]
	// Of a tag that the store has not, the limit may be unknown.
	if limit := max(tag.Limit, r.limits[at.tag]); limit > 0 && h.next > limit {
		return allocator.Errorf(allocator.Refused, "mirror %s: mark %s/%s is %d; allowed: up to %d, the tag's limit: "+
			"recover without this mirror (--no-mirror %s)", h.by, at.room, at.tag, h.next, limit, h.by)
	}
	if h.next-h.known > tag.MaxJump {
		r.report.Jumps = append(r.report.Jumps,
			fmt.Sprintf("%s/%s from %d to %d (%s)", at.room, at.tag, h.known, h.next, h.by))
	}
	return nil
}

// lost returns the instances that recover goes on without, once each. The caller holds mu.
func (r *witnesses) lost() (ids []record.InstanceID) {
	for _, m := range r.report.Missing {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// left reports whether a mirror saw a process leave. The caller holds mu.
func (r *witnesses) left(incarnation string) bool {
	for _, w := range r.mirrors {
		if w.processes[incarnation].Left {
			return true
		}
	}
	return false
}

// witnessed returns the lost instances of which no mirror saw all: none has a view that lasted
// beyond the backup, in the latest epoch or a later one in which the instance lived, and saw the
// instance. The caller holds mu.
func (r *witnesses) witnessed() (unseen []record.InstanceID) {
	for _, id := range r.lost() {
		all := slices.Collect(maps.Values(r.mirrors))
		if !slices.ContainsFunc(all, func(w *Witnessed) bool { return r.saw(w, id) }) {
			unseen = append(unseen, id)
		}
	}
	return unseen
}

func (r *witnesses) saw(w *Witnessed, id record.InstanceID) bool {
	if len(w.Views) == 0 {
		return false
	}
	v := w.Views[len(w.Views)-1]
	// In the order in which the mirror saw them, its view's epoch must not lie before the latest.
	latest, at := slices.Index(w.epochs, r.latest), slices.Index(w.epochs, v.Epoch)
	// Revisions repeat after a restore, and clocks differ: the view must have reached the backup's
	// beat, and its connection have lasted longer. Without a beat nothing says when the backup was.
	beat := r.found.beat.Time
	beyond := !beat.IsZero() && v.Reach >= r.found.beatRevision && v.Until.After(beat)
	if latest < 0 || at < latest || !beyond {
		return false
	}
	// A later epoch may be that of a rehearsal on a copy, to which no instance sends heartbeats.
	lived := w.Views[slices.IndexFunc(w.Views, func(o mirror.View) bool { return o.Epoch == v.Epoch })].Began
	for _, p := range w.processes {
		if p.ID() == id && (at == latest || p.Beat.After(lived)) {
			return true
		}
	}
	return false
}

// lastBeat returns the last heartbeat of an incarnation that any mirror saw, and whether it is
// known. The caller holds mu.
func (r *witnesses) lastBeat(incarnation string) (at time.Time) {
	for _, w := range r.mirrors {
		if p, ok := w.processes[incarnation]; ok && p.Beat.After(at) {
			at = p.Beat
		}
	}
	return at
}

// guess returns a figure for the margin if no mirror saw what lost instances leased: four times
// as many leases as the age of the backup would have had at the rate of the history that the
// store still has. It is a figure for an operator, and no more. 0 is none: the history is too
// short.
func (r *witnesses) guess(ctx context.Context) int64 {
	ctx, cancel := context.WithTimeout(ctx, guessFor)
	defer cancel()
	from := int64(1)
	marks := store.Prefix(r.keys.All(record.Marks))
	beat := store.Interval{Key: r.keys.Beat()}
	leases := make(map[allocator.Tag]int64)
	var first, last time.Time
	for changes := r.cluster.Store.Watch(ctx, []store.Interval{marks, beat}, from); ; {
		change, ok := <-changes
		if !ok || ctx.Err() != nil {
			break
		}
		if compacted, is := change.Err.(*store.CompactedError); is && from == 1 {
			from = compacted.Revision + 1
			changes = r.cluster.Store.Watch(ctx, []store.Interval{marks, beat}, from)
			continue
		}
		if change.Err != nil {
			break
		}
		reached := int64(0)
		for _, kv := range change.KVs {
			reached = max(reached, kv.ModRevision)
			key, value, err := r.keys.Read(kv)
			switch v := value.(type) {
			case record.Mark:
				leases[key.Tag]++
			case record.Beat:
				if err == nil && !v.Time.After(r.found.beat.Time) {
					last = v.Time
					first = cmp.Or(first, v.Time)
				}
			}
		}
		if reached >= r.found.beatRevision {
			break
		}
	}
	most := int64(0)
	for _, n := range leases {
		most = max(most, n)
	}
	span := last.Sub(first)
	if span < time.Minute || most == 0 {
		return 0
	}
	age := max(r.cluster.Now().Sub(r.found.beat.Time), 0)
	return int64(math.Ceil(4 * float64(most) * float64(age) / float64(span)))
}

// guessFor bounds how long guess reads.
const guessFor = 5 * time.Second

// noMargin returns why recover needs the operator's margin, for instances of which no mirror saw
// all, after what else the operator must decide.
func (r *witnesses) noMargin(ctx context.Context, unseen []record.InstanceID, also error) error {
	figure := "there is no figure, as the store's history is too short"
	if n := r.guess(ctx); n > 0 {
		figure = fmt.Sprintf("%d by the leases that the store still knows", n)
	}
	if also != nil {
		return allocator.Errorf(allocator.Refused, "%w\n  --margin STEPS, as no mirror saw all that %s leased since "+
			"the backup: more steps than all of them leased of any tag; or give a console's mirror (--console, "+
			"--mirror); any figure for a margin is a guess: %s", also, someOf(unseen), figure)
	}
	return allocator.Errorf(allocator.Refused, "no mirror saw all that %s leased since the backup, and recover does "+
		"not guess: give a console's mirror (--console, --mirror); or, as --margin, more steps than all of them "+
		"leased of any tag since the backup; any figure for that is a guess: %s", someOf(unseen), figure)
}

// someOf lists the first few of many instances.
func someOf(ids []record.InstanceID) string {
	const most = 10
	if len(ids) <= most {
		return fmt.Sprint(ids)
	}
	return fmt.Sprintf("%v and %d more", ids[:most], len(ids)-most)
}
