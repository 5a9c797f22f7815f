package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/testcerts"
)

// Every flag that recover's errors name is one of its own.
func TestRecoverNamesItsFlags(t *testing.T) {
	files, err := filepath.Glob("../../allocator/ledger/recovery/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	cmd, named := newRecover(&common{}), 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range regexp.MustCompile("[ (]--([a-z][a-z-]*)").FindAllStringSubmatch(string(text), -1) {
			named++
			if cmd.Flag(flag[1]) == nil {
				t.Errorf("%s names --%s, which recover lacks", file, flag[1])
			}
		}
	}
	if named < 5 {
		t.Errorf("%d flags are named", named)
	}
}

// An instance that requires a journal needs one.
func TestRequireJournalFlag(t *testing.T) {
	t.Parallel()
	if _, stderr, code := march(t, "room", "a", "--require-journal", "--journal", "off"); code != exitUsage ||
		!strings.Contains(stderr, "--journal DIR") {
		t.Errorf("off: exit code %d, %s", code, stderr)
	}
}

// Where journals are by default.
func TestJournalDir(t *testing.T) {
	for _, test := range []struct{ set, state, xdg, home, want string }{
		{"off", "/s", "/x", "/h", ""},
		{"/j", "/s", "/x", "/h", "/j"},
		{"", "/s:/t", "/x", "/h", "/s"},
		{"", "", "/x", "/h", "/x/march"},
		{"", "", "relative", "/h", "/h/.local/state/march"},
		{"", "", "", "/h", "/h/.local/state/march"},
	} {
		t.Setenv("STATE_DIRECTORY", test.state)
		t.Setenv("XDG_STATE_HOME", test.xdg)
		t.Setenv("HOME", test.home)
		if got, err := journalDir(test.set); err != nil || got != test.want {
			t.Errorf("%+v: %q, %v", test, got, err)
		}
	}
	t.Setenv("HOME", "")
	_ = os.Unsetenv("HOME")
	if _, err := journalDir(""); allocator.KindOf(err) != allocator.Invalid ||
		!slices.Contains(strings.Fields(err.Error()), "--journal") {
		t.Errorf("without a home: %v", err)
	}
}

// certificate writes a certificate for 127.0.0.1 and names, and returns its settings.
func certificate(ca *testcerts.CA, name string, names ...string) tlsfiles.Config {
	pair := ca.Write(name, certs.Leaf{Name: name, Hosts: append([]string{"127.0.0.1"}, names...)})
	return tlsfiles.Config{Flags: "tls", CA: ca.Root, Cert: pair.Cert, Key: pair.Key}
}

// tlsFlags returns the flags of a certificate.
func tlsFlags(cfg tlsfiles.Config) []string {
	return []string{"--tls-cert", cfg.Cert, "--tls-key", cfg.Key}
}

// impostor answers ReportMarks as an instance did, with low marks, whatever it is asked.
type impostor struct {
	marchv1.UnimplementedRoomServiceServer
	answers []*marchv1.ReportMarksResponse
	asked   atomic.Int64
}

func (i *impostor) ReportMarks(_ *marchv1.ReportMarksRequest, stream marchv1.RoomService_ReportMarksServer) error {
	i.asked.Add(1)
	for _, answer := range i.answers {
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
	return nil
}

// record takes the answers of an instance, and lowers the marks in them. They say that the
// instance is barred, as recover's later questions demand.
func (i *impostor) record(ctx context.Context, conn *grpc.ClientConn, uuid string) error {
	stream, err := marchv1.NewRoomServiceClient(conn).ReportMarks(ctx, &marchv1.ReportMarksRequest{ClusterUuid: uuid})
	for err == nil {
		var answer *marchv1.ReportMarksResponse
		if answer, err = stream.Recv(); err == nil {
			for _, mark := range answer.GetMarks() {
				mark.Next = 1
			}
			answer.Barred = true
			i.answers = append(i.answers, answer)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

// serve has the impostor answer at an address.
func (i *impostor) serve(t *testing.T, address string, creds ...grpc.ServerOption) (stop func()) {
	t.Helper()
	var l net.Listener
	if err := poll(patience(t), func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	}); err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(creds...)
	marchv1.RegisterRoomServiceServer(s, i)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	return func() {
		s.Stop()
		<-served
	}
}

// TestRecoverBelievesInstances: a process that sits at the address where an instance was
// replays what the instance once answered, with lower marks. Recover with TLS does not believe
// it, also if it has a certificate of the same CA. Without TLS it would.
func TestRecoverBelievesInstances(t *testing.T) {
	t.Parallel()
	c, ca := newProcessCluster(t), testcerts.New(t)
	rooms := certificate(ca, "rooms", "a-0.a.march", "b-0.b.march")
	c.init(tlsFlags(rooms)...)
	operator := certificate(ca, "operator", "operator.example")
	given := api.Credentials{TLS: testcerts.Open(t, operator)}
	conn, err := api.Dial(c.address("a-0"), given.InstanceOptions("a", "a-0")...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := marchv1.NewIDServiceClient(conn).Next(t.Context(), &marchv1.NextRequest{Tag: "order"}); err != nil {
		t.Fatal(err)
	}
	var identity struct{ UUID string }
	if err := json.Unmarshal([]byte(c.value("identity")), &identity); err != nil {
		t.Fatal(err)
	}
	var forged impostor
	if err := forged.record(t.Context(), conn, identity.UUID); err != nil || len(forged.answers) == 0 {
		t.Fatalf("%d answers, %v", len(forged.answers), err)
	}
	c.signal("a-0", syscall.SIGKILL)
	recoverWith := func(flags ...string) (stdout, stderr string, code int) {
		return march(t, append([]string{"recover", "--yes", "--quiet", "--etcd", c.etcd.Endpoint, "--wait", "0s",
			"--timeout", "2s"}, flags...)...)
	}
	with := append(tlsFlags(operator), "--tls-ca", operator.CA)
	stranger := testcerts.New(t)
	for name, cfg := range map[string]tlsfiles.Config{
		"no TLS":            {},
		"another CA":        certificate(stranger, "a-0", "a-0.a.march"),
		"another instance":  certificate(ca, "b-0", "b-0.b.march"),
		"another room":      certificate(ca, "other", "a-0.b.march"),
		"only the address":  certificate(ca, "bare"),
		"the room's prefix": certificate(ca, "prefix", "x.a-0.a.march", "a-0.a.march.example"),
	} {
		var creds []grpc.ServerOption
		if cfg.Cert != "" {
			creds = append(creds, grpc.Creds(credentials.NewTLS(testcerts.Open(t, cfg).Server("h2"))))
		}
		stop := forged.serve(t, c.address("a-0"), creds...)
		stdout, stderr, code := recoverWith(with...)
		stop()
		if code != exitFailed || !strings.Contains(stdout, "missing") || !strings.Contains(stdout, "a/a-0") ||
			!strings.Contains(stderr, "not every instance answered") {
			t.Errorf("%s: exit code %d\n%s%s", name, code, stdout, stderr)
		}
	}
	if n := forged.asked.Load(); n != 0 {
		t.Errorf("the impostor was asked %d times", n)
	}
	// The impostor is a good one: a recover that asks for no certificate is taken in.
	stop := forged.serve(t, c.address("a-0"))
	stdout, stderr, _ := march(t, "recover", "--etcd", c.etcd.Endpoint, "--wait", "0s", "--timeout",
		"2s", "--without", "b/b-0")
	stop()
	if !strings.Contains(stdout, "answered  a/a-0") {
		t.Errorf("without TLS:\n%s%s", stdout, stderr)
	}
	c.start("a-0", tlsFlags(rooms)...)
	if stdout, stderr, code := recoverWith(with...); code != exitOK || strings.Contains(stdout, "missing") {
		t.Errorf("with the instance itself: exit code %d\n%s%s", code, stdout, stderr)
	}
}
