package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
	marchv1 "github.com/march-id/march/api/march/v1"
	marchconsole "github.com/march-id/march/console"
)

// pages measures what an operator waits for in a cluster with many tags: a plan, pages of tags,
// the status, and the pages of the console. Each is requested several times, and the longest
// time counts, the first one of a newly started console included.
func pages(ctx context.Context, s sizes, add func(row)) (err error) {
	const goal = 0.5
	c, err := leasedCluster(ctx, s.march, s.tags, "a", "b", "c")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if _, err := c.startRooms(ctx, []allocator.Room{"a", "b", "c"}); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // an instance knows its rates after a second: before, `march status` waits for them
	console, err := c.startConsole(ctx)
	if err != nil {
		return err
	}
	for _, p := range console.asked() {
		took, note, err := longest(s.rounds, p.ask)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", p.what, err), console.close())
		}
		add(row{what: fmt.Sprintf("%s, %d tags", p.what, s.tags), measured: took.Seconds(), goal: goal,
			unit: "s", note: note + p.note()})
	}
	if err := console.close(); err != nil {
		return err
	}
	return c.mirrors(ctx, s.tags, add)
}

// mirrors measures a console's mirror: when it has seen all tags and marks, and the console's memory then.
func (c *cluster) mirrors(ctx context.Context, tags int, add func(row)) (err error) {
	console, err := c.startConsole(ctx, "--mirror-tags", strconv.Itoa(2*tags))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, console.close()) }()
	began := time.Now()
	uuid, err := c.admin.Ledger.UUID(ctx)
	if err != nil {
		return err
	}
	all, q := false, mirror.Question{UUID: uuid}
	err = await(ctx, "the mirror to have seen all", func() (bool, error) {
		answer, err := marchconsole.AskMirror(ctx, console.conn, q, func(p mirror.Part) error {
			all = all || p.Rest != nil && len(p.Rest.Views) > 0
			return nil
		})
		if err == nil {
			q.After = answer.Tick // what it has seen since, not all of it each time
		}
		return all, err
	})
	if err != nil {
		return err
	}
	what := fmt.Sprintf("mirror of %d tags of 3 rooms, ", tags)
	add(row{what: what + "until it has seen all", measured: time.Since(began).Seconds(), goal: 60, unit: "s"})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", console.cmd.Process.Pid))
	if err != nil {
		return err
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	var kB float64
	if _, err := fmt.Sscan(peak, &kB); err != nil {
		return fmt.Errorf("the memory of the console: %w", err)
	}
	add(row{what: what + "memory of the console", measured: kB * 1024 / 1e6, goal: 1000, unit: "MB"})
	return nil
}

// longest calls ask some times, and returns the longest time, and the first time as a note.
func longest(rounds int, ask func() error) (took time.Duration, note string, err error) {
	for i := range rounds {
		began := time.Now()
		if err := ask(); err != nil {
			return 0, "", err
		}
		since := time.Since(began)
		if took = max(took, since); i == 0 {
			note = fmt.Sprintf("the first time %.3g s", since.Seconds())
		}
	}
	return took, note, nil
}

// asked is a request of an operator to a console.
type asked struct {
	what string
	ask  func() error
	note func() string // added to the note about the first time
}

// asked returns all measured requests in order. Counting costs, and reading tags for pages of
// tags, continue beside the next requests.
func (c *consoleProcess) asked() []asked {
	none := func() string { return "" }
	var token string
	var plan *marchv1.Plan
	return []asked{
		{"page of tags (ListTags)", func() (err error) {
			token, err = c.listTags("")
			return err
		}, none},
		{"next page of tags (ListTags)", func() (err error) {
			token, err = c.listTags(token)
			return err
		}, none},
		{"overview page", func() error { return c.get("/", nil, "layout 1") }, none},
		{"march status", func() error { return c.run("status") }, none},
		{"plan (PlanMigration)", func() error {
			answer, err := c.client.PlanMigration(c.ctx, &marchv1.PlanMigrationRequest{Move: []string{"a:50-100=b"}})
			if plan = answer.GetPlan(); err == nil && len(plan.GetMoves()) != 2 {
				err = fmt.Errorf("%d moves, not 2", len(plan.GetMoves()))
			}
			return err
		}, none},
		{"plan in the browser", func() error {
			return c.get("/migrations", planForm(), "The plan: 2 moves")
		}, func() string {
			took, err := c.count(plan)
			if err != nil {
				return ", and its costs: " + err.Error()
			}
			return fmt.Sprintf("; its costs after %.3g s", took.Seconds())
		}},
		{"page of tags in the browser, until it has its list", func() error {
			return await(c.ctx, "the list of tags", func() (bool, error) {
				err := c.get("/tags", nil, string(tagName(0)))
				return err == nil, err
			})
		}, none},
		{"overview page, while tags are read", func() error { return c.get("/", nil, "layout 1") }, none},
	}
}

// count makes the console count what a plan costs, and returns how long that took.
func (c *consoleProcess) count(plan *marchv1.Plan) (time.Duration, error) {
	began := time.Now()
	r := &marchv1.CountPlanCostRequest{Plan: plan, Wait: durationpb.New(time.Second)}
	for {
		answer, err := c.client.CountPlanCost(c.ctx, r)
		if err != nil || answer.GetCost() != nil {
			return time.Since(began), err
		}
		r.Count = answer.GetCount()
	}
}

// planForm is the form of a plan that moves residues from room a to room b.
func planForm() url.Values {
	return url.Values{
		"boundary": {"300"}, "room": {"a", "b", "c"}, "lower": {"0", "50", "200"}, "upper": {"50", "200", "300"},
	}
}

// leasedCluster returns a cluster of rooms with a number of tags, all leased in each room. No
// room runs.
func leasedCluster(ctx context.Context, march string, tags int, rooms ...allocator.Room) (_ *cluster, err error) {
	layout, err := equal(rooms...)
	if err != nil {
		return nil, err
	}
	c, err := startCluster(ctx, march, layout)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	addresses, err := c.startRooms(ctx, rooms)
	if err != nil {
		return c, err
	}
	for _, address := range addresses {
		if err := leaseModel(ctx, address); err != nil {
			return c, err
		}
	}
	if err := c.stopRooms(); err != nil {
		return c, err
	}
	if err := c.fill(ctx, tags); err != nil {
		return c, err
	}
	say("%d tags are in etcd", tags)
	return c, nil
}

// consoleProcess is a console: the march that users run.
type consoleProcess struct {
	ctx        context.Context
	march      string
	cmd        *exec.Cmd
	grpc, http string
	close      func() error
	conn       *grpc.ClientConn
	client     marchv1.ConsoleServiceClient
}

// startConsole starts a console of the cluster, and returns it once it is ready.
func (c *cluster) startConsole(ctx context.Context, flags ...string) (*consoleProcess, error) {
	p := &consoleProcess{ctx: ctx, march: c.march}
	var err error
	if p.grpc, err = freeAddress(); err != nil {
		return nil, err
	}
	if p.http, err = freeAddress(); err != nil {
		return nil, err
	}
	p.cmd, err = c.begin(ctx, "console", append([]string{"console", "--etcd", cmp.Or(c.consoleAt, c.etcd.Address),
		"--grpc", p.grpc, "--http", p.http}, flags...)...)
	if err != nil {
		return nil, err
	}
	p.close = func() error { return errors.Join(p.cmd.Process.Signal(syscall.SIGTERM), p.cmd.Wait()) }
	conn, err := dial(p.grpc, "127.0.0.1")
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	p.conn, p.client = conn, marchv1.NewConsoleServiceClient(conn)
	p.close = func() error {
		return errors.Join(conn.Close(), p.cmd.Process.Signal(syscall.SIGTERM), p.cmd.Wait())
	}
	err = await(ctx, "the console to be ready", func() (bool, error) { return p.get("/readyz", nil, "") == nil, nil })
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// freeAddress returns an address of this machine at which nothing listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// listTags requests a page of tags, and returns the token of the next one.
func (c *consoleProcess) listTags(token string) (next string, err error) {
	page, err := c.client.ListTags(c.ctx, &marchv1.ListTagsRequest{PageToken: token})
	if err == nil && len(page.GetTags()) != 100 {
		err = fmt.Errorf("%d tags, not 100", len(page.GetTags()))
	}
	return page.GetNextPageToken(), err
}

// get requests a page over HTTP. The answer must contain a text.
func (c *consoleProcess) get(path string, query url.Values, text string) error {
	address := url.URL{Scheme: "http", Host: c.http, Path: path, RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(c.ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK || !strings.Contains(string(body), text) {
		return fmt.Errorf("%s: %s, without %q: %.1000s", path, answer.Status, text, body)
	}
	return nil
}

// run runs a command that calls the console.
func (c *consoleProcess) run(args ...string) error {
	cmd := exec.CommandContext(c.ctx, c.march, append(args, "--console", c.grpc)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("march %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
