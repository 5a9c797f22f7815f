package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

// planner plans migrations, counts what they cost, and begins them.
type planner struct {
	*view
	driver  *driver
	counts  counts                       // the costs of plans
	counted atomic.Pointer[plan.Workers] // what all tags needed when they were last read; nil before
}

func (s *planner) PlanMigration(ctx context.Context,
	r *marchv1.PlanMigrationRequest) (*marchv1.PlanMigrationResponse, error) {
	stored, err := s.ledger.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	target, err := targetOf(r, stored.Layout)
	if err != nil {
		return nil, err
	}
	var needs plan.Workers
	var now *snapshot
	var machines []admin.MachineID
	var reads errgroup.Group // beside each other, as an operator waits
	reads.Go(func() error {
		needs = s.needs(ctx)
		return nil
	})
	reads.Go(func() (err error) {
		now, err = s.fresh(ctx)
		return err
	})
	reads.Go(func() (err error) {
		machines, err = s.admin.Machines(ctx)
		return err
	})
	if err := reads.Wait(); err != nil {
		return nil, err
	}
	planned, err := s.search(needs).New(stored.Layout, target, r.GetAtomic())
	if err == nil {
		err = refuseRooms(stored, planned)
	}
	if err == nil {
		err = needs.Check(planned.From, layoutsOf(planned)...)
	}
	if err != nil {
		return nil, err
	}
	answer := operator.PlanToProto(planned)
	answer.Force = r.GetForce()
	if answer.Cluster, err = s.ledger.UUID(ctx); err != nil {
		return nil, err
	}
	answer.Unreadable = passedOver(now.BadRooms)
	for _, i := range now.instances {
		if slices.ContainsFunc(planned.Moves, func(m plan.Move) bool { return slices.Contains(m.Loses, i.Room) }) {
			answer.Instances = append(answer.Instances, string(i.ID()))
			if len(i.Keeps) > 0 {
				answer.Keeping = append(answer.Keeping, string(i.ID())+": "+strings.Join(i.Keeps, ", "))
			}
			if !i.Alive {
				answer.Silent = append(answer.Silent, string(i.ID()))
			}
		}
	}
	answer.Machines = movedMachines(machines, planned)
	unreached, err := operator.Unreached(planned.Target, r.GetShards())
	if err != nil {
		return nil, err
	}
	answer.Shards, answer.Warnings = r.GetShards(), slices.Concat(warnings(planned, now.instances), unreached)
	return &marchv1.PlanMigrationResponse{Plan: answer}, nil
}

// warnings names the residues that no instance serves after a plan, of those that it moves: residues of a
// room of which no instance is up, and freed ones.
func warnings(p plan.Plan, instances []instance) (all []string) {
	for _, room := range plan.Gaining(p.From, p.Target) {
		up := "up"
		if slices.ContainsFunc(instances, func(i instance) bool {
			return i.Room == room && i.Alive && i.Unreadable == nil
		}) {
			continue
		}
		if slices.ContainsFunc(instances, func(i instance) bool { return i.Room == room && i.Unreadable != nil }) {
			up = "known to be up"
		}
		all = append(all, fmt.Sprintf("room %s gets %v of %d residues, but no instance of it is %s: start one first, "+
			"or nobody issues IDs of these residues", room, p.Target.Ranges[room], p.Target.Boundary, up))
	}
	for _, freed := range plan.FreedBy(p.From, p.Target) {
		all = append(all, fmt.Sprintf("room %s gives up %.3g%% of all residues to no other room: nobody issues IDs of "+
			"these until a room gets them", freed.Room, 100*freed.Part))
	}
	return all
}

// namedMachines is how many clients of machine IDs a plan names.
const namedMachines = 20

// movedMachines names the clients that have machine IDs which a plan gives to rooms. Their range
// may have been released before.
func movedMachines(machines []admin.MachineID, planned plan.Plan) (names []string) {
	more := 0
	for _, m := range machines {
		_, had := timeid.RoomOf(planned.From, m.Number, m.Bits)
		moves := !had && slices.ContainsFunc(planned.Moves, func(move plan.Move) bool {
			_, has := timeid.RoomOf(move.Layout, m.Number, m.Bits)
			return has
		})
		switch {
		case m.Returned || !moves:
		case len(names) == namedMachines:
			more++
		default:
			names = append(names, fmt.Sprintf("%s/%s: %d of %d bits", m.Namespace, m.Instance, m.Number, m.Bits))
		}
	}
	if more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return names
}

// refuseRooms refuses a plan that takes the number of rooms in the cluster's life
// above its bound. Its error is Invalid.
func refuseRooms(stored record.Layout, planned plan.Plan) error {
	ever := slices.Concat(stored.Ever, planned.Target.Rooms())
	slices.Sort(ever)
	if n := len(slices.Compact(ever)); n > allocator.MaxRooms {
		return allocator.Errorf(allocator.Invalid, "rooms: %d in the cluster's life with this plan; allowed: %d, "+
			"because the marks of former rooms stay: give ranges to rooms that had one before",
			n, allocator.MaxRooms)
	}
	return nil
}

// A plan must answer at once, however many tags there are. So it reads only the first of the tags,
// and waits only for a short time, to find whether it takes away workers or homes that they need. The
// count of its cost reads all tags, and so does ApplyMigration.
const slicesWithin = 250 * time.Millisecond

// needs returns which workers tags of time-ordered IDs and pinned instances need of a plan,
// as far as that is known soon.
func (s *planner) needs(ctx context.Context) plan.Workers {
	ctx, cancel := context.WithTimeout(ctx, slicesWithin+4*s.ledger.Contact().Latency)
	defer cancel()
	needs, err := s.admin.FirstNeeds(ctx, maxHead)
	if err != nil {
		return plan.Workers{} // it is checked again before anything moves
	}
	return needs
}

// search returns the needs that the search for moves respects if it can: the known ones, and
// those of all tags when costs were last counted. A tag may have been deleted since, so these
// needs never refuse a plan.
func (s *planner) search(known plan.Workers) plan.Workers {
	if counted := s.counted.Load(); counted != nil {
		return known.With(*counted)
	}
	return known
}

// checkSlices checks the moves of a plan as admin.CheckSlices does, and keeps what it read for
// search.
func (s *planner) checkSlices(ctx context.Context, p plan.Plan) error {
	all, err := s.admin.AllNeeds(ctx)
	if err != nil {
		return err
	}
	s.counted.Store(&all)
	return all.Check(p.From, layoutsOf(p)...)
}

// layoutsOf returns the layouts that a plan passes.
func layoutsOf(p plan.Plan) []allocator.Layout {
	layouts := make([]allocator.Layout, len(p.Moves))
	for i, m := range p.Moves {
		layouts[i] = m.Layout
	}
	return layouts
}

// targetOf returns the layout that a request asks for.
func targetOf(r *marchv1.PlanMigrationRequest, current allocator.Layout) (allocator.Layout, error) {
	ofRoom := func(edit func(allocator.Room) plan.Edit) func(string) (plan.Edit, error) {
		return func(text string) (plan.Edit, error) {
			name, err := allocator.ParseRoom(text)
			return edit(name), err
		}
	}
	var boundary []string
	if r.GetBoundary() != 0 {
		boundary = []string{""}
	}
	kinds := []struct {
		texts []string
		parse func(string) (plan.Edit, error)
	}{
		{r.GetRelease(), ofRoom(plan.Release)},
		{boundary, func(string) (plan.Edit, error) { return plan.ScaleBoundary(r.GetBoundary()), nil }},
		{r.GetDrain(), ofRoom(plan.Drain)}, {r.GetMove(), plan.ParseMove}, {r.GetAddRoom(), plan.ParseAddRoom},
		{r.GetReserve(), plan.ParseReserve},
	}
	n := 0
	for _, kind := range kinds {
		n += len(kind.texts)
	}
	switch {
	case r.GetTarget() != nil && n > 0:
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid,
			"target: given together with move, add_room, drain, reserve, release or boundary; allowed: "+
				"either target or these edits")
	case r.GetTarget() != nil:
		target, err := api.LayoutFromProto(r.GetTarget())
		if err != nil {
			return allocator.Layout{}, err
		}
		return plan.KeepReserved(current, target)
	case n == 0:
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid,
			"target: not given; allowed: a layout, or at least one of move, add_room, drain, reserve, "+
				"release and boundary")
	case n-len(boundary) > 4*allocator.MaxRooms:
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "%d edits; allowed: up to %d",
			n-len(boundary), 4*allocator.MaxRooms)
	}
	var edits []plan.Edit
	for _, kind := range kinds {
		for _, text := range kind.texts {
			edit, err := kind.parse(text)
			if err != nil {
				return allocator.Layout{}, err
			}
			edits = append(edits, edit)
		}
	}
	return plan.Apply(current, edits...)
}

// checkPlan plans a given plan again, and returns it with the layout that it is for. The
// moves must be the same, so that a plan which was changed on the way is refused. Its
// errors are Invalid, and Conflict if the layout has changed since.
func (s *planner) checkPlan(ctx context.Context, given *marchv1.Plan) (stored record.Layout,
	planned plan.Plan, err error) {
	if err := s.madeHere(ctx, given); err != nil {
		return stored, planned, err
	}
	said, err := operator.PlanFromProto(given)
	if err != nil {
		return stored, planned, err
	}
	from := said.From
	if stored, err = s.ledger.Refresh(ctx); err != nil {
		return stored, planned, err
	}
	if stored.Layout.Version == from.Version && !stored.Layout.Equal(from) {
		return stored, planned, allocator.Errorf(allocator.Invalid,
			"plan: from: boundary %d, %s is not layout version %d: plan again", from.Boundary,
			plan.ListRanges(from), from.Version)
	}
	if stored.Layout.Version != from.Version {
		by := operator.MadeBy(stored.Actor, func(id string) (string, error) {
			m, err := s.admin.Migration(ctx, id)
			return m.Actor, err
		})
		return stored, planned, allocator.Errorf(allocator.Conflict,
			"the plan was made for layout version %d, but %s made version %d at %s: %s",
			from.Version, by, stored.Layout.Version, stored.Time.UTC().Format(time.RFC3339),
			plan.Differences(from, stored.Layout))
	}
	planned, err = plan.New(stored.Layout, said.Target, said.Atomic)
	if err == nil && !sameMoves(planned, said) {
		planned, err = s.search(s.needs(ctx)).New(stored.Layout, said.Target, said.Atomic)
	}
	if err == nil {
		err = refuseRooms(stored, planned)
	}
	if err == nil && !sameMoves(planned, said) {
		err = allocator.Errorf(allocator.Invalid,
			"plan: its moves are not those that lead from layout version %d to its target: plan again", from.Version)
	}
	return stored, planned, err
}

func (s *planner) ApplyMigration(ctx context.Context,
	r *marchv1.ApplyMigrationRequest) (*marchv1.ApplyMigrationResponse, error) {
	hold, err := upTo("hold", r.GetHold(), allocator.LongestReserve) // in addition to each instance's own hold
	if err != nil {
		return nil, err
	}
	stored, planned, err := s.checkPlan(ctx, r.GetPlan())
	if err != nil {
		return nil, err
	}
	if r.GetPlan().GetForce() || r.GetForce() {
		err = s.checkSlices(ctx, planned) // no operator can agree to this
	} else {
		err = s.refused(ctx, r.GetCount(), stored, planned)
	}
	if err != nil {
		return nil, err
	}
	instances, err := s.instances(ctx)
	if err != nil {
		return nil, err
	}
	moves := record.MovesOf(planned.Moves...)
	noteHolds(moves, instances)
	m, err := s.admin.StartMigration(ctx, stored, record.Migration{
		From: planned.From, Target: planned.Target, Moves: moves, Hold: record.DurationOf(hold),
	}, operator.Actor(ctx))
	if err != nil {
		return nil, err
	}
	s.log.Info("migration started", "migration", m.ID, "moves", len(m.Moves))
	s.driver.began()
	answer, err := s.showMigration(ctx, m)
	return &marchv1.ApplyMigrationResponse{Migration: answer}, err
}

// madeHere refuses a plan that was made for another cluster. Its errors are Invalid and
// those of UUID.
func (s *planner) madeHere(ctx context.Context, p *marchv1.Plan) error {
	uuid, err := s.ledger.UUID(ctx)
	if err == nil && p.GetCluster() != uuid {
		err = allocator.Errorf(allocator.Invalid,
			"plan: cluster: %q; allowed: %s, this console's cluster: plan again here", p.GetCluster(), uuid)
	}
	return err
}

func sameMoves(a, b plan.Plan) bool {
	return slices.EqualFunc(a.Moves, b.Moves, func(a, b plan.Move) bool {
		return a.Kind == b.Kind && a.Layout.Version == b.Layout.Version && a.Layout.Equal(b.Layout)
	})
}
