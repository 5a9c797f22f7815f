package console_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/race"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// TestFarMigration counts the round trips to etcd of a retract and an expand, from the answer to the operator to the
// end, where the rooms, the console or all are far away. Before they were up to 40.
func TestFarMigration(t *testing.T) {
	for name, far := range map[string]struct {
		room, console bool
		most          float64
	}{"rooms": {true, false, 12}, "console": {false, true, 12}, "all": {true, true, 13}} {
		if name != "all" && !programs.All() {
			t.Run(name, func(t *testing.T) { programs.OnlyInAll(t, "of migrations with a far etcd") })
			continue
		}
		for _, away := range []time.Duration{60 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second} {
			phases := 5 // a console looks at different times
			if race.Enabled || !programs.All() {
				phases = 1
			}
			for k := range phases {
				inBubble(t, fmt.Sprintf("%s %v %d", name, away, k), func(t *testing.T) {
					w := newWorld(t, halves())
					open := func(far bool) store.Store {
						if far {
							return &ledgertest.Far{Store: w.Open(w), Away: away}
						}
						return w.Open(w)
					}
					w.Tag(nil, "test", "order")
					var rooms []*testcluster.Room
					for _, in := range []allocator.Room{"a", "b"} {
						r := w.Launch(in, allocator.Instance(in)+"1", func(cfg *room.Config) {
							cfg.Ledger = w.LedgerOver(open(far.room), nil)
						})
						rooms = append(rooms, r)
						testcluster.Await(w, "an ID", func() bool {
							_, err := r.Next(bg, &marchv1.NextRequest{Tag: "order"})
							return err == nil
						})
					}
					testcluster.Run(w, func(ctx context.Context) error { // a tag that is in use
						for ctx.Err() == nil {
							for _, r := range rooms {
								_, _ = r.Next(ctx, &marchv1.NextRequest{Tag: "order"})
							}
							time.Sleep(time.Second)
						}
						return nil
					})
					n := w.nodeOver(open(far.console))
					time.Sleep(time.Minute + time.Duration(k)*away/3)
					m := must(n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: w.plan(n, quarter()),
						Hold: durationpb.New(0), Force: true}))(t)
					began := time.Now()
					for { // by a reader that is near
						now := must(w.Admin.Migration(bg, m.GetMigration().GetId()))(t)
						if now.State.Ended() {
							break
						}
						time.Sleep(away / 100)
					}
					if trips := float64(time.Since(began)) / float64(away); trips > far.most {
						t.Errorf("it took %.2f round trips, want %g at most", trips, far.most)
					} else {
						t.Logf("%.2f round trips", trips)
					}
				})
			}
		}
	}
}
