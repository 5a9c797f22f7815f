package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// processCluster is an etcd in this process, and rooms and a console in processes of their own.
type processCluster struct {
	*testing.T
	etcd    *ledgertest.Etcd
	store   store.Store
	admin   *admin.Admin
	dir     string
	ports   map[string]int // by the server's name
	base    int
	servers map[string]*process    // those that were started, and not killed since
	tags    []string               // that it issues; order, unless a test says more
	timed   string                 // a tag of time-ordered IDs, if it has one
	runs    map[string][]issuedRun // by tag
}

// issuedRun is IDs that came from an instance in one run.
type issuedRun struct {
	first, count int64
	by           string
}

const consoleName = "console"

func newProcessCluster(t *testing.T) *processCluster {
	t.Helper()
	in := testcluster.New(t)
	c := &processCluster{T: t, etcd: in.Etcd, store: in.Open(t), admin: in.Admin, dir: t.TempDir(),
		ports: make(map[string]int), servers: make(map[string]*process), tags: []string{"order"},
		runs: make(map[string][]issuedRun)}
	var err error
	if c.base, err = freeBase(); err != nil {
		t.Fatal(err)
	}
	c.address(consoleName)
	t.Cleanup(func() { c.unique() })
	return c
}

// init makes the layout a [0, 50) b [50, 100) mod 100 and the tag order, and starts the
// instances a-0 and b-0.
func (c *processCluster) init(flags ...string) {
	c.Helper()
	layout, err := allocator.EqualLayout(100, []allocator.Room{"a", "b"})
	if err == nil {
		_, err = c.admin.Init(c.Context(), layout, "test")
	}
	settings := record.DefaultTag()
	settings.MaxStep = 100_000 // a test soon takes all that an instance holds
	if err == nil {
		_, err = c.admin.CreateTag(c.Context(), "order", settings, "test")
	}
	if err != nil {
		c.Fatal(err)
	}
	c.start("a-0", flags...)
	c.start("b-0", flags...)
}

// address returns where a server listens.
func (c *processCluster) address(name string) string {
	if _, ok := c.ports[name]; !ok {
		c.ports[name] = c.base + len(c.ports)
	}
	return fmt.Sprintf("127.0.0.1:%d", c.ports[name])
}

// roomOf returns the room of an instance by its name, such as a-0.
func roomOf(name string) string {
	room, _, _ := strings.Cut(name, "-")
	return room
}

// start starts an instance, or a console. Flags given here win over its own.
func (c *processCluster) start(name string, flags ...string) {
	c.Helper()
	if roomOf(name) == consoleName { // what a mirror saw, and until when, depends on time
		flags = append([]string{"--mirror-tags=0"}, flags...)
	}
	c.startAs("march", name, flags...)
}

// startAs is start with another program.
func (c *processCluster) startAs(program, name string, flags ...string) {
	c.Helper()
	args := []string{"room", roomOf(name), "--name", name, "--journal", filepath.Join(c.dir, "journal")}
	if roomOf(name) == consoleName {
		args = []string{"console"}
	}
	args = append(args, "--etcd", c.etcd.Endpoint, "--grpc", c.address(name), "--http", "")
	c.servers[name] = beginAs(c.T, c.dir, nil, program, append(args, flags...)...).ready(c.T)
}

// signal sends a signal to a server. It waits for the server's end, if that must follow.
func (c *processCluster) signal(name string, signal syscall.Signal) {
	c.Helper()
	p := c.servers[name]
	if p == nil {
		c.Fatalf("%s does not run", name)
	}
	if signal == syscall.SIGSTOP || signal == syscall.SIGCONT {
		if err := p.cmd.Process.Signal(signal); err != nil {
			c.Fatal(err)
		}
		return
	}
	if code, err := p.stop(patience(c.T), signal); err != nil || signal == syscall.SIGTERM && code != exitOK {
		_, stderr := p.output()
		c.Fatalf("%s: exit code %d, %v\n%s", name, code, err, stderr)
	}
	delete(c.servers, name)
}

// instances returns the names of the instances that run, or names itself if there are any.
func (c *processCluster) instances(names []string) []string {
	if len(names) > 0 {
		return names
	}
	for name := range c.servers {
		if roomOf(name) != consoleName {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// take asks an instance for n IDs of a tag at once.
func (c *processCluster) take(name, tag string, n int64) error {
	c.Helper()
	conn, err := grpc.NewClient(c.address(name), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := marchv1.NewIDServiceClient(conn).NextBatch(c.Context(), &marchv1.NextBatchRequest{Tag: tag, Count: n})
	if err != nil {
		return api.FromStatus(err)
	}
	for _, run := range r.GetRuns() {
		c.runs[tag] = append(c.runs[tag], issuedRun{run.GetFirst(), run.GetCount(), name})
	}
	return nil
}

// unique checks that no ID came twice, and returns their number.
func (c *processCluster) unique() (n int64) {
	c.Helper()
	for _, runs := range c.runs {
		n += checkUnique(c.T, runs)
	}
	return n
}

// checkUnique checks that no ID came twice, and returns how many came.
func checkUnique(t *testing.T, runs []issuedRun) (n int64) {
	t.Helper()
	slices.SortFunc(runs, func(a, b issuedRun) int { return cmp.Compare(a.first, b.first) })
	last := issuedRun{}
	for _, run := range runs {
		if n > 0 && run.first < last.first+last.count {
			t.Errorf("%d came from %s and from %s", run.first, last.by, run.by)
		}
		last, n = run, n+run.count
	}
	return n
}

// issue takes n IDs of each tag from each instance. It asks again after an error: a machine that is busy
// may break a connection. It takes time-ordered IDs where there are any.
func (c *processCluster) issue(n int64, names ...string) {
	c.Helper()
	for _, name := range c.instances(names) {
		for _, tag := range c.tags {
			var err error
			if poll(patience(c.T), func() bool { err = c.take(name, tag, n); return err == nil }) != nil {
				c.Fatalf("%s does not issue: %v", name, err)
			}
		}
		if c.timed != "" {
			_ = c.take(name, c.timed, min(n, 100))
		}
	}
}

// lease takes IDs of each tag from each instance until it issues one that was not leased before.
func (c *processCluster) lease(names ...string) {
	c.Helper()
	for _, name := range c.instances(names) {
		for _, tag := range c.tags {
			var mark struct {
				Next int64 `json:"next,string"`
			}
			if value := c.value("marks/" + roomOf(name) + "/" + tag); value != "" {
				if err := json.Unmarshal([]byte(value), &mark); err != nil {
					c.Fatalf("%s: %v", value, err)
				}
			}
			c.until(name+" leases "+tag, func() bool {
				taken := len(c.runs[tag])
				fresh := func(r issuedRun) bool { return r.first >= mark.Next }
				return c.take(name, tag, 2_000) == nil && slices.ContainsFunc(c.runs[tag][taken:], fresh)
			})
		}
		c.ticks(name)
	}
}

// ticks takes time-ordered IDs from an instance, unless it waits for one that a recover went on without.
func (c *processCluster) ticks(name string) {
	c.Helper()
	c.until(name+" issues time-ordered IDs, or waits", func() bool {
		if c.timed == "" {
			return true
		}
		err := c.take(name, c.timed, 100)
		return err == nil || strings.Contains(c.value("epoch"), `"not_before":`) && strings.Contains(err.Error(), "until")
	})
}

// refused takes IDs from an instance until it gives none for a reason that contains a text,
// and returns the reason.
func (c *processCluster) refused(name, text string) string {
	c.Helper()
	var err error
	c.until(name+" refuses: "+text, func() bool {
		err = c.take(name, "order", 1_000)
		return err != nil && strings.Contains(err.Error(), text)
	})
	return err.Error()
}

// leases waits until each instance has leased of each tag in the epoch in force. Up to half a second
// after a recover it does not know of it. It issues time-ordered IDs, too, unless it says that it waits
// for a process that a recover went on without.
func (c *processCluster) leases(names ...string) {
	c.Helper()
	for _, name := range c.instances(names) {
		for _, tag := range c.tags {
			c.until(name+" leases "+tag, func() bool {
				var in struct{ Epoch string }
				if err := json.Unmarshal([]byte(c.value("epoch")), &in); err != nil || in.Epoch == "" {
					return false
				}
				mark := "marks/" + roomOf(name) + "/" + tag
				return c.take(name, tag, 2_000) == nil && strings.Contains(c.value(mark), in.Epoch)
			})
		}
		c.ticks(name)
	}
}

// change changes the layout to BOUNDARY ROOM=LOWER-UPPER..., and waits until all instances
// that run report it.
func (c *processCluster) change(args []string) {
	c.Helper()
	boundary, err := strconv.ParseInt(args[0], 10, 64)
	to := allocator.Layout{Boundary: boundary, Ranges: make(map[allocator.Room]allocator.Range)}
	for _, arg := range args[1:] {
		room, bounds, _ := strings.Cut(arg, "=")
		var r allocator.Range
		if err == nil {
			_, err = fmt.Sscanf(bounds, "%d-%d", &r.Lower, &r.Upper)
		}
		to.Ranges[allocator.Room(room)] = r
	}
	if err != nil {
		c.Fatal(err)
	}
	from, err := c.admin.Ledger.Refresh(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	now, err := c.admin.ChangeLayout(c.Context(), from, to, "test")
	if err != nil {
		c.Fatal(err)
	}
	version := fmt.Sprintf(`"version":"%d"`, now.Layout.Version)
	for _, name := range c.instances(nil) {
		c.until(name+" reports the layout", func() bool {
			return strings.Contains(c.value("rooms/"+roomOf(name)+"/"+name), version)
		})
	}
}

// age makes etcd's raft log as long as that of a cluster in use, and has the beat say so.
func (c *processCluster) age() {
	c.Helper()
	var putting sync.WaitGroup
	for range 50 { // etcd syncs what comes at the same time once
		putting.Go(func() {
			for range 20 {
				if _, err := c.store.Txn(c.Context(), store.Txn{Then: []store.Op{
					{Put: &store.Put{Key: "other", Value: []byte("value")}}}}); err != nil {
					c.Error(err)
				}
			}
		})
	}
	putting.Wait()
	c.txn(store.Op{Delete: "/march/default/beat"})
	c.until("there is a beat", func() bool { return c.value("beat") != "" })
}

func (c *processCluster) txn(op store.Op) {
	c.Helper()
	if _, err := c.store.Txn(c.Context(), store.Txn{Then: []store.Op{op}}); err != nil {
		c.Fatal(err)
	}
}

func (c *processCluster) put(key, value string) {
	c.Helper()
	c.txn(store.Op{Put: &store.Put{Key: "/march/default/" + key, Value: []byte(value)}})
}

// value returns the value of a key; empty if there is none. It asks again after an error: etcd
// may have started just now.
func (c *processCluster) value(key string) (value string) {
	c.Helper()
	get := store.Txn{Then: []store.Op{{Get: &store.Get{Interval: store.Interval{Key: "/march/default/" + key}}}}}
	c.until("etcd answers", func() bool {
		answer, err := c.store.Txn(c.Context(), get)
		if err == nil && len(answer.Got[0]) > 0 {
			value = string(answer.Got[0][0].Value)
		}
		return err == nil
	})
	return value
}

// registered waits until etcd has the registration of an instance.
func (c *processCluster) registered(name string) {
	c.Helper()
	c.until(name+" registers", func() bool { return c.value("rooms/"+roomOf(name)+"/"+name) != "" })
}

func (c *processCluster) halted() bool { return strings.Contains(c.value("epoch"), `"halted"`) }

func (c *processCluster) file(name, text string) {
	c.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
}

func (c *processCluster) logged(name, text string) {
	c.Helper()
	p := c.servers[name]
	if p == nil {
		c.Fatalf("%s does not run", name)
	}
	if err := p.await(patience(c.T), regexp.QuoteMeta(text)); err != nil {
		c.Fatal(err)
	}
}

func (c *processCluster) until(what string, done func() bool) {
	c.Helper()
	if err := poll(patience(c.T), done); err != nil {
		for name, p := range c.servers {
			_, stderr := p.output()
			c.Logf("%s:\n%s", name, stderr)
		}
		c.Fatalf("%s: %v", what, err)
	}
}

// march runs a command of march, and returns what it prints and its exit code, if that is
// not 0.
func (c *processCluster) march(args []string) string {
	c.Helper()
	switch args[0] {
	case "recover":
		args = append([]string{"recover", "--etcd", c.etcd.Endpoint, "--quiet", "--wait", "0s",
			"--timeout", "20s"}, args[1:]...)
	case "halt", "fence", "verify":
		args = append([]string{args[0], "--etcd", c.etcd.Endpoint}, args[1:]...)
	}
	for i, arg := range args {
		if name, ok := strings.CutPrefix(arg, "--room="); ok && c.ports[name] > 0 {
			args[i] = "--room=" + c.address(name)
		}
		if name, ok := strings.CutPrefix(arg, "--journal="); ok && c.ports[name] > 0 {
			files, err := filepath.Glob(filepath.Join(c.dir, "journal", "*", roomOf(name), name+".journal"))
			if err != nil || len(files) != 1 {
				c.Fatalf("journals of %s: %v, %v", name, files, err)
			}
			args[i] = "--journal=" + files[0]
		}
	}
	env := append(os.Environ(), "MARCH_CONSOLE="+c.address(consoleName), "MARCH_TIMEOUT=1m") // the machine may be busy
	out, errs, code, err := runLine(c.Context(), c.dir, env, append([]string{"march"}, args...)...)
	if err != nil {
		c.Fatal(err)
	}
	text := out + errs
	if code != exitOK {
		text += fmt.Sprintf("exit code %d\n", code)
	}
	return text
}

// Four instances end without a sign, and their heartbeats stay. An instance that starts later issues time-ordered IDs,
// and opens a period, at the first call. Before, both failed for 10 s, for a day.
func TestDeadNamesFailNoTag(t *testing.T) {
	t.Parallel()
	c := newProcessCluster(t)
	c.init()
	daily, event := record.DefaultTag(), record.DefaultTag()
	daily.Period = period.Period{Unit: period.Day, Digits: 9, Zone: "UTC"}
	timed := record.NewTimeTag(timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond})
	event.Time = &timed
	for name, settings := range map[string]record.TagSettings{"daily": daily, "event": event} {
		if _, err := c.admin.CreateTag(t.Context(), allocator.Tag(name), settings, "test"); err != nil {
			t.Fatal(err)
		}
	}
	c.start("a-1")
	c.start("b-1")
	for _, name := range c.instances(nil) {
		c.signal(name, syscall.SIGKILL)
		key := "alive/" + roomOf(name) + "/" + name
		var beat record.Heartbeat
		if err := record.Decode(store.KV{Key: key, Value: []byte(c.value(key))}, &beat); err != nil {
			t.Fatal(err)
		}
		beat.Time = beat.Time.Add(-time.Hour)
		c.put(key, string(record.Encode(&beat)))
	}
	c.start("a-9")
	for _, tag := range []string{"event", "daily"} {
		if err := c.take("a-9", tag, 1); err != nil {
			t.Errorf("the first call to tag %s: %v", tag, err)
		}
	}
}

// A process that hangs keeps its journal. The one that is to follow it, as a pod is that was started anew, names it and
// how to end it; once that is done it starts.
func TestPredecessorThatHangs(t *testing.T) {
	t.Parallel()
	c := newProcessCluster(t)
	c.init()
	pid := c.servers["a-0"].cmd.Process.Pid
	c.signal("a-0", syscall.SIGSTOP)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := marchWith(t, nil, "room", "a", "--name", "a-0", "--journal", c.dir+"/journal",
		"--etcd", c.etcd.Endpoint, "--grpc", "127.0.0.1:0", "--http", "")
	if code == exitOK || !strings.Contains(stderr, fmt.Sprintf("another process has it (PID %d on host %s, since ", pid,
		host)) || !strings.Contains(stderr, fmt.Sprintf("`kill -9 %d`", pid)) {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	c.signal("a-0", syscall.SIGKILL)
	c.start("a-0")
	if err := c.take("a-0", "order", 10); err != nil {
		t.Error(err)
	}
}
