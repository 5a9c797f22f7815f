package console_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestMigrateWatchSurvives has etcd away for a while: then the watch goes on.
func TestMigrateWatchSurvives(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n, driver := w.node(), w.node()
		p := w.puppet("a", "p", true)
		m := w.apply(driver, quarter(), time.Hour)
		ctx, cancel := context.WithTimeout(bg, 60*time.Second)
		defer cancel()
		stream, err := n.WatchMigration(ctx, &marchv1.WatchMigrationRequest{Id: m.GetId()})
		if err != nil {
			t.Fatal(err)
		}
		must(stream.Recv())(t)
		n.on(func(string) verdict { return refuse })
		time.AfterFunc(11*time.Second, func() { n.on(nil) }) // longer than a read tries
		w.follow(driver, m.GetId(), "waiting", waits)
		if err := p.Serve(bg, 2); err != nil {
			t.Error(err)
		}
		for err == nil {
			var r *marchv1.WatchMigrationResponse
			if r, err = stream.Recv(); err == nil {
				m = r.GetMigration()
			}
		}
		if !errors.Is(err, io.EOF) || m.GetState() != marchv1.MigrationState_MIGRATION_STATE_DONE {
			t.Errorf("the watch ended with %v at %v", err, m)
		}
	})
}

// TestMigrateWatch streams a migration to its end. A stream also ends with its console.
func TestMigrateWatch(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n, other := w.node(), w.node()
		p := w.puppet("a", "p", true)
		m := w.apply(n, quarter(), time.Hour)
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		stream := must(n.WatchMigration(ctx, &marchv1.WatchMigrationRequest{}))(t)
		stopped, err := other.WatchMigration(ctx, &marchv1.WatchMigrationRequest{Id: m.GetId()})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := stopped.Recv(); err != nil || r.GetMigration().GetId() != m.GetId() {
			t.Fatalf("first: %v, %v", r, err)
		}
		var last *marchv1.Migration
		seen := make(map[int32]bool)
		for {
			r, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if proto.Equal(last, r.GetMigration()) {
				t.Errorf("twice: %v", last)
			}
			last = r.GetMigration()
			seen[last.GetReached()] = true
			if waits(last) && last.GetReached() == 1 {
				other.Cancel()
				for err = nil; err == nil; {
					_, err = stopped.Recv()
				}
				want{codes.Unavailable, "unavailable", []string{"stopping", "another"}}.check(t, "its console stops",
					err)
				if err := p.Serve(bg, 2); err != nil {
					t.Error(err)
				}
			}
		}
		// Move 1 may have been made before the stream began.
		if !seen[1] || !seen[2] || last.GetState() != marchv1.MigrationState_MIGRATION_STATE_DONE {
			t.Errorf("seen %v, last %v", seen, last)
		}
		w.holds(quarter(), 3)
		_, err = n.WatchMigration(ctx, &marchv1.WatchMigrationRequest{Id: "nonsense"})
		if err == nil {
			var bad marchv1.ConsoleService_WatchMigrationClient
			bad, err = n.WatchMigration(ctx, &marchv1.WatchMigrationRequest{Id: "nonsense"})
			if err == nil {
				_, err = bad.Recv()
			}
		}
		invalid("nonsense").check(t, "watch nonsense", err)
	})
}
