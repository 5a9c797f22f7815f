package timetags_test

import (
	"bytes"
	"context"
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
	"github.com/march-id/march/room/timetags"
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
			tag, err := tags.Load(t.Context(), "event", settings, nil)
			for ; err != nil; tag, err = tags.Load(t.Context(), "event", settings, nil) {
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

// A clock goes back, and the worker is exchanged: no window of the new one lies above the
// tag's last ID yet. That is no error for a person to act on, as the tag goes on by itself.
func TestAnExchangeUnderAClockThatWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := ledger.New(newEtcd(t).Open(), ledger.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		i, err := l.Join(t.Context(), ledger.Registration{Room: "a", Name: "one",
			Address: "one.test:7010", Build: "test"})
		if err != nil {
			t.Fatal(err)
		}
		ahead := 8 * time.Second
		now := func() time.Time { return time.Now().Add(ahead) }
		var log bytes.Buffer
		cfg := worker.DefaultConfig()
		cfg.Now = now
		workers, err := worker.New(i, cfg)
		if err != nil {
			t.Fatal(err)
		}
		tags := timetags.New(timetags.Config{
			Workers: workers, Clock: func() int64 { return now().UnixMilli() },
			Logger: hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Warn}),
		})
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
		for range 40 { // as Run does
			time.Sleep(250 * time.Millisecond)
			tags.Look(t.Context())
		}
		if after := next(t, tag, time.Second); after.Worker == before.Worker || after.Time <= before.Time {
			t.Errorf("%+v after %+v", after, before)
		}
	})
}
