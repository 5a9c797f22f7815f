package client_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/testcerts"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// console starts a console, and returns its address and what stops it.
func (c *cluster) console() (address string, stop func()) {
	c.Helper()
	s := c.Console(nil)
	return strings.TrimPrefix(s.Conn.Target(), "passthrough:///"), s.Stop
}

func discover(console string, fallback ...string) client.Options {
	return client.Options{Discover: &client.Discover{Consoles: []string{console}, Room: "a",
		Fallback: fallback, Every: time.Second}}
}

func TestDiscoverOptions(t *testing.T) {
	for says, d := range map[string]client.Discover{
		"discover: consoles: 0; allowed: 1 to 16":        {Room: "a"},
		`discover: consoles: "here"; allowed: HOST:PORT`: {Room: "a", Consoles: []string{"here"}},
		"discover: room": {Consoles: []string{"h:1"}},
		`discover: fallback: room "a" is named twice`: {Consoles: []string{"h:1"},
			Room: "a", Fallback: []string{"a"}},
		"discover: every: 1ms; allowed: 1s to 1h0m0s, 0s for 10s": {Consoles: []string{"h:1"},
			Room: "a", Every: time.Millisecond},
		"discover: fallback: 17 rooms; allowed: 0 to 16": {Consoles: []string{"h:1"}, Room: "a",
			Fallback: make([]string, 17)},
	} {
		ledgertest.WantKind(t, client.Options{Discover: &d}.Validate(), allocator.Invalid, says)
	}
}

// A client follows its room to other addresses while it issues IDs, and then to a room that it
// is allowed.
func TestDiscover(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		first := c.room("a", "a1")
		other := c.room("b", "b1")
		console, stopConsole := c.console()
		ids := newClient(t, discover(console, "b"))
		order := tagOf(t, ids, "order")
		if got, want := ids.Asked(), []string{first.address, other.address}; !slices.Equal(got, want) {
			t.Fatalf("asks %v, want %v", got, want)
		}
		var got issued
		stop := load(t, order, &got)
		got.some(t, 200)
		second := c.room("a", "a2")
		testcluster.Await(t, "the second instance", func() bool { return slices.Contains(ids.Asked(), second.address) })
		first.end()
		testcluster.Await(t, "the second instance alone", func() bool {
			return slices.Equal(ids.Asked(), []string{second.address, other.address})
		})
		got.some(t, 200)
		runs, err := order.NextN(t.Context(), 5000, nil) // more than it held
		if err != nil {
			t.Fatal(err)
		}
		got.add(runs...)
		if errs := stop(); len(errs) > 0 {
			t.Errorf("%d failed calls: %v", len(errs), errs[0])
		}
		got.unique(t, "a", testcluster.Halves())

		// Without a console, and without the room: the room that is allowed.
		stopConsole()
		second.end()
		silence(t, second.address)
		runs, err = order.NextN(t.Context(), 100_000, nil)
		if err != nil {
			t.Fatal(err)
		}
		if last := runs[len(runs)-1]; last.First%100 < 50 {
			t.Errorf("the last of %v is not of room b", last)
		}
	})
}

// A room whose instances are all gone keeps its addresses: they may come back.
func TestDiscoverNone(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.room("a", "a1")
		console, _ := c.console()
		ids := newClient(t, discover(console))
		tagOf(t, ids, "order")
		a.end()
		order, err := ids.Tag("later")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := order.Next(t.Context()); allocator.KindOf(err) != allocator.Unavailable {
			t.Errorf("without a room: %v", err)
		}
		a.start()
		testcluster.Await(t, "an ID", func() bool {
			_, err := order.Next(t.Context())
			return err == nil
		})
	})
}

// Without a console a client begins only with addresses of its own.
func TestDiscoverConsoleAway(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.room("a", "a1")
		console, stop := c.console()
		stop()
		silence(t, console)
		_, err := client.New(t.Context(), dials(discover(console)))
		ledgertest.WantKind(t, err, allocator.Unavailable, "console at "+console)
		opts := discover(console)
		opts.Addresses = []string{a.address}
		mustNext(t, tagOf(t, newClient(t, opts), "order"))

		console, _ = c.console()
		opts = discover(console)
		opts.Discover.Room = "nowhere"
		_, err = client.New(t.Context(), dials(opts))
		ledgertest.WantKind(t, err, allocator.Unavailable, "room nowhere has no live instance")
	})
}

// A client finds its room over TLS. It shows consoles and rooms its own certificate, and follows
// neither to a server that its CA does not know.
func TestDiscoverTLS(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		known, stranger := files(t), files(t)
		c.Room("a", "a1", func(cfg *room.Config) { cfg.TLS, cfg.CreateTags = known, true })
		s := c.Console(func(cfg *console.Config) { cfg.TLS, cfg.Credentials.TLS = known, known })
		opts := discover(strings.TrimPrefix(s.Conn.Target(), "passthrough:///"))
		opts.TLS = known
		if _, err := newClient(t, opts).Next(t.Context(), "order"); err != nil {
			t.Error(err)
		}
		for name, other := range map[string]*tlsfiles.Files{"another CA": stranger, "no TLS": nil} {
			opts.TLS = other
			if ids, err := client.New(t.Context(), dials(opts)); err == nil {
				ids.Close()
				t.Errorf("%s: the client believed the console", name)
			}
		}
	})
}

// A room goes over to TLS one instance at a time: meanwhile each client uses the instances that
// speak as it does, and no call fails.
func TestDiscoverPlaintextToTLS(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		known := files(t)
		old := c.Room("a", "a0", func(cfg *room.Config) { cfg.CreateTags = true })
		address, stopConsole := c.console()
		plain := newClient(t, discover(address))
		var got issued
		stop := load(t, tagOf(t, plain, "order"), &got)
		got.some(t, 200)

		secured := c.Room("a", "a1", func(cfg *room.Config) { cfg.TLS, cfg.CreateTags = known, true })
		both := c.Console(func(cfg *console.Config) { cfg.TLS, cfg.Credentials.TLS = known, known })
		opts := discover(strings.TrimPrefix(both.Conn.Target(), "passthrough:///"))
		opts.TLS = known
		moved := newClient(t, opts)
		stopMoved := load(t, tagOf(t, moved, "order"), &got)
		for _, ids := range []*client.Client{plain, moved} {
			testcluster.Await(t, "both instances are known", func() bool {
				return slices.Contains(ids.Asked(), old.Address) && slices.Contains(ids.Asked(), secured.Address)
			})
		}
		got.some(t, 2000)
		if errs := stop(); len(errs) > 0 {
			t.Errorf("without TLS: %d failed calls: %v", len(errs), errs[0])
		}
		stopConsole()
		old.Stop()
		got.some(t, 2000)
		runs, err := tagOf(t, moved, "order").NextN(t.Context(), 5000, nil) // more than it held
		if err != nil {
			t.Error(err)
		}
		got.add(runs...)
		if errs := stopMoved(); len(errs) > 0 {
			t.Errorf("with TLS: %d failed calls: %v", len(errs), errs[0])
		}
		got.unique(t, "a", testcluster.Halves())
	})
}

// files returns a certificate for servers and clients on this machine, of a CA of its own. Servers
// take only clients with a certificate of that CA.
func files(t *testing.T) *tlsfiles.Files {
	t.Helper()
	ca := testcerts.New(t)
	own := ca.Write("own", certs.Leaf{Hosts: []string{"127.0.0.1", "a1.a.march"}})
	return testcerts.Open(t, tlsfiles.Config{Flags: "tls", CA: ca.Root, ClientCA: ca.Root, RequireClient: true,
		Cert: own.Cert, Key: own.Key})
}
