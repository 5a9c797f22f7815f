package history_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

type tb interface {
	ledgertest.TB
	Fatal(args ...any)
	Cleanup(func())
}

// recorded is a store with a recorder of its history.
type recorded struct {
	tb    tb
	store *ledgertest.Fake
	dir   string
	admin *admin.Admin
	stop  func()

	stalled atomic.Bool // the recorder's watches bring nothing
}

// stalling is a store whose watches can be made to bring nothing, like those of a member that
// hangs.
type stalling struct {
	*ledgertest.Conn
	stalled *atomic.Bool
}

func (s *stalling) Watch(ctx context.Context, intervals []store.Interval, from int64) <-chan store.Change {
	out := make(chan store.Change)
	go func() {
		defer close(out)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for change := range s.Conn.Watch(ctx, intervals, from) {
			if s.stalled.Load() {
				<-ctx.Done()
				return
			}
			select {
			case out <- change:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// recording records the history of a new store in dir.
func recording(tb tb, dir string) *recorded {
	r := &recorded{tb: tb, store: ledgertest.NewFake(tb), dir: dir}
	r.admin = admin.New(r.open(), admin.DefaultConfig())
	r.follow()
	_ = r.wait() // a mark before the recorder's first look is no rise
	return r
}

// follow records until stop.
func (r *recorded) follow() {
	ctx, cancel := context.WithCancel(bg)
	var done sync.WaitGroup
	done.Go(func() {
		conn := &stalling{Conn: r.store.Open(), stalled: &r.stalled}
		if err := history.Follow(ctx, history.Config{Cluster: "default", Dir: r.dir, Store: conn,
			CheckEvery: 10 * time.Millisecond}); err != nil {
			r.tb.Errorf("follow: %v", err)
		}
		_ = conn.Close()
	})
	r.stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	r.tb.Cleanup(r.stop)
}

func (r *recorded) open() *ledger.Ledger {
	l, err := ledger.New(r.store.Open(), ledger.DefaultConfig())
	if err != nil {
		r.tb.Fatal(err)
	}
	return l
}

// read waits until everything is recorded, and reads it.
func (r *recorded) read() *history.History {
	r.tb.Helper()
	// The recorder does not see the revision of a delete. So write a key that it ignores after
	// it.
	r.store.Corrupt(store.Op{Put: &store.Put{Key: prefix + "migration", Value: []byte("x")}})
	return r.wait()
}

// await polls until done. The limit only ends a test that hangs.
func (r *recorded) await(what string, done func() bool) {
	r.tb.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.tb.Fatalf("not within a minute: %s", what)
		}
	}
}

// wait is read, but does not wait for deletes at the end.
func (r *recorded) wait() (h *history.History) {
	r.tb.Helper()
	want := r.store.Revision()
	r.await(fmt.Sprintf("recorded up to revision %d", want), func() bool {
		var err error
		h, err = history.Read(r.dir, "default")
		return err == nil && len(h.Lives) > 0 && h.Lives[len(h.Lives)-1].Last >= want
	})
	return h
}

func (r *recorded) init(text string) {
	r.tb.Helper()
	if _, err := r.admin.Init(bg, ledgertest.Lay(r.tb, text), "test"); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *recorded) change(text string) {
	r.tb.Helper()
	from, err := r.admin.Ledger.Refresh(bg)
	if err == nil {
		_, err = r.admin.ChangeLayout(bg, from, ledgertest.Lay(r.tb, text), "test")
	}
	if err != nil {
		r.tb.Fatal(err)
	}
}

func (r *recorded) tag(name allocator.Tag) {
	r.tb.Helper()
	if _, err := r.admin.CreateTag(bg, name, record.DefaultTag(), "test"); err != nil {
		r.tb.Fatal(err)
	}
}

// instance is an instance of a room, with a source of a tag.
type instance struct {
	*ledger.Instance
	source allocator.Source
}

func (r *recorded) join(room allocator.Room, name allocator.Instance, tag allocator.Tag) instance {
	r.tb.Helper()
	joined, err := r.open().Join(bg, ledger.Registration{Room: room, Name: name,
		Address: fmt.Sprintf("%s.%s.test:7010", name, room)})
	if err != nil {
		r.tb.Fatal(err)
	}
	source, _, err := joined.Source(bg, tag)
	if err != nil {
		r.tb.Fatal(err)
	}
	return instance{joined, source}
}

// lease leases n IDs. It tries again, because an instance that saw a halt checks only from time
// to time whether the halt has ended.
func (r *recorded) lease(i instance, n int64) allocator.Segment {
	r.tb.Helper()
	var seg allocator.Segment
	var err error
	r.await("the halt has ended", func() bool {
		seg, err = i.source.Lease(bg, n)
		return allocator.KindOf(err) != allocator.WentBack
	})
	if err != nil {
		r.tb.Fatal(err)
	}
	return seg
}

// rules returns the rules that were broken, each once.
func rules(h *history.History) (names []string) {
	for _, p := range h.Problems {
		names = append(names, p.Rule)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
