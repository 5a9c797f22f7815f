package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// fault is a row of the night test: a thing that breaks, and what each surface then says of it. What they say is in
// testdata/night, so that it is read as a whole. Each problem says since when, for whom, and by which command it is
// mended; mend runs that command, and the cell "mend" has it as it ran, or why it did not run here. Where a surface has
// nothing to say, or a part is missing, without has the reason.
type fault struct {
	name string
	room func(*night, *room.Config) // of all instances
	// breaks breaks the thing. Then the night lasts until the surfaces have all said it, of which shown is one
	// that the console lists; it ends at once if shown is none.
	breaks func(*night)
	shown  marchv1.ProblemKind
	found  string // otherwise the check of doctor that finds it
	// mend does what the command says; march runs one of march's.
	mend    func(n *night, command string)
	without map[string]string
	// asks, if set, asks for what is broken, where that shows nowhere else: what a command then says is the cell
	// "command", and what the page says is that of the page.
	asks func(*night) (said, page string)
}

// night is a cluster of rooms a, of two instances, and b, of one, and a console, in a bubble. A caller of each
// instance asks each second for an ID of the counter order and of the time-ordered tag event.
type night struct {
	*testcluster.Cluster
	dir         string
	certificate string // the file of the instances' certificate; empty for none
	processes   map[string]*nightProcess
	began       time.Time       // when the fault began; what came before is healthy
	inRules     map[string]bool // the metrics that alerts depend on
	free        func()          // frees the disk that fillJournal filled
	mended      string          // the cell "mend"
	tags        []string        // that callers use
	first       time.Time       // of the scrapes
	scrapes     int
	series      map[string][]string // as scraped: a value each time, "_" where there was none
}

// nightProcess is a console, or an instance named ROOM/NAME.
type nightProcess struct {
	*testcluster.Process
	etcd    *nightStore
	ahead   atomic.Int64 // of its clock, in nanoseconds
	log     lockedBuffer
	metrics *serve.Metrics
	room    *testcluster.Room // nil for a console
	console *testcluster.Console
	killed  bool
}

// lockedBuffer is a buffer for a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// nightStore is a connection to etcd in which a test may put a wrong password, and a slow or a partly dead etcd.
type nightStore struct {
	*ledgertest.Conn
	refuse  atomic.Pointer[allocator.Error]
	slow    atomic.Int64 // nanoseconds of each transaction
	members atomic.Pointer[store.Members]
}

// Txn implements store.Store.
func (s *nightStore) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	if err := s.refuse.Load(); err != nil {
		return store.Answer{}, err
	}
	select {
	case <-time.After(time.Duration(s.slow.Load())):
		return s.Conn.Txn(ctx, txn)
	case <-ctx.Done():
		return store.Answer{}, allocator.Errorf(allocator.Unavailable, "memory: %w", ctx.Err())
	}
}

// Status implements store.Store.
func (s *nightStore) Status(ctx context.Context) (store.Status, error) {
	if err := s.refuse.Load(); err != nil {
		return store.Status{}, err
	}
	time.Sleep(time.Duration(s.slow.Load()))
	return s.Conn.Status(ctx)
}

// Members is what store.ReadMembers asks.
func (s *nightStore) Members(ctx context.Context) store.Members {
	if m := s.members.Load(); m != nil {
		return *m
	}
	return s.Conn.Members(ctx)
}

const (
	scrapeEvery  = 15 * time.Second
	nightLength  = 3 * time.Minute // that a fault is looked at
	nightConsole = "console"
	// nightNotices is when all is noticed: consoles ask etcd for its size each minute, and instances look at the clocks
	// of others when they renew a window, each two minutes.
	nightNotices = 130 * time.Second
)

// newNight starts the cluster.
func newNight(t *testing.T, f fault, in map[string]bool) *night {
	t.Helper()
	n := &night{Cluster: testcluster.New(t), dir: t.TempDir(), processes: map[string]*nightProcess{},
		inRules: in,
		tags:    []string{"order", "event"}, series: map[string][]string{}}
	n.Init(testcluster.Halves(), "ann")
	n.Tag(nil, "ann", "order")
	n.Tag(func(s *record.TagSettings) {
		timed := record.NewTimeTag(timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12,
			Unit: time.Millisecond, Epoch: timeid.EpochCosId})
		s.Time = &timed
	}, "ann", "event")
	n.startConsole()
	for _, of := range []string{"a/a1", "a/a2", "b/b1"} {
		n.start(of, f.room)
	}
	n.pass(time.Minute)
	return n
}

// open makes a process's ledger, log and metrics.
func (n *night) open(name string, labels prometheus.Labels) (*nightProcess, *ledger.Ledger, hclog.Logger) {
	p := &nightProcess{etcd: &nightStore{Conn: n.Mem.Open()}, metrics: serve.NewMetrics("v1", labels)}
	n.processes[name] = p
	log := hclog.New(&hclog.LoggerOptions{Output: &p.log, JSONFormat: true, Level: hclog.Info})
	l := n.LedgerOver(p.etcd, func(cfg *ledger.Config) {
		cfg.Now, cfg.Logger, cfg.Observe = p.now, log.Named("ledger"), p.metrics.Transaction
		cfg.EtcdUser = "march-user"
	})
	p.metrics.Ledger(l)
	return p, l, log
}

func (p *nightProcess) now() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }

// start starts an instance.
func (n *night) start(of string, change func(*night, *room.Config)) {
	n.Helper()
	in, name, _ := strings.Cut(of, "/")
	p, l, log := n.open(of, prometheus.Labels{"room": in})
	p.room = n.Launch(allocator.Room(in), allocator.Instance(name), func(cfg *room.Config) {
		cfg.Ledger, cfg.Logger, cfg.Metrics, cfg.Build = l, log, p.metrics, "v1"
		cfg.HTTP = testcluster.Listen(n, "")
		cfg.Journal = filepath.Join(n.dir, name)
		if change != nil {
			change(n, cfg)
		}
		cfg.Diagnose = problem.NewHost(problem.HostConfig{Build: "v1", Ledger: l, Journal: cfg.Journal, Now: p.now,
			Settings: []*marchv1.Setting{{Name: "tls-cert", Value: n.certificate}}})
		p.metrics.Register(cfg.Diagnose)
	})
	p.Process = p.room.Process
	testcluster.Await(n, of+" answers", func() bool {
		code, _ := testcluster.Get(p.room.HTTP, "/readyz")
		return code != 0
	})
}

func (n *night) startConsole() {
	n.Helper()
	p, l, log := n.open(nightConsole, nil)
	p.console = n.Console(func(cfg *console.Config) {
		cfg.Ledger, cfg.Logger, cfg.Metrics = l, log, p.metrics
		cfg.Diagnose = problem.NewHost(problem.HostConfig{Build: "v1", Ledger: l, Now: p.now})
	})
	p.Process = p.console.Process
}

// kill ends processes as kill -9 does: nothing that they do at their end reaches etcd.
func (n *night) kill(names ...string) {
	n.Helper()
	for _, name := range names {
		p := n.processes[name]
		_ = p.etcd.Close()
		p.Cancel()
		_ = p.Wait()
		p.killed = true
	}
}

// instances returns the instances that run, in order.
func (n *night) instances() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(n.processes)) {
		if p := n.processes[name]; p.room != nil && !p.killed {
			names = append(names, name)
		}
	}
	return names
}

// pass lets time pass, in which callers take IDs of all instances, and Prometheus, if there is one, scrapes them.
func (n *night) pass(d time.Duration) {
	n.Helper()
	for until := time.Now().Add(d); time.Now().Before(until); {
		next := time.Now().Add(time.Second)
		for _, name := range n.instances() {
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			for _, tag := range n.tags {
				_, _ = n.processes[name].room.Next(ctx, &marchv1.NextRequest{Tag: tag})
			}
			cancel()
		}
		if promtool != "" && time.Now().Unix()%int64(scrapeEvery/time.Second) == 0 {
			n.scrape()
		}
		time.Sleep(time.Until(next))
	}
}

// scrape notes the metrics of all processes.
func (n *night) scrape() {
	n.Helper()
	if n.scrapes == 0 {
		n.first = time.Now()
	}
	for _, name := range slices.Sorted(maps.Keys(n.processes)) {
		p := n.processes[name]
		if p.killed {
			continue
		}
		families, err := p.metrics.Gatherer().Gather()
		if err != nil {
			n.Fatal(err)
		}
		for _, family := range families {
			if !n.inRules[family.GetName()] {
				continue
			}
			for _, m := range family.GetMetric() {
				labels := fmt.Sprintf("instance=%q", name)
				for _, l := range m.GetLabel() {
					labels += fmt.Sprintf(",%s=%q", l.GetName(), l.GetValue())
				}
				n.sample(family.GetName(), labels, m.GetGauge().GetValue()+m.GetCounter().GetValue())
				h := m.GetHistogram()
				for _, b := range h.GetBucket() {
					n.sample(family.GetName()+"_bucket", fmt.Sprintf("%s,le=\"%v\"", labels, b.GetUpperBound()),
						float64(b.GetCumulativeCount()))
				}
				if h != nil {
					n.sample(family.GetName()+"_bucket", labels+`,le="+Inf"`, float64(h.GetSampleCount()))
				}
			}
		}
	}
	n.scrapes++
}

func (n *night) sample(name, labels string, value float64) {
	id := name + "{" + labels + "}"
	if strings.HasSuffix(name, "_timestamp_seconds") { // promtool's time begins at 0
		value -= float64(n.first.Unix())
	}
	for len(n.series[id]) < n.scrapes {
		n.series[id] = append(n.series[id], "_")
	}
	n.series[id] = append(n.series[id], strings.TrimPrefix(fmt.Sprint(value), "+"))
}

// surfaces are what an operator may look at, in the order of testdata/night.
var surfaces = []string{"readyz", "health", "status", "doctor", "page", "log", "alerts", "command", "mend"}

// look returns what each surface says.
func (n *night) look() map[string]string {
	n.Helper()
	cells := make(map[string]string)
	add := func(surface, format string, args ...any) {
		cells[surface] += n.fixed(fmt.Sprintf(format, args...)) + "\n"
	}
	names := append(n.instances(), nightConsole)
	for _, name := range names {
		p := n.processes[name]
		var address string
		if p.console != nil {
			address = p.console.HTTP
		} else {
			address = p.room.HTTP
		}
		code, body := testcluster.Get(address, "/readyz?verbose")
		if code != http.StatusOK {
			add("readyz", "%s: %d", name, code)
		}
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "[-]") || strings.HasPrefix(line, "[!]") {
				add("readyz", "%s: %s", name, strings.TrimSpace(line))
			}
		}
		for _, service := range []string{"", "counters", "time-ordered"} {
			if p.console != nil && service != "" {
				continue
			}
			conn := p.conn()
			answer, err := healthpb.NewHealthClient(conn).Check(context.Background(),
				&healthpb.HealthCheckRequest{Service: service})
			if err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				add("health", "%s: %q is %v", name, service, answer.GetStatus())
			}
		}
	}
	status, code := n.march("status")
	if code == exitUnavailable {
		add("status", "%s", status)
		text, _ := n.march("doctor")
		add("doctor", "%s", text)
	}
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		if len(fields) > 5 && len(fields[0]) == 1 && strings.HasPrefix(fields[1], "[") {
			add("status", "%s", strings.TrimSuffix(fmt.Sprintf("room %s: %s up, IDs/s %s", fields[0],
				nightUp.FindString(line), nightRate.FindString(line)), ", IDs/s "))
		}
	}
	_, problems, _ := strings.Cut(status, "\n\nROOM")
	if _, problems, _ = strings.Cut(problems, "\n\n"); code != exitUnavailable {
		add("status", "%s", strings.TrimSpace(problems))
	}
	for _, f := range n.findings() {
		if f.Level == levelFailed || f.Level == levelWarning {
			add("doctor", "%s, %s: %s. %s `%s`", f.Level, f.Check, f.What, f.Remedy, f.Command)
		}
	}
	_, body := testcluster.Get(n.processes[nightConsole].console.HTTP, "/")
	for _, notice := range notices.FindAllStringSubmatch(body, -1) {
		for line := range strings.Lines(plainText(strings.ReplaceAll(notice[1], "<li>", "\n"))) {
			if line = strings.Join(strings.Fields(line), " "); line != "" {
				add("page", "%s", line)
			}
		}
	}
	for _, name := range names {
		for line := range strings.Lines(n.processes[name].log.String()) {
			var entry struct {
				Message                   string    `json:"@message"`
				At                        time.Time `json:"@timestamp"`
				Kind, What, Since, Remedy string
			}
			if json.Unmarshal([]byte(line), &entry) == nil && entry.What != "" && entry.At.After(n.began) {
				add("log", "%s: %s", name, strings.TrimSpace(fmt.Sprintf("%s: %s. %s %s", entry.Message, entry.What,
					entry.Since, hits.ReplaceAllString(entry.Remedy, "")))) // they grow after the line
			}
		}
	}
	return cells
}

// plainText returns a part of a page as a reader has it, with the addresses of links.
func plainText(part string) string {
	return html.UnescapeString(markup.ReplaceAllString(links.ReplaceAllString(part, "$2 ($1)"), ""))
}

var (
	notices   = regexp.MustCompile(`(?s)<section class="notice[^>]*>(.*?)</section>`)
	links     = regexp.MustCompile(`(?s)<a href="([^"]*)"[^>]*>(.*?)</a>`)
	markup    = regexp.MustCompile(`</?[a-z][^>]*>`)
	moments   = regexp.MustCompile(`2\d\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| UTC)?`)
	workerIDs = regexp.MustCompile(`worker \d+/\d+`)
	stretches = regexp.MustCompile(`\b(\d+[hm])+\d+s\b`)
	hits      = regexp.MustCompile(`It hits [^.]*\. `)
	revisions = regexp.MustCompile(`\bcompact \d+`)
	nextSteps = regexp.MustCompile("Next: `([^`]*)`")
	uuids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
	ulids     = regexp.MustCompile(`\b[0-9A-HJKMNP-TV-Z]{26}\b`)
)

// fixed returns a text without what differs from run to run. A moment at which the fault began is NOW.
func (n *night) fixed(text string) string {
	for name, p := range n.processes {
		if p.room != nil {
			text = strings.ReplaceAll(text, p.room.Address, "ADDRESS-OF-"+name)
		} else {
			text = strings.ReplaceAll(text, p.console.Conn.Target(), "ADDRESS-OF-"+name)
		}
	}
	host, _ := os.Hostname()
	text = strings.NewReplacer(whoami(), "OPERATOR", n.dir, "DIR", host, "HOST").Replace(text)
	text = ulids.ReplaceAllString(text, "MIGRATION")
	text = uuids.ReplaceAllString(text, "CLUSTER")
	text = workerIDs.ReplaceAllString(text, "worker N")
	text = stretches.ReplaceAllString(text, "SOME TIME")
	text = revisions.ReplaceAllString(text, "compact REVISION")
	return moments.ReplaceAllStringFunc(text, func(moment string) string {
		at, err := time.Parse("2006-01-02T15:04:05", strings.Replace(moment[:19], " ", "T", 1))
		since := at.Sub(n.began)
		switch {
		case err != nil:
			return moment
		case since > -15*time.Second && since < nightNotices:
			return "NOW"
		case since < 0:
			return "EARLIER"
		case since < 12*time.Hour:
			return "LATER"
		}
		return fmt.Sprintf("NOW+%.0fh", since.Hours())
	})
}

// march runs a command, and returns what it prints and its exit code.
func (n *night) march(args ...string) (string, int) {
	n.Helper()
	var out, errs bytes.Buffer
	root := (&common{stdout: &out, stderr: &errs, network: testcluster.DialContext}).root()
	if cmd, _, err := root.Find(args); err == nil && cmd.InheritedFlags().Lookup("console") != nil ||
		cmd.PersistentFlags().Lookup("console") != nil {
		args = append(args, "--console", n.consoleAddress())
	}
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return out.String(), exitOK
	}
	if out.Len() == 0 {
		return errs.String() + err.Error(), exitCode(err)
	}
	return out.String(), exitCode(err)
}

func (p *nightProcess) conn() *grpc.ClientConn {
	if p.console != nil {
		return p.console.Conn
	}
	return p.room.Conn
}

func (n *night) consoleAddress() string { return n.processes[nightConsole].console.Conn.Target() }

// problems returns what the console lists; one that does not run lists nothing.
func (n *night) problems() []*marchv1.Problem {
	if n.processes[nightConsole].killed {
		return nil
	}
	o, err := n.processes[nightConsole].console.GetOverview(context.Background(), &marchv1.GetOverviewRequest{})
	if err != nil {
		n.Fatal(err)
	}
	return o.GetProblems()
}

// do runs a command of march that a problem names. One that destroys needs no question here.
func (n *night) do(command string) {
	n.Helper()
	args := strings.Fields(command)[1:]
	if cmd, _, err := newRoot(io.Discard, io.Discard).Find(args); err == nil && cmd.Flags().Lookup("yes") != nil {
		args = append(args, "--yes")
	}
	if out, code := n.march(args...); code != exitOK {
		n.Errorf("%s: exit code %d: %s", command, code, out)
	}
	n.mended = n.fixed(command) + "\n"
}

// shell runs a command of another program that a problem names, then mend, which is what it leads to.
func (n *night) shell(command, want string, mend func()) {
	n.Helper()
	n.is(command, want)
	program, _, _ := strings.Cut(command, " ")
	if _, err := exec.LookPath(program); err == nil {
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			n.Errorf("%s: %v: %s", command, err, out)
		}
	}
	n.mended = want + "\n"
	mend()
}

// is checks that a problem names this command.
func (n *night) is(command, want string) {
	n.Helper()
	if n.fixed(command) != want {
		n.Errorf("the command is %q, and this test mends by %q", command, want)
	}
}

// elsewhere checks that a problem names a command that starts processes or needs a real etcd, and that a test which has
// them runs it as it is printed. mend stands for it here.
func (n *night) elsewhere(command, want, where string, mend func()) {
	n.Helper()
	n.is(command, want)
	if test, err := os.ReadFile(where); err != nil || !bytes.Contains(test, []byte(want)) {
		n.Errorf("%s does not run %q: %v", where, want, err)
	}
	n.mended = "- a bubble starts no process; " + where + " runs `" + want + "`\n"
	mend()
}

// never checks that a problem names a command that no test can run, and why. mend stands for it.
func (n *night) never(command, want, why string, mend func()) {
	n.Helper()
	n.is(command, want)
	n.mended = "- `" + want + "` " + why + "\n"
	mend()
}

const (
	scriptsNight = "testdata/script/night.txtar"
	etcdsNight   = "night_etcd_test.go"
	aClock       = "shows what the host's clock daemon does, which no test may have"
)

// faults are the rows.
var faults = []fault{
	{name: "instance-killed", breaks: func(n *night) { n.kill("a/a2") },
		shown: marchv1.ProblemKind_PROBLEM_KIND_SILENT, mend: (*night).do, without: healthy},
	{name: "room-killed", breaks: func(n *night) { n.kill("a/a1", "a/a2") },
		shown: marchv1.ProblemKind_PROBLEM_KIND_NO_INSTANCE, mend: func(n *night, command string) {
			n.elsewhere(command, "march room a", scriptsNight, func() {
				n.start("a/a1", nil)
				n.start("a/a2", nil)
			})
		}, without: healthy},
	{name: "successor-at-the-same-address", breaks: func(n *night) {
		address := n.processes["a/a2"].room.Address
		n.kill("a/a2")
		n.start("a/a3", func(n *night, cfg *room.Config) { cfg.GRPC = testcluster.Listen(n, address) })
	}, shown: marchv1.ProblemKind_PROBLEM_KIND_SILENT, mend: (*night).do, without: healthy},
	{name: "one-member-of-etcd", breaks: func(n *night) { n.members(store.Members{All: 3, Answer: 2}) },
		shown: marchv1.ProblemKind_PROBLEM_KIND_ETCD_MEMBER, without: serves,
		mend: func(n *night, command string) {
			n.elsewhere(command, "etcdctl endpoint status --write-out=table", etcdsNight, func() {
				n.members(store.Members{All: 3, Answer: 3})
				if n.pass(scrapeEvery); len(n.problems()) > 0 {
					n.Errorf("a member that answers again is a problem for longer than %v", scrapeEvery)
				}
			})
		}},
	{name: "quorum-of-etcd", breaks: func(n *night) {
		n.members(store.Members{All: 3, Answer: 1, NoLeader: true})
		n.Mem.Stop()
	}, shown: marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY, mend: func(n *night, command string) {
		n.elsewhere(command, "etcdctl endpoint status --write-out=table", etcdsNight, func() {
			n.members(store.Members{All: 3, Answer: 3})
			n.Mem.Start()
		})
	}},
	{name: "etcd-full", breaks: func(n *night) { n.Mem.NoSpace(true) },
		shown: marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL, mend: func(n *night, command string) {
			const all = "etcdctl compact REVISION; etcdctl defrag --cluster && etcdctl alarm disarm"
			n.elsewhere(command, all, etcdsNight, func() { n.Mem.NoSpace(false) })
		}},
	{name: "etcd-slow", breaks: func(n *night) { n.slow(300 * time.Millisecond) },
		found: "etcd latency", mend: func(n *night, command string) {
			n.elsewhere(command, "etcdctl endpoint health --cluster", etcdsNight, func() { n.slow(0) })
		}, without: map[string]string{"readyz": "it serves", "health": "it serves",
			"log":    "it is as slow for good in a far room",
			"page":   "the cards of rooms and march status have it as a number, which in a far room is as large",
			"alerts": "MarchSlow and MarchReserveLow fire where callers notice it"}},
	{name: "password-wrong", breaks: func(n *night) {
		n.processes["b/b1"].etcd.refuse.Store(&allocator.Error{Kind: allocator.Unauthenticated,
			Msg: "etcd: etcdserver: authentication failed, invalid user ID or password"})
	}, shown: marchv1.ProblemKind_PROBLEM_KIND_NO_LEASE, mend: func(n *night, command string) {
		n.never(command, "etcdctl --user=root user passwd march-user", "asks for passwords on a terminal", func() {
			n.processes["b/b1"].etcd.refuse.Store(nil)
		})
	}},
	{name: "clock-forward", breaks: func(n *night) { n.processes["b/b1"].ahead.Store(int64(time.Hour)) },
		shown: marchv1.ProblemKind_PROBLEM_KIND_TIME_ORDERED,
		mend: func(n *night, command string) {
			n.never(command, "chronyc tracking", aClock, func() { n.processes["b/b1"].ahead.Store(0) })
		}},
	{name: "clock-back", breaks: func(n *night) { n.processes["b/b1"].ahead.Store(int64(-time.Hour)) },
		shown: marchv1.ProblemKind_PROBLEM_KIND_CLOCK, mend: func(n *night, command string) {
			n.never(command, "chronyc tracking", aClock, func() { n.processes["b/b1"].ahead.Store(0) })
		}, without: serves},
	{name: "tag-at-its-limit", breaks: func(n *night) {
		n.Tag(func(s *record.TagSettings) { s.Limit = 200 }, "ann", "small")
		n.tags = append(n.tags, "small")
	}, shown: marchv1.ProblemKind_PROBLEM_KIND_TAG_USED_UP, mend: func(n *night, command string) {
		n.do(strings.Replace(command, "LIMIT", "1000000", 1))
	}, without: serves},
	{name: "worker-slice-full", breaks: func(n *night) {
		n.Tag(func(s *record.TagSettings) {
			timed := record.NewTimeTag(timeid.Layout{TimeBits: 41, WorkerBits: 2, SequenceBits: 12,
				Unit: time.Millisecond, Epoch: timeid.EpochCosId})
			s.Time = &timed
		}, "ann", "narrow")
		n.tags = append(n.tags, "narrow")
		n.pass(5 * time.Second)
		n.start("a/a3", nil)
	}, shown: marchv1.ProblemKind_PROBLEM_KIND_NO_WORKER, mend: func(n *night, command string) {
		n.do(command)
		n.stop("a/a3")
		n.stop("a/a2")
	}, without: serves},
	{name: "certificate-ends", room: func(n *night, _ *room.Config) { n.certify(400 * 24 * time.Hour) },
		breaks: func(n *night) { n.certify(3 * 24 * time.Hour) }, found: "certificates",
		without: map[string]string{"readyz": "it serves", "health": "it serves", "log": "the alert comes a week ahead",
			"page": "the page of the capacity lists it with its date, as march status --capacity does"},
		mend: func(n *night, command string) {
			n.shell(command, "openssl x509 -noout -subject -dates -in DIR/room.pem", func() {
				n.certify(400 * 24 * time.Hour)
			})
		}},
	{name: "policy-broken", room: func(n *night, cfg *room.Config) {
		n.write("policy.yaml", goodPolicy)
		gate, err := access.New(access.Config{Policy: filepath.Join(n.dir, "policy.yaml"), Room: string(cfg.Room),
			Register: cfg.Metrics.Register, Logger: cfg.Logger})
		if err != nil {
			n.Fatal(err)
		}
		cfg.Access = gate
	}, breaks: func(n *night) { n.write("policy.yaml", goodPolicy+"  rooms: [\n") },
		shown: marchv1.ProblemKind_PROBLEM_KIND_RIGHTS, mend: func(n *night, command string) {
			n.write("policy.yaml", goodPolicy)
			n.do(command)
		}, without: serves},
	{name: "console-stopped-in-a-migration", breaks: func(n *night) {
		n.plan("plan.json", "a:25-50=b")
		for _, of := range n.instances() { // their reports of the first move take longer than a poll of this test
			n.processes[of].etcd.slow.Store(int64(time.Second))
		}
		out, code := n.march("migrate", "apply", filepath.Join(n.dir, "plan.json"), "--yes", "--detach")
		if code != exitOK {
			n.Errorf("apply: %s", out)
		}
		testcluster.Await(n, "one of two moves was made", func() bool { return n.migration().GetReached() == 1 })
		n.kill(nightConsole)
		n.slow(0)
	}, mend: func(n *night, command string) {
		n.elsewhere(command, "march console", scriptsNight, func() {
			n.startConsole()
			testcluster.Await(n, "the migration goes on", func() bool { return n.migration() == nil })
		})
	}, without: map[string]string{"page": "the console that has it does not run",
		"log": "a process that is killed writes nothing, and the rooms need no console"}},
	{name: "stale-plan", breaks: func(n *night) {
		n.plan("plan.json", "a:25-50=b")
		n.plan("other.json", "b:50-75=a")
		n.apply("other.json")
	}, asks: func(n *night) (said, page string) {
		said, code := n.march("migrate", "apply", filepath.Join(n.dir, "plan.json"), "--yes")
		if code != exitConflict {
			n.Errorf("a stale plan: exit code %d: %s", code, said)
		}
		_, page = testcluster.Get(n.processes[nightConsole].console.HTTP, "/migrations?do=apply&version=1&boundary=100"+
			"&room=a&lower=0&upper=25&room=b&lower=25&upper=100")
		return said, page
	}, mend: func(n *night, command string) {
		n.do(command)
		n.apply("plan.json")
	}, without: map[string]string{"readyz": aPlan, "health": aPlan, "status": aPlan, "doctor": aPlan, "log": aPlan,
		"alerts": aPlan}},
	{name: "disk-of-a-journal-full", breaks: func(n *night) { n.fillJournal("b/b1") },
		shown: marchv1.ProblemKind_PROBLEM_KIND_JOURNAL, mend: func(n *night, command string) {
			n.shell(command, "df DIR/b1/CLUSTER/b", n.free)
		}},
}

// differingFaults are the faults that differ most from each other: of an instance, etcd, a clock, workers, rights, a
// console, and a plan.
var differingFaults = []string{"instance-killed", "quorum-of-etcd", "clock-back", "worker-slice-full", "policy-broken",
	"console-stopped-in-a-migration", "stale-plan"}

const goodPolicy = "grants:\n- subjects: anonymous\n  roles: [admin, issuer, viewer]\n"

// aPlan is why no surface but those that have the plan say that it is stale.
const aPlan = "a plan is a file of one operator, or a page; the cluster is well"

// apply applies a plan, and waits until it is done.
func (n *night) apply(file string) {
	n.Helper()
	if out, code := n.march("migrate", "apply", filepath.Join(n.dir, file), "--yes"); code != exitOK {
		n.Errorf("%s: %s", file, out)
	}
}

// plan writes a plan of a move.
func (n *night) plan(file, move string) {
	n.Helper()
	out, code := n.march("migrate", "plan", "--move", move, "--out", filepath.Join(n.dir, file))
	if code != exitOK {
		n.Errorf("plan: %s", out)
	}
}

// migration returns the migration under way; nil for none.
func (n *night) migration() *marchv1.Migration {
	n.Helper()
	o, err := n.processes[nightConsole].console.GetOverview(context.Background(), &marchv1.GetOverviewRequest{})
	if err != nil {
		n.Fatal(err)
	}
	return o.GetMigration()
}

// write writes a file of the night.
func (n *night) write(name, text string) {
	n.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
}

// certify gives the instances a certificate that ends after a time.
func (n *night) certify(life time.Duration) {
	n.Helper()
	ca, err := certs.New("CA", 10*365*24*time.Hour)
	if err != nil {
		n.Fatal(err)
	}
	pair, err := ca.Write(n.dir, "room", certs.Leaf{Name: "room", Hosts: []string{"127.0.0.1"},
		From: time.Now().Add(-365 * 24 * time.Hour), Until: time.Now().Add(life)})
	if err != nil {
		n.Fatal(err)
	}
	n.certificate = pair.Cert
}

// members has all processes find so many members of etcd.
func (n *night) members(m store.Members) {
	for _, p := range n.processes {
		p.etcd.members.Store(&m)
	}
}

// slow has etcd take so long for each transaction.
func (n *night) slow(d time.Duration) {
	for _, p := range n.processes {
		p.etcd.slow.Store(int64(d))
	}
}

// journal returns the file of an instance's journal.
func (n *night) journal(of string) string {
	n.Helper()
	in, name, _ := strings.Cut(of, "/")
	files, err := filepath.Glob(filepath.Join(n.dir, name, "*", in, name+".journal"))
	if err != nil || len(files) != 1 {
		n.Fatalf("journals of %s: %v, %v", of, files, err)
	}
	return files[0]
}

// nightUp and nightRate are what a line of a room in march status says of its instances and of their rates.
var nightUp, nightRate = regexp.MustCompile(`(\d+|-) of \d+`), regexp.MustCompile(`unknown of [^ ,]+(, [^ ,]+)*`)

// fillJournal replaces an instance's journal by a device that is full; the instance finds that, and makes a new one.
func (n *night) fillJournal(of string) {
	n.Helper()
	path := n.journal(of)
	full := make(chan struct{})
	var linking sync.WaitGroup
	linking.Go(func() {
		for {
			_ = os.Symlink("/dev/full", path+".new") // which the instance removes after each try
			select {
			case <-full:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	n.free = sync.OnceFunc(func() { close(full); linking.Wait() })
	n.Cleanup(n.free)
	synctest.Wait()
	if err := os.Remove(path); err != nil {
		n.Fatal(err)
	}
}

// serves is why health says nothing of what stops nobody.
var serves = map[string]string{"health": "the instances serve, all but what the problem names"}

// stop ends an instance in good order.
func (n *night) stop(of string) {
	n.Helper()
	p := n.processes[of]
	p.Stop()
	p.killed = true
}

// healthy is why a process that is dead has no health.
var healthy = map[string]string{"health": "what is dead answers nothing, and the others are well"}

const rulesFile = "../../deploy/prometheus/march.rules.yml"

// TestNight breaks one thing after the other, and holds what each surface says of it against testdata/night. The
// alerts are those of deploy/prometheus, after the fault has lasted 40 minutes.
func TestNight(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	in := make(map[string]bool)
	metrics := regexp.MustCompile(`(?:march|grpc_server|http_request)[a-z_]+`)
	for _, name := range metrics.FindAllString(string(rules), -1) {
		in[strings.TrimSuffix(name, "_bucket")] = true
	}
	firing := make(map[string]bool)
	t.Run("faults", func(t *testing.T) {
		for _, name := range differingFaults {
			if !slices.ContainsFunc(faults, func(f fault) bool { return f.name == name }) {
				t.Errorf("differingFaults: %s is no fault", name)
			}
		}
		for _, f := range faults {
			firing[f.name] = true
			t.Run(f.name, func(t *testing.T) {
				if !rewriting() && !slices.Contains(differingFaults, f.name) {
					programs.OnlyInAll(t, "of faults and what each surface says of them")
				}
				testcluster.Bubble(t, func(t *testing.T) { f.run(t, in) })
			})
		}
	})
	files, err := os.ReadDir("testdata/night")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !firing[strings.TrimSuffix(file.Name(), ".txt")] {
			t.Errorf("testdata/night/%s is of no row", file.Name())
		}
	}
	programs.Find(t, "openssl") // says what did not run
}

// promtool is the program that asks which alerts fire, empty for none. It takes a second each time, so only
// make test LIVE=1 looks for it.
var promtool = func() (path string) {
	if programs.All() {
		path, _ = exec.LookPath("promtool")
	}
	return path
}()

func (f fault) run(t *testing.T, in map[string]bool) {
	n := newNight(t, f, in)
	if before := n.look(); len(before["readyz"]+before["page"]+before["log"]) > 0 {
		t.Errorf("at first: %v", before)
	}
	n.pass(20 * time.Second) // in which no surface is asked
	n.began = time.Now()
	f.breaks(n)
	n.pass(nightLength)
	cells := n.look()
	said := cells["status"]
	if f.asks != nil {
		var page string
		said, page = f.asks(n)
		alert := regexp.MustCompile(`(?s)<p class="wrong" role="alert">(.*?)</p>`).FindString(page)
		cells["command"], cells["page"] = n.fixed(said)+"\n", n.fixed(plainText(alert))+"\n"
		cells["status"] = "" // the numbers of rooms alone
	}
	if cells["alerts"] = n.alerts(); promtool == "" {
		cells["alerts"] = f.written("alerts")
	}
	f.oneAlert(t, cells["alerts"])
	for surface, text := range cells {
		if raw := regexp.MustCompile(`rpc error|desc = |transport:`).FindString(text); raw != "" {
			t.Errorf("%s has gRPC's own words, %q", surface, raw)
		}
	}
	if all := n.problems(); len(all) > 1 {
		t.Errorf("one cause is %d problems", len(all))
	}
	for _, p := range n.problems() {
		if since := p.GetSince().AsTime().Sub(n.began); p.GetSince() == nil || p.GetKind() == f.shown &&
			(since < -15*time.Second || since > nightNotices) {
			t.Errorf("it is not since the fault, at %v: %v", n.began, p)
		}
		n.follow(p.GetPage(), "")
		if p.GetButton() != "" {
			n.follow(p.GetButton(), "<button")
		}
		if p.GetOf() == "" && len(p.GetHits()) == 0 && p.GetEffect() == "" {
			t.Errorf("it is not said for whom: %v", p)
		}
		if p.GetCommand() == "" && f.without["command"] == "" {
			t.Errorf("there is no command: %v", p)
		}
	}
	command := n.command(f, said)
	f.mend(n, command)
	cells["mend"] = n.mended
	f.compare(t, cells)
	for range 20 {
		if n.pass(scrapeEvery); len(n.problems()) == 0 {
			break
		}
	}
	n.pass(3 * scrapeEvery)
	after := n.look()
	if text := after["readyz"] + after["page"] + after["health"]; text != "" {
		t.Errorf("after %s: %s", command, text)
	}
	if began, over := strings.Count(after["log"], "a problem began"), strings.Count(after["log"],
		"a problem is over"); began != over {
		t.Errorf("%d problems began, and %d are over: %s", began, over, after["log"])
	}
}

// follow checks that a link of a problem leads to a page that has what it points at, and a text.
func (n *night) follow(link, text string) {
	n.Helper()
	if n.processes[nightConsole].killed {
		return
	}
	path, id, is := strings.Cut(link, "#")
	code, body := testcluster.Get(n.processes[nightConsole].console.HTTP, path)
	if code != http.StatusOK || is && !strings.Contains(body, `id="`+id+`"`) || !strings.Contains(body, text) {
		n.Errorf("a problem's link %q: %d, without %q or %q", link, code, id, text)
	}
}

// command returns the command of the problem that the row is about. Of one that only doctor finds it is the finding's,
// and of one that no list has that of what was said.
func (n *night) command(f fault, said string) string {
	n.Helper()
	for _, p := range n.problems() {
		if p.GetKind() == f.shown {
			return p.GetCommand()
		}
	}
	for _, found := range n.findings() {
		if found.Level != levelOK && found.Check == f.found {
			return found.Command
		}
	}
	if named := nextSteps.FindStringSubmatch(said); named != nil {
		return named[1]
	}
	n.Errorf("nothing names a command")
	return ""
}

// findings returns what doctor finds.
func (n *night) findings() []verdict {
	n.Helper()
	text, code := n.march("doctor", "-o", "json")
	if code == exitUnavailable {
		return nil
	}
	var list struct{ Findings []verdict }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		n.Errorf("doctor: %v: %s", err, text)
	}
	return list.Findings
}

// file is where a row's statements are.
func (f fault) file() string { return filepath.Join("testdata", "night", f.name+".txt") }

// written returns what the file of a row has for a surface.
func (f fault) written(surface string) string {
	text, _ := os.ReadFile(f.file())
	_, text, _ = bytes.Cut(text, []byte("== "+surface+"\n"))
	text, _, _ = bytes.Cut(text, []byte("== "))
	if bytes.HasPrefix(text, []byte("- ")) { // the reason why it says nothing
		return ""
	}
	return string(text)
}

// oneAlert checks that one outage is one alert, of which the table says that it is that of the problem.
func (f fault) oneAlert(t *testing.T, lines string) {
	t.Helper()
	var names []string
	for line := range strings.Lines(lines) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), ",")
		names = append(names, name)
	}
	if names = slices.Compact(names); len(names) > 1 {
		t.Errorf("one outage has the alerts %q", names)
	}
	if f.shown == 0 || len(names) == 0 {
		return
	}
	if !slices.ContainsFunc(problem.Table, func(row *problem.Row) bool {
		return row.Kind == f.shown && slices.Contains(row.Alerts, names[0])
	}) {
		t.Errorf("no row of the kind %v has the alert %s", f.shown, names[0])
	}
}

// compare holds what the surfaces say against the file of the row.
func (f fault) compare(t *testing.T, cells map[string]string) {
	t.Helper()
	var b strings.Builder
	for _, surface := range surfaces {
		cell, reason := cells[surface], f.without[surface]
		if surface == "command" && f.asks == nil {
			continue
		}
		if (cell == "") != (reason != "") {
			t.Errorf("%s says %q, and the row has the reason %q for nothing", surface, cell, reason)
		}
		if cell == "" {
			cell = "- " + reason + "\n"
		}
		b.WriteString("== " + surface + "\n" + cell)
	}
	if rewriting() {
		if err := os.WriteFile(f.file(), []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(f.file())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("%s differs; if that is meant, run the test with -rewrite and read the difference:\n%s",
			f.file(), diff)
	}
}

// alerts returns the alerts that fire within 40 minutes, in which all stays as it is. promtool is the program;
// empty for none: then metrics are only gathered, once.
func (n *night) alerts() string {
	n.Helper()
	if promtool == "" {
		n.scrape()
		return ""
	}
	type series struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	var input []series
	for _, id := range slices.Sorted(maps.Keys(n.series)) {
		values := n.series[id]
		last := " stale"
		if len(values) == n.scrapes {
			last = " " + values[len(values)-1]
			if strings.HasSuffix(last, "Inf") { // promtool repeats numbers only
				last = strings.Repeat(last, 160)
			} else {
				last += "x160"
			}
		}
		input = append(input, series{id, strings.Join(values, " ") + last})
	}
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		n.Fatal(err)
	}
	// The expression has no sample that is expected, so promtool prints what it has.
	test, err := json.Marshal(map[string]any{"rule_files": []string{rules}, "tests": []any{map[string]any{
		"interval": scrapeEvery.String(), "input_series": input, "promql_expr_test": []any{map[string]any{
			"expr":        `group by (alertname, instance, room, tag, family) (max_over_time(ALERTS{alertstate="firing"}[40m]))`,
			"eval_time":   "40m",
			"exp_samples": []any{map[string]any{"labels": `none`, "value": 0}},
		}}}}})
	if err != nil {
		n.Fatal(err)
	}
	path := filepath.Join(n.dir, "alerts.json")
	if err := os.WriteFile(path, test, 0o600); err != nil {
		n.Fatal(err)
	}
	out, _ := exec.Command(promtool, "test", "rules", path).CombinedOutput()
	_, got, found := strings.Cut(string(out), "got: ")
	if !found {
		n.Fatalf("promtool: %s", out)
	}
	var firing []string
	for _, alert := range regexp.MustCompile(`\{alertname=([^}]*)\}`).FindAllStringSubmatch(got, -1) {
		firing = append(firing, strings.ReplaceAll(alert[1], `"`, "")+"\n")
	}
	slices.Sort(firing)
	return strings.Join(firing, "")
}
