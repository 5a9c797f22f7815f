package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
)

// room is what a keeper tells of one width: the worker, and where its generator is.
type room struct {
	c        *cluster
	has      *worker.Worker
	changes  int
	extended int
}

func (r *room) config() worker.KeeperConfig {
	return worker.KeeperConfig{
		Changed: func(_ int, was, now *worker.Worker) int64 {
			if was != r.has {
				r.c.tb.Errorf("worker %v is replaced, and is not the present one", was.ID())
			}
			r.has = now
			r.changes++
			return time.Now().UnixMilli() // a generator was busy until now
		},
		Extended: func(*worker.Worker) { r.extended++ },
	}
}

// keeping runs a keeper for an instance whose clock is the test's.
func (c *cluster) keeping(ctx context.Context) (*process, *room, *worker.Keeper, func()) {
	r := &room{c: c}
	p := c.start("a", func(cfg *worker.Config) {
		cfg.Now, cfg.Elapsed = time.Now, nil
	})
	k := worker.NewKeeper(p.Workers, r.config())
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := k.Run(ctx); err != nil {
			c.tb.Error(err)
		}
	}()
	return p, r, k, func() { stop(); <-done }
}

// A keeper takes a worker and renews it with few writes. An etcd that is away for the
// reserve ends no window. At the end the worker is given back.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, halves)
		p, r, k, stop := c.keeping(t.Context())
		puts := 0
		away := false
		p.conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if putsWorker(txn) {
				puts++
			}
			if away {
				return ledgertest.Fate{Name: ledgertest.NotDone}
			}
			return ledgertest.Fate{}
		})
		k.Want(10, time.Millisecond)
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.has == nil || r.extended == 0 {
			t.Fatalf("after a minute: %+v", r)
		}
		if w, err := k.Worker(10); w != r.has || err != nil {
			t.Errorf("%+v, %v", w, err)
		}
		time.Sleep(time.Hour)
		puts = 0
		time.Sleep(time.Hour)
		if puts > 13 {
			t.Errorf("%d writes in an hour", puts)
		}
		for range 5 {
			time.Sleep(7 * time.Minute)
			away = true
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if left := r.has.Window().Until - time.Now().UnixMilli(); left < 0 {
				t.Errorf("the window was over for %d ms", -left)
			}
			away = false
		}
		had := r.has
		stop()
		if until := c.stored(had.ID()).Until; until > time.Now().UnixMilli() || r.has != nil || r.changes != 2 {
			t.Errorf("given back until %d, %+v", until, r)
		}
	})
}

// A layout takes the worker away: the keeper takes another, then gives the first back,
// and the room may report the layout.
func TestKeeperMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, halves)
		p, r, k, stop := c.keeping(t.Context())
		defer stop()
		following, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = p.ledger.Run(following, func(ledger.TagChange) {}) }()
		defer func() { end(); <-done }()
		k.Want(1, time.Millisecond)
		time.Sleep(time.Hour)
		synctest.Wait()
		was := r.has
		c.move(map[allocator.Room]allocator.Range{"a": {Lower: 50, Upper: 100}, "b": {Lower: 0, Upper: 50}})
		time.Sleep(time.Second)
		synctest.Wait()
		l, _ := p.ledger.Layout()
		if r.has == was || r.has.ID().Number != 1 || !k.Fits(l.Layout) || k.Fits(allocator.Layout{}) {
			t.Errorf("%+v, %+v", r, was.ID())
		}
		if until := c.stored(was.ID()).Until; until > time.Now().UnixMilli() {
			t.Errorf("the first ends at %d", until)
		}
	})
}

// Where no worker is free the keeper waits, and says until when. What was dropped it
// tells at once.
func TestKeeperWaitsAndDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, halves)
		_, first, k1, stop1 := c.keeping(t.Context())
		k1.Want(0, time.Millisecond)
		time.Sleep(time.Second)
		p, second, k2, stop2 := c.keeping(t.Context())
		defer stop2()
		k2.Want(0, time.Millisecond)
		time.Sleep(time.Second)
		synctest.Wait()
		if l, _ := p.ledger.Layout(); !k2.Fits(l.Layout) {
			t.Error("no worker is held, and the layout does not fit")
		}
		w, err := k2.Worker(0)
		if _, busy := errors.AsType[*worker.BusyError](err); w != nil || !busy || first.has == nil {
			t.Errorf("%v, %v", w, err)
		}
		stop1()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if second.has == nil {
			_, err := k2.Worker(0)
			t.Fatal(err)
		}
		p.ReleaseWorker(second.has.ID())
		k2.Rouse()
		synctest.Wait()
		if second.changes < 2 {
			t.Error("the drop was not told")
		}
	})
}
