package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/api/client"
)

// TestKillUnderAClient kills or stops the only instance of a room and starts it again, many
// times, under the load of a client. The client's reserve lasts: no call fails, and no ID
// comes twice.
func TestKillUnderAClient(t *testing.T) {
	t.Parallel()
	address, start := consoleProcess(t,
		`{"boundary":100,"rooms":{"a":{"lower":0,"upper":30},"b":{"lower":30,"upper":100}}}`)
	if _, stderr, code := march(t, "tag", "create", "order", "--min-step", "10000000", "--console",
		address(0)); code != exitOK {
		t.Fatal(stderr)
	}
	startRoom := func() *process {
		return start("room", "a", "--name", "a-0", "--grpc", address(1), "--http", "", "--warm-tags", "order").ready(t)
	}
	room := startRoom()

	// A client knows its rate after some seconds. Until then its reserve is a step of its
	// own choice.
	const step = 2_000_000
	ids, err := client.New(t.Context(), client.Options{Addresses: []string{address(1)},
		WarmTags: []string{"order"}, MinStep: step})
	if err != nil {
		t.Fatal(err)
	}
	defer ids.Close()
	order, err := ids.Tag("order")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mayTake atomic.Int64 // so many IDs: the reserve lasts however long a room takes to start
	const callers = 4
	got := make([][]allocator.Run, callers+1) // the last one is for the batches below
	var calling sync.WaitGroup
	for i := range callers {
		calling.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				if mayTake.Add(-51) < 0 {
					mayTake.Add(51)
					continue
				}
				var err error
				if got[i], err = order.NextN(t.Context(), 50, got[i]); err != nil { // adjacent runs are joined
					t.Errorf("a call failed: %v", err)
				}
				id, err := order.Next(t.Context())
				if err != nil {
					t.Errorf("a call failed: %v", err)
				}
				got[i] = append(got[i], allocator.Run{First: id, Count: 1})
			}
		})
	}
	leased := func(since int64) func() bool { return func() bool { return order.Status().Refills > since } }
	const kills = 6
	for n := range kills {
		signal := syscall.SIGKILL
		if n%3 == 2 {
			signal = syscall.SIGTERM
		}
		if _, err := room.stop(patience(t), signal); err != nil {
			t.Fatal(err)
		}
		issued := order.Status().Issued
		mayTake.Add(step / 50)
		// without any room
		if err := poll(patience(t), func() bool { return order.Status().Issued > issued+10_000 }); err != nil {
			t.Fatal(err)
		}
		room = startRoom()
		if n%2 == 0 { // otherwise it goes down again before it leased anything
			// Have the client ask for a segment, as it does when its IDs run low.
			refills := order.Status().Refills
			runs, err := order.NextN(t.Context(), order.Status().Held/2, nil)
			if err != nil {
				t.Errorf("a call failed: %v", err)
			}
			got[callers] = append(got[callers], runs...)
			if err := poll(patience(t), leased(refills)); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	calling.Wait()
	all := slices.Concat(got...)
	slices.SortFunc(all, func(a, b allocator.Run) int { return int(min(max(a.First-b.First, -1), 1)) })
	end, total := int64(0), int64(0)
	for _, run := range all {
		for id := run.First; id < run.First+run.Count; id++ {
			if id%100 >= 30 {
				t.Fatalf("%d is not of room a", id)
			}
		}
		if run.First < end {
			t.Fatalf("%d was issued twice", run.First)
		}
		end = run.First + run.Count
		total += run.Count
	}
	s := order.Status()
	t.Logf("%d IDs, %d kills and stops, %d leases, %d waits", total, kills, s.Refills, s.Waits)
}

// consoleProcess runs an etcd in this process and a console in its own, and makes a layout. It returns
// the addresses of servers, the console's at offset 0, and what starts another process on that etcd.
func consoleProcess(t *testing.T, layout string) (address func(offset int) string,
	start func(args ...string) *process) {
	t.Helper()
	etcd := ledgertest.StartEtcd(t)
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	address = func(offset int) string { return fmt.Sprintf("127.0.0.1:%d", base+offset) }
	start = func(args ...string) *process {
		t.Helper()
		return begin(t, "", nil, append(args, "--etcd", etcd.Endpoint)...)
	}
	start("console", "--grpc", address(0), "--http", "").ready(t)
	file := filepath.Join(t.TempDir(), "layout.json")
	if err := os.WriteFile(file, []byte(layout), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := march(t, "layout", "init", file, "--console", address(0)); code != exitOK {
		t.Fatal(stderr)
	}
	return address, start
}
