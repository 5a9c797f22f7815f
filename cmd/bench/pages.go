package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	marchconsole "github.com/march-id/march/console"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/testcerts"
	"github.com/march-id/march/internal/testcluster"
)

// pages measures what an operator waits for in a cluster with many tags: a plan, pages of tags,
// the status, and the pages of the console. Each is requested several times, and the longest
// time counts, the first one of a newly started console included. Counting costs, and reading tags
// for pages of tags, continue beside the next requests.
func pages(p *part) {
	rooms := []allocator.Room{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
	c := p.leased(p.tags, rooms...)
	c.startRooms(rooms...)
	time.Sleep(2 * time.Second) // an instance knows its rates after a second: before, `march status` waits for them
	console := c.startConsole()
	longest := func(what string, ask func(), note func() string) {
		var took, first time.Duration
		for range p.rounds {
			began := time.Now()
			ask()
			since := time.Since(began)
			took, first = max(took, since), cmp.Or(first, since)
		}
		said := fmt.Sprintf("the first time %.3g s", first.Seconds())
		if note != nil {
			said += note()
		}
		p.figure(row{what: fmt.Sprintf("%s, %d tags, %d rooms", what, p.tags, len(rooms)), goal: 0.5, atMost: true,
			unit: "s", note: said}, took.Seconds())
	}
	var token string
	list := func(from string) {
		page := must(console.client.ListTags(p.ctx, &marchv1.ListTagsRequest{PageToken: from}))
		if token = page.GetNextPageToken(); len(page.GetTags()) != 100 {
			p.Fatalf("%d tags, not 100", len(page.GetTags()))
		}
	}
	longest("page of tags (ListTags)", func() { list("") }, nil)
	longest("next page of tags (ListTags)", func() { list(token) }, nil)
	longest("overview page", func() { p.check(console.get("/", nil, "layout 1")) }, nil)
	longest("march status", func() {
		out, err := exec.CommandContext(p.ctx, p.march, "status", "--console", console.grpc).CombinedOutput()
		if err != nil {
			p.Fatalf("march status: %v: %s", err, out)
		}
	}, nil)
	var plan *marchv1.Plan
	longest("plan (PlanMigration)", func() {
		plan = must(console.client.PlanMigration(p.ctx,
			&marchv1.PlanMigrationRequest{Move: []string{"a:50-100=b"}})).GetPlan()
		if len(plan.GetMoves()) != 2 {
			p.Fatalf("%d moves, not 2", len(plan.GetMoves()))
		}
	}, nil)
	// The form of a plan that moves residues from room a to room b.
	form := url.Values{"boundary": {strconv.Itoa(100 * len(rooms))}}
	edges := []int{0, 50}
	for i, room := range rooms {
		if i > 0 {
			edges = append(edges, 100*(i+1))
		}
		form.Add("room", string(room))
		form.Add("lower", strconv.Itoa(edges[i]))
		form.Add("upper", strconv.Itoa(edges[i+1]))
	}
	longest("plan in the browser", func() { p.check(console.get("/migrations", form, "The plan: 2 moves")) },
		func() string {
			if p.tags > 100_000 { // counting the costs of more takes minutes
				return ""
			}
			return fmt.Sprintf("; its costs after %.3g s", console.count(p, plan).Seconds())
		})
	longest("page of tags in the browser, until it has its list", func() {
		p.await("the list of tags", func() bool { return console.get("/tags", nil, string(tagName(0))) == nil })
	}, nil)
	longest("overview page, while tags are read", func() { p.check(console.get("/", nil, "layout 1")) }, nil)
	for _, page := range []string{"/instances", "/capacity", "/workers", "/audit", "/history",
		"/tags/" + string(tagName(0))} {
		longest("page "+page, func() { p.check(console.get(page, nil, "</html>")) }, nil)
	}
	c.end(console.cmd)
}

// windows measures how many windows of one browser a console keeps live over TLS: each has its page and a tick.
func windows(p *part) {
	const tags, windows, within = 1000, 20, 20 * time.Second
	c := p.leased(tags, "a", "b", "c")
	ca := testcerts.New(c)
	pair := ca.Write("console", certs.Leaf{Hosts: []string{"127.0.0.1"}})
	at := c.freeAddress()
	console := c.begin("console-tls", "console", "--etcd", cmp.Or(c.consoleAt, c.etcd.Address), "--grpc",
		c.freeAddress(), "--http", at, "--tls-cert", pair.Cert, "--tls-key", pair.Key)
	files := testcerts.Open(c, tlsfiles.Config{Flags: "tls", CA: ca.Root})
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: files.Client("127.0.0.1"),
		ForceAttemptHTTP2: true, MaxConnsPerHost: 1}}
	ctx, cancel := context.WithTimeout(c.ctx, within)
	defer cancel()
	get := func(path string) (*http.Response, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at+path, http.NoBody)
		c.check(err)
		return browser.Do(request)
	}
	c.await("the console to be ready", func() bool {
		answer, err := get("/readyz")
		if err == nil {
			_ = answer.Body.Close()
		}
		return err == nil && answer.StatusCode == http.StatusOK
	})
	live := make(chan bool, windows)
	for range windows {
		go func() {
			answer, err := get("/live/tags")
			if err != nil {
				live <- false
				return
			}
			defer func() { _ = answer.Body.Close() }()
			page, tick := false, false
			for lines := bufio.NewScanner(answer.Body); !(page && tick) && lines.Scan(); {
				page, tick = page || strings.HasPrefix(lines.Text(), "id: "), tick || lines.Text() == "event: tick"
			}
			live <- page && tick && answer.ProtoMajor == 2
			<-ctx.Done() // it stays open beside the others
		}()
	}
	kept := 0
	for range windows {
		if <-live {
			kept++
		}
	}
	c.figure(row{what: "windows of one browser that are live over one connection", goal: windows}, float64(kept))
	c.end(console)
}

// mirrors measures a console's mirror: when it has seen all tags and marks, and the console's memory then.
func mirrors(p *part) {
	c := p.leased(p.tags, "a", "b", "c")
	console := c.startConsole("--mirror-tags", strconv.Itoa(2*c.tags))
	began := time.Now()
	all, q := false, mirror.Question{UUID: must(c.admin.Ledger.UUID(c.ctx))}
	c.await("the mirror to have seen all", func() bool {
		answer, err := marchconsole.AskMirror(c.ctx, console.conn, q, func(p mirror.Part) error {
			all = all || p.Rest != nil && len(p.Rest.Views) > 0
			return nil
		})
		if err == nil {
			q.After = answer.Tick // what it has seen since, not all of it each time
		}
		return err == nil && all
	})
	what := fmt.Sprintf("mirror of %d tags of 3 rooms, ", c.tags)
	c.figure(row{what: what + "until it has seen all", goal: 60, atMost: true, unit: "s"}, time.Since(began).Seconds())
	c.figure(row{what: what + "memory of the console", goal: 1000, atMost: true, unit: "MB"},
		float64(must(memory(console.cmd.Process.Pid, "VmHWM:")))/1e6)
	c.end(console.cmd)
}

// consoleProcess is a console: the march that users run.
type consoleProcess struct {
	cmd        *exec.Cmd
	grpc, http string
	conn       *grpc.ClientConn
	client     marchv1.ConsoleServiceClient
}

// startConsole starts a console of the cluster, and returns it once it is ready.
func (c *processes) startConsole(flags ...string) *consoleProcess {
	s := &consoleProcess{grpc: c.freeAddress(), http: c.freeAddress()}
	s.cmd = c.begin("console", append([]string{"console", "--etcd", cmp.Or(c.consoleAt, c.etcd.Address),
		"--grpc", s.grpc, "--http", s.http}, flags...)...)
	s.conn = c.dial(s.grpc)
	s.client = marchv1.NewConsoleServiceClient(s.conn)
	c.await("the console to be ready", func() bool { return s.get("/readyz", nil, "") == nil })
	return s
}

// freeAddress returns an address of this machine at which nothing listens.
func (p *part) freeAddress() string { return fmt.Sprint("127.0.0.1:", p.port()) }

// count makes the console count what a plan costs, and returns how long that took.
func (s *consoleProcess) count(p *part, plan *marchv1.Plan) time.Duration {
	began := time.Now()
	r := &marchv1.CountPlanCostRequest{Plan: plan, Wait: durationpb.New(time.Second)}
	for {
		answer := must(s.client.CountPlanCost(p.ctx, r))
		if answer.GetCost() != nil {
			return time.Since(began)
		}
		r.Count = answer.GetCount()
	}
}

// get requests a page over HTTP. The answer must contain a text.
func (s *consoleProcess) get(path string, query url.Values, text string) error {
	address := url.URL{Path: path, RawQuery: query.Encode()}
	code, body := testcluster.Get(s.http, address.String())
	if code != http.StatusOK || !strings.Contains(body, text) {
		return fmt.Errorf("%s: %d, without %q: %.1000s", path, code, text, body)
	}
	return nil
}
