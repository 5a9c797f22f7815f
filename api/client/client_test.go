package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/internal/testcluster"
)

func TestOptions(t *testing.T) {
	many := strings.Split(strings.Repeat("h:1 ", 17), " ")[:17]
	for i := range many {
		many[i] = fmt.Sprintf("h:%d", i+1)
	}
	for says, o := range map[string]client.Options{
		"addresses: 0; allowed: 1 to 16":                     {},
		"addresses: 17; allowed: 1 to 16":                    {Addresses: many},
		"fallback: 17 addresses; allowed: 0 to 16":           {Addresses: []string{"h:99"}, Fallback: many},
		`addresses: "here"; allowed: HOST:PORT`:              {Addresses: []string{"here"}},
		`addresses: "h:0"; allowed: HOST:PORT`:               {Addresses: []string{"h:0"}},
		`fallback: "there"; allowed: HOST:PORT`:              {Addresses: []string{"h:1"}, Fallback: []string{"there"}},
		`"h:1" is named twice`:                               {Addresses: []string{"h:1"}, Fallback: []string{"h:1"}},
		`warm tags: tag: "A" begins with "A"`:                {Addresses: []string{"h:1"}, WarmTags: []string{"A"}},
		"reserve: 1ms; allowed: 1s to 168h":                  {Addresses: []string{"h:1"}, Reserve: time.Millisecond},
		"min_step: -1; allowed: 1 to":                        {Addresses: []string{"h:1"}, MinStep: -1},
		"max_step: 10; allowed: min_step (1000) to":          {Addresses: []string{"h:1"}, MaxStep: 10},
		"max_step: 1000000001; allowed: min_step (1000) to ": {Addresses: []string{"h:1"}, MaxStep: 1_000_000_001},
		"timeout: -1s; allowed: above 0s":                    {Addresses: []string{"h:1"}, Timeout: -time.Second},
	} {
		ledgertest.WantKind(t, o.Validate(), allocator.Invalid, says)
		c, err := client.New(t.Context(), o)
		ledgertest.WantKind(t, err, allocator.Invalid, says)
		if c != nil {
			c.Close()
		}
	}
	if err := (client.Options{Addresses: []string{"h:1"}}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestIssues takes IDs of several tags in every way at once.
func TestIssues(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		ids := newClient(t, client.Options{Addresses: []string{c.room("a", "a1").address},
			WarmTags: []string{"order", "user"}})
		var all sync.WaitGroup
		for _, name := range []string{"order", "user", "item"} {
			tag, err := ids.Tag(name)
			if err != nil {
				t.Fatal(err)
			}
			if tag.Name() != name || tag.Status().Held == 0 && name != "item" {
				t.Errorf("%s: %s %+v", name, tag.Name(), tag.Status())
			}
			var got issued
			for range 4 {
				all.Go(func() {
					for n := range 2000 {
						id, ok := tag.TryNext()
						if !ok {
							id = mustNext(t, tag)
						}
						runs := []allocator.Run{{First: id, Count: 1}}
						if n%10 == 0 {
							more, err := ids.NextN(t.Context(), name, 1+int64(n%300))
							if err != nil {
								t.Error(err)
							}
							runs = append(runs, more...)
							if id, err = ids.Next(t.Context(), name); err != nil {
								t.Error(err)
							}
							runs = append(runs, allocator.Run{First: id, Count: 1})
						}
						got.add(runs...)
					}
				})
			}
			all.Wait()
			if n := got.unique(t, "a", testcluster.Halves()); n < 4*2000 {
				t.Errorf("%s: %d IDs", name, n)
			}
		}
	})
}

// TestErrors: an error of the room reaches the caller with its kind.
func TestErrors(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.room("a", "a1")
		settings := record.DefaultTag()
		settings.Limit = 20
		if _, err := c.Admin.CreateTag(t.Context(), "short", settings, "test"); err != nil {
			t.Fatal(err)
		}
		f := newFront(t, a)
		ids := newClient(t, client.Options{Addresses: []string{f.address}})
		for _, name := range []string{"", "Order", strings.Repeat("a", 64)} {
			_, err := ids.Next(t.Context(), name)
			ledgertest.WantKind(t, err, allocator.Invalid, "tag: ")
			_, err = ids.NextN(t.Context(), name, 1)
			ledgertest.WantKind(t, err, allocator.Invalid, "tag: ")
			_, err = ids.Tag(name)
			ledgertest.WantKind(t, err, allocator.Invalid, "tag: ")
		}
		_, err := ids.NextN(t.Context(), "short", 0)
		ledgertest.WantKind(t, err, allocator.Invalid, "count: 0; allowed: 1 to ")
		for want := range 19 {
			if id, err := ids.Next(t.Context(), "short"); err != nil || id != int64(want+1) {
				t.Fatalf("%d, %v", id, err)
			}
		}
		_, err = ids.Next(t.Context(), "short")
		ledgertest.WantKind(t, err, allocator.Exhausted, "room at "+f.address, "limit 20")
		f.fault(answers(allocator.Errorf(allocator.NotFound, "no tag nothing")))
		_, err = ids.Next(t.Context(), "nothing")
		ledgertest.WantKind(t, err, allocator.NotFound, "room at "+f.address, "no tag nothing")
		// A caller's own deadline.
		f.fault(faults["hang"])
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = ids.Next(ctx, "order")
		ledgertest.WantKind(t, err, allocator.Unavailable, "before the caller's deadline")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v does not have the deadline as its cause", err)
		}
		_, err = client.New(ctx, dials(client.Options{Addresses: []string{f.address}, WarmTags: []string{"order"}}))
		ledgertest.WantKind(t, err, allocator.Unavailable)
	})
}

// TestClose: Close drops the held IDs, lets waiting callers go, and is final.
func TestClose(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		f := newFront(t, c.room("a", "a1"))
		ids := newClient(t, client.Options{Addresses: []string{f.address}})
		order := tagOf(t, ids, "order")
		var got issued
		stop := load(t, order, &got)
		got.some(t, 50)
		f.fault(faults["hang"])
		waiting := make(chan error, 2)
		go func() {
			_, err := ids.Next(t.Context(), "other")
			waiting <- err
		}()
		go func() {
			user, err := ids.Tag("user")
			if err == nil {
				_, err = user.NextN(t.Context(), 10, nil)
			}
			waiting <- err
		}()
		before := f.calls()
		testcluster.Await(t, "a call for the other tags", func() bool { return f.calls() > before })
		ids.Close()
		ids.Close()
		for range 2 {
			if err := <-waiting; !errors.Is(err, error(client.ErrClosed)) {
				t.Errorf("a waiting caller: %v", err)
			}
		}
		for _, err := range stop() {
			if !errors.Is(err, error(client.ErrClosed)) {
				t.Error(err)
			}
		}
		if _, ok := order.TryNext(); ok {
			t.Error("an ID of a closed client")
		}
		_, err := order.Next(t.Context())
		ledgertest.WantKind(t, err, allocator.Invalid, "the client was closed")
		_, err = ids.Next(t.Context(), "order")
		ledgertest.WantKind(t, err, allocator.Invalid, "the client was closed")
		_, err = ids.NextN(t.Context(), "new", 1)
		ledgertest.WantKind(t, err, allocator.Invalid, "the client was closed")
		_, err = ids.Tag("new")
		ledgertest.WantKind(t, err, allocator.Invalid, "the client was closed")
		if s := order.Status(); s.Held != 0 || s.Dropped == 0 {
			t.Errorf("%+v", s)
		}
		got.unique(t, "a", testcluster.Halves())
	})
}

// TestUnusedTags: the client drops unused tags from memory, but not those to which a
// caller has a handle.
func TestUnusedTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		ids := newClient(t, client.Options{Addresses: []string{c.room("a", "a1").address}})
		order := tagOf(t, ids, "order")
		for n := range 50 {
			if _, err := ids.Next(t.Context(), fmt.Sprintf("tag-%d", n)); err != nil {
				t.Fatal(err)
			}
		}
		if got := ids.Tags(); got != 51 {
			t.Errorf("%d tags", got)
		}
		ids.DropUnused(0)
		if got := ids.Tags(); got != 1 {
			t.Errorf("%d tags are left", got)
		}
		mustNext(t, order)
		first, err := ids.Next(t.Context(), "tag-7") // made again
		if err != nil || first < 50 {
			t.Errorf("%d, %v", first, err)
		}
	})
}
