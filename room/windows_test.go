package room_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/room"
)

// start returns the tags of an instance of room a, which has half of all workers, and runs
// them until the test ends. The test is in a bubble.
func start(t *testing.T) *room.Windows {
	t.Helper()
	tags := join(t, newEtcd(t), "one")
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		tags.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-over
	})
	return tags
}

// newEtcd returns an etcd with a layout of two rooms.
func newEtcd(t *testing.T) *ledgertest.Fake {
	t.Helper()
	fake := ledgertest.NewFake(t)
	l, err := ledger.New(fake.Open(), ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	layout, err := allocator.EqualLayout(100, []allocator.Room{"a", "b"})
	if err == nil {
		_, err = admin.New(l, admin.DefaultConfig()).Init(t.Context(), layout, "test")
	}
	if err != nil {
		t.Fatal(err)
	}
	return fake
}

// join returns the tags of an instance of room a, which nothing renews.
func join(t *testing.T, etcd *ledgertest.Fake, name allocator.Instance) *room.Windows {
	t.Helper()
	return joinBy(t, etcd.Open(), name)
}

// joinBy is join by a connection.
func joinBy(t *testing.T, etcd *ledgertest.Conn, name allocator.Instance) *room.Windows {
	t.Helper()
	l, err := ledger.New(etcd, ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	tags := process(t, l, name)
	t.Cleanup(func() {
		if err := tags.Close(context.Background()); err != nil {
			t.Error(err)
		}
		_ = l.Close()
	})
	return tags
}

// process returns the tags of a process, which gives no worker back.
func process(t *testing.T, l *ledger.Ledger, name allocator.Instance) *room.Windows {
	t.Helper()
	i, err := l.Join(t.Context(), ledger.Registration{Room: "a", Name: name,
		Address: string(name) + ".test:7010", Build: "test"})
	if err != nil {
		t.Fatal(err)
	}
	workers, err := worker.New(i, worker.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	return room.NewWindows(room.WindowsConfig{Workers: workers})
}

// of returns a tag of a unit, which refuses to wait for a clock that went back.
func of(unit time.Duration) record.TimeTag {
	epoch := time.Now().Add(-24 * time.Hour).Truncate(time.Second).UnixMilli()
	s := record.NewTimeTag(timeid.Layout{TimeBits: 30, WorkerBits: 4, SequenceBits: 12, Unit: unit, Epoch: epoch})
	s.Rollback = timeid.Fail
	return s
}

// load loads a tag or ends the test.
func load(t *testing.T, tags *room.Windows, name allocator.Tag, s record.TimeTag) *room.TimeTag {
	t.Helper()
	tag := tags.Add(name, s, nil)
	if err := tag.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	return tag
}

// next returns the parts of a tag's next ID, and ends the test where there is none within
// a time.
func next(t *testing.T, tag *room.TimeTag, within time.Duration) timeid.Parts {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	id, err := tag.Next(ctx)
	if err != nil {
		t.Fatalf("tag %s: %v", tag.Name(), err)
	}
	p, err := tag.Settings().Layout().Decompose(id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A tag that counts seconds joins a worker that was taken for one that counts ms, in the
// middle of a second: its first caller waits for the next one, no longer than its deadline.
func TestALongerUnitJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tags := start(t)
		time.Sleep(250 * time.Millisecond)
		short := next(t, load(t, tags, "short", of(time.Millisecond)), 0+time.Millisecond)
		second := load(t, tags, "second", of(time.Second))
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if id, err := second.Next(ctx); allocator.KindOf(err) != allocator.Unavailable ||
			time.Since(began) != 100*time.Millisecond {
			t.Errorf("after %v: %d, %v", time.Since(began), id, err)
		}
		p := next(t, second, time.Second)
		if waited := time.Since(began); waited != 750*time.Millisecond || p.Worker != short.Worker ||
			p.Time != time.Now().UnixMilli() {
			t.Errorf("after %v: %+v, beside %+v", waited, p, short)
		}

		// Its next generator begins where this one ended, with the second.
		changed := second.Settings()
		changed.Sequence = timeid.Carry
		time.Sleep(100 * time.Millisecond)
		second.Update(changed)
		if p = next(t, second, time.Second); time.Since(began) != 1750*time.Millisecond ||
			p.Time != time.Now().UnixMilli() {
			t.Errorf("after %v: %+v", time.Since(began), p)
		}
	})
}

// However a second lies to the window of a young process, a tag of seconds issues.
func TestALongerUnitIsNeverRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tags := start(t)
		time.Sleep(250 * time.Millisecond)
		load(t, tags, "short", of(time.Millisecond))
		second := load(t, tags, "second", of(time.Second))
		last := timeid.Parts{}
		for n := range 100 {
			p := next(t, second, 2*time.Second)
			if p.Time < last.Time || p.Time == last.Time && p.Sequence <= last.Sequence {
				t.Errorf("%+v after %+v", p, last)
			}
			last = p
			time.Sleep(93 * time.Millisecond)
			if n%3 == 0 {
				changed := second.Settings()
				changed.CarryTo = int64(n + 1)
				second.Update(changed)
			}
		}
	})
}

// An instance that slept past its window finds that another one has its worker, and counts
// that. It issues again once a worker is free.
func TestAnotherProcessHasTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newEtcd(t)
		settings := of(time.Millisecond)
		settings.WorkerBits = 1 // of which room a has one
		one, two := join(t, etcd, "one"), join(t, etcd, "two")
		sleeper := load(t, one, "event", settings)
		before := next(t, sleeper, time.Second)
		time.Sleep(time.Minute)
		between := next(t, load(t, two, "event", settings), time.Second)
		one.Look(t.Context())
		if exchanges, conflicts := one.Exchanged(); exchanges != 1 || conflicts != 1 {
			t.Errorf("%d exchanges, %d conflicts", exchanges, conflicts)
		}
		if id, err := sleeper.Next(t.Context()); allocator.KindOf(err) != allocator.Unavailable {
			t.Errorf("it issues %d, %v while the other has the worker", id, err)
		}
		if err := two.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		after := next(t, sleeper, time.Second)
		if before.Worker != 0 || between.Worker != 0 || after.Worker != 0 || between.Time <= before.Time ||
			after.Time <= between.Time {
			t.Errorf("%+v, %+v, %+v", before, between, after)
		}
	})
}

// A caller's short deadline fails its own call alone. Other callers get IDs at once, the
// instance stays ready, and it goes on to take the worker.
func TestADeadlineIsTheCallersOwn(t *testing.T) {
	for name, ahead := range map[string]func(*testing.T, *room.Windows){
		"then another caller": func(*testing.T, *room.Windows) {},
		"then a look":         func(t *testing.T, tags *room.Windows) { tags.Look(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd := newEtcd(t).Open()
				tags := joinBy(t, etcd, "one")
				slow := true
				etcd.Fate(func(txn store.Txn) ledgertest.Fate {
					if slow && ledgertest.Writes(txn) {
						time.Sleep(time.Second)
						return ledgertest.Fate{Name: ledgertest.DoneAnswerLost}
					}
					return ledgertest.Fate{}
				})
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				tag := tags.Add("event", of(time.Millisecond), nil)
				if err := tag.Warm(ctx); allocator.KindOf(err) != allocator.Unavailable {
					t.Fatalf("got %v", err)
				}
				if _, err := tags.Trouble(); err != nil {
					t.Errorf("the instance is not ready: %v", err)
				}
				slow = false
				ahead(t, tags)
				next(t, tag, 100*time.Millisecond)
			})
		})
	}
}

// An instance that cannot take a worker says why, with any deadlines of callers.
func TestAnOutageIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newEtcd(t).Open()
		tags := joinBy(t, etcd, "one")
		etcd.Fate(func(store.Txn) ledgertest.Fate {
			time.Sleep(time.Second)
			return ledgertest.Fate{Name: ledgertest.NoLeader}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		tag := tags.Add("event", of(time.Millisecond), nil)
		if err := tag.Warm(ctx); allocator.KindOf(err) != allocator.Unavailable {
			t.Fatalf("got %v", err)
		}
		tags.Look(t.Context())
		if can, err := tags.Trouble(); can || allocator.KindOf(err) != allocator.Unavailable {
			t.Errorf("got %v", err)
		}
		etcd.Fate(nil)
	})
}
