package console

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// A part that callers want is read while they ask, and wantedFor longer.
func TestPartIsReadWhileCallersWantIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		d := newDemand()
		var reads atomic.Int32
		go d.run(ctx, func(context.Context) time.Duration {
			time.Sleep(time.Second)
			reads.Add(1)
			return 4 * time.Second
		})
		for _, want := range []int32{0, 2, 4} { // each request has it read at once, and 5 s later
			time.Sleep(time.Minute)
			if n := reads.Load(); n != want {
				t.Errorf("%d reads, want %d", n, want)
			}
			d.ask()
		}
	})
}

// Calls at the same time share a read of the cluster that began after each of them. Each saw etcd as it was after the
// call began, and an etcd that does not answer is asked once for all.
func TestCallsShareAReadOfTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.join("a", "one", time.Minute)
		conn := b.Mem.Open()
		s := b.consoleOver(conn)
		var reads atomic.Int32
		away := false
		conn.Fate(func(txn store.Txn) (fate ledgertest.Fate) {
			if get := txn.Then[0].Get; get != nil && strings.Contains(get.Key, "migration") {
				reads.Add(1)
				time.Sleep(time.Second)
			}
			if away {
				fate.Name = ledgertest.NoLeader
			}
			return fate
		})
		call := func(calls int) (failed int32) {
			var work sync.WaitGroup
			var errs atomic.Int32
			for range calls {
				time.Sleep(time.Millisecond)
				work.Go(func() {
					if _, err := s.fresh(bg); err != nil {
						errs.Add(1)
					}
				})
			}
			work.Wait()
			return errs.Load()
		}
		if failed := call(100); failed > 0 || reads.Load() != 4 {
			t.Errorf("%d calls failed, and etcd was read %d times, want 4: two at once, and two after these",
				failed, reads.Load())
		}
		began := time.Now()
		away = true
		if failed := call(10); failed != 10 || time.Since(began) > 10*time.Second {
			t.Errorf("%d calls failed, after %v", failed, time.Since(began))
		}
	})
}

// While etcd does not answer, each part of the snapshot ages by itself: the cluster stays as it was and says as of
// when, and answers that are too old are unknown, not 0.
func TestSnapshotAgesPartByPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.join("a", "one", time.Minute)
		conn := b.Mem.Open()
		s := b.consoleOver(conn)
		now, outage, err := s.shown(bg)
		if err != nil || outage != nil || len(now.instances) != 1 {
			t.Fatalf("%+v, %v, %v", now, outage, err)
		}
		read := now.at
		conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.NoLeader} })
		if now, outage, err = s.shown(bg); err != nil || len(outage) != 1 || now.at != read {
			t.Fatalf("without etcd: %+v, %v, %v", now, outage, err)
		}
		s.publish(func(next *snapshot) {
			next.answers = tells(map[record.InstanceID]*marchv1.InstanceStatus{"a/one": {Held: 5}})
			next.answers.came = time.Now()
		})
		for _, held := range []int64{5, 0} {
			o := must(s.GetOverview(bg, &marchv1.GetOverviewRequest{}))(t)
			r := o.GetRooms()[0]
			if known := held > 0; r.GetHeld() != held || (o.GetAsOf() != nil) != known || r.Rate != nil ||
				!strings.Contains(o.GetProblems()[0].GetEffect(), "is as of "+read.UTC().Format(time.DateTime)) {
				t.Errorf("known %t: %v", known, o)
			}
			time.Sleep(sampleAge + time.Second)
		}
		if _, err := s.fresh(bg); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("a call that needs etcd: %v", err)
		}
	})
}
