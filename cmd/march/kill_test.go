package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// issued collects the IDs that a client got, in order.
type issued struct {
	mu struct {
		sync.Mutex
		ids    map[allocator.Tag]map[int64]bool
		errors []string
	}
	count atomic.Int64
}

func (s *issued) errorf(format string, args ...any) {
	if len(s.mu.errors) < 10 {
		s.mu.errors = append(s.mu.errors, fmt.Sprintf(format, args...))
	}
}

// add checks that no ID was issued before, and that all lie in their room's
// range and above floor.
func (s *issued) add(tag allocator.Tag, boundary int64, r allocator.Range, above int64,
	runs []*marchv1.Run) (last int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ids == nil {
		s.mu.ids = make(map[allocator.Tag]map[int64]bool)
	}
	ids := s.mu.ids[tag]
	if ids == nil {
		ids = make(map[int64]bool)
		s.mu.ids[tag] = ids
	}
	last = above
	for _, run := range runs {
		for id := run.GetFirst(); id < run.GetFirst()+run.GetCount(); id++ {
			switch {
			case ids[id]:
				s.errorf("tag %s: %d was issued twice", tag, id)
			case !r.Contains(id % boundary):
				s.errorf("tag %s: %d mod %d is %d, not in %v", tag, id, boundary, id%boundary, r)
			case id <= last:
				s.errorf("tag %s: %d is not above %d", tag, id, last)
			}
			ids[id], last = true, id
			s.count.Add(1)
		}
	}
	return last
}

func (s *issued) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.mu.errors {
		t.Error(e)
	}
}

// hammer asks a room for IDs of each tag, in many calls at once, until ctx ends. It ignores
// failed calls. Each caller gets only growing IDs, all above those in above.
func (s *issued) hammer(ctx context.Context, t *testing.T, address string, boundary int64, r allocator.Range,
	above map[allocator.Tag]int64) (highest map[allocator.Tag]int64) {
	t.Helper()
	ids := marchv1.NewIDServiceClient(testcluster.Dial(t, address))
	highest = maps.Clone(above)
	var mu sync.Mutex // of highest
	var callers sync.WaitGroup
	for tag, floor := range above {
		for range 2 {
			callers.Go(func() {
				last := floor
				for ctx.Err() == nil {
					answer, err := ids.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: string(tag),
						Count: 1 + rand.Int64N(100)})
					if err != nil {
						time.Sleep(time.Millisecond) // leave time for the process to start
						continue
					}
					last = s.add(tag, boundary, r, last, answer.GetRuns())
				}
				mu.Lock()
				defer mu.Unlock()
				highest[tag] = max(highest[tag], last)
			})
		}
	}
	callers.Wait()
	return highest
}

// TestKillDev kills march dev at many moments of its work and of its start, and starts it
// again on the same data. No ID comes twice, and all IDs lie above the earlier ones.
func TestKillDev(t *testing.T) {
	t.Parallel()
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	exists := func(path ...string) func(*devCluster) bool {
		return func(*devCluster) bool {
			_, err := os.Stat(filepath.Join(append([]string{dir}, path...)...))
			return err == nil
		}
	}
	listens := func(offset int) func(*devCluster) bool {
		return func(d *devCluster) bool {
			conn, err := net.Dial("tcp", d.address(offset))
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		}
	}
	var s issued
	got := func(n int64) func(*devCluster) bool {
		var before atomic.Int64
		return func(*devCluster) bool {
			before.CompareAndSwap(0, s.count.Load()+1)
			return s.count.Load() >= before.Load()+n
		}
	}
	moments := []struct {
		name string
		come func(*devCluster) bool
	}{
		{"lock", exists("lock")}, {"etcd's directory", exists("etcd")},
		{"etcd's log", exists("etcd", "member", "wal", "0000000000000000-0000000000000000.wal")},
		{"the first ID", got(1)}, {"etcd listens", listens(portEtcdClient)}, {"many IDs", got(20_000)},
		{"a room listens", listens(portRoomGRPC)},
		{"more IDs", got(10_000)}, {"at once", func(*devCluster) bool {
			return true
		}}, {"more IDs again", got(5_000)}, {"the last", got(5_000)},
	}
	above := []map[allocator.Tag]int64{{"order": 0, "item": 0, "user": 0}, {"order": 0, "item": 0, "user": 0}}
	for _, m := range moments {
		d := beginDev(t, base, "--data-dir", dir)
		ctx, stop := context.WithCancel(t.Context())
		var rooms sync.WaitGroup
		for i := range above {
			r := allocator.Range{Lower: int64(i) * 500, Upper: int64(i+1) * 500}
			rooms.Go(func() { above[i] = s.hammer(ctx, t, d.address(portRoomGRPC+i), 1000, r, above[i]) })
		}
		err := poll(patience(t), func() bool {
			select {
			case <-d.done:
				return true
			default:
				return m.come(d)
			}
		})
		select {
		case <-d.done:
			stdout, stderr := d.output()
			t.Fatalf("%s: march dev ended by itself: %v\n%s%s", m.name, d.cmd.ProcessState, stdout, stderr)
		default:
		}
		if _, stopErr := d.stop(patience(t), syscall.SIGKILL); err != nil || stopErr != nil {
			t.Fatalf("%s: %v, %v", m.name, err, stopErr)
		}
		stop()
		rooms.Wait()
	}
	s.check(t)
	t.Logf("%d IDs, %d kills", s.count.Load(), len(moments))
}
