package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	clientv3 "go.etcd.io/etcd/client/v3"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

const startKeys = record.Keys("/march/default/")

// startingRoom is an instance that is to start, and its etcd.
type startingRoom struct {
	*testing.T
	etcd  *ledgertest.Etcd
	flags clusterFlags
	log   loggedLines
}

// loggedLines is what was logged so far.
type loggedLines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *loggedLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *loggedLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func newStartingRoom(t *testing.T, etcd *ledgertest.Etcd) *startingRoom {
	s := &startingRoom{T: t, etcd: etcd}
	s.flags = clusterFlags{Endpoints: []string{etcd.Endpoint}, Cluster: "default"}
	return s
}

func (s *startingRoom) init() {
	c := testcluster.Over(s, "default", s.etcd.Store)
	c.Init(testcluster.Halves(), "ann")
}

// file writes a file, and returns its path.
func (s *startingRoom) file(name, content string) string {
	path := filepath.Join(s.TempDir(), name)
	s.write(path, content)
	return path
}

func (s *startingRoom) write(path, content string) {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		s.Fatal(err)
	}
}

// users makes etcd ask for users, and gives the instance the user of room a, who has the rights of its role but those
// that contain without.
func (s *startingRoom) users(password, without string) record.Role {
	role := startKeys.RoomRole("a", false)
	s.etcd.Etcdctl(s, "first", role.UserCommands("--interactive=false < file")[0])
	for _, command := range role.Commands(true) {
		if without == "" || !strings.Contains(command, without) {
			s.etcd.Etcdctl(s, "first", command)
		}
	}
	s.etcd.Etcdctl(s, "first", role.UserCommands("--interactive=false < file")...)
	s.etcd.RequireCredentials(s)
	s.flags.User, s.flags.PasswordFile = role.Name, s.file("password", password)
	return role
}

// A start waits in every state of etcd that an operator can mend, and says for what. Once the state is mended it goes
// on. Before, a start ended where etcd refused the user, where it lacked a right, and where another cluster's etcd
// answered.
func TestStartWaitsForEtcd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		breaks func(*startingRoom) (mend func())
		waits  string // what for; empty if the instance starts at once
		says   string
	}{
		"away": {func(s *startingRoom) func() {
			s.init()
			s.etcd.Stop()
			return func() { s.etcd.Start(s) }
		}, "etcd", "connect"},
		"no leader": {func(s *startingRoom) func() {
			s.init()
			data := s.etcd.CopyData(s)
			conn, err := clientv3.New(clientv3.Config{Endpoints: []string{s.etcd.Endpoint}})
			if err != nil {
				s.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			// The member that it waits for from now on never comes.
			if _, err := conn.MemberAdd(s.Context(), []string{"http://127.0.0.1:1"}); err != nil {
				s.Fatal(err)
			}
			return func() { s.etcd.PutBack(s, data, false) }
		}, "etcd", ""},
		"slow": {func(s *startingRoom) func() {
			s.init()
			held, release := holdAnswers(s, strings.TrimPrefix(s.etcd.Endpoint, "unix://"))
			s.flags.Endpoints = []string{held}
			return release
		}, "etcd", "no answer in time"},
		"full": {func(s *startingRoom) func() {
			s.init()
			s.etcd.NoSpace(s, true)
			return func() { s.etcd.NoSpace(s, false) }
		}, "space in etcd", "database space exceeded"},
		"empty": {func(s *startingRoom) func() { return s.init }, "layout", "march layout init"},
		"another cluster": {func(s *startingRoom) func() {
			s.init()
			backup, data := s.etcd.Backup(s), s.etcd.CopyData(s)
			s.etcd.Restore(s, backup, 0, "another")
			return func() { s.etcd.PutBack(s, data, false) }
		}, "this cluster's etcd", "march recover"},
		"compacted": {func(s *startingRoom) func() {
			s.init()
			s.etcd.Compact(s, s.etcd.Store(s))
			return nil
		}, "", ""},
		"no user given": {func(s *startingRoom) func() {
			s.init()
			return s.etcd.RequireCredentials(s)
		}, "a user that etcd knows", "--etcd-user"},
		"wrong password": {func(s *startingRoom) func() {
			s.init()
			s.users("wrong", "")
			return func() { s.write(s.flags.PasswordFile, "first") }
		}, "a user that etcd knows", "--etcd-password-file"},
		"users are off": {func(s *startingRoom) func() {
			s.init()
			s.flags.User, s.flags.PasswordFile = "march", s.file("password", "first")
			return nil
		}, "", ""},
		"no right to read": {func(s *startingRoom) func() {
			s.init()
			role := s.users("first", " read ")
			return func() { s.etcd.Etcdctl(s, "", role.Commands(true)...) }
		}, "rights in etcd", "march etcd roles"},
		"no right to register": {func(s *startingRoom) func() {
			s.init()
			role := s.users("first", "/rooms/")
			return func() { s.etcd.Etcdctl(s, "", role.Commands(true)...) }
		}, "rights in etcd", "may not write /march/default/rooms/a/one in etcd; `march etcd roles a`"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newStartingRoom(t, ledgertest.StartEtcd(t)).check(test.breaks, test.waits, test.says)
		})
	}
	t.Run("TLS refused", func(t *testing.T) {
		t.Parallel()
		s := newStartingRoom(t, ledgertest.StartSecureEtcd(t))
		other, err := certs.New("other", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		ca, err := other.WriteCA(dir, "ca")
		if err != nil {
			t.Fatal(err)
		}
		own := s.etcd.Certificate(t, "one", certs.Leaf{})
		right := clusterFlags{Endpoints: s.flags.Endpoints, Cluster: "default", CA: s.etcd.CA(), Cert: own.Cert,
			Key: own.Key}
		l, err := right.Ledger(&serve.Settings{}, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if _, err := admin.New(l, admin.DefaultConfig()).Init(t.Context(), testcluster.Halves(), "ann"); err != nil {
			t.Fatal(err)
		}
		s.flags.CA, s.flags.Cert, s.flags.Key = ca, own.Cert, own.Key
		s.check(func(*startingRoom) func() {
			right, err := os.ReadFile(s.etcd.CA())
			if err != nil {
				t.Fatal(err)
			}
			return func() { s.write(ca, string(right)) }
		}, "etcd", "certificate signed by unknown authority")
	})
}

// check breaks etcd, starts the instance, and mends etcd once the instance has said what it waits for.
func (s *startingRoom) check(breaks func(*startingRoom) (mend func()), waits, says string) {
	mend := breaks(s)
	log := hclog.New(&hclog.LoggerOptions{Output: &s.log})
	l, err := s.flags.Ledger(&serve.Settings{}, hclog.NewNullLogger())
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	server := starting{Settings: &serve.Settings{Logger: log}, What: "room", Wait: true}
	server.Needs = func(ctx context.Context) error { return s.flags.roomNeeds(ctx, l, "a", "one") }
	ended := make(chan error, 1)
	go func() {
		ended <- server.await(s.Context(), func() {})
	}()
	if waits != "" {
		testcluster.Await(s, "the instance says what it waits for", func() bool {
			select {
			case err := <-ended:
				s.Fatalf("the start ended: %v", err)
			default:
			}
			return strings.Contains(s.log.String(), "waiting: ")
		})
		if got := s.log.String(); !strings.Contains(got, "for="+waits+" ") &&
			!strings.Contains(got, `for="`+waits+`" `) || !strings.Contains(got, says) {
			s.Errorf("it says\n%s\nand not that it waits for %s, %q", got, waits, says)
		}
		if got := s.log.String(); strings.Contains(got, "first") {
			s.Errorf("the log has the password:\n%s", got)
		}
		mend()
	}
	if err := <-ended; err != nil {
		s.Fatal(err)
	}
	if waits == "" && strings.Contains(s.log.String(), "waiting") {
		s.Errorf("it waited:\n%s", s.log.String())
	}
}

// holdAnswers returns an address at which nothing is answered until release is called; then a listener at path answers.
func holdAnswers(s *startingRoom, path string) (address string, release func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = l.Close() })
	released := make(chan struct{})
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = from.Close() }()
				select {
				case <-released:
				case <-s.Context().Done():
					return
				}
				to, err := net.Dial("unix", path)
				if err != nil {
					return
				}
				defer func() { _ = to.Close() }()
				go func() { _, _ = io.Copy(to, from) }()
				_, _ = io.Copy(from, to)
			}()
		}
	}()
	return l.Addr().String(), func() { close(released) }
}

// spans is an OTLP receiver that keeps the names of the spans it gets.
type spans struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	names []string
}

func (s *spans) Export(_ context.Context,
	request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.names = append(s.names, span.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// With --traces a server sends its spans to the receiver, at its end at the latest. A receiver
// that is away causes no trouble.
func TestTraces(t *testing.T) {
	t.Parallel()
	received, server := &spans{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, received)
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	d := devCluster{base: base}
	etcd := ledgertest.StartEtcd(t).Endpoint
	for _, receiver := range []string{testcluster.Serve(t, server), "127.0.0.1:1"} {
		p := begin(t, "", nil, "console", "--etcd", etcd, "--grpc", d.address(0), "--http", "", "--traces",
			"http://"+receiver).ready(t)
		if _, stderr, code := march(t, "tag", "list", "--console", d.address(0)); code != exitFailed { // no cluster yet
			t.Errorf("exit code %d: %s", code, stderr)
		}
		if code, err := p.stop(patience(t), syscall.SIGTERM); code != exitOK || err != nil {
			t.Errorf("exit code %d, %v", code, err)
		}
	}
	received.mu.Lock()
	defer received.mu.Unlock()
	slices.Sort(received.names)
	if want := []string{"etcdserverpb.KV/Txn", "march.v1.ConsoleService/ListTags"}; !slices.Equal(
		slices.Compact(received.names), want) {
		t.Errorf("got %q, want %q", received.names, want)
	}
}

// TestSystemd is a unit's socket of Type=notify: a console tells it that it is up, though it waits for etcd, then, as
// the watchdog asks, that it lives, and that it ends.
func TestSystemd(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := begin(t, t.TempDir(), []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=200000"},
		"console", "--etcd", "127.0.0.1:1", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
	var told []string
	next := func(want string) {
		t.Helper()
		if err := l.SetReadDeadline(patience(t)); err != nil {
			t.Fatal(err)
		}
		for text := make([]byte, 100); !slices.Contains(told, want); {
			n, _, err := l.ReadFromUnix(text)
			if err != nil {
				t.Fatalf("%v after %q; want %q", err, told, want)
			}
			told = append(told, string(text[:n]))
		}
	}
	next("READY=1")
	if told[0] != "READY=1" {
		t.Errorf("first of all: %q", told)
	}
	next("WATCHDOG=1")
	if slices.Contains(told, "STOPPING=1") {
		t.Errorf("it ends before it is told to: %q", told)
	}
	var ending sync.WaitGroup
	ending.Go(func() { // meanwhile the socket is read, as a full one holds the server up
		if code, err := p.stop(patience(t), syscall.SIGTERM); code != 0 || err != nil {
			t.Errorf("exit code %d, %v", code, err)
		}
	})
	next("STOPPING=1")
	ending.Wait()
}
