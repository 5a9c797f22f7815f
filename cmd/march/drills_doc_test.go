//go:build live

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/api/client"
	"github.com/march-id/march/internal/programs"
)

// drillsDocument is the page that TestDrillsDocument runs; TestReadme does not.
const drillsDocument = "docs/drills.md"

// discoverDrill is the procedure whose services find their rooms through the console.
const discoverDrill = "A console and a room away"

// TestDrillsDocument runs docs/drills.md: each of its procedures, after the commands of its
// section "The cluster", in one shell, with etcd's own programs. Meanwhile a service of each
// room takes IDs. No command fails, no call of a service fails, and no ID comes twice.
func TestDrillsDocument(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds etcd's programs")
	}
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
	text := readmePort.ReplaceAllStringFunc(command, func(address string) string {
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
