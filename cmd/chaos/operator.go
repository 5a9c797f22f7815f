package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
	"github.com/march-id/march/cmd/chaos/internal/traffic"
)

// operate is the lane of operators: they migrate, skip, and change tags, until lanes ends.
// Failures are only recorded: consoles and etcd are being hurt.
func (d *driver) operate(ctx, lanes context.Context) error {
	r := rand.New(rand.NewPCG(d.config.seed, 3))
	for store.Sleep(lanes, between(r, 100*time.Millisecond, 1500*time.Millisecond)) {
		do, what := d.migrate, runlog.Migration
		switch n := r.IntN(10); {
		case n < 2:
			do, what = d.skip, runlog.Operator
		case n < 4:
			do, what = d.changeTag, runlog.Operator
		case n < 5:
			do, what = d.prescale, runlog.Operator
		}
		detail, err := do(ctx, lanes, r)
		e := runlog.Event{What: what, Detail: detail}
		if err != nil {
			e.Detail += ": " + err.Error()
		}
		d.note(e)
	}
	return nil
}

// migrate changes to a random layout, and waits for the migration's end.
func (d *driver) migrate(ctx, lanes context.Context, r *rand.Rand) (string, error) {
	list, hold, change := d.roomNames(r), between(r, 0, 3*time.Second), r.IntN(8)
	atomic := change%3 > 0
	began := time.Now()
	var plan *marchv1.Plan
	err := d.admin.call(ctx, func(ctx context.Context, c marchv1.ConsoleServiceClient) error {
		choice := boundaries
		if !atomic || slices.Contains(d.Times, pinning) { // another boundary is a switch, whatever else is to change
			now, err := c.GetLayout(ctx, &marchv1.GetLayoutRequest{})
			if err != nil {
				return err
			}
			choice = []int64{now.GetLayout().GetLayout().GetBoundary()}
		}
		answer, err := c.PlanMigration(ctx, &marchv1.PlanMigrationRequest{Target: randomLayout(r, list, choice),
			Atomic: atomic})
		plan = answer.GetPlan()
		return err
	})
	if err != nil {
		return "not planned", err
	}
	moves := columns(plan)
	drains := slices.Index(moves, drained)
	loses := drains >= 0 && r.IntN(2) == 0 && d.hold.TryLock() // march recover would ask a lost room in vain
	if loses {
		defer d.hold.Unlock()
		end, err := d.lose()
		defer end()
		if err != nil {
			return "", err
		}
		change = impatiently
		var cancel context.CancelFunc
		lanes, cancel = context.WithTimeout(lanes, loseFor)
		defer cancel()
	}
	id := ""
	err = d.admin.call(ctx, func(ctx context.Context, c marchv1.ConsoleServiceClient) error {
		answer, err := c.ApplyMigration(ctx, &marchv1.ApplyMigrationRequest{Plan: plan, Hold: durationpb.New(hold)})
		id = answer.GetMigration().GetId()
		return err
	})
	if err != nil && allocator.KindOf(err) == allocator.Exists { // the one under way need not be of this plan
		moves, loses, err = nil, false, nil
	}
	if err != nil {
		return "not migrated", err
	}
	d.note(runlog.Event{What: runlog.Migration, Target: id, Detail: "began"})
	m, err := d.seeThrough(ctx, lanes, id, change)
	if loses && slices.ContainsFunc(m.GetLog(), goesOnWithoutSpare) {
		moves[drains] = lost
	}
	switch m.GetState() {
	case marchv1.MigrationState_MIGRATION_STATE_ABORTED:
		d.migrated.Add(1)
		d.moved("abort")
	case marchv1.MigrationState_MIGRATION_STATE_DONE:
		d.migrated.Add(1)
		d.moved(moves...)
	default: // heal waits for it
	}
	return fmt.Sprintf("%s %s after %v", id, api.Word(m.GetState()), time.Since(began).Round(time.Millisecond)), err
}

const (
	drained = "drained"
	lost    = "lost"
	// loseFor bounds how long an operator waits for a migration that drains a lost room.
	loseFor = 40 * time.Second
)

// columns returns the moves of a plan, as docs/proof.md calls them.
func columns(p *marchv1.Plan) (all []string) {
	from, to := p.GetFrom(), p.GetTarget()
	for _, m := range p.GetMoves() {
		if kind := api.Word(m.GetKind()); !slices.Contains(all, kind) {
			all = append(all, kind)
		}
	}
	if from.GetBoundary() != to.GetBoundary() {
		all = append(all, "boundary")
	}
	if !proto.Equal(from.GetReserved()[traffic.Machines], to.GetReserved()[traffic.Machines]) {
		all = append(all, "reserve")
	}
	switch had, has := from.GetRooms()[spare], to.GetRooms()[spare]; {
	case had == nil && has != nil:
		all = append(all, "new room")
	case had != nil && has == nil:
		all = append(all, drained)
	}
	return all
}

// lose kills all of the spare room, until end.
func (d *driver) lose() (end func(), err error) {
	of := d.instancesOf(cluster.Room{Name: spare})
	for _, s := range of {
		err = errors.Join(err, s.Down())
	}
	return func() {
		for _, s := range of {
			s.Keep(true)
		}
	}, err
}

// goesOnWithoutSpare reports whether an entry of a migration's log says so of an instance of the spare room: another
// fault may have started it again, and then the room is not lost.
func goesOnWithoutSpare(e *marchv1.MigrationLog) bool {
	return e.GetKind() == marchv1.MigrationEvent_MIGRATION_EVENT_CONTINUED && strings.Contains(e.GetText(), spare+"/")
}

// moved notes moves that were made.
func (d *driver) moved(kinds ...string) {
	for _, kind := range kinds {
		d.note(runlog.Event{What: runlog.Moved, Kind: kind})
		d.mu.Lock()
		d.mu.moved[kind] = true
		d.mu.Unlock()
	}
}

// used notes that operators used a feature, unless that failed.
func (d *driver) used(feature string, err error) {
	if err == nil && feature != "" {
		d.note(runlog.Event{What: runlog.Used, Kind: feature})
	}
}

// patience is how long an operator in a hurry waits for instances.
const patience = 3 * time.Second

// impatiently is the change of going on without the instances that have not reported.
const impatiently = 2

// seeThrough waits until a migration has ended. On the way it sometimes pauses, resumes or
// aborts it, or goes on without the instances that have not reported.
func (d *driver) seeThrough(ctx, lanes context.Context, id string, change int) (m *marchv1.Migration, err error) {
	var abort, pauseIt, impatient bool
	switch change {
	case 0:
		abort = true
	case 1:
		pauseIt = true
	case impatiently:
		impatient = true
	}
	for began := time.Now(); ; {
		err = d.admin.call(ctx, func(ctx context.Context, c marchv1.ConsoleServiceClient) error {
			answer, err := c.GetMigration(ctx, &marchv1.GetMigrationRequest{Id: id})
			m = answer.GetMigration()
			runs := m.GetState() == marchv1.MigrationState_MIGRATION_STATE_RUNNING
			switch {
			case err != nil:
			case m.GetState() == marchv1.MigrationState_MIGRATION_STATE_PAUSED:
				_, err = c.ResumeMigration(ctx, &marchv1.ResumeMigrationRequest{Id: m.GetId()})
			case runs && abort:
				_, err = c.AbortMigration(ctx, &marchv1.AbortMigrationRequest{Id: m.GetId()})
				abort = err != nil
			case runs && pauseIt:
				_, err = c.PauseMigration(ctx, &marchv1.PauseMigrationRequest{Id: m.GetId()})
				pauseIt = err != nil
			case runs && impatient && time.Since(began) > patience && len(m.GetWaiting()) > 0:
				var without []string
				for _, w := range m.GetWaiting() {
					without = append(without, w.GetInstance())
				}
				_, err = c.ContinueMigration(ctx, &marchv1.ContinueMigrationRequest{Id: m.GetId(), Without: without})
				impatient = err != nil
			}
			return err
		})
		if api.Ended(m.GetState()) {
			return m, nil
		}
		if kind := allocator.KindOf(err); err != nil && kind != allocator.Unavailable && kind != allocator.Refused &&
			kind != allocator.Conflict {
			return m, err
		}
		if !store.Sleep(lanes, 100*time.Millisecond) {
			return m, ctx.Err()
		}
	}
}

// roomNames returns the rooms of a layout, with the spare one or without it. The first one has the lowest range: it is
// room a where that has a pinned worker.
func (d *driver) roomNames(r *rand.Rand) (list []string) {
	for _, room := range d.Rooms {
		if room.Name != spare || r.IntN(2) == 0 {
			list = append(list, string(room.Name))
		}
	}
	if d.Pinned == "" {
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return list
}

// boundaries of a run's layouts.
var boundaries = []int64{10, 97, 100, firstBoundary, 1024, 4096, 65_537, 1_000_000}

// randomLayout returns a layout with one of some boundaries, in which each room, and the range of machine IDs, has at
// least a tenth of the boundary, so that the IDs of a run stay near each other.
func randomLayout(r *rand.Rand, names []string, boundaries []int64) *marchv1.Layout {
	boundary := pick(r, boundaries)
	names = append(slices.Clone(names), traffic.Machines)
	others := names[1:]
	r.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	least := boundary / 10
	// The rest is cut at random, with gaps in between: room, gap, room, gap.
	rest := boundary - least*int64(len(names))
	cuts := []int64{0, rest}
	for range 2*len(names) - 1 {
		cuts = append(cuts, r.Int64N(rest+1))
	}
	slices.Sort(cuts)
	layout := &marchv1.Layout{Boundary: boundary, Rooms: make(map[string]*marchv1.Range)}
	at := int64(0)
	for i, name := range names {
		width := least + cuts[2*i+1] - cuts[2*i]
		layout.Rooms[name] = &marchv1.Range{Lower: at, Upper: at + width}
		at += width
		if r.IntN(2) == 0 { // otherwise the next room begins here
			at += cuts[2*i+2] - cuts[2*i+1]
		}
	}
	layout.Reserved = map[string]*marchv1.Range{traffic.Machines: layout.Rooms[traffic.Machines]}
	delete(layout.Rooms, traffic.Machines)
	return layout
}

// skip makes one room or all rooms skip IDs of a tag.
func (d *driver) skip(ctx, _ context.Context, r *rand.Rand) (string, error) {
	tag := string(pick(r, d.Tags))
	by := 1 + r.Int64N(3_000_000)
	var only []string
	if r.IntN(2) == 0 {
		only = []string{string(rooms[r.IntN(len(rooms)-1)].Name)} // not the spare one, which may have no range
	}
	to, err := d.skipBy(ctx, tag, by, only)
	d.used("skip", err)
	return fmt.Sprintf("skip %s to %d in %v", tag, to, only), err
}

// skipBy makes rooms skip a number of IDs above the largest mark of a tag.
func (d *driver) skipBy(ctx context.Context, tag string, by int64, only []string) (to int64, err error) {
	err = d.admin.call(ctx, func(ctx context.Context, c marchv1.ConsoleServiceClient) error {
		answer, err := c.GetTag(ctx, &marchv1.GetTagRequest{Name: tag})
		if err != nil {
			return err
		}
		for _, m := range answer.GetMarks() {
			to = max(to, m.GetNext()+by)
		}
		_, err = c.SkipTag(ctx, &marchv1.SkipTagRequest{Name: tag, To: to, Rooms: only})
		return err
	})
	return to, err
}

// changeTag changes a tag's settings.
func (d *driver) changeTag(ctx, _ context.Context, r *rand.Rand) (string, error) {
	tag := &marchv1.Tag{
		Name: string(pick(r, d.Tags)), Reserve: durationpb.New(between(r, 4*time.Second, 12*time.Second)),
		MinStep: ptr(500 + r.Int64N(5_000)), MaxStep: ptr(1_000_000 + r.Int64N(3_000_000)),
		Limit: ptr(1<<62 + r.Int64N(1<<40)),
	}
	feature := "limit"
	if r.IntN(3) == 0 { // it has none of these settings
		feature = ""
		tag = &marchv1.Tag{Name: string(pick(r, d.Times)), Time: &marchv1.TimeTag{
			Sequence: pick(r, []marchv1.SequencePolicy{marchv1.SequencePolicy_SEQUENCE_POLICY_RESET,
				marchv1.SequencePolicy_SEQUENCE_POLICY_CARRY, marchv1.SequencePolicy_SEQUENCE_POLICY_RANDOM}),
			Rollback: pick(r, []marchv1.RollbackPolicy{marchv1.RollbackPolicy_ROLLBACK_POLICY_WAIT,
				marchv1.RollbackPolicy_ROLLBACK_POLICY_OFFSET, marchv1.RollbackPolicy_ROLLBACK_POLICY_FAIL}),
		}}
	}
	err := d.admin.call(ctx, func(ctx context.Context, c marchv1.ConsoleServiceClient) error {
		_, err := c.UpdateTag(ctx, &marchv1.UpdateTagRequest{Tag: tag})
		return err
	})
	d.used(feature, err)
	return fmt.Sprintf("update %v", tag), err
}

// prescale makes all instances hold more of a tag for some seconds.
func (d *driver) prescale(ctx, _ context.Context, r *rand.Rand) (string, error) {
	request := &marchv1.PrescaleTagRequest{
		Name: string(pick(r, d.Tags)), Step: 1 + r.Int64N(500_000),
		Duration: durationpb.New(between(r, time.Second, 10*time.Second)),
	}
	err := d.admin.call(ctx, func(ctx context.Context, c marchv1.ConsoleServiceClient) error {
		_, err := c.PrescaleTag(ctx, request)
		return err
	})
	d.used("prescale", err)
	return fmt.Sprintf("prescale %v", request), err
}

// migrationsEnd waits until no migration is under way.
func (d *driver) migrationsEnd(ctx context.Context) error {
	for {
		m, err := d.seeThrough(ctx, ctx, "", -1)
		state := api.Word(m.GetState())
		switch {
		case err != nil && allocator.KindOf(err) == allocator.NotFound, err == nil && api.Ended(m.GetState()):
			return nil
		case ctx.Err() != nil:
			return errors.Join(fmt.Errorf("the last migration is %s", state), context.Cause(ctx))
		}
		if !store.Sleep(ctx, 100*time.Millisecond) {
			return fmt.Errorf("the last migration is %s: %w", state, err)
		}
	}
}
