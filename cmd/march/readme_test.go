package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/testservers"
)

// TestReadme runs the README and the pages of docs/: every command in their console
// blocks, section by section, in order. Lines that begin with "$ " are commands, "> "
// continues one, the rest is the command's output; a command without any is run, and
// its output is not compared.
//
//   - `make dev`, and march's own servers, run in the background until the end
//     of the section; a section without any has a march dev;
//   - other make targets are looked up in the Makefile, git clone is not run;
//   - the ports 7000 to 7079 stand for free ones, 127.0.0.1:2379 for an etcd,
//     127.0.0.1:6379 for a Redis, 127.0.0.1:5432 for a PostgreSQL and -h 127.0.0.1 -P 3306 for a
//     MariaDB of the test's own.
func TestReadme(t *testing.T) {
	t.Parallel()
	makefile := readDocument(t, "Makefile")
	ran := 0
	for _, file := range documents(t) {
		if file == drillsDocument || file == productionDocument { // tests of their own run them
			continue
		}
		for section := range strings.SplitSeq(readDocument(t, file), "\n## ") {
			steps := readmeSteps(section)
			if len(steps) == 0 {
				continue
			}
			ran += len(steps)
			title, _, _ := strings.Cut(section, "\n")
			t.Run(file+" "+title, func(t *testing.T) {
				programs.OnlyInAll(t, "of the commands in the documents")
				t.Parallel()
				for _, program := range []string{"curl", "redis-cli", "psql", "mysql"} {
					programs.Find(t, program)
				}
				runSection(t, makefile, file, section, steps)
			})
		}
	}
	if ran < 55 {
		t.Errorf("%d commands found", ran)
	}
}

// runSection runs the commands of one section.
func runSection(t *testing.T, makefile, file, section string, steps []step) {
	t.Helper()
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	r := &readme{dir: t.TempDir(), env: settingsIn(t), makefile: makefile, base: base, exact: file == "README.md"}
	if slices.ContainsFunc(steps, func(s step) bool { return startsServer(s) && !startsDev(s) }) {
		r.env = append(r.env, "MARCH_ROOM="+r.address(portRoomGRPC),
			"MARCH_CONSOLE="+r.address(portConsoleGRPC))
	}
	for _, other := range readmeOthers {
		if slices.ContainsFunc(steps, func(s step) bool { return strings.Contains(s.command, other.place) }) {
			other.start(t, base+other.offset)
		}
	}
	if strings.Contains(section, "--etcd 127.0.0.1:2379") {
		r.etcd = ledgertest.StartEtcd(t).Endpoint
	}
	if slices.ContainsFunc(steps, needsServer) && !strings.Contains(section, "$ make dev") &&
		!slices.ContainsFunc(steps, startsServer) {
		r.serve(t, step{}, "March is running", []string{"dev", "--base-port", fmt.Sprint(r.base)})
	}
	for _, s := range steps {
		r.run(t, s)
	}
	for _, p := range r.servers {
		if code, err := p.stop(patience(t), syscall.SIGINT); code != 0 || err != nil {
			t.Errorf("%s: exit code %d, %v", p.cmd, code, err)
		}
	}
}

// needsServer reports whether a step is run, not only looked up.
func needsServer(s step) bool {
	return !strings.HasPrefix(s.command, "git clone ") && !readmeMake.MatchString(s.command)
}

// startsServer reports whether a step starts one of march's servers.
func startsServer(s step) bool {
	return readmeServer.MatchString(s.command) && !strings.Contains(s.command, "--help")
}

// startsDev reports whether a step starts march dev, which has a context for the commands of a section.
func startsDev(s step) bool { return strings.HasPrefix(s.command, "bin/march dev ") }

// readmeOthers are the servers of other systems: where commands call them, and where they are here, between
// the ports of march dev.
var readmeOthers = []struct {
	place, here string
	offset      int
	start       func(testing.TB, int)
}{
	{"127.0.0.1:6379", "127.0.0.1:%d", 37, func(tb testing.TB, port int) { testservers.Redis(tb, port) }},
	{"127.0.0.1:5432", "127.0.0.1:%d", 38, testservers.Postgres},
	{"-h 127.0.0.1 -P 3306", "-h 127.0.0.1 -P %d", 39, testservers.MySQL},
}

// step is a command and its output.
type step struct{ command, output string }

func readmeSteps(section string) []step {
	var steps []step
	inside := false
	for line := range strings.Lines(section) {
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console\n"
		case !inside:
		case strings.HasPrefix(line, "$ "):
			steps = append(steps, step{command: line[2:]})
		case strings.HasPrefix(line, "> "):
			steps[len(steps)-1].command += line[2:]
		default:
			steps[len(steps)-1].output += line
		}
	}
	return steps
}

// untilQuiet repeats a command of march doctor alone while it finds something, up to 60 times: a busy machine's disk or
// etcd may be slow for a while.
func untilQuiet(command string) string {
	if !strings.HasPrefix(command, "bin/march doctor") || strings.ContainsAny(command, ";|") {
		return command
	}
	return "for n in $(seq 60); do code=0; " + strings.TrimSpace(command) +
		" || code=$?; [ $code = 1 ] || break; sleep 1; done; (exit $code)\n"
}

// readme is the place in which a section runs.
type readme struct {
	dir, makefile string
	env           []string // of all that runs
	etcd          string   // address
	base          int
	exact         bool // every digit of the output counts
	servers       []*process
}

var (
	readmePort   = regexp.MustCompile(`127\.0\.0\.1:70([0-7][0-9])\b`)
	readmeMake   = regexp.MustCompile(`^make(?: ([a-z-]+)(?: [A-Z_]+=[0-9a-z]+)?(?: ARGS="(.*)")?)?\n$`)
	readmeServer = regexp.MustCompile(`^bin/march (room|console|dev) `)
)

func (r *readme) run(t *testing.T, s step) {
	t.Helper()
	if strings.HasPrefix(s.command, "git clone ") {
		return
	}
	if m := readmeMake.FindStringSubmatch(s.command); m != nil {
		if target := m[1]; !strings.Contains(r.makefile, "\n"+target+": ") {
			t.Errorf("the Makefile has no target %q", target)
		}
		if m[1] == "dev" && s.output != "" {
			r.serve(t, s, "March is running", append([]string{"dev", "--base-port", fmt.Sprint(r.base)},
				strings.Fields(m[2])...))
		}
		return
	}
	if m := readmeServer.FindStringSubmatch(s.command); startsServer(s) {
		args := strings.Fields(r.substitute(s.command))[1:]
		if m[1] == "dev" {
			r.serve(t, s, "March is running", append(args, "--base-port", fmt.Sprint(r.base)))
			return
		}
		if !slices.Contains(args, "--grpc") {
			offsets := map[string][2]int{"console": {portConsoleGRPC, portConsoleHTTP},
				"room": {portRoomGRPC, portRoomHTTP}}[m[1]]
			args = append(args, "--grpc", r.address(offsets[0]), "--http", r.address(offsets[1]))
		}
		r.serve(t, s, "ready", args)
		return
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", r.substitute(untilQuiet(s.command)))
	cmd.Dir, cmd.Env = r.dir, append(os.Environ(), r.env...)
	got, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("$ %s%v\n%s", s.command, err, got)
		return
	}
	r.compare(t, s, string(got))
}

// serve starts a server.
func (r *readme) serve(t *testing.T, s step, ready string, args []string) {
	t.Helper()
	p := begin(t, r.dir, append(r.env, "TMPDIR="+r.dir), args...)
	r.servers = append([]*process{p}, r.servers...)
	if err := p.await(patience(t), ready); err != nil {
		t.Fatal(err)
	}
	stdout, _ := p.output()
	shown, _, _ := strings.Cut(stdout, "\nTry, in another terminal:")
	r.compare(t, s, shown)
}

func (r *readme) compare(t *testing.T, s step, got string) {
	t.Helper()
	if s.output == "" {
		return
	}
	if diff := cmp.Diff(r.normal(s.output), r.normal(got)); diff != "" {
		t.Errorf("$ %s(-README +real)\n%s", s.command, diff)
	}
}

func (r *readme) address(offset int) string { return fmt.Sprintf("127.0.0.1:%d", r.base+offset) }

// substitute returns a command as the test runs it.
func (r *readme) substitute(command string) string {
	command = readmePort.ReplaceAllStringFunc(command, func(address string) string {
		offset, _ := strconv.Atoi(address[len(address)-2:])
		return r.address(offset)
	})
	command = strings.ReplaceAll(command, "127.0.0.1:2379", r.etcd)
	for _, other := range readmeOthers {
		command = strings.ReplaceAll(command, other.place, fmt.Sprintf(other.here, r.base+other.offset))
	}
	return strings.ReplaceAll(command, "bin/march", "march")
}

// normal returns a command's output without the parts that differ from run to run. Numbers of
// four digits and more, except in addresses, depend on how much was leased ahead: only their
// last three digits stay, unless all count.
func (r *readme) normal(output string) string {
	for offset := range portLast + 1 {
		output = strings.ReplaceAll(output, r.address(offset), fmt.Sprintf("127.0.0.1:70%02d", offset))
	}
	for _, replace := range [][2]string{
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "TIME"},
		{`[0-9a-f]{8}-[0-9a-f-]{27}`, "UUID"},
		{`\S+@\S+`, "WHO"},
		{`\S*/march-dev-\S+,`, "DIR,"},
		{`(?m) (devel|[0-9a-f]{12}|v\d\S+)$`, " BUILD"},
		{`(?m)(^|\s)\d+(\d{3})\b`, "${1}N${2}"},
		{`[ \t]+`, " "},
	} {
		if r.exact && replace[1] == "${1}N${2}" {
			continue
		}
		output = regexp.MustCompile(replace[0]).ReplaceAllString(output, replace[1])
	}
	lines := strings.Split(strings.TrimSpace(output), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

// drillsDocument is the page that TestDrillsDocument runs; TestReadme does not.
const drillsDocument = "docs/drills.md"

// discoverDrill is the procedure whose services find their rooms through the console.
const discoverDrill = "A console and a room away"

// TestDrillsDocument runs docs/drills.md: each of its procedures, after the commands of its
// section "The cluster", in one shell, with etcd's own programs. Meanwhile a service of each
// room takes IDs. No command fails, no call of a service fails, and no ID comes twice.
func TestDrillsDocument(t *testing.T) {
	programs.OnlyInAll(t, "of the drills")
	t.Parallel()
	programs.Find(t, "curl")
	bin := drillPrograms(t)
	sections := strings.Split(readDocument(t, drillsDocument), "\n## ")
	prelude := readmeSteps(sections[1])
	if page := readDocument(t, drillsDocument); !strings.Contains(page, "\n## "+discoverDrill+"\n") {
		t.Errorf("%s has no section %q", drillsDocument, discoverDrill)
	}
	ran := 0
	for _, section := range sections[2:] {
		title, _, _ := strings.Cut(section, "\n")
		steps := readmeSteps(section)
		ran += len(steps)
		if row := fmt.Sprintf("\n| %s | %d |", title, len(steps)); !strings.Contains(sections[0], row) {
			t.Errorf("the table of %s has no row%s", drillsDocument, row)
		}
		t.Run(title, func(t *testing.T) {
			s := newShell(t, bin)
			for _, step := range prelude {
				s.run(step.command)
			}
			services, check := s.services(title == discoverDrill)
			fell := title != discoverDrill
			began := time.Now()
			for _, step := range steps {
				s.run(step.command)
				if title == discoverDrill && strings.HasPrefix(step.command, "kill -9 ") {
					s.fallBack(services[0])
					fell = true
				}
			}
			if !fell {
				t.Error("no command takes a room away")
			}
			t.Logf("%s: %d steps, %v", title, len(steps), time.Since(began).Round(time.Second))
			check()
		})
	}
	if ran < 60 {
		t.Errorf("%d commands found", ran)
	}
}

// drillPrograms makes a folder with the programs that the page uses: etcd's, and march.new, the next version.
func drillPrograms(t *testing.T) string {
	t.Helper()
	dir := etcdPrograms(t)
	if err := os.Rename(buildNext(t), filepath.Join(dir, "march.new")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// shell is a bash that runs commands one after the other.
type shell struct {
	*testing.T
	in   io.Writer
	out  chan string // its lines
	base int
}

func newShell(t *testing.T, bin string) *shell {
	t.Helper()
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{T: t, out: make(chan string, 100), base: base}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"),
		"MARCH_CONSOLE="+s.address(portConsoleGRPC), "MARCH_ROOM="+s.address(portRoomGRPC))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.in = in
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(s.out)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.out <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the servers, too
		for range s.out {                                   // of no use anymore
		}
		<-read
		_ = cmd.Wait()
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
			for _, file := range logs {
				text, _ := os.ReadFile(file) //nolint:gosec // the shell's
				t.Logf("%s:\n%s", filepath.Base(file), text[max(len(text)-4000, 0):])
			}
		}
	})
	return s
}

func (s *shell) address(offset int) string { return fmt.Sprintf("127.0.0.1:%d", s.base+offset) }

// etcdPorts are those of the page's etcds, with the offsets that stand for them here.
var etcdPorts = map[string]int{"2379": 60, "2380": 61, "2479": 62, "2480": 63}

var (
	drillEtcd   = regexp.MustCompile(`127\.0\.0\.1:(2[34](?:79|80))\b`)
	drillReturn = regexp.MustCompile(`^returned (\d+)$`)
)

// run runs a command and waits for it. Its exit code must be 0.
func (s *shell) run(command string) {
	s.Helper()
	text := readmePort.ReplaceAllStringFunc(untilQuiet(command), func(address string) string {
		var offset int
		_, _ = fmt.Sscan(strings.TrimLeft(address[len(address)-2:], "0")+" ", &offset)
		return s.address(offset)
	})
	text = drillEtcd.ReplaceAllStringFunc(text, func(address string) string {
		return s.address(etcdPorts[address[len(address)-4:]])
	})
	text = strings.ReplaceAll(text, "bin/march", "march")
	if _, err := io.WriteString(s.in, text+"echo returned $?\n"); err != nil {
		s.Fatal(err)
	}
	began := time.Now()
	var said strings.Builder
	deadline := time.After(time.Until(patience(s.T)))
	for {
		select {
		case line, ok := <-s.out:
			m := drillReturn.FindStringSubmatch(line)
			switch {
			case !ok || len(m) == 2 && m[1] != "0":
				s.Fatalf("$ %s%s%s", command, said.String(), line)
			case m != nil:
				s.Logf("%6.1fs $ %s", time.Since(began).Seconds(), strings.TrimSpace(command))
				return
			}
			said.WriteString(line + "\n")
		case <-deadline:
			s.Fatalf("$ %s%sit does not end", command, said.String())
		}
	}
}

// fallBack has the service of room a, which is away, take IDs: first those of its reserve, then
// those of room b. So no call waits for a console.
func (s *shell) fallBack(a *service) {
	s.Helper()
	if first := a.take(1); len(first) != 1 || first[0].First%100 >= 50 {
		s.Errorf("the service of room a does not go on with its reserve: %v", first)
	}
	if err := poll(patience(s.T), func() bool {
		runs := a.take(reserve / 5)
		return len(runs) > 0 && runs[len(runs)-1].First%100 >= 50
	}); err != nil {
		s.Errorf("the service of room a gets no ID of room b: %v", err)
	}
}

// services starts a service in each room, which finds the rooms by their addresses or through
// the console. The function that it returns ends them: each must have leased meanwhile or
// since, no call may have failed, and no ID may have come twice.
func (s *shell) services(discover bool) (all []*service, check func()) {
	s.Helper()
	at := map[string][]string{"a": {s.address(10), s.address(11)}, "b": {s.address(12), s.address(13)}}
	find := func(room, other string) client.Options {
		if discover {
			return client.Options{Discover: &client.Discover{Consoles: []string{s.address(portConsoleGRPC)},
				Room: room, Fallback: []string{other}}}
		}
		return client.Options{Addresses: at[room], Fallback: at[other]}
	}
	ctx, stop := context.WithCancel(s.Context())
	var calling sync.WaitGroup
	all = []*service{newService(s.T, "a", "order", find("a", "b")), newService(s.T, "b", "order", find("b", "a"))}
	for _, service := range all {
		calling.Go(func() { service.run(ctx) })
	}
	end := sync.OnceFunc(func() { stop(); calling.Wait() })
	s.Cleanup(end)
	return all, func() {
		s.Helper()
		var runs []issuedRun
		for _, service := range all {
			before := service.order.Status().Refills
			if err := poll(patience(s.T), func() bool { // it gets IDs from what runs now
				service.take(reserve / 5)
				return service.order.Status().Refills > before
			}); err != nil {
				s.Errorf("the service of room %s leases nothing: %v", service.room, err)
			}
		}
		end()
		for _, service := range all {
			runs = append(runs, service.report()...)
		}
		s.Logf("%d IDs, none twice", checkUnique(s.T, runs))
	}
}

// productionDocument is the page that TestProductionDocument follows; TestReadme does not.
const productionDocument = "docs/production.md"

// TestProductionDocument follows docs/production.md: three members of etcd, two rooms and a console, as processes at
// addresses of this test's own. No command may fail. The test logs how long the page took; the ten minutes that it may
// take are a limit for what hangs, which no slow machine reaches.
func TestProductionDocument(t *testing.T) {
	programs.OnlyInAll(t, "of the commands of docs/production.md")
	if runtime.GOOS != "linux" {
		t.Skip("all of 127.0.0.0/8 are addresses of this host under Linux alone")
	}
	t.Parallel()
	for _, program := range []string{"curl", "promtool"} {
		programs.Find(t, program)
	}
	s := newShell(t, etcdPrograms(t))
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	// An operator's contexts are those that the page makes. The shell has a console of another cluster.
	s.run("unset MARCH_ROOM; export MARCH_CONSOLE=127.0.0.1:1 XDG_CONFIG_HOME=$PWD/config; cp " + rules + " .\n")
	ran, began := 0, time.Now()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute,
		errors.New("the page was not followed to its end within ten minutes"))
	defer cancel()
	for section := range strings.SplitSeq(readDocument(t, productionDocument), "\n## ") {
		for _, step := range readmeSteps(section) {
			if ctx.Err() != nil {
				t.Fatalf("%v; next: %s", context.Cause(ctx), step.command)
			}
			s.run(strings.ReplaceAll(step.command, "127.0.0.", fmt.Sprintf("127.7.%d.", s.base/100%250+1)))
			ran++
		}
	}
	t.Logf("%d commands in %v", ran, time.Since(began).Round(time.Second))
	if ran < 40 {
		t.Errorf("%d commands found", ran)
	}
}

// etcdPrograms makes a folder with etcd's programs: etcd is the tests' own.
func etcdPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := []string{"go", "build", "-modfile", ".ci/etcd/go.mod", "-o", dir + "/", "go.etcd.io/etcd/etcdctl/v3",
		"go.etcd.io/etcd/etcdutl/v3"}
	if out, err := runIn(t, filepath.Join("..", ".."), build...); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	etcd, err := exec.LookPath(etcdProgram)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "etcd"), fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\"\n", etcd), 0o700) //nolint:gosec // it is a program
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// service takes IDs all the time, as a service of a room does.
type service struct {
	t      *testing.T
	room   string
	order  *client.Tag
	calls  atomic.Int64
	failed atomic.Int64
	mu     struct {
		sync.Mutex
		runs []allocator.Run
	}
}

// reserve is what a service holds.
const reserve = 100_000

// newService makes the client of a service of a room that takes IDs of a tag. find says how the
// client finds its room, and another one.
func newService(t *testing.T, room, tag string, find client.Options) *service {
	t.Helper()
	find.WarmTags, find.MinStep, find.MaxStep = []string{tag}, reserve, reserve
	ids, err := client.New(t.Context(), find)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ids.Close)
	s := &service{t: t, room: room}
	if s.order, err = ids.Tag(tag); err != nil {
		t.Fatal(err)
	}
	return s
}

// run takes IDs until ctx ends. It leaves half of the reserve, which then lasts however long a process
// takes to start.
func (s *service) run(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if s.order.Status().Held > reserve/2 {
			s.take(2)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// take takes IDs in one call, and returns them.
func (s *service) take(n int64) []allocator.Run {
	runs, err := s.order.NextN(s.t.Context(), n, nil)
	s.calls.Add(1)
	if err != nil {
		s.failed.Add(1)
		s.t.Errorf("a call of a service of room %s failed: %v", s.room, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.runs = append(s.mu.runs, runs...)
	return runs
}

// report logs what a service did, and returns the IDs that it took.
func (s *service) report() (all []issuedRun) {
	for _, run := range s.mu.runs {
		all = append(all, issuedRun{run.First, run.Count, "room " + s.room})
	}
	status := s.order.Status()
	s.t.Logf("service of room %s: %d calls, %d failed; %d IDs, %d leases, %d waits",
		s.room, s.calls.Load(), s.failed.Load(), status.Issued, status.Refills, status.Waits)
	return all
}
