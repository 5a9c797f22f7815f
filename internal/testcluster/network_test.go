package testcluster_test

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// fails is a test that is to fail.
type fails struct {
	testing.TB
	with string
}

func (f *fails) Fatal(args ...any) {
	f.with = fmt.Sprint(args...)
	runtime.Goexit()
}

// In a bubble an hour passes at once, over a store and a network in memory; a real etcd is refused.
func TestBubble(t *testing.T) {
	if ledgertest.InBubble() {
		t.Error("a bubble around a test without one")
	}
	testcluster.Bubble(t, func(t *testing.T) {
		c := testcluster.New(t)
		c.Init(testcluster.Halves(), "ann")
		c.Tag(nil, "ann", "order")
		r, s := c.Room("a", "one", nil), c.Console(nil)
		time.Sleep(time.Hour)
		if _, err := r.Next(t.Context(), &marchv1.NextRequest{Tag: "order"}); err != nil {
			t.Error(err)
		}
		if code, body := testcluster.Get(s.HTTP, "/readyz"); code != http.StatusOK {
			t.Errorf("%d: %s", code, body)
		}
		f := &fails{TB: t}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			ledgertest.StartEtcd(f)
		}()
		if <-ended; !strings.Contains(f.with, "a real etcd in a bubble") {
			t.Errorf("a real etcd: %q", f.with)
		}
	})
}

// A connection to an address where nothing listens, or listens no longer, is refused at once; one
// that is closed ends at its other side.
func TestPipes(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		l := testcluster.Listen(t, "")
		address := l.Addr().String()
		waiting, err := testcluster.DialContext(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		if taken, err := l.Accept(); err != nil || taken.RemoteAddr().String() != waiting.LocalAddr().String() {
			t.Errorf("%v, %v", taken, err)
		} else if err := taken.Close(); err != nil {
			t.Error(err)
		}
		untaken, err := testcluster.DialContext(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		for _, conn := range []io.Reader{waiting, untaken} {
			if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("read: %v", err)
			}
		}
		if _, err := testcluster.DialContext(t.Context(), address); err == nil ||
			!strings.Contains(err.Error(), address+": connect: connection refused") {
			t.Errorf("dial: %v", err)
		}
		if _, err := l.Accept(); err == nil {
			t.Error("accepted after Close")
		}
		testcluster.Listen(t, address) // it is free again
	})
}

// The store in memory can be away, and full, as etcd can.
func TestFakeFails(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := testcluster.New(t)
		conn, key := c.Open(t), "/march/default/beat"
		put := func() error {
			_, err := conn.Txn(t.Context(), store.Txn{Then: []store.Op{store.OpPut(key, []byte("{}"))}})
			return err
		}
		get := func() error {
			_, err := conn.Txn(t.Context(), store.Txn{Then: []store.Op{{Get: &store.Get{
				Interval: store.Interval{Key: key}}}}})
			return err
		}
		watch := conn.Watch(t.Context(), []store.Interval{{Key: key}}, 1)
		c.Mem.NoSpace(true)
		ledgertest.WantKind(t, put(), allocator.Unavailable, store.ErrNoSpace.Error())
		if status, err := conn.Status(t.Context()); err != nil || !status.NoSpace || get() != nil {
			t.Errorf("%+v, %v, %v", status, err, get())
		}
		c.Mem.NoSpace(false)
		c.Mem.Stop()
		ledgertest.WantKind(t, get(), allocator.Unavailable, "connection refused")
		if change := <-watch; change.Err == nil {
			t.Errorf("watched %v", change)
		}
		c.Mem.Start()
		if err := get(); err != nil {
			t.Error(err)
		}
	})
}
