package problem_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/testcerts"
)

// etcdStatus returns what a process tells of the etcd at an endpoint.
func etcdStatus(t *testing.T, cfg store.EtcdConfig) *marchv1.EtcdStatus {
	t.Helper()
	etcd := must(store.NewEtcd(cfg))(t)
	t.Cleanup(func() { _ = etcd.Close() })
	l := must(ledger.New(etcd, ledger.DefaultConfig()))(t)
	got := must(problem.NewHost(problem.HostConfig{Ledger: l}).Diagnose(t.Context(), &marchv1.DiagnoseRequest{}))(t)
	if e := got.GetEtcd().GetError(); e != "" {
		t.Fatal(e)
	}
	return got.GetEtcd()
}

// agrees reports whether the clock that a process measured can be ahead by skew, and no more
// than some seconds off.
func agrees(e *marchv1.EtcdStatus, skew time.Duration) bool {
	unsure := e.GetClockUnsure().AsDuration()
	return e.GetClockAhead() != nil && e.GetClockError() == "" && unsure >= time.Second && unsure < 5*time.Second &&
		(e.GetClockAhead().AsDuration()-skew).Abs() <= unsure
}

// A process measures the clock of an etcd on its own host, one that is ahead or behind, and one
// that tells no time.
func TestEtcdClock(t *testing.T) {
	etcd := ledgertest.StartEtcd(t)
	if e := etcdStatus(t, store.EtcdConfig{Endpoints: []string{etcd.Endpoint}}); !agrees(e, 0) {
		t.Errorf("over a socket: %v", e)
	}
	for _, skew := range []time.Duration{0, time.Minute, -time.Hour} {
		address := proxy(t, etcd, func(h http.Header) {
			at, err := http.ParseTime(h.Get("Date"))
			if err != nil {
				t.Error(err)
			}
			h.Set("Date", at.Add(skew).Format(http.TimeFormat))
		})
		for _, endpoint := range []string{address, "http://" + address} {
			if e := etcdStatus(t, store.EtcdConfig{Endpoints: []string{endpoint}}); !agrees(e, skew) {
				t.Errorf("%s is ahead by %v: %v", endpoint, skew, e)
			}
		}
	}
	silent := proxy(t, etcd, func(h http.Header) { h.Del("Date") })
	if e := etcdStatus(t, store.EtcdConfig{Endpoints: []string{silent}}); e.GetClockAhead() != nil ||
		!strings.Contains(e.GetClockError(), "no Date") {
		t.Errorf("without a Date: %v", e)
	}
}

// The question presents the certificate of the store, without which etcd answers nothing.
func TestEtcdClockWithCertificates(t *testing.T) {
	etcd := ledgertest.StartSecureEtcd(t)
	pair := etcd.Certificate(t, "someone", certs.Leaf{})
	files := testcerts.Open(t, tlsfiles.Config{Flags: "etcd", CA: etcd.CA(), Cert: pair.Cert, Key: pair.Key})
	if e := etcdStatus(t, store.EtcdConfig{Endpoints: []string{etcd.Endpoint}, TLS: files.Client}); !agrees(e, 0) {
		t.Errorf("with certificates: %v", e)
	}
}

// proxy listens before an etcd. It passes all bytes on, but changes the header of answers to
// GET, which gRPC never sends. It returns its address.
func proxy(t *testing.T, etcd *ledgertest.Etcd, change func(http.Header)) string {
	t.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	var all sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); all.Wait() })
	all.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = from.Close() }()
				to, err := net.Dial("unix", strings.TrimPrefix(etcd.Endpoint, "unix://"))
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = to.Close() }()
				pass(from, to, change)
			})
		}
	})
	return listener.Addr().String()
}

func pass(from, to net.Conn, change func(http.Header)) {
	asked := bufio.NewReader(from)
	if begin, _ := asked.Peek(4); string(begin) == "GET " {
		request, err := http.ReadRequest(asked)
		if err != nil || request.Write(to) != nil {
			return
		}
		if answer, err := http.ReadResponse(bufio.NewReader(to), request); err == nil {
			change(answer.Header)
			answer.Close = true
			_ = errors.Join(answer.Write(from), answer.Body.Close())
		}
		return
	}
	var back sync.WaitGroup
	back.Go(func() { _, _ = io.Copy(from, to); _ = from.Close() })
	_, _ = io.Copy(to, asked)
	_ = to.Close()
	back.Wait()
}
