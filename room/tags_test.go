package room_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// isOf checks that an ID was just issued by a time-ordered tag of a layout, or by a counter if l is zero.
func isOf(t *testing.T, l timeid.Layout, id int64) {
	t.Helper()
	if l == (timeid.Layout{}) {
		if id > 1<<20 {
			t.Errorf("ID %d is no counter's", id)
		}
	} else if p := partsOf(t, l, id); time.Since(time.UnixMilli(p.Time)).Abs() > time.Minute {
		t.Errorf("ID %d: %+v", id, p)
	}
}

// lateStore answers the next read of a key only after it has called change.
type lateStore struct {
	store.Store
	key    string                 // the end of the key
	change atomic.Pointer[func()] // nil once it was called
}

func (s *lateStore) next(change func()) { s.change.Store(&change) }

func (s *lateStore) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := s.Store.Txn(ctx, txn)
	if slices.ContainsFunc(txn.Then, func(op store.Op) bool {
		return op.Get != nil && strings.HasSuffix(op.Get.Key, s.key)
	}) {
		if change := s.change.Swap(nil); change != nil {
			(*change)()
		}
	}
	return answer, err
}

// A tag that is deleted, and perhaps made anew, while an instance reads it for its first caller issues no ID by what it
// was before.
func TestTagChangesWhileItIsRead(t *testing.T) {
	other := cosid
	other.Epoch = timeid.EpochTwitter
	was := map[string]func(*record.TagSettings){"counter": nil, "time-ordered": timed(cosid)}
	for becomes, is := range map[string]struct {
		settings func(*record.TagSettings) // nil: deleted
		layout   timeid.Layout             // zero: a counter
	}{
		"nothing": {}, "counter": {settings: func(*record.TagSettings) {}}, "another epoch": {timed(other), other},
	} {
		for from, before := range was {
			t.Run(from+" to "+becomes, func(t *testing.T) {
				testcluster.Bubble(t, func(t *testing.T) {
					c := newCluster(t, testcluster.Halves())
					c.tag(before, "event")
					late := &lateStore{key: "/tags/event"}
					late.next(func() {
						if err := c.Admin.DeleteTag(bg, "event", "test"); err != nil {
							t.Error(err)
						}
						if is.settings != nil {
							settings := record.DefaultTag()
							is.settings(&settings)
							if _, _, err := c.Admin.ReuseTag(bg, "event", settings, "test"); err != nil {
								t.Error(err)
							}
						}
						time.Sleep(time.Second) // the instance hears of it
					})
					a := c.start("a", "a1", func(cfg *room.Config) {
						late.Store = c.store()
						cfg.Ledger = c.LedgerOver(late, nil)
					})
					for range 2 { // the second one finds what is in memory
						id, err := a.next("event")
						switch {
						case is.settings == nil:
							if got := (want{codes.NotFound, "not_found", []string{"event"}}).check(err); got != "" {
								t.Errorf("ID %d: %s", id, got)
							}
						case err != nil:
							t.Error(err)
						default:
							isOf(t, is.layout, id)
						}
					}
				})
			})
		}
	}
}

// A cold tag that changes while an instance reads it again, for a new layout, has its new settings then.
func TestColdTagChangesWhileItIsReadAgain(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "event")
		late := &lateStore{key: "/tags/event"}
		a := c.start("a", "a1", func(cfg *room.Config) {
			late.Store, cfg.ColdAfter = c.store(), 0
			cfg.Ledger = c.LedgerOver(late, nil)
		})
		a.mustNext("event")
		synctest.Wait() // no lease is under way
		late.next(func() {
			c.update("event", func(s *record.TagSettings) { s.MinStep = 77 })
			time.Sleep(time.Second) // the instance hears of it
		})
		version := c.Change(layout(100, map[allocator.Room]allocator.Range{"a": {Upper: 25},
			"b": {Lower: 50, Upper: 100}}), "test")
		a.await("a1 reports", func() bool { return c.registered("a", "a1").Version == version })
		if step := a.chain("event").GetStep(); late.change.Load() != nil || step != 77 {
			t.Errorf("the chain aims to hold %d, want 77", step)
		}
	})
}

// An instance whose watch missed that a time-ordered tag was deleted, or made anew, learns it when it watches again.
// Of a counter it issues what it leased, and learns by the next lease or change what the tag is now.
func TestTagMadeAnewUnheard(t *testing.T) {
	other := cosid
	other.WorkerBits, other.SequenceBits, other.Epoch = 2, 20, timeid.EpochTwitter
	counter := timeid.Layout{}
	for _, row := range []struct {
		was, is timeid.Layout
		gone    bool
	}{{was: cosid, is: counter}, {was: counter, is: cosid}, {was: cosid, is: other}, {was: cosid, gone: true}} {
		t.Run("", func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				c := newCluster(t, testcluster.Halves())
				life := func(l timeid.Layout) record.TagSettings {
					s := record.DefaultTag()
					if l != (timeid.Layout{}) {
						timed(l)(&s)
					}
					return s
				}
				c.tag(func(s *record.TagSettings) { *s = life(row.was) }, "event")
				a := c.start("a", "a1", nil)
				isOf(t, row.was, a.mustNext("event"))
				c.Mem.Break()
				synctest.Wait() // the watch has ended
				if err := c.Admin.DeleteTag(bg, "event", "test"); err != nil {
					t.Fatal(err)
				}
				if !row.gone {
					if _, _, err := c.Admin.ReuseTag(bg, "event", life(row.is), "test"); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Minute) // the instance watches again
				if row.gone {
					_, err := a.next("event")
					if got := (want{codes.NotFound, "not_found", []string{"event"}}).check(err); got != "" {
						t.Error(got)
					}
					return
				}
				if row.was == counter {
					c.update("event", func(s *record.TagSettings) { s.Time.MaxWaitMS = 77 })
					time.Sleep(time.Second)
				}
				isOf(t, row.is, a.mustNext("event"))
			})
		})
	}
}
