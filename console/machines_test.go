package console_test

import (
	"slices"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/machine"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// A plan that gives to a room what was a reserved range names the clients that still have machine IDs of
// it: the room's workers would have the same numbers.
func TestPlanNamesClientsOfMachineIDs(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := testcluster.New(t)
		c.Init(allocator.Layout{Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50},
			"b": {Lower: 60, Upper: 100}},
			Reserved: map[allocator.Room]allocator.Range{"cosid": {Lower: 50, Upper: 60}}}, "test")
		s := startOver(c)
		m := machine.New(c.Ledger(), "a", "cosid")
		for _, name := range []string{"stays", "ends"} {
			if _, _, err := m.Distribute(bg, machine.Client{Namespace: "shop", Instance: name}, 10, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Revert(bg, machine.Client{Namespace: "shop", Instance: "ends"}); err != nil {
			t.Fatal(err)
		}
		from := must(c.Admin.Ledger.Refresh(bg))(t)
		released := from.Layout
		released.Reserved = nil
		must(c.Admin.ChangeLayout(bg, from, released, "test"))(t)
		for _, test := range []struct {
			upper int64 // of room a: below 50 it gets none of these numbers
			want  []string
		}{{60, []string{"shop/stays: 512 of 10 bits"}}, {40, nil}} {
			answer, err := s.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: layout(100, map[string][2]int64{
				"a": {0, test.upper}, "b": {60, 100}})})
			if err != nil || !slices.Equal(answer.GetPlan().GetMachines(), test.want) {
				t.Errorf("room a up to %d: %v, %v; want %v", test.upper, answer.GetPlan().GetMachines(), err, test.want)
			}
		}
	})
}
