package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/programs"
)

// TestScript runs testdata/script/*.txtar. Besides testscript's own commands
// they have:
//
//	ports                   sets $BASE to a free base port, and $CONSOLE, $ROOM0, $ROOM1, $ROOM2,
//	                        $REDIS_DOOR, $LEAF_DOOR, $TINYID_DOOR, $COSID_DOOR and $ETCD to the addresses
//	                        that march dev has there; $MARCH_ROOM and $MARCH_CONSOLE too
//	etcd [FILE]             starts an etcd of its own and sets $ETCD; with the output of march etcd
//	                        roles in FILE, one with these users, whose password is
//	                        planted-etcd-password, and with TLS: $ETCD_CA, $ETCD_CERT and $ETCD_KEY
//	ca NAME                 makes a CA, and NAME.pem
//	cert CA NAME HOST|URI.. has it issue NAME.pem and NAME-key.pem
//	put KEY VALUE           puts a value under a key of $ETCD
//	mute                    sets $MUTE to the address of a server that accepts and never answers
//	start NAME TEXT CMD...  runs CMD in the background until its output matches TEXT
//	await NAME TEXT         waits until its output matches TEXT
//	end NAME SIGNAL CODE    ends it and checks its exit code (-1: the signal did); its
//	                        output is in NAME.out and NAME.err
//	finish NAME CODE        waits for its own end instead
//	run CMD...              runs CMD to its end: march and http in a runner, where exec takes a process of its own
//	exits CODE CMD...       runs CMD, or exec CMD, to its end, and checks its exit code
//	eventually CMD...       runs CMD until it exits with 0
//	run http [FLAG...] URL  calls URL: see httpClient
//	try NAME                runs the commands that march dev printed under "Try"
//	distinct MIN FILE...    the lines of all files are distinct numbers from MIN on
//	residues N LOW UP FILE  LOW <= number mod N < UP for every number in FILE
//	only-in-all             skips a script unless a run has all: a plain run then does not show what it says
//	max VAR FILE            sets VAR to the largest number in FILE
func TestScript(t *testing.T) {
	processes(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: rewriting(), RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			s := &script{processes: make(map[string]*process), cas: make(map[string]*certs.CA)}
			if tb, ok := env.T().(testing.TB); ok {
				s.tb = tb
			}
			env.Values[scriptKey{}] = s
			env.Defer(s.killAll)
			env.Setenv("GORACE", os.Getenv("GORACE"))
			env.Setenv("TMPDIR", env.WorkDir+"/tmp") // where march dev has its temporary directory
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir+"/config")
			env.Setenv("MARCH_TIMEOUT", "1m") // a busy machine is no fault
			for _, setting := range env.Vars {
				name, _, _ := strings.Cut(setting, "=")
				s.names = append(s.names, name)
			}
			return os.MkdirAll(filepath.Join(env.WorkDir, "tmp"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ports": cmdPorts, "etcd": cmdEtcd, "stop-etcd": cmdStopEtcd, "ca": cmdCA, "cert": cmdCert, "put": cmdPut,
			"mute": cmdMute, "start": cmdStart, "await": cmdAwait,
			"signal": cmdSignal, "end": cmdEnd, "finish": cmdFinish, "exits": cmdExits,
			"run": cmdRun, "eventually": cmdEventually, "try": cmdTry, "distinct": cmdDistinct,
			"residues": cmdResidues, "max": cmdMax, "only-in-all": cmdOnlyInAll,
		},
	})
}

// script is the state of one script.
type script struct {
	tb        testing.TB
	names     []string // of its environment
	processes map[string]*process
	cas       map[string]*certs.CA
	etcd      *ledgertest.Etcd // the one without certificates that was started last
}

type scriptKey struct{}

func of(ts *testscript.TestScript) *script {
	s, ok := ts.Value(scriptKey{}).(*script)
	if !ok {
		ts.Fatalf("no script")
	}
	return s
}

func (s *script) killAll() {
	for _, p := range s.processes {
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

func usage(ts *testscript.TestScript, neg bool, ok bool, text string) {
	if neg || !ok {
		ts.Fatalf("usage: %s", text)
	}
}

func cmdOnlyInAll(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 0, "only-in-all")
	if !rewriting() {
		programs.OnlyInAll(of(ts).tb, "of scripts of commands")
	}
}

func cmdPorts(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 0, "ports")
	base, err := freeBase()
	ts.Check(err)
	at := func(offset int) string { return fmt.Sprintf("127.0.0.1:%d", base+offset) }
	ts.Setenv("BASE", strconv.Itoa(base))
	ts.Setenv("CONSOLE", at(portConsoleGRPC))
	ts.Setenv("CONSOLE_PORT", strconv.Itoa(base+portConsoleGRPC))
	ts.Setenv("CONSOLE_HTTP", at(portConsoleHTTP))
	ts.Setenv("ETCD", at(portEtcdClient))
	for i := range 3 {
		ts.Setenv(fmt.Sprintf("ROOM%d", i), at(portRoomGRPC+i))
		ts.Setenv(fmt.Sprintf("ROOM%d_HTTP", i), at(portRoomHTTP+i))
	}
	for k, kind := range doorKinds {
		ts.Setenv(strings.ToUpper(kind.Flag)+"_DOOR", at(doorPort(k)))
	}
	ts.Setenv("MARCH_ROOM", at(portRoomGRPC))
	ts.Setenv("MARCH_CONSOLE", at(portConsoleGRPC))
}

func cmdEtcd(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) <= 1, "etcd [FILE]")
	tb := of(ts).tb
	if len(args) == 0 {
		of(ts).etcd = ledgertest.StartEtcd(tb)
		ts.Setenv("ETCD", of(ts).etcd.Endpoint)
		return
	}
	e := ledgertest.StartSecureEtcd(tb)
	e.Etcdctl(tb, "planted-etcd-password", strings.Split(ts.ReadFile(args[0]), "\n")...)
	e.RequireCredentials(tb)
	own := e.Certificate(tb, "march", certs.Leaf{})
	for name, value := range map[string]string{"ETCD": e.Endpoint, "ETCD_CA": e.CA(),
		"ETCD_CERT": own.Cert, "ETCD_KEY": own.Key} {
		ts.Setenv(name, value)
	}
}

// cmdStopEtcd stops the etcd that was started last.
func cmdStopEtcd(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 0 && of(ts).etcd != nil, "stop-etcd")
	of(ts).etcd.Stop()
}

func cmdCA(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 1, "ca NAME")
	ca, err := certs.New(args[0], 365*24*time.Hour)
	ts.Check(err)
	_, err = ca.WriteCA(ts.MkAbs("."), args[0])
	ts.Check(err)
	of(ts).cas[args[0]] = ca
}

func cmdCert(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) > 2 && of(ts).cas[args[0]] != nil, "cert CA NAME HOST|URI...")
	leaf := certs.Leaf{Name: args[1]}
	for _, name := range args[2:] {
		if strings.Contains(name, "://") {
			leaf.URIs = append(leaf.URIs, name)
		} else {
			leaf.Hosts = append(leaf.Hosts, name)
		}
	}
	_, err := of(ts).cas[args[0]].Write(ts.MkAbs("."), args[1], leaf)
	ts.Check(err)
}

func cmdPut(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 2, "put KEY VALUE")
	etcd := ledgertest.Etcd{Endpoint: ts.Getenv("ETCD")}
	_, err := etcd.Store(of(ts).tb).Txn(of(ts).tb.Context(),
		store.Txn{Then: []store.Op{{Put: &store.Put{Key: args[0], Value: []byte(args[1])}}}})
	ts.Check(err)
}

func cmdMute(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 0, "mute")
	l, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts connections, no server does
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	ts.Setenv("MUTE", l.Addr().String())
}

func scriptDeadline() time.Time { return time.Now().Add(time.Minute) }

func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) >= 3, "start NAME TEXT CMD...")
	env := make([]string, 0, 16)
	for _, name := range []string{"WORK", "TMPDIR", "HOME", "XDG_CONFIG_HOME", "MARCH_ROOM", "MARCH_CONSOLE",
		"MARCH_ETCD", "MARCH_GRPC", "MARCH_HTTP", "MARCH_NAME", "MARCH_JOURNAL"} {
		if value := ts.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	p, err := startProcess(ts.MkAbs("."), env, args[2], args[3:]...)
	ts.Check(err)
	of(ts).processes[args[0]] = p
	ts.Check(p.await(scriptDeadline(), args[1]))
}

func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 2, "await NAME TEXT")
	p, ok := of(ts).processes[args[0]]
	usage(ts, neg, ok, "await NAME TEXT")
	ts.Check(p.await(scriptDeadline(), args[1]))
}

var signals = map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL,
	"HUP": syscall.SIGHUP}

func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 2 && of(ts).processes[args[0]] != nil, "signal NAME SIGNAL")
	ts.Check(of(ts).processes[args[0]].cmd.Process.Signal(signals[args[1]]))
}

func cmdEnd(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 3, "end NAME SIGNAL CODE")
	p, ok := of(ts).processes[args[0]]
	signal, known := signals[args[1]]
	usage(ts, neg, ok && known, "end NAME SIGNAL CODE")
	code, err := p.stop(scriptDeadline(), signal)
	ts.Check(err)
	wrote(ts, args[0], p, code, args[2])
}

func cmdFinish(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 2, "finish NAME CODE")
	p, ok := of(ts).processes[args[0]]
	usage(ts, neg, ok, "finish NAME CODE")
	ts.Check(poll(scriptDeadline(), func() bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	}))
	wrote(ts, args[0], p, p.cmd.ProcessState.ExitCode(), args[1])
}

// wrote writes the output files of a process that has ended, and checks its exit code.
func wrote(ts *testscript.TestScript, name string, p *process, code int, want string) {
	stdout, stderr := p.output()
	ts.Check(os.WriteFile(ts.MkAbs(name+".out"), []byte(stdout), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(name+".err"), []byte(stderr), 0o600))
	if strconv.Itoa(code) != want {
		ts.Fatalf("%s exited with %d, want %s\n%s%s", p.cmd, code, want, stdout, stderr)
	}
}

// setInScript is a line of a script that sets something in its environment.
var setInScript = regexp.MustCompile(`(?m)^env ([A-Z_0-9]+)=`)

// scriptEnv returns that of a script's commands: what the setup gave, and what the script sets by itself.
func scriptEnv(ts *testscript.TestScript) []string {
	text, err := os.ReadFile(filepath.Join("testdata", "script", ts.Name()+".txtar"))
	ts.Check(err)
	names := of(ts).names
	for _, set := range setInScript.FindAllSubmatch(text, -1) {
		names = append(names, string(set[1]))
	}
	var env []string
	for _, name := range append(names, "ETCD", "MARCH_ROOM", "MARCH_CONSOLE") { // cmdPorts and cmdEtcd set these
		if value := ts.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// run runs a program, or a command line of march in a runner, and returns its exit code.
func run(ts *testscript.TestScript, args ...string) int {
	if args[0] != "march" && args[0] != "http" {
		if args[0] == "exec" {
			args = args[1:]
		}
		err := ts.Exec(args[0], args[1:]...)
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		ts.Check(err)
		return 0
	}
	stdout, stderr, code, err := runLine(of(ts).tb.Context(), ts.MkAbs("."), scriptEnv(ts), args...)
	ts.Check(err)
	_, _ = io.WriteString(ts.Stdout(), stdout)
	_, _ = io.WriteString(ts.Stderr(), stderr)
	return code
}

func cmdRun(ts *testscript.TestScript, neg bool, args []string) {
	if code := run(ts, args...); (code != 0) != neg {
		ts.Fatalf("exited with %d", code)
	}
}

func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) >= 2, "exits CODE CMD...")
	if code := run(ts, args[1:]...); strconv.Itoa(code) != args[0] {
		ts.Fatalf("exited with %d, want %s", code, args[0])
	}
}

func cmdEventually(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) >= 1, "eventually CMD...")
	ts.Check(poll(scriptDeadline(), func() bool { return run(ts, args...) == 0 }))
}

func cmdTry(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 1, "try NAME")
	stdout, _ := of(ts).processes[args[0]].output()
	_, rest, _ := strings.Cut(stdout, "Try, in another terminal:\n")
	tried := 0
	for line := range strings.Lines(rest) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if words[0] != "march" {
			ts.Fatalf("%q is no command of march", line)
		}
		if code := run(ts, words...); code != 0 {
			ts.Fatalf("%s: exited with %d", line, code)
		}
		tried++
	}
	if tried != 3 {
		ts.Fatalf("tried %d commands, want 3, of:\n%s", tried, stdout)
	}
}

// numbers returns the numbers in a file, one per line.
func numbers(ts *testscript.TestScript, file string) []int64 {
	content := []byte(ts.ReadFile(file))
	var all []int64
	for line := range bytes.Lines(content) {
		n, err := strconv.ParseInt(strings.TrimSpace(string(line)), 10, 64)
		ts.Check(err)
		all = append(all, n)
	}
	return all
}

func cmdDistinct(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) >= 2, "distinct MIN FILE...")
	least, err := strconv.ParseInt(args[0], 10, 64)
	ts.Check(err)
	where := make(map[int64]string)
	for _, file := range args[1:] {
		for _, n := range numbers(ts, file) {
			if first, twice := where[n]; twice {
				ts.Fatalf("%d is in %s and in %s", n, first, file)
			}
			if where[n] = file; n < least {
				ts.Fatalf("%d in %s is below %d", n, file, least)
			}
		}
	}
	ts.Logf("%d numbers, from %d on", len(where), slices.Min(slices.Collect(maps.Keys(where))))
}

func cmdMax(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 2, "max VAR FILE")
	ts.Setenv(args[0], strconv.FormatInt(slices.Max(numbers(ts, args[1])), 10))
}

func cmdResidues(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 4, "residues N LOW UP FILE")
	var bounds [3]int64
	for i := range bounds {
		var err error
		bounds[i], err = strconv.ParseInt(args[i], 10, 64)
		ts.Check(err)
	}
	for _, n := range numbers(ts, args[3]) {
		if r := n % bounds[0]; r < bounds[1] || r >= bounds[2] {
			ts.Fatalf("%d mod %d is %d, not in [%d, %d)", n, bounds[0], r, bounds[1], bounds[2])
		}
	}
}
