package main

import (
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
)

// TestReadme runs the README: every command in its console blocks, in order.
// Lines that begin with "$ " are commands, "> " continues one, the rest is what
// it writes; where nothing is shown, what it writes is not compared.
//
//   - `make dev`, and march's own servers, run in the background until the end
//     of the section; a section without any has a march dev;
//   - other make targets are looked up in the Makefile, git clone is not run;
//   - the ports 7000 to 7031 stand for free ones, 127.0.0.1:2379 for an etcd of
//     the test's own.
func TestReadme(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("the commands of the README need %s: install it (%v)", program, err)
		}
	}
	content, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for section := range strings.SplitSeq(string(content), "\n## ") {
		steps := readmeSteps(section)
		if len(steps) == 0 {
			continue
		}
		ran += len(steps)
		title, _, _ := strings.Cut(section, "\n")
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			base, err := freeBase()
			if err != nil {
				t.Fatal(err)
			}
			r := &readme{dir: t.TempDir(), makefile: string(makefile), base: base}
			if strings.Contains(section, "--etcd 127.0.0.1:2379") {
				r.etcd = ledgertest.StartEtcd(t).Endpoint
			}
			if !strings.Contains(section, "$ make dev\n") && !readmeServer.MatchString(section) {
				startDev(t, r.base)
			}
			for _, s := range steps {
				r.run(t, s)
			}
			for _, p := range r.servers {
				if code, err := p.stop(patience(t), syscall.SIGINT); code != 0 || err != nil {
					t.Errorf("%s: exit code %d, %v", p.cmd, code, err)
				}
			}
		})
	}
	if ran < 15 {
		t.Errorf("%d commands found", ran)
	}
}

// step is a command and what it writes.
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

// readme is where a section is run.
type readme struct {
	dir, makefile, etcd string
	base                int
	servers             []*process
}

var (
	readmePort   = regexp.MustCompile(`127\.0\.0\.1:70([0-3][0-9])\b`)
	readmeMake   = regexp.MustCompile(`^make(?: ([a-z-]+)(?: [A-Z_]+=[0-9a-z]+)?(?: ARGS="(.*)")?)?\n$`)
	readmeServer = regexp.MustCompile(`(?m)^(?:\$ )?bin/march (room|console) `)
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
			r.serve(t, s, "March is running", append([]string{"dev", "--base-port", fmt.Sprint(r.base)}, strings.Fields(m[2])...))
		}
		return
	}
	if m := readmeServer.FindStringSubmatch(s.command); m != nil {
		args := strings.Fields(r.substitute(s.command))[1:]
		if !slices.Contains(args, "--grpc") {
			offsets := map[string][2]int{"console": {portConsoleGRPC, portConsoleHTTP}, "room": {portRoomGRPC, portRoomHTTP}}[m[1]]
			args = append(args, "--grpc", r.address(offsets[0]), "--http", r.address(offsets[1]))
		}
		r.serve(t, s, "ready", args)
		return
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", r.substitute(s.command))
	cmd.Dir, cmd.Env = r.dir, append(os.Environ(), "MARCH_ROOM="+r.address(portRoomGRPC), "MARCH_CONSOLE="+r.address(portConsoleGRPC))
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
	p := begin(t, r.dir, []string{"TMPDIR=" + r.dir}, args...)
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
	return strings.ReplaceAll(command, "bin/march", "march")
}

// normal returns what a command writes without what differs from run to run.
// Numbers of four digits and more, but for addresses, depend on what was leased
// ahead: their last three digits are left.
func (r *readme) normal(output string) string {
	for offset := range portEtcdPeer + 1 {
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
		output = regexp.MustCompile(replace[0]).ReplaceAllString(output, replace[1])
	}
	lines := strings.Split(strings.TrimSpace(output), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

// TestReadmeLinks: the files that the README names are there.
func TestReadmeLinks(t *testing.T) {
	content, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(string(content), -1) {
		if _, err := os.Stat("../../" + m[1]); err != nil {
			t.Error(err)
		}
	}
}
