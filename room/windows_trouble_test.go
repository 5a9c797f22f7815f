package room_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/room"
)

// etcd is away for ten minutes, from any moment of a window on: no call fails once the
// process is some hours old.
func TestTenMinutesWithoutEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newEtcd(t).Open()
		tags := joinBy(t, etcd, "one")
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { tags.Run(ctx) })
		defer running.Wait()
		defer stop()
		tag := load(t, tags, "event", of(time.Millisecond))
		issue := func(lasts time.Duration) {
			for over := time.Now().Add(lasts); time.Now().Before(over); time.Sleep(time.Second) {
				next(t, tag, time.Second)
			}
		}
		issue(3 * time.Hour)
		for range 12 { // the windows end at other moments each time
			issue(10*time.Minute + 50*time.Second)
			etcd.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.NoLeader} })
			issue(10 * time.Minute)
			etcd.Fate(nil)
		}
	})
}

// As many instances as there are workers are killed again and again, twenty times in a
// minute. The next process of each waits for the window of the one before, no longer than
// young processes' windows are, and no ID comes twice.
func TestTwentyKillsInAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newEtcd(t)
		settings := of(time.Millisecond)
		settings.WorkerBits = 2 // of which room a has two
		seen := make(map[int64]bool)
		began := time.Now()
		for kill := range 22 {
			l, err := ledger.New(fake.Open(), ledger.DefaultConfig())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			tags := process(t, l, []allocator.Instance{"one", "two"}[kill%2])
			born := time.Now()
			tag := tags.Add("event", settings, nil)
			for err := tag.Warm(t.Context()); err != nil; err = tag.Warm(t.Context()) {
				if allocator.KindOf(err) != allocator.Unavailable || time.Since(born) > worker.Shortest+time.Second {
					t.Fatalf("kill %d, after %v: %v", kill, time.Since(born), err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			for range 100 {
				id, err := tag.Next(t.Context())
				if err != nil || seen[id] {
					t.Fatalf("kill %d: %d, issued before: %v, %v", kill, id, seen[id], err)
				}
				seen[id] = true
			}
			time.Sleep(max(0, time.Duration(kill+1)*time.Minute/22-time.Since(began)))
		}
		if lasted := time.Since(began); lasted > 70*time.Second {
			t.Errorf("it took %v", lasted)
		}
	})
}

// wrongClock returns the tags of an instance whose clock is ahead.
func wrongClock(t *testing.T, etcd *ledgertest.Fake, name allocator.Instance, ahead *time.Duration,
	log io.Writer) (*room.Windows, *ledger.Ledger) {
	l, err := ledger.New(etcd.Open(), ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	i, err := l.Join(t.Context(), ledger.Registration{Room: "a", Name: name, Address: string(name) + ".test:7010",
		Build: "test"})
	if err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return time.Now().Add(*ahead) }
	cfg := worker.DefaultConfig()
	cfg.Now = now
	workers, err := worker.New(i, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return room.NewWindows(room.WindowsConfig{
		Workers: workers, Clock: func() int64 { return now().UnixMilli() },
		Logger: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Warn}),
	}), l
}

// look lets time pass, with looks as Run has them.
func look(t *testing.T, tags *room.Windows, d time.Duration) {
	for range d / (250 * time.Millisecond) {
		time.Sleep(250 * time.Millisecond)
		tags.Look(t.Context())
	}
}

// A clock leaps an hour ahead, and is mended. The tags go on at once, with another worker, as after a restart. Before,
// they issued nothing for an hour. A tag that was not asked meanwhile and one that is new have IDs, too.
func TestALeapOfTheClockIsMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead time.Duration
		var log bytes.Buffer
		etcd := newEtcd(t)
		tags, _ := wrongClock(t, etcd, "one", &ahead, &log)
		event, second := load(t, tags, "event", of(time.Millisecond)), load(t, tags, "second", of(time.Second))
		before := next(t, event, time.Second)
		look(t, tags, time.Minute)
		ahead = time.Hour
		look(t, tags, 6*time.Second) // the window is renewed
		leapt := next(t, event, time.Second)
		if leapt.Time < time.Now().Add(time.Hour-time.Minute).UnixMilli() {
			t.Fatalf("an ID of %v under a clock an hour ahead", leapt.Time)
		}
		next(t, second, 2*time.Second)
		ahead = 0
		look(t, tags, time.Second)
		now := time.Now().UnixMilli()
		for _, tag := range []*room.TimeTag{event, second, load(t, tags, "later", of(time.Millisecond))} {
			after := next(t, tag, 2*time.Second)
			if after.Worker == before.Worker || after.Time > now+2000 {
				t.Errorf("tag %s: worker %d at %d; it is %d, and worker %d is ahead", tag.Name(), after.Worker,
					after.Time, now, before.Worker)
			}
		}
		if can, why := tags.Trouble(); !can || why != nil {
			t.Error(why)
		}
		if !strings.Contains(log.String(), "the clock went back") {
			t.Errorf("it says: %s", log.String())
		}
		// The old worker's number is as long in use as it issued ahead.
		other, _ := wrongClock(t, etcd, "two", &ahead, &log)
		if got := next(t, load(t, other, "event", of(time.Millisecond)), time.Second); got.Worker == before.Worker {
			t.Errorf("worker %d, which issued ahead, was taken again", got.Worker)
		}
	})
}

// Where no other worker is free, the tags wait for the clock, with the one that they have.
func TestALeapOfTheClockWithOneWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := time.Minute
		var log bytes.Buffer
		tags, _ := wrongClock(t, newEtcd(t), "one", &ahead, &log)
		one := of(time.Millisecond)
		one.TimeBits, one.WorkerBits = 33, 1 // room a has half of the two workers
		tag := load(t, tags, "event", one)
		before := next(t, tag, time.Second)
		ahead = 0
		look(t, tags, 30*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if id, err := tag.Next(ctx); err == nil {
			t.Fatalf("ID %d", id)
		}
		look(t, tags, 31*time.Second)
		if after := next(t, tag, time.Second); after.Worker != before.Worker || after.Time < before.Time {
			t.Errorf("got %+v after %+v", after, before)
		}
	})
}

// A clock goes back, and the worker is exchanged: no window of the new one lies above the
// tag's last ID yet. That is no error for a person to act on, as the tag goes on by itself.
func TestAnExchangeUnderAClockThatWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := 8 * time.Second
		var log bytes.Buffer
		tags, l := wrongClock(t, newEtcd(t), "one", &ahead, &log)
		tag := load(t, tags, "event", of(time.Millisecond))
		before := next(t, tag, time.Second)
		ahead = 0
		a := admin.New(l, admin.DefaultConfig())
		stored, err := l.Refresh(t.Context())
		if err == nil {
			_, err = a.ChangeLayout(t.Context(), stored, allocator.Layout{Boundary: 100,
				Ranges: map[allocator.Room]allocator.Range{"b": {Lower: 0, Upper: 50}, "a": {Lower: 50, Upper: 100}}},
				"test")
		}
		if err != nil {
			t.Fatal(err)
		}
		if !tags.ExchangeMoved(t.Context()) {
			t.Fatal("not adopted")
		}
		if !strings.Contains(log.String(), "waits for the clock") || strings.Contains(log.String(), "[ERROR]") {
			t.Errorf("it says: %s", log.String())
		}
		look(t, tags, 10*time.Second)
		if after := next(t, tag, time.Second); after.Worker == before.Worker || after.Time <= before.Time {
			t.Errorf("%+v after %+v", after, before)
		}
	})
}
