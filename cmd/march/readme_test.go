//go:build live

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator/ledger/ledgertest"
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
	for _, program := range []string{"curl", "redis-cli", "psql", "mysql"} {
		programs.Find(t, program)
	}
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
				t.Parallel()
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
	{"127.0.0.1:6379", "127.0.0.1:%d", 37, testservers.Redis},
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
	readmeTag    = regexp.MustCompile(`^bin/march id next (\S+)`)
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
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", r.substitute(s.command))
	cmd.Dir, cmd.Env = r.dir, append(os.Environ(), r.env...)
	got, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("$ %s%v\n%s", s.command, err, got)
		return
	}
	r.compare(t, s, string(got))
	if m := readmeTag.FindStringSubmatch(s.command); m != nil && r.exact {
		r.settle(t, m[1])
	}
}

// settle waits until the instances that issue IDs of a tag have leased ahead, as they have when a reader
// types the next command: the IDs of other rooms depend on it.
func (r *readme) settle(t *testing.T, tag string) {
	t.Helper()
	var stdout, stderr string
	if err := poll(patience(t), func() bool {
		stdout, stderr, _ = marchWith(t, r.env, "tag", "show", tag, "-o", "json")
		var shown struct {
			Chains []struct {
				Held, Step int64 `json:",string"`
			}
		}
		err := json.Unmarshal([]byte(stdout), &shown)
		for _, c := range shown.Chains {
			if c.Held <= c.Step {
				return false
			}
		}
		return err == nil && len(shown.Chains) > 0
	}); err != nil {
		t.Errorf("tag %s: %v\n%s%s", tag, err, stdout, stderr)
	}
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
