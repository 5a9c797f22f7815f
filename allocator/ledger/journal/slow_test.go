package journal

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
)

// journaled is a source that writes each lease into a journal, as an instance does.
type journaled struct {
	j              *Journal
	tag            allocator.Tag
	next           int64
	leases, failed *atomic.Int64
}

func (s *journaled) Lease(ctx context.Context, n int64) (allocator.Segment, error) {
	if err := s.j.Ready(); err != nil {
		s.failed.Add(1)
		return allocator.Segment{}, err
	}
	seg := allocator.Segment{Version: 1, Boundary: 1, Range: allocator.Range{Upper: 1}, First: s.next, Count: n}
	s.next += n
	s.leases.Add(1)
	if err := s.j.Append(context.WithoutCancel(ctx), Record{Marks: []Mark{{s.tag, s.next, 1}}}); err != nil {
		s.failed.Add(1)
		return allocator.Segment{}, err
	}
	return seg, nil
}

// TestSlowDisk makes each sync take 200 ms to 2 s, which is slow but no hang. Leases go on at
// the disk's pace and none is lost. Calls from memory do not wait, and the journal stays ready.
func TestSlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faulty{}
		j, path, log := openOn(t, d)
		d.is("sync", slow, nil)
		r, err := allocator.NewRefiller(allocator.DefaultRefillerConfig(time.Now, rand.Float64))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running, callers sync.WaitGroup
		running.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		var leases, failed, waited atomic.Int64
		for k := range 8 {
			s := &journaled{j: j, tag: allocator.Tag(fmt.Sprint("t", k)), next: 1, leases: &leases, failed: &failed}
			c, err := allocator.NewChain(allocator.ChainConfig{
				Tag: s.tag, Source: s, Refiller: r,
				Settings: allocator.Settings{MinStep: 1000, MaxStep: 2000, Reserve: 10 * time.Second},
			})
			if err != nil {
				t.Fatal(err)
			}
			callers.Go(func() {
				for c.Warm(ctx) != nil {
					time.Sleep(time.Second)
				}
				for range 60_000 { // 10 minutes, 100 IDs a second
					time.Sleep(10 * time.Millisecond)
					began := time.Now()
					if _, err := c.Next(ctx); err != nil {
						t.Error(err)
						return
					}
					if time.Since(began) > 0 {
						waited.Add(1)
					}
					if err := j.Ready(); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		callers.Wait()
		stop()
		running.Wait()
		if failed.Load() > 0 || waited.Load() > 0 || leases.Load() < 8*60_000/2000 || log.Len() > 0 {
			t.Errorf("of %d leases %d failed, %d calls waited; logged: %s", leases.Load(),
				failed.Load(), waited.Load(), log)
		}
		d.isWell()
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		if s, err := Read(path); err != nil || len(s.Marks) != 9 {
			t.Errorf("the file holds %+v, %v", s, err)
		}
	})
}
