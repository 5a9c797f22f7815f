package sim_test

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/operator"
)

// action is an operator's action at a console. A new one is a new row.
type action struct {
	name   string
	weight int
	do     func(ctx context.Context, w *world, d dice, c *console.Server) error
}

func actions() []action {
	return []action{
		{"migrate", 10, migrate},
		{"pause", 1, func(ctx context.Context, _ *world, _ dice, c *console.Server) error {
			_, err := c.PauseMigration(ctx, &marchv1.PauseMigrationRequest{})
			return err
		}},
		{"resume", 2, func(ctx context.Context, _ *world, _ dice, c *console.Server) error {
			_, err := c.ResumeMigration(ctx, &marchv1.ResumeMigrationRequest{})
			return err
		}},
		{"abort", 1, func(ctx context.Context, _ *world, _ dice, c *console.Server) error {
			_, err := c.AbortMigration(ctx, &marchv1.AbortMigrationRequest{})
			return err
		}},
		{"continue", 2, func(ctx context.Context, w *world, d dice, c *console.Server) error {
			_, err := c.ContinueMigration(ctx, &marchv1.ContinueMigrationRequest{Without: []string{w.instance(d)}})
			return err
		}},
		{"skip", 3, skip},
		{"delete", 2, deleteOrCreate},
		{"update", 4, update},
		{"prescale", 1, func(ctx context.Context, w *world, d dice, c *console.Server) error {
			_, err := c.PrescaleTag(ctx, &marchv1.PrescaleTagRequest{Name: string(pick(d, w.tags)), Step: 1,
				Duration: durationpb.New(5 * time.Second)})
			return err
		}},
		{"forget", 1, func(ctx context.Context, w *world, d dice, c *console.Server) error {
			s := pick(d, w.slots)
			_, err := c.ForgetInstance(ctx, &marchv1.ForgetInstanceRequest{Room: string(s.room), Name: s.name})
			return err
		}},
	}
}

// instance names an instance, as a console does.
func (w *world) instance(d dice) string {
	s := pick(d, w.slots)
	return string(s.room) + "/" + s.name
}

// operate makes operators' actions at a console, until all heals.
func (w *world) operate(slot *slot, lane int) {
	var hat []action // each action as often as its weight
	for _, a := range actions() {
		for range a.weight {
			hat = append(hat, a)
		}
	}
	d := w.dice("operator " + slot.name)
	for w.sleep(w.heal, d.between(100*time.Millisecond, 5*time.Second), lane) {
		p, a := slot.running(), pick(d, hat)
		if p == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := a.do(ctx, w, d, p.console)
		cancel()
		w.log("--- %s: %s: %s", p.id, a.name, kind(err))
		w.count("operator: "+a.name+": "+kind(err), 1)
		if err != nil && !w.expected(err) {
			w.Errorf("%s: %s: %v", p.id, a.name, err)
		}
	}
}

func migrate(ctx context.Context, w *world, d dice, c *console.Server) error {
	// Not GetLayout: while leasing is halted it asks the instances over a real network.
	answer, err := c.ListLayouts(ctx, &marchv1.ListLayoutsRequest{PageSize: 1})
	if err != nil {
		return err
	}
	if len(answer.GetLayouts()) == 0 {
		return allocator.Errorf(allocator.NotFound, "sim: there is no layout")
	}
	from, err := api.LayoutFromProto(answer.GetLayouts()[0].GetLayout())
	if err != nil {
		return err
	}
	target, atomic := d.layout(w.rooms), d.chance(4)
	if d.chance(2) && len(from.Ranges) == len(target.Ranges) {
		target = d.resized(from)
	}
	if target.Equal(from) {
		return nil
	}
	planned, err := plan.New(from, target, atomic)
	if err != nil && allocator.KindOf(err) == allocator.Refused {
		planned, err = plan.New(from, target, true)
	}
	if err != nil {
		return err
	}
	if slices.Contains(w.tags, clusterTag) { // a migration that takes its home's range is refused
		stay := slices.DeleteFunc(from.Rooms(), func(room allocator.Room) bool {
			return target.Ranges[room] == allocator.Range{}
		})
		if len(stay) == 0 {
			return nil
		}
		if err := w.moveHome(ctx, d, stay, true); err != nil {
			return err
		}
	}
	return w.apply(ctx, c, planned)
}

// apply has a console begin a migration.
func (w *world) apply(ctx context.Context, c *console.Server, planned plan.Plan) error {
	uuid, err := w.admin.Ledger.UUID(ctx)
	if err != nil {
		return err
	}
	p := operator.PlanToProto(planned)
	p.Cluster, p.Force = uuid, true
	_, err = c.ApplyMigration(ctx, &marchv1.ApplyMigrationRequest{Plan: p})
	return err
}

// resized returns l with other borders between the same rooms in the same order.
func (d dice) resized(l allocator.Layout) allocator.Layout {
	next := allocator.Layout{Boundary: l.Boundary, Ranges: make(map[allocator.Room]allocator.Range)}
	rooms, lower := l.Rooms(), int64(0)
	for i, room := range rooms {
		left := int64(len(rooms) - 1 - i)
		upper := lower + 1 + d.Int64N(l.Boundary-lower-left)
		next.Ranges[room] = allocator.Range{Lower: lower, Upper: upper}
		lower = upper
	}
	return next
}

func skip(ctx context.Context, w *world, d dice, c *console.Server) error {
	name := pick(d, w.tags)
	tag, marks := w.tag(name)
	if tag.Name == "" || name == yearly { // it is deleted; or it has another start in each period
		return nil
	}
	to := tag.Start
	for _, mark := range marks {
		to = max(to, mark.Next)
	}
	r := &marchv1.SkipTagRequest{Name: string(name), To: to + 1 + d.Int64N(60), Force: true}
	if r.GetTo() >= tag.Limit {
		return nil
	}
	if d.chance(2) {
		r.Rooms = []string{string(pick(d, w.rooms))}
	}
	_, err := c.SkipTag(ctx, r)
	return err
}

func update(ctx context.Context, w *world, d dice, c *console.Server) error {
	if slices.Contains(w.tags, clusterTag) && d.chance(2) {
		layout, err := w.admin.Ledger.Refresh(ctx)
		if err != nil {
			return err
		}
		return w.moveHome(ctx, d, layout.Layout.Rooms(), false)
	}
	p := &marchv1.Tag{Name: "bounded"}
	switch d.IntN(4) {
	case 0:
		tag, _ := w.tag("bounded")
		if tag.Name == "" {
			return nil // another etcd cluster answers, and does not show the tag
		}
		p.Limit = new(tag.Limit + d.Int64N(2000))
	case 1:
		p.MaxSkew = new(pick(d, []int64{0, 1, 50, 500}))
	case 2:
		p.MaxJump = new(pick(d, []int64{1, 100, 100_000}))
	default:
		p.StrictRetract = new(d.chance(2))
	}
	_, err := c.UpdateTag(ctx, &marchv1.UpdateTagRequest{Tag: p})
	return err
}

// tag returns a tag and its marks from the store. The consoles' GetTag asks instances by gRPC,
// which does not exist here.
func (w *world) tag(name allocator.Tag) (record.Tag, map[allocator.Room]record.Mark) {
	ctx, l := context.Background(), admin.New(w.fresh(), admin.DefaultConfig())
	tag, err := l.Tag(ctx, name)
	gone := name == fleeting && allocator.KindOf(err) == allocator.NotFound
	if err != nil && !gone && !w.moved() && !w.unreadable(err) {
		w.Errorf("tag %s: %v", name, err)
	}
	marks, err := l.Marks(ctx, name)
	if err != nil && !w.moved() && !w.unreadable(err) {
		w.Errorf("tag %s: %v", name, err)
	}
	return tag, marks
}

// agree agrees with all jumps that a tag needs, and gives it room.
func (w *world) agree(tag allocator.Tag) {
	_, err := w.admin.UpdateTag(context.Background(), tag, func(s *record.TagSettings) error {
		s.Limit, s.MaxJump = allocator.MaxID, allocator.MaxID
		return nil
	}, "simulation")
	if err != nil {
		w.Errorf("tag %s: %v", tag, err)
	}
}

// migrationsEnded reports whether no migration is under way. It resumes one that is paused.
func (w *world) migrationsEnded() bool {
	ctx := context.Background()
	m, active, err := w.admin.ActiveMigration(ctx)
	if err != nil {
		w.Errorf("the migration under way: %v", err)
	}
	if active && m.State == record.Paused {
		_, _ = w.admin.UpdateMigration(ctx, m, "resume migration", "simulation", func(m *record.Migration) error {
			m.State = record.Running
			return nil
		})
	}
	return !active
}
