package mirror_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// follow has a mirror follow a cluster until stop is called.
func follow(t *testing.T, c *memcluster.Cluster, m *mirror.Mirror,
	file *mirror.File) (_ *mirror.Follower, stop func()) {
	return followOver(t, c.Mem.Open(), m, file)
}

func followOver(t *testing.T, conn *ledgertest.Conn, m *mirror.Mirror,
	file *mirror.File) (_ *mirror.Follower, stop func()) {
	l := ledgertest.Open(t, conn)
	l.HaltAs("console test")
	f := mirror.NewFollower(m, mirror.Config{Cluster: l.Cluster(), Gets: l.Gets, File: file,
		Check: func(ctx context.Context) error {
			_, err := l.CheckNow(ctx)
			return err
		}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(ctx)
	}()
	return f, func() {
		cancel()
		<-ended
	}
}

// views returns the views of a follower's mirror, and how far a mark reaches in it.
func views(t *testing.T, f *mirror.Follower, room allocator.Room) (views []mirror.View, next int64) {
	t.Helper()
	_, parts, err := f.Report(0)
	if err != nil {
		t.Fatal(err)
	}
	for p := range parts {
		if p.Marks != nil && p.Marks.Room == room {
			if at := slices.Index(p.Marks.Tags, "t"); at >= 0 {
				next = p.Marks.Next[at]
			}
		}
		if p.Rest != nil {
			views = p.Rest.Views
		}
	}
	return views, next
}

// Reads that etcd does not answer end no view, and the first one neither begins anew.
func TestViewOutlastsUnansweredReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := memcluster.New(t, "100 a=0-50 b=50-100")
		a := c.Start("a")
		conn := c.Mem.Open()
		var first, reads, silent atomic.Int64 // reads of the first list; reads; until when none is answered
		keys := record.Keys("/march/default/")
		conn.Fate(func(txn store.Txn) (f ledgertest.Fate) {
			switch op := txn.Then[0]; {
			case op.Get != nil && op.Get.Key == keys.All(record.Tags):
				first.Add(1)
			case op.Get != nil && op.Get.Key == keys.All(record.Marks) && reads.Add(1) == 1:
				silent.Store(time.Now().Add(time.Minute).UnixNano())
			}
			if time.Now().UnixNano() < silent.Load() {
				f.Name = ledgertest.NotDone
			}
			return f
		})
		f, stop := followOver(t, conn, mirror.New(10), nil)
		defer stop()
		time.Sleep(2 * time.Minute)
		began, _ := views(t, f, "a")
		silent.Store(time.Now().Add(time.Minute).UnixNano())
		seg := a.Lease(20)
		time.Sleep(2 * time.Minute)
		got, next := views(t, f, "a")
		if len(began) != 1 || len(got) != 1 || next != seg.Last()+1 || got[0].Reach != c.Mem.Revision() {
			t.Errorf("views %+v, then %+v, the mark reaches to %d; want one, to %d", began, got, next, seg.Last()+1)
		}
		if first.Load() != 2 { // names, and the keys of the only page
			t.Errorf("%d reads of the tags: the first view began anew", first.Load())
		}
	})
}

// A mirror goes on from its file after a restart: with what it saw, and with a view of its own.
func TestFollowerGoesOnFromItsFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "m")
		c := memcluster.New(t, "100 a=0-50 b=50-100")
		a := c.Start("a")
		seg := a.Lease(10)
		for life := 1; life <= 2; life++ {
			m := mirror.New(10)
			file, err := mirror.OpenFile(path, m)
			if err != nil {
				t.Fatal(err)
			}
			f, stop := follow(t, c, m, file)
			time.Sleep(5 * time.Second)
			if got, next := views(t, f, "a"); len(got) != life || next != seg.Last()+1 {
				t.Errorf("life %d: views %+v, the mark reaches to %d", life, got, next)
			}
			stop()
			if err := file.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
