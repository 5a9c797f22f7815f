package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/certs"
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
	s.flags = clusterFlags{endpoints: []string{etcd.Endpoint}, cluster: "default", MaxTags: 10}
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
	s.flags.user, s.flags.passwordFile = role.Name, s.file("password", password)
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
			s.flags.endpoints = []string{held}
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
			return func() { s.write(s.flags.passwordFile, "first") }
		}, "a user that etcd knows", "--etcd-password-file"},
		"users are off": {func(s *startingRoom) func() {
			s.init()
			s.flags.user, s.flags.passwordFile = "march", s.file("password", "first")
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
		right := clusterFlags{endpoints: s.flags.endpoints, cluster: "default", MaxTags: 10,
			ca: s.etcd.CA(), cert: own.Cert, key: own.Key}
		l, err := right.Ledger(watched{}, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if _, err := admin.New(l, admin.DefaultConfig()).Init(t.Context(), testcluster.Halves(), "ann"); err != nil {
			t.Fatal(err)
		}
		s.flags.ca, s.flags.cert, s.flags.key = ca, own.Cert, own.Key
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
	l, err := s.flags.Ledger(watched{}, hclog.NewNullLogger())
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	server := starting{What: "room", Wait: true, Log: log}
	server.Needs = func(ctx context.Context) error { return s.flags.roomNeeds(ctx, l, "a", "one") }
	ended := make(chan error, 1)
	go func() {
		_, err := server.await(s.Context(), func() {})
		ended <- err
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
