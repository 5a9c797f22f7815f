package console_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// register registers an instance that serves nothing. It sends heartbeats if alive is set.
func (c *consoleOf) register(in allocator.Room, name allocator.Instance, address string, alive bool) {
	c.Helper()
	i := must(c.Ledger().Join(bg, ledger.Registration{Room: in, Name: name, Address: address, Build: "none"}))(c)
	if alive {
		testcluster.Run(c, i.Run)
	}
}

// TestInstances lists live and dead instances, and asks live ones for their chains.
func TestInstances(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "order"})
		began := time.Now().Add(-time.Second)
		one, two := c.room("a", "one"), c.room("a", "two")
		c.room("b", "one")
		c.register("b", "dead", "127.0.0.1:1", false)      // no heartbeat
		c.register("b", "deaf", "127.0.0.1:1", true)       // no server listens there
		c.register("c", "elsewhere", "127.0.0.1:1", false) // a room without a range
		for k, ids := range []marchv1.IDServiceClient{one, two, two} {
			if _, err := ids.Next(bg, &marchv1.NextRequest{Tag: "order"}); err != nil {
				t.Fatal(k, err)
			}
		}

		var instances []*marchv1.Instance
		testcluster.Await(t, "heartbeats", func() bool {
			r := must(c.ListInstances(bg, &marchv1.ListInstancesRequest{}))(t)
			instances = r.GetInstances()
			alive := 0
			for _, i := range instances {
				if i.GetAlive() {
					alive++
				}
			}
			return alive == 4
		})
		var got []string
		for _, i := range instances {
			got = append(got, fmt.Sprint(i.GetRoom(), "/", i.GetName(), " ", i.GetAlive(), " ",
				i.GetBuild(), " ", i.GetVersion()))
			if i.GetStarted().AsTime().Before(began) || i.GetAlive() != (i.GetSilentFor() == nil) ||
				i.GetLastSeen() == nil || i.GetAddress() == "" {
				t.Errorf("instance %v", i)
			}
		}
		if diff := cmp.Diff([]string{
			"a/one true test-build 1", "a/two true test-build 1",
			"b/dead false none 1", "b/deaf true none 1", "b/one true test-build 1", "c/elsewhere false none 1",
		}, got); diff != "" {
			t.Errorf("instances (-want +got): %s", diff)
		}
		for in, n := range map[string]int{"a": 2, "b": 3, "c": 1, "nothing": 0} {
			if r, err := c.ListInstances(bg, &marchv1.ListInstancesRequest{Room: in}); err != nil ||
				len(r.GetInstances()) != n {
				t.Errorf("room %s: %v, %v", in, r, err)
			}
		}
		_, err := c.ListInstances(bg, &marchv1.ListInstancesRequest{Room: "A/"})
		invalid("room", `"A/"`).check(t, "bad room", err)

		rooms := must(c.ListRooms(bg, &marchv1.ListRoomsRequest{}))(t)
		got = nil
		for _, r := range rooms.GetRooms() {
			got = append(got, fmt.Sprint(r.GetName(), " ", r.GetRange().GetLower(), "-", r.GetRange().GetUpper(), " ",
				r.GetInstances(), " ", r.GetAlive()))
		}
		if diff := cmp.Diff([]string{"a 0-50 2 2", "b 50-100 3 2"}, got); diff != "" {
			t.Errorf("rooms (-want +got): %s", diff)
		}

		ctx, cancel := context.WithTimeout(bg, 20*time.Second) // b/deaf would never answer
		defer cancel()
		tag := must(c.GetTag(ctx, &marchv1.GetTagRequest{Name: "order"}))(t)
		if diff := cmp.Diff([]string{"b/dead", "b/deaf", "c/elsewhere"}, tag.GetSilent()); diff != "" {
			t.Errorf("silent (-want +got): %s", diff)
		}
		got = nil
		for _, chain := range tag.GetChains() { // b/one holds none
			got = append(got, fmt.Sprint(chain.GetRoom(), "/", chain.GetInstance(), " ",
				chain.GetIssued(), " ", chain.GetVersion()))
		}
		if diff := cmp.Diff([]string{"a/one 1 1", "a/two 2 1"}, got); diff != "" {
			t.Errorf("chains (-want +got): %s", diff)
		}
		if m := tag.GetMarks(); len(m) != 1 || m[0].GetRoom() != "a" || m[0].GetNext() < 2000 ||
			m[0].GetVersion() != 1 {
			t.Errorf("marks: %v", m)
		}
	})
}

// chainOf answers GetChain.
type chainOf struct {
	marchv1.UnimplementedRoomServiceServer
}

func (chainOf) GetChain(_ context.Context, r *marchv1.GetChainRequest) (*marchv1.GetChainResponse, error) {
	return &marchv1.GetChainResponse{Chain: &marchv1.Chain{Tag: r.GetTag(), Room: "a", Instance: "one"}}, nil
}

// door is a listener that closes connections, and counts them, until it is open.
type door struct {
	net.Listener
	open    atomic.Bool
	refused atomic.Int64
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil || d.open.Load() {
			return conn, err
		}
		d.refused.Add(1)
		_ = conn.Close()
	}
}

// TestInstanceComesBack has an instance be away for a while, and come back at its address.
// The console notices both.
func TestInstanceComesBack(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "order"})
		l := &door{Listener: testcluster.Listen(t, "")}
		server := grpc.NewServer(grpc.UnaryInterceptor(api.UnaryServerInterceptor))
		marchv1.RegisterRoomServiceServer(server, chainOf{})
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(l) })
		defer serving.Wait()
		defer server.Stop()
		c.register("a", "one", l.Addr().String(), true)
		silent := func(n int) func() bool {
			return func() bool {
				r, err := c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"})
				return err == nil && len(r.GetSilent()) == n // a busy etcd may answer late
			}
		}
		testcluster.Await(t, "it is silent, and was asked more than once", func() bool {
			return silent(1)() && l.refused.Load() > 2
		})
		l.open.Store(true)
		testcluster.Await(t, "it answers", silent(0))
	})
}

// TestEtcdAway: without etcd calls soon fail, and their error names the etcd.
func TestEtcdAway(t *testing.T) {
	t.Parallel()
	c := startHalves(t)
	c.create(&marchv1.Tag{Name: "order"})
	if code, body := c.get("/readyz"); code != 200 {
		t.Errorf("readyz: %d %s", code, body)
	}
	c.Etcd.Stop()
	bg, cancel := context.WithTimeout(bg, testcluster.Patience)
	defer cancel()
	var calls sync.WaitGroup
	for what, do := range map[string]func() error{
		"init": func() error {
			_, err := c.InitLayout(bg, &marchv1.InitLayoutRequest{Layout: halves()})
			return err
		},
		"layout":  func() error { _, err := c.GetLayout(bg, &marchv1.GetLayoutRequest{}); return err },
		"version": func() error { _, err := c.GetLayout(bg, &marchv1.GetLayoutRequest{Version: 1}); return err },
		"layouts": func() error { _, err := c.ListLayouts(bg, &marchv1.ListLayoutsRequest{}); return err },
		"create": func() error {
			_, err := c.CreateTag(bg, &marchv1.CreateTagRequest{Tag: &marchv1.Tag{Name: "new"}})
			return err
		},
		"get":  func() error { _, err := c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"}); return err },
		"list": func() error { _, err := c.ListTags(bg, &marchv1.ListTagsRequest{}); return err },
		"update": func() error {
			_, err := c.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order", MinStep: p(2)}})
			return err
		},
		"delete": func() error { _, err := c.DeleteTag(bg, &marchv1.DeleteTagRequest{Name: "order"}); return err },
		"skip": func() error {
			_, err := c.SkipTag(bg, &marchv1.SkipTagRequest{Name: "order", To: 10})
			return err
		},
		"prescale": func() error {
			_, err := c.PrescaleTag(bg, &marchv1.PrescaleTagRequest{Name: "order"})
			return err
		},
		"rooms": func() error { _, err := c.ListRooms(bg, &marchv1.ListRoomsRequest{}); return err },
	} {
		calls.Go(func() {
			err := do()
			want{codes.Unavailable, "unavailable", []string{c.Etcd.Endpoint}}.check(t, what, err)
		})
	}
	if code, body := c.get("/readyz"); code != 503 || !strings.Contains(body, c.Etcd.Endpoint) {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, _ := c.get("/livez"); code != 200 {
		t.Errorf("livez: %d", code)
	}
	calls.Wait()
	if r, err := c.ValidateLayout(bg, &marchv1.ValidateLayoutRequest{Layout: halves()}); err != nil ||
		len(r.GetProblems()) > 0 {
		t.Errorf("validate needs no etcd: %v, %v", r, err)
	}
	c.Etcd.Start(t)
	testcluster.Await(t, "it is back", func() bool { code, _ := c.get("/readyz"); return code == 200 })
	testcluster.Await(t, "changes are made", func() bool {
		_, err := c.CreateTag(bg, &marchv1.CreateTagRequest{Tag: &marchv1.Tag{Name: "new"}})
		return err == nil || status.Code(err) == codes.AlreadyExists
	})
}

// successor answers GetInstance as instance a/two.
type successor struct {
	marchv1.UnimplementedRoomServiceServer
}

func (successor) GetInstance(context.Context, *marchv1.GetInstanceRequest) (*marchv1.GetInstanceResponse, error) {
	return &marchv1.GetInstanceResponse{Status: &marchv1.InstanceStatus{Room: "a", Instance: "two"}}, nil
}

// A dead instance whose address another one has is silent. Before, it was said to answer, and to run.
func TestDeadInstanceWhoseAddressAnotherHas(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		server := grpc.NewServer(grpc.UnaryInterceptor(api.UnaryServerInterceptor))
		marchv1.RegisterRoomServiceServer(server, successor{})
		address := testcluster.Serve(t, server)
		c.register("a", "one", address, false)
		c.register("a", "two", address, true)
		var kinds []string
		testcluster.Await(t, "it is silent", func() bool {
			o, err := c.GetOverview(bg, &marchv1.GetOverviewRequest{})
			kinds = nil
			for _, p := range o.GetProblems() {
				if p.GetOf() == "a/one" {
					kinds = append(kinds, api.Word(p.GetKind()))
				}
			}
			return err == nil && !o.GetAsOf().AsTime().IsZero() && len(kinds) > 0 && kinds[0] != "no_answer"
		})
		if len(kinds) != 1 || kinds[0] != "silent" {
			t.Errorf("its problems are %q", kinds)
		}
		if list, err := c.ListInstances(bg, &marchv1.ListInstancesRequest{Room: "a", Status: true}); err != nil ||
			list.GetInstances()[0].GetStatus() != nil || list.GetInstances()[1].GetStatus() == nil {
			t.Errorf("%v, %v", list, err)
		}
	})
}
