package recovery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// askAtOnce is how many instances are asked at once.
const askAtOnce = 64

// takeJournals adds the memories of journals.
func (r *processes) takeJournals(ctx context.Context) error {
	for _, m := range r.cfg.Memories {
		if m.UUID != r.report.UUID {
			return allocator.Errorf(allocator.Invalid, "the journal of %s is of cluster %s; this is cluster %s",
				m.ID(), m.UUID, r.report.UUID)
		}
		if err := r.compare(ctx, "", m.Room, m.Marks); err != nil {
			return err
		}
		r.take(m)
	}
	return nil
}

// askAll asks every process that it can learn of from registrations, journals and
// answers. With a barrier it asks those that answered before, and those that registered
// since. Recover goes on without those that did not answer before.
func (r *processes) askAll(ctx context.Context, barrier *record.Barrier) error {
	asked := make(map[string]bool)
	for done := int64(0); ; {
		wave := r.toAsk(asked, barrier != nil)
		if len(wave) == 0 {
			return nil
		}
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(askAtOnce)
		for _, s := range wave {
			group.Go(func() error { return r.ask(ctx, s, barrier) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		done += int64(len(wave))
		r.progress("asking instances", done, 0)
	}
}

// toAsk returns the processes to ask that are not among the asked places, and adds them. With
// a barrier, places that did not answer before are not asked.
func (r *processes) toAsk(asked map[string]bool, barrier bool) (wave []record.SeenInstance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, incarnation := range slices.Sorted(maps.Keys(r.known)) {
		k := r.known[incarnation]
		for _, address := range k.addresses {
			s := k.SeenInstance
			s.Address = address
			place := r.place(s)
			if k.left || asked[place] || barrier && r.silent[place] != "" {
				continue
			}
			asked[place] = true
			wave = append(wave, s)
		}
	}
	return wave
}

// barrierTries is how often an instance is asked again that did not accept the barrier.
const barrierTries = 60

// ask asks the process at an address. Its error is of the store, and ends the recover.
func (r *processes) ask(ctx context.Context, s record.SeenInstance, barrier *record.Barrier) error {
	place := r.place(s)
	var before *answer
	r.with(func() { before = r.byPlace[place] })
	q := record.Question{UUID: r.report.UUID, Barrier: barrier}
	if before != nil {
		q.After = before.sequence
	}
	var failed error
	use := func(room allocator.Room, marks []record.RememberedMark) error {
		if r.cfg.Named && room != s.Room {
			return allocator.Errorf(allocator.Invalid, "the answer is of room %s", room)
		}
		failed = r.compare(ctx, "", room, marks)
		return failed
	}
	ask := func() (record.Memory, error) {
		m, err := r.cfg.Ask(ctx, s, q, use)
		if err == nil && before != nil && m.Incarnations[len(m.Incarnations)-1] != before.incarnation {
			q.After = 0 // another process answers at this address now
			m, err = r.cfg.Ask(ctx, s, q, use)
		}
		return m, err
	}
	m, err := ask()
	// An instance may be on its way to the etcd that is asked: it accepts the barrier once it is there.
	for try := 0; err == nil && barrier != nil && !m.Barred && try < barrierTries && store.Pause(ctx); try++ {
		m, err = ask()
	}
	switch {
	case failed != nil:
		return failed
	case err != nil && ctx.Err() != nil:
		return brokenOff(ctx)
	case err != nil:
		r.unanswered(place, err.Error())
	case r.cfg.Named && m.ID() != s.ID():
		r.unanswered(place, "the answer is of instance "+string(m.ID()))
	case m.UUID != r.report.UUID:
		r.unanswered(place, "an instance of another cluster answers at this address")
	case barrier != nil && !m.Barred:
		r.unanswered(place, "it did not accept the barrier: "+m.Unbarred)
	default:
		r.take(m)
		r.answered(place, m)
	}
	return nil
}

// answered notes that the process at a place answered with a memory.
func (r *processes) answered(place string, m record.Memory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.silent, place)
	if a := r.byPlace[place]; a != nil && !slices.Contains(m.Incarnations, a.incarnation) {
		delete(r.taken, a.incarnation) // another process is at its place: it cannot confirm its answer
	}
	last := len(m.Incarnations) - 1
	a := &answer{id: m.ID(), incarnation: m.Incarnations[last], first: last == 0, sequence: m.Sequence}
	for _, l := range m.Workers {
		if m.Barred && l.Goes && l.Room == m.Room && l.Incarnation == a.incarnation {
			a.windows = append(a.windows, l)
		}
	}
	r.byPlace[place] = a
}

// unanswered notes why the memory of the processes at a place is missing.
func (r *processes) unanswered(place, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.byPlace[place]; a != nil {
		// It answered before, but its leases since then are not known.
		delete(r.taken, a.incarnation)
		delete(r.byPlace, place)
	}
	r.silent[place] = why
}

// complete brings the report up to date. Its error is Refused if a process did not
// answer and the operator did not name it.
func (r *run) complete() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.report
	p.Answered, p.LeftBefore, p.Missing = nil, nil, nil
	for _, a := range r.byPlace {
		p.Answered = append(p.Answered, a.id)
	}
	for incarnation, k := range r.known {
		if _, taken := r.taken[incarnation]; taken {
			continue
		}
		if k.left || r.left(incarnation) {
			p.LeftBefore = append(p.LeftBefore, k.ID())
			continue
		}
		m := Missing{
			ID: k.ID(), Incarnation: incarnation, Without: slices.Contains(r.named(), k.ID()),
			Beat: r.lastBeat(incarnation),
			Why:  "the process that answers there does not have this process's memory",
		}
		for _, address := range k.addresses {
			s := k.SeenInstance
			s.Address = address
			m.Why = cmp.Or(r.silent[r.place(s)], m.Why)
		}
		if k.leftAt > 0 {
			m.Why = fmt.Sprintf("it left in good order at revision %d, after this backup (its last beat is of "+
				"revision %d): the last journal of its name is enough", k.leftAt, r.found.beat.Revision)
		}
		p.Missing = append(p.Missing, m)
	}
	r.missNamed()
	r.listUnreadable()
	slices.Sort(p.Answered)
	slices.Sort(p.LeftBefore)
	p.Answered, p.LeftBefore = slices.Compact(p.Answered), slices.Compact(p.LeftBefore)
	slices.SortFunc(p.Missing, func(a, b Missing) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	p.Higher = int64(len(r.higher))
	return r.undecided()
}

// undecided returns what the operator must decide of the instances that did not answer, and that were
// not named: a line for each. The caller holds mu.
func (r *processes) undecided() error {
	var lines strings.Builder
	for _, l := range r.unnamed() {
		if l.Answers {
			_, _ = fmt.Fprintf(&lines, "\n  --without %s: it answers, without the memory of an earlier process", l.ID)
		} else {
			_, _ = fmt.Fprintf(&lines, "\n  --stopped %s if its machine is off, otherwise --without %[1]s", l.ID)
		}
	}
	if lines.Len() == 0 {
		return nil
	}
	return allocator.Errorf(allocator.Refused, "not every instance answered: start each that is missing, or give its "+
		"journal (--journal FILE), or stop it for good and go on with%s", lines.String())
}

// unnamed returns the instances that did not answer, and that the operator did not name. The caller
// holds mu.
func (r *processes) unnamed() (all []Lost) {
	for _, m := range r.report.Missing {
		switch last := len(all) - 1; {
		case m.Without:
		case last >= 0 && all[last].ID == m.ID: // processes of one instance
			if m.Beat.After(all[last].Beat) {
				all[last].Beat = m.Beat
			}
		default:
			all = append(all, Lost{m.ID, m.Why, m.Beat, r.answers(m.ID)})
		}
	}
	return all
}

// askOperator has the operator decide of each instance that did not answer, before anything is changed.
func (r *run) askOperator(ctx context.Context) error {
	var lost []Lost
	r.with(func() { lost = r.unnamed() })
	for _, l := range lost {
		off, err := r.cfg.Off(ctx, r.report, l)
		switch {
		case err != nil:
			return err
		case off && !l.Answers:
			r.cfg.Stopped = append(r.cfg.Stopped, l.ID)
		default:
			r.cfg.Without = append(r.cfg.Without, l.ID)
		}
	}
	return r.complete()
}

// missNamed adds the instances that the operator named, and of which no process is missing so far:
// an instance that etcd and all others have forgotten may have leased, too. One that answered with
// the memory of its earlier processes is not missing. The caller holds mu.
func (r *processes) missNamed() {
	for _, id := range r.named() {
		missing := slices.ContainsFunc(r.report.Missing, func(m Missing) bool { return m.ID == id })
		if missing || r.answersWith(id, true) {
			continue
		}
		r.report.Missing = append(r.report.Missing, Missing{ID: id, Without: true,
			Why: "it was named, and neither etcd nor an instance nor a journal has all its processes"})
	}
}

// answers reports whether a process of an instance answered. The caller holds mu.
func (r *processes) answers(id record.InstanceID) bool { return r.answersWith(id, false) }

// answersWith is answers, of a process with the memory of earlier ones perhaps. The caller holds mu.
func (r *processes) answersWith(id record.InstanceID, earlier bool) bool {
	for _, a := range r.byPlace {
		if a.id == id && !(earlier && a.first) {
			return true
		}
	}
	return false
}

// checkNamed refuses names that cannot be right: of a room that never was, and of an instance that
// answered. Otherwise a slip of the pen would stand for the instance that is missing. An instance that
// is missing by what others remember may be of a room that this store, and all layouts that are known,
// have forgotten.
func (r *processes) checkNamed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rooms := record.Union(r.rooms, r.cfg.Given.Rooms())
	for _, id := range r.named() {
		room, _, _ := strings.Cut(string(id), "/")
		flag := "--without"
		if slices.Contains(r.cfg.Stopped, id) {
			flag = "--stopped"
		}
		of := func(m Missing) bool { return m.ID == id }
		known := func(m Missing) bool { return m.ID == id && m.Incarnation != "" }
		switch missing := slices.ContainsFunc(r.report.Missing, of); {
		case !slices.Contains(rooms, allocator.Room(room)) && !slices.ContainsFunc(r.report.Missing, known):
			return allocator.Errorf(allocator.Refused, "%s %s: there never was a room %s; there are %v; "+
				"if only a layout that was lost had it, give that layout (--layout FILE)", flag, id, room, rooms)
		case !missing || flag == "--stopped" && r.answers(id):
			return allocator.Errorf(allocator.Refused, "%s %s: it answered, with all that it leased; "+
				"leave it out of %[1]s, or stop it first if it is to be left out; if an earlier process of it "+
				"lost its journal, and nobody remembers that, give --margin", flag, id)
		}
	}
	return nil
}

// listUnreadable brings the report's list of unreadable keys up to date. The caller
// holds mu.
func (r *session) listUnreadable() {
	r.report.Unreadable = nil
	for _, key := range slices.Sorted(maps.Keys(r.bad)) {
		r.report.Unreadable = append(r.report.Unreadable, *record.Unreadable(key, r.bad[key]))
	}
}

// confirmAnswers writes another halt over the first one, and asks all that answered once
// more: an answer is void once its instance has met an epoch in force. The nonce of
// the second halt stands for all raises under the first. If etcd now goes back to a
// backup that was taken in between, it has the first nonce, and no epoch begins over
// it.
func (r *run) confirmAnswers(ctx context.Context) error {
	for also := []store.Op{r.auditBarred()}; ; also = nil {
		if err := r.haltStore(ctx, also...); err != nil {
			return err
		}
		r.progress("confirming the answers", 0, 0)
		var before, after int // how often a memory had a higher mark than was known
		r.with(func() { before = r.learned })
		if err := r.askAll(ctx, r.barrier()); err != nil {
			return err
		}
		if err := r.askMirrors(ctx); err != nil {
			return err
		}
		if err := r.complete(); err != nil {
			return err
		}
		if r.with(func() { after = r.learned }); before == after {
			return nil
		}
		if err := r.raiseMarks(ctx); err != nil {
			return err
		}
		if err := r.raiseWorkers(ctx); err != nil {
			return err
		}
	}
}

// auditBarred returns the audit entry with the barred instances, and those that
// recover goes on without.
func (r *run) auditBarred() store.Op {
	var v struct {
		Barred  []record.InstanceID `json:"barred"`
		Without []record.InstanceID `json:"without"`
	}
	v.Barred = r.report.Answered
	for _, m := range r.report.Missing {
		v.Without = append(v.Without, m.ID)
	}
	list, _ := json.Marshal(v) // encoding texts cannot fail
	return r.audit("bar instances", r.found.epochKV.Key, nil, list)
}
