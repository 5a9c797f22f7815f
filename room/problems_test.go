package room_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// wrong returns the problems that an instance reports.
func (i *instance) wrong() []*marchv1.Problem {
	r, err := marchv1.NewRoomServiceClient(i.Conn).GetInstance(bg, &marchv1.GetInstanceRequest{})
	if err != nil {
		return nil
	}
	return r.GetStatus().GetProblems()
}

// put puts a value that this program would not write, or deletes the key if the value is empty.
func (c *cluster) put(key, value string) {
	c.Helper()
	op := store.Op{Put: &store.Put{Key: "/march/default/" + key, Value: []byte(value)}}
	if value == "" {
		op = store.Op{Delete: "/march/default/" + key}
	}
	c.Corrupt(op)
}

// For each fault, an instance reports the same problem over gRPC and at /readyz, with its
// beginning and its remedy. It does so even if no caller asks for IDs.
func TestTellsItsProblems(t *testing.T) {
	damage := func(key string) func(*cluster, *instance) {
		return func(c *cluster, _ *instance) { c.put(key, "garbage") }
	}
	journals := t.TempDir()
	for _, test := range []struct {
		name   string
		change func(*room.Config)
		hurt   func(c *cluster, i *instance)
		kind   marchv1.ProblemKind
		says   []string
	}{
		{"halted", nil, func(c *cluster, _ *instance) {
			if _, err := c.Admin.Ledger.Halt(bg, "ann", "tonight's restore"); err != nil {
				c.Fatal(err)
			}
		}, marchv1.ProblemKind_PROBLEM_KIND_HALTED,
			[]string{"leasing is halted in all rooms by ann: tonight's restore. Since 2", "Next: `march recover`"}},
		{"etcd away", nil, func(c *cluster, _ *instance) { c.Mem.Stop() }, marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY,
			[]string{"etcd does not answer instance a/a1: ", "memory: connection refused. Since 2",
				"It leases nothing, and issues the IDs that it holds. Start the members that do not answer",
				"Next: `etcdctl endpoint status --write-out=table`"}},
		{"etcd full", nil, func(c *cluster, _ *instance) {
			c.Mem.NoSpace(true)
		}, marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL,
			[]string{"etcd is full, and takes no writes: no IDs are leased. Since 2",
				"Next: `etcdctl compact ", "; etcdctl defrag --cluster && etcdctl alarm disarm`"}},
		{"no range", nil, func(c *cluster, _ *instance) {
			c.Change(allocator.Layout{Boundary: 100,
				Ranges: map[allocator.Room]allocator.Range{"b": {Lower: 50, Upper: 100}}}, "test")
		}, marchv1.ProblemKind_PROBLEM_KIND_NO_RANGE, []string{"room a has no range in layout 2, " +
			"and leases nothing. Since 2", "march migrate plan --add-room a=LOWER-UPPER"}},
		{"journal", func(cfg *room.Config) {
			cfg.Journal = filepath.Join(journals, "j")
		}, func(c *cluster, i *instance) {
			if err := os.RemoveAll(filepath.Join(journals, "j")); err != nil {
				c.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(journals, "j"), nil, 0o600); err != nil {
				c.Fatal(err)
			}
		}, marchv1.ProblemKind_PROBLEM_KIND_JOURNAL, []string{"instance a/a1 leases nothing: its journal " + journals}},
		{"unconfirmed", func(cfg *room.Config) {
			cfg.RequireJournal = true
		}, func(*cluster, *instance) {}, marchv1.ProblemKind_PROBLEM_KIND_UNCONFIRMED,
			[]string{"instance a/a1 started without its journal, which is required, and leases nothing. Since 2",
				"Next: `march instance confirm a a1`"}},
		{"beat", nil, damage("beat"), marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE, []string{
			"key /march/default/beat: not a value of this program",
			"It stops all leasing, in every room, and every change by a console.", "delete the key"}},
		{"identity", nil, damage("identity"), marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE,
			[]string{"key /march/default/identity: ", "Put the value of a backup back"}},
		{"epoch", nil, damage("epoch"), marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE,
			[]string{"key /march/default/epoch: ", "It stops all leasing, in every room.",
				"Next: `march recover`"}},
		{"layout", nil, damage("layout"), marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE,
			[]string{"key /march/default/layout: ", "Next: `march recover`"}},
		{"unusable layout", nil, func(c *cluster, _ *instance) {
			layout, _ := c.Mem.Value("/march/default/layout")
			c.put("layouts/0000000000000000002", string(layout))
		}, marchv1.ProblemKind_PROBLEM_KIND_UNUSABLE, []string{"the layout in etcd cannot be used",
			"it is version 1, but the history goes on to ", "Next: `march verify`"}},
		{"its history", nil, damage("layouts/0000000000000000001"), marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE,
			[]string{"key /march/default/layouts/0000000000000000001: ", "Put the value of key layout there."}},
		{"settings", nil, damage("settings"), marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE,
			[]string{"key /march/default/settings: ", `Put {"format":2,"journal":"required","nonce":""} there`}},
		{"tag", nil, damage("tags/order"), marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE,
			[]string{"key /march/default/tags/order: ", "It stops leasing of tag order"}},
		{"mark", nil, damage("marks/a/order"), marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE,
			[]string{"key /march/default/marks/a/order: ", "It stops leasing of tag order"}},
		{"registration", nil, damage("rooms/a/a1"), marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE,
			[]string{"key /march/default/rooms/a/a1: ", "Next: `march instance forget a a1`"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				c := newCluster(t, testcluster.Halves())
				c.tag(nil, "order", "cold")
				if test.name == "unconfirmed" { // in an empty store there is nothing to confirm
					first := c.start("b", "b1", nil)
					first.mustNext("order")
				}
				began := time.Now().Add(-time.Second)
				a := c.launch("a", "a1", test.change)
				a.await("it answers", func() bool { code, _ := a.get("/readyz"); return code != 0 })
				if test.name != "unconfirmed" {
					a.await("ready", func() bool { code, _ := a.get("/readyz"); return code == http.StatusOK })
					if _, body := a.get("/readyz?verbose"); len(a.wrong()) > 0 || strings.Contains(body, "[!]") {
						t.Errorf("at first: %v\n%s", a.wrong(), body)
					}
				}
				test.hurt(c, a)
				if test.name == "tag" || test.name == "mark" {
					_, _ = a.next("order")
				}
				var told *marchv1.Problem
				a.await("it tells", func() bool {
					for _, p := range a.wrong() {
						if p.GetKind() == test.kind {
							told = p
						}
					}
					return told != nil
				})
				if line := problem.Line(told); !contains(line, test.says...) {
					t.Errorf("it says %s, without one of %q", line, test.says)
				}
				if at := told.GetSince().AsTime(); at.Before(began) || at.After(time.Now()) {
					t.Errorf("since %v", told.GetSince())
				}
				a.tellsCallers(test.name)
				a.await("/readyz shows the same", func() bool {
					_, body := a.get("/readyz?verbose")
					list := a.wrong()
					for _, p := range list {
						if !strings.Contains(body, "[!]"+problem.Line(p)+"\n") {
							return false
						}
					}
					return len(list) > 0 && strings.Count(body, "[!]") == len(list)
				})
			})
		})
	}
}

// tellsCallers checks what callers hear once the instance holds no IDs: that they may try again, whatever stops the
// instance, as they can mend none of it.
func (i *instance) tellsCallers(fault string) {
	i.Helper()
	if fault == "tag" || fault == "mark" || fault == "registration" {
		return // these stop one tag, or nothing
	}
	var err error
	for err == nil {
		_, err = i.next("cold")
	}
	if code, _ := reason(err); code != codes.Unavailable {
		i.Errorf("%s: a caller hears %v", fault, err)
	}
}

// An instance that issues nothing reports both that and the cause. It stops reporting it
// when it issues again.
func TestTellsThatItIsNotReady(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) { s.MinStep = 20 }, "order")
		a := c.start("a", "a1", nil)
		a.mustNext("order")
		c.put("beat", "garbage")
		for {
			if _, err := a.next("order"); err != nil {
				break
			}
		}
		a.await("not ready", func() bool {
			code, body := a.get("/readyz")
			return code == http.StatusServiceUnavailable &&
				contains(body, "[-]counters failed: it holds no IDs, and ",
					"[!]key /march/default/beat: ", "It hits a/a1 (not ready).")
		})
		c.put("beat", "")
		a.await("ready", func() bool { _, err := a.next("order"); return err == nil && len(a.wrong()) == 0 })
	})
}

// A tag that has no ID left in a room is a problem while its callers fail, over gRPC, at /readyz and in the log, and
// none once its limit is raised. Before, nothing said so, and the log's last word was that IDs are leased again.
func TestTellsThatATagIsUsedUp(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) { s.Limit = 200 }, "small")
		c.tag(nil, "order")
		var log logged
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log}) })
		a.mustNext("order")
		for {
			if _, err := a.next("small"); err != nil {
				break
			}
		}
		const says = "tag small has no ID left: "
		a.await("it tells", func() bool {
			list := a.wrong()
			_, body := a.get("/readyz?verbose")
			return len(list) == 1 && list[0].GetKind() == marchv1.ProblemKind_PROBLEM_KIND_TAG_USED_UP &&
				list[0].GetOf() == "small" && list[0].GetSince() != nil &&
				contains(problem.Line(list[0]), says, "limit 200", "It hits a/a1.",
					"Next: `march tag update small --limit LIMIT`") &&
				contains(body, "[!]"+problem.Line(list[0])+"\n", "readyz check passed") &&
				contains(log.String(), "a problem began: ", "kind=tag_used_up", says)
		})
		c.update("small", func(s *record.TagSettings) { s.Limit = 1_000_000 })
		a.await("it is over", func() bool {
			_, err := a.next("small")
			return err == nil && len(a.wrong()) == 0 && contains(log.String(), "a problem is over: ",
				"kind=tag_used_up")
		})
	})
}
