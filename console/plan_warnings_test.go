package console

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// A plan warns of residues that nobody serves after it: those of a room that gains and has no instance
// up, and those that no room gets.
func TestPlanWarnsOfResiduesThatNobodyServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		s := b.console()
		b.beating(b.join("a", "one", time.Minute))
		b.join("b", "one", time.Minute) // it dies at once
		b.looks(silenceGap+silentAfter(2), s)
		if got := b.registered(s); got != "a/one b/one!" {
			t.Fatalf("registered: %s", got)
		}
		for name, test := range map[string]struct {
			request *marchv1.PlanMigrationRequest
			want    []string
		}{
			"to a room that is up": {&marchv1.PlanMigrationRequest{Move: []string{"b:50-75=a"}}, nil},
			"to one that is silent": {&marchv1.PlanMigrationRequest{Move: []string{"a:25-50=b"}}, []string{
				"room b gets [25, 100) of 100 residues, but no instance of it is up: start one first, " +
					"or nobody issues IDs of these residues"}},
			"to one that is new": {&marchv1.PlanMigrationRequest{AddRoom: []string{"c=75-100"}}, []string{
				"room c gets [75, 100) of 100 residues, but no instance of it is up: start one first, " +
					"or nobody issues IDs of these residues"}},
			"to no room": {&marchv1.PlanMigrationRequest{Drain: []string{"b"}}, []string{
				"room b gives up 50% of all residues to no other room: " +
					"nobody issues IDs of these until a room gets them"}},
			"of a larger boundary": {&marchv1.PlanMigrationRequest{Boundary: 1000}, nil},
		} {
			answer, err := s.PlanMigration(bg, test.request)
			if err != nil || !slices.Equal(answer.GetPlan().GetWarnings(), test.want) {
				t.Errorf("%s: %q, %v; want %q", name, answer.GetPlan().GetWarnings(), err, test.want)
			}
		}
		b.Mem.Corrupt(store.OpPut("/march/default/rooms/b/one", []byte(`{"format":99}`)))
		answer, err := s.PlanMigration(bg, &marchv1.PlanMigrationRequest{Move: []string{"a:25-50=b"}})
		want := "room b gets [25, 100) of 100 residues, but no instance of it is known to be up: start one first, " +
			"or nobody issues IDs of these residues"
		if err != nil || !slices.Equal(answer.GetPlan().GetWarnings(), []string{want}) {
			t.Errorf("to one that cannot be read: %q, %v; want %q", answer.GetPlan().GetWarnings(), err, want)
		}
	})
}
