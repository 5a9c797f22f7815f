package worker_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
)

// watches has p follow etcd's changes until the test ends, from before it returns. The test runs in
// a bubble. It returns a channel with a value for each time that p heard of a lost worker.
func (p *process) watches(t *testing.T) <-chan struct{} {
	t.Helper()
	lost := make(chan struct{}, 10)
	p.OnLostWorkers(func() { lost <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.ledger.Run(ctx, func(ledger.TagChange) {}, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return lost
}

// A window ends for its holder as soon as its key is no longer what the holder wrote: the room's
// user of etcd deletes the key, say, and an honest instance of the room takes the number. The holder
// went on to the window's end.
func TestWindowEndsWithItsKey(t *testing.T) {
	keys := record.Keys("/march/default/")
	for name, change := range map[string]func(c *cluster, key string){
		"deleted":           func(c *cluster, key string) { c.fake.Corrupt(store.Op{Delete: key}) },
		"damaged":           func(c *cluster, key string) { c.corrupt(key, []byte("x")) },
		"another process's": func(c *cluster, key string) { c.corrupt(key, stolen.Encode()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, halves)
				p := c.start("a")
				lost := p.watches(t)
				w, other := p.take(ms(10)), p.take(ms(9))
				c.pass(2 * time.Second)
				p.renew(w) // what it writes itself ends nothing
				change(c, keys.Window("a", w.ID()))
				<-lost
				if p.Holds(w) || !p.Holds(other) {
					t.Errorf("holds the worker: %v, and another one: %v", p.Holds(w), p.Holds(other))
				}
				err := p.Renew(bg, w)
				if gone, ok := errors.AsType[*worker.LostError](err); !ok {
					t.Errorf("renewed: %v, %v", gone, err)
				}
			})
		})
	}
}

// stolen is a worker's key as another honest instance of the room writes it.
var stolen = record.Worker{Room: "a", Instance: "x", Incarnation: "x", From: start, Until: start + 60_000,
	Stamp: record.Stamp{Epoch: "e", Revision: 1}}

// A watch that begins reads the keys of held workers: one before it may have missed a change.
func TestWatchThatBeginsReadsHeldWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, halves)
		p := c.start("a")
		w, other := p.take(ms(10)), p.take(ms(9))
		c.corrupt(record.Keys("/march/default/").Window("a", w.ID()), stolen.Encode())
		<-p.watches(t)
		if p.Holds(w) || !p.Holds(other) {
			t.Errorf("holds the worker: %v, and another one: %v", p.Holds(w), p.Holds(other))
		}
	})
}

// A key that was gone before the watch began ends nothing, because an etcd that went back in time
// lacks it too. The watch shows whoever takes the number next, and the window ends then.
func TestWindowOfAMissedDeleteEndsWhenTheNumberIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, halves)
		p := c.start("a")
		w, other := p.take(ms(10)), p.take(ms(9))
		key := record.Keys("/march/default/").Window("a", w.ID())
		c.fake.Corrupt(store.Op{Delete: key})
		lost := p.watches(t)
		if !p.Holds(w) {
			t.Error("the window ended with a key that nobody was seen to delete")
		}
		c.corrupt(key, stolen.Encode())
		<-lost
		if p.Holds(w) || !p.Holds(other) {
			t.Errorf("holds the worker: %v, and another one: %v", p.Holds(w), p.Holds(other))
		}
	})
}

// A process that stood still, or whose renewals failed, until its window was over finds that another
// process took the number. That is in order: an error in the log is for a window that overlaps its
// own. The chaos test fails with an error in a log.
func TestNumberTakenAfterTheWindowIsNoError(t *testing.T) {
	for name, begins := range map[string]struct {
		after int64 // the end of the holder's window, in ms
		level string
	}{
		"at the end": {0, "[INFO]"},
		"later":      {5000, "[INFO]"},
		"before":     {-1, "[ERROR]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, halves)
				var log bytes.Buffer
				c.log = hclog.New(&hclog.LoggerOptions{Output: &log, DisableTime: true})
				p := c.start("a")
				lost := p.watches(t)
				w := p.take(ms(10))
				next := stolen
				next.From = w.Window().Until + begins.after
				c.pass(time.Second)
				p.conn.Next(ledgertest.Fate{Name: ledgertest.NotDone}, ledgertest.PutsUnder("windows/"))
				if err := p.Renew(bg, w); allocator.KindOf(err) != allocator.Unavailable {
					t.Fatalf("a renewal that etcd did not take: %v", err)
				}
				next.Until = next.From + 60_000
				c.corrupt(record.Keys("/march/default/").Window("a", w.ID()), next.Encode())
				<-lost
				if p.Holds(w) {
					t.Error("the window did not end with its key")
				}
				if !strings.Contains(log.String(), begins.level) ||
					strings.Contains(log.String(), "ERROR") != (begins.level == "[ERROR]") {
					t.Errorf("want a line of level %s:\n%s", begins.level, log.String())
				}
			})
		})
	}
}
