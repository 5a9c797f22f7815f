package operator_test

import (
	"reflect"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

// TestPlan: a plan is the same after the wire.
func TestPlan(t *testing.T) {
	t.Parallel()
	layout := func(cut int64) allocator.Layout {
		return allocator.Layout{Version: 1, Boundary: 100, Ranges: map[allocator.Room]allocator.Range{
			"a": {Upper: cut}, "b": {Lower: cut, Upper: 100},
		}}
	}
	for _, atomic := range []bool{false, true} {
		p, err := plan.New(layout(50), layout(25), atomic)
		if err != nil {
			t.Fatal(err)
		}
		again, err := operator.PlanFromProto(operator.PlanToProto(p))
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("got %+v, %v, want %+v", again, err, p)
		}
	}
	for name, damage := range map[string]func(*marchv1.Plan){
		"plan: from: ":   func(p *marchv1.Plan) { p.From = nil },
		"plan: target: ": func(p *marchv1.Plan) { p.Target.Boundary = 0 },
		"plan: move 2: ": func(p *marchv1.Plan) { p.Moves[1].Layout = nil },
	} {
		good, err := plan.New(layout(50), layout(25), false)
		if err != nil {
			t.Fatal(err)
		}
		p := operator.PlanToProto(good)
		damage(p)
		if _, err := operator.PlanFromProto(p); allocator.KindOf(err) != allocator.Invalid ||
			err.Error()[:len(name)] != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}
