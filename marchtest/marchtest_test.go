package marchtest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
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

// refused is a test that Start ends.
type refused struct {
	testing.TB
	with string
}

func (*refused) Helper() {}

func (r *refused) Fatal(args ...any) {
	r.with = fmt.Sprint(args...)
	runtime.Goexit()
}

// TestBubble: in a bubble Start says that it does not work there.
func TestBubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, ended := &refused{TB: t}, make(chan struct{})
		go func() {
			defer close(ended)
			marchtest.Start(r)
		}()
		if <-ended; !strings.Contains(r.with, "synctest") {
			t.Errorf("%q", r.with)
		}
	})
}

// TestSkew: clocks that a test puts ahead are the rooms' clocks: their time is in the IDs of a time-ordered tag.
func TestSkew(t *testing.T) {
	t.Parallel()
	march := marchtest.Start(t, marchtest.Rooms("one"), marchtest.Instances(2))
	if n := len(march.Addresses("one")); n != 2 || len(march.URLs("one")) != 2 {
		t.Errorf("%d instances", n)
	}
	console := marchv1.NewConsoleServiceClient(testcluster.Dial(t, march.Console()))
	if _, err := console.CreateTag(t.Context(), &marchv1.CreateTagRequest{Tag: &marchv1.Tag{Name: "event",
		Time: &marchv1.TimeTag{Preset: "cosid"}}}); err != nil {
		t.Fatal(err)
	}
	ids := march.Client("one")
	for _, ahead := range []time.Duration{time.Hour, 2 * time.Hour} {
		march.Skew("one", ahead)
		began := time.Now()
		id, err := ids.Next(t.Context(), "event")
		if err != nil {
			t.Fatal(err)
		}
		in := time.UnixMilli(timeid.EpochCosId + id>>22).Add(-ahead) // 10 bits of the worker, 12 of the sequence
		if in.Before(began.Truncate(time.Millisecond)) || in.After(time.Now()) {
			t.Errorf("%v ahead: the ID's time is %v, taken from %v to %v", ahead, in.Add(ahead), began, time.Now())
		}
	}
}

// TestStart: a cluster starts within half a second where its etcd alone starts within 25 ms, as on an idle machine. The
// best of some tries counts: others may have the processors meanwhile.
func TestStart(t *testing.T) {
	etcd, all := time.Hour, time.Hour
	for range 5 {
		t.Run("", func(t *testing.T) {
			began := time.Now()
			testcluster.New(t)
			etcd = min(etcd, time.Since(began))
			began = time.Now()
			marchtest.Start(t, marchtest.Rooms("eu", "us"), marchtest.Boundary(1000))
			all = min(all, time.Since(began))
		})
	}
	if t.Logf("etcd alone started within %v, a cluster within %v", etcd, all); all > 20*etcd {
		t.Error("a cluster starts too slowly")
	}
}
