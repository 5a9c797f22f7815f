package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/cmd/internal/proxy"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/testcerts"
	"github.com/march-id/march/internal/testcluster"
)

// A room leases that has a round trip of 1.2 s or 2 s to etcd, over TLS: handshakes take round trips of their own.
// Before, nothing was leased from 1.2 s on.
func TestFarEtcdOverTLS(t *testing.T) {
	programs.OnlyInAll(t, "of a far etcd over TLS")
	t.Parallel()
	etcd := ledgertest.StartSecureEtcd(t)
	pair := etcd.Certificate(t, "march", certs.Leaf{})
	files := testcerts.Open(t, tlsfiles.Config{Flags: "etcd", CA: etcd.CA(), Cert: pair.Cert, Key: pair.Key})
	near := testcluster.Over(t, "default", func(testing.TB) store.Store {
		s, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{etcd.Endpoint}, TLS: files.Client})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	})
	near.Init(testcluster.Halves(), "test")
	near.Tag(func(s *record.TagSettings) { s.MaxStep = 10_000 }, "test", "order")
	for k, away := range []time.Duration{1200 * time.Millisecond, 2 * time.Second} {
		t.Run(fmt.Sprint(away), func(t *testing.T) {
			t.Parallel()
			link := proxy.New(strings.TrimPrefix(etcd.Endpoint, "https://"))
			link.Set(proxy.Fault{Delay: away / 2})
			l, err := proxy.Listen(link)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = l.Close()
				link.Close()
			})
			base, err := freeBase()
			if err != nil {
				t.Fatal(err)
			}
			address := fmt.Sprintf("127.0.0.1:%d", base)
			p := begin(t, "", nil, "room", string("ab"[k]), "--name", "one", "--etcd", "https://"+l.Address(),
				"--etcd-ca", etcd.CA(), "--etcd-cert", pair.Cert, "--etcd-key", pair.Key, "--grpc", address,
				"--http", "", "--journal", "off").ready(t)
			ids := marchv1.NewIDServiceClient(testcluster.Dial(t, address))
			for n := range 5 { // an instance holds two steps at most
				if _, err := ids.NextBatch(t.Context(), &marchv1.NextBatchRequest{Tag: "order", Count: 5000},
					grpc.WaitForReady(true)); err != nil {
					_, stderr := p.output()
					t.Fatalf("call %d: %v\n%s", n, err, stderr)
				}
			}
		})
	}
}
