package console_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// TestHalted: a console reports a halt on each page and in each answer, goes on answering,
// and forgets no instance meanwhile.
func TestHalted(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.room("a", "a1")
		c.wants("GET /v1/layout", 200, `"halt":null`)
		c.wants("GET /readyz?verbose", 200, "[+]leasing ok\n")
		l := c.Ledger()
		must(l.Halt(bg, "ann", "tonight's restore\n[+]all ok"))(t)
		const halt = `"halt":{"by":"ann","why":"tonight's restore\n[+]all ok","time":"`
		c.wants("GET /v1/layout", 200, halt)
		c.wants("GET /v1/instances", 200, halt)
		c.wants("GET /v1/overview", 200,
			`"problems":[{"what":"leasing is halted in all rooms by ann: tonight's restore; [+]all ok","since":"2`)
		c.wants("GET /readyz?verbose", 200, "[+]etcd ok\n[+]leasing ok: leasing is halted by ann since ")
		c.wants("GET /readyz?verbose", 200, "Z: tonight's restore [+]all ok; see `march recover`") // and not a line of its own
		c.wants("DELETE /v1/rooms/a/instances/a1", 503,
			`"reason":"`+allocator.WentBack.Error()+`","message":"leasing is halted by ann since `)
		c.wants("GET /v1/instances", 200, `"instances":[{"room":"a","name":"a1"`)
		c.wants(`POST /v1/migrations:plan {"move":["b:50-60=a"]}`, 200, `"kind":"MOVE_KIND_RETRACT"`)
		c.wants(`POST /v1/tags {"name":"order"}`, 200, `"name":"order"`)
	})
}

// TestBarred: during a recover the console names the instances that it has barred, with
// the operator and the time, wherever it reports the halt.
func TestBarred(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.room("a", "a1")
		l := c.Ledger()
		shown := func(path string) bool {
			_, body := c.get(path)
			return strings.Contains(body, `"barred":[{"room":"a","name":"a1","barred":{"by":"ann","since":"2`)
		}
		paths := []string{"/v1/layout", "/v1/overview", "/v1/instances?status=true"}
		report, err := recovery.Run(bg, l, recovery.Config{
			Actor: "ann", Apply: true,
			Ask: func(ctx context.Context, s record.SeenInstance, q record.Question,
				use record.UseMarks) (record.Memory, error) {
				m, err := room.AskMarks(ctx, testcluster.Dial(t, s.Address), q, use)
				for _, path := range paths {
					if m.Barred {
						testcluster.Await(t, path+" names the instance", func() bool { return shown(path) })
					} else if shown(path) {
						t.Errorf("%s names an instance that is not barred", path)
					}
				}
				return m, err
			},
		})
		if err != nil {
			t.Fatalf("%+v, %v", report, err)
		}
		if _, body := c.get("/v1/overview"); strings.Contains(body, "leasing is halted") ||
			strings.Contains(body, "is barred by") { // what the instance said before is over
			t.Errorf("right after the recover: %s", body)
		}
		for _, path := range paths {
			testcluster.Await(t, path+" names no instance any longer", func() bool { return !shown(path) })
		}
	})
}

// TestSeesARestore: a console is the only process that lived through a restore. It halts
// leasing by itself, makes no move, forgets no instance, and goes on after the recover.
func TestSeesARestore(t *testing.T) {
	t.Parallel()
	c := startHalves(t)
	c.register("a", "down", "127.0.0.1:1", false)
	backup := c.Etcd.Backup(t)
	for i := range 100 {
		c.create(&marchv1.Tag{Name: fmt.Sprint("tag-", i)})
	}
	c.wants("GET /v1/layout", 200, `"halt":null`) // the console sees the revision
	c.Etcd.Restore(t, backup, 0, "")
	testcluster.Await(t, "leasing is halted", func() bool {
		_, body := c.get("/v1/layout")
		return strings.Contains(body, `"halt":{"by":"console `) && strings.Contains(body, "etcd ")
	})
	c.wants("DELETE /v1/rooms/a/instances/down", 503, `"reason":"`+allocator.WentBack.Error()+`"`)
	l := c.Ledger()
	report, err := recovery.Run(bg, l, recovery.Config{
		Actor: "ann", Apply: true, Without: []record.InstanceID{"a/down"}, Margin: new(int64),
		Ask: func(context.Context, record.SeenInstance, record.Question, record.UseMarks) (record.Memory, error) {
			return record.Memory{}, errors.New("it is down")
		},
	})
	if err != nil {
		t.Fatalf("%+v, %v", report, err)
	}
	c.wants("GET /v1/layout", 200, `"halt":null`)
	c.create(&marchv1.Tag{Name: "order"})
	if _, err := c.room("a", "a1").Next(bg, &marchv1.NextRequest{Tag: "order"}); err != nil {
		t.Error(err)
	}
	c.wants("GET /v1/layout", 200, `"halt":null`)
}
