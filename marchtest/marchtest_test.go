package marchtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/api/client"
	"github.com/march-id/march/marchtest"
)

// next returns an ID of a room, where a call may wait for a few seconds.
func next(t *testing.T, ids *client.Client) (int64, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return ids.Next(ctx, "order")
}

// TestCluster: a client goes on while etcd is away and a room is killed, and follows a move.
func TestCluster(t *testing.T) {
	t.Parallel()
	began := time.Now()
	march := marchtest.Start(t, marchtest.Rooms("eu", "us"), marchtest.Boundary(1000))
	t.Logf("started within %v", time.Since(began).Round(time.Millisecond))
	ids := march.Client("us", func(o *client.Options) {
		o.Discover = &client.Discover{Consoles: []string{march.Console()}, Room: "us", Every: time.Second}
	})
	if id, err := next(t, ids); err != nil || id != 500 {
		t.Fatalf("%d, %v", id, err)
	}
	march.StopEtcd()
	if id, err := next(t, ids); err != nil || id != 501 {
		t.Errorf("without etcd: %d, %v", id, err)
	}
	march.StartEtcd()
	march.KillRoom("us")
	if id, err := next(t, ids); err != nil || id != 502 {
		t.Errorf("without a room: %d, %v", id, err)
	}
	march.StartRoom("us")

	if in, err := ids.RoomOf(t.Context(), 4700); err != nil || in != "us" {
		t.Errorf("%s, %v", in, err)
	}
	march.Move(map[string][2]int64{"eu": {0, 800}, "us": {800, 1000}})
	segment, err := ids.Lease(t.Context(), "order", 5) // which shows the move
	if err != nil || segment.First%1000 < 800 {
		t.Fatalf("%v, %v", segment, err)
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		id, err := next(t, ids)
		in, errOf := ids.RoomOf(t.Context(), 4700)
		if err == nil && errOf == nil && id%1000 >= 800 && in == "eu" {
			break
		}
		if err != nil || time.Now().After(until) {
			t.Fatalf("after the move: %d, %v; %s, %v", id, err, in, errOf)
		}
	}
	if place, err := ids.Decode(t.Context(), 4700); err != nil ||
		place != (client.Place{Version: 2, Block: 4, Residue: 700, Room: "eu"}) {
		t.Errorf("%+v, %v", place, err)
	}
}

// TestRestore: after a restore of etcd nothing is leased, and the layout is that of the backup.
func TestRestore(t *testing.T) {
	t.Parallel()
	march := marchtest.Start(t, marchtest.Tags("order", "other"))
	ids := march.Client("a")
	backup := march.Backup()
	if _, err := next(t, ids); err != nil {
		t.Fatal(err)
	}
	march.Move(map[string][2]int64{"a": {0, 300}, "b": {300, 1000}})
	if layout := march.Layout(); layout.Version != 2 || layout.Ranges["a"].Upper != 300 {
		t.Errorf("moved: %v", layout)
	}
	march.Restore(backup)
	if layout := march.Layout(); layout.Version != 1 || layout.Ranges["a"].Upper != 500 {
		t.Errorf("restored: %v", layout)
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := ids.Lease(t.Context(), "other", 100_000)
		if errors.Is(err, client.WentBack) {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("after a restore: %v", err)
		}
	}
	if _, err := ids.Next(t.Context(), "no-such-tag"); err == nil {
		t.Error("a tag that is not there has IDs")
	}
}

// TestSkew: clocks that a test puts ahead are the rooms' clocks.
func TestSkew(t *testing.T) {
	t.Parallel()
	march := marchtest.Start(t, marchtest.Rooms("one"), marchtest.Instances(2))
	if n := len(march.Addresses("one")); n != 2 || len(march.URLs("one")) != 2 {
		t.Errorf("%d instances", n)
	}
	march.Skew("one", time.Hour)
	if _, err := next(t, march.Client("one")); err != nil {
		t.Error(err)
	}
}
