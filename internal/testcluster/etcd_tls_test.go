package testcluster_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/testcerts"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// secure is a cluster whose etcd knows users by their certificates, as `march etcd roles
// --certificates` makes them.
type secure struct {
	*testcluster.Cluster
	t    *testing.T
	etcd *ledgertest.Etcd
}

func newSecure(t *testing.T) *secure {
	t.Helper()
	s := &secure{t: t, etcd: ledgertest.StartSecureEtcd(t)}
	for _, role := range []record.Role{keys.OperatorRole(), keys.RoomRole("a", false)} {
		s.etcd.Etcdctl(t, "", role.Commands(true)...)
		s.etcd.Etcdctl(t, "", role.UserCommands("--no-password")...)
		s.etcd.Certificate(t, role.Name, certs.Leaf{})
	}
	end := s.etcd.RequireCredentials(t)
	t.Cleanup(end)
	s.Cluster = testcluster.Over(t, "default", func(testing.TB) store.Store {
		return s.store("march-default-operator", s.etcd.CA())
	})
	s.Init(testcluster.Halves(), "ann")
	s.Tag(func(settings *record.TagSettings) { settings.MinStep = 50_000 }, "ann", "order", "other")
	return s
}

// files returns the certificate and the key of a user.
func (s *secure) files(user string) certs.Pair {
	dir := strings.TrimSuffix(s.etcd.CA(), "ca.pem")
	return certs.Pair{Cert: dir + user + ".pem", Key: dir + user + "-key.pem"}
}

// store returns a store of a user, whose settings follow the files.
func (s *secure) store(user, ca string) store.Store {
	pair := s.files(user)
	files := testcerts.Open(s.t, tlsfiles.Config{Flags: "etcd", CA: ca, Cert: pair.Cert, Key: pair.Key})
	etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{s.etcd.Endpoint}, TLS: files.Client})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

// restart ends all connections.
func (s *secure) restart() {
	s.etcd.Stop()
	s.etcd.Start(s.t)
}

// Certificates are renewed and revoked while a room is under load. IDs in memory last all the
// while, and leases go on once the room's file has a good certificate.
func TestEtcdCertificates(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	const user = "march-default-room-a"
	r := s.Room("a", "one", func(cfg *room.Config) { cfg.Ledger = s.LedgerOver(s.store(user, s.etcd.CA()), nil) })
	lease := func() error { // more than the instance holds
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: "other", Count: 100_000})
		return err
	}
	leases := func(when string) {
		t.Helper()
		testcluster.Await(t, "a lease "+when, func() bool { return lease() == nil })
	}
	leases("at first")
	testcluster.Await(t, "the tag under load is in memory", func() bool {
		_, err := r.Next(t.Context(), &marchv1.NextRequest{Tag: "order"})
		return err == nil
	})

	ctx, stop := context.WithCancel(t.Context())
	load := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := r.Next(ctx, &marchv1.NextRequest{Tag: "order"}); err != nil && ctx.Err() == nil {
				load <- err
				return
			}
			time.Sleep(time.Millisecond)
		}
		load <- nil
	}()
	before := s.files(user)
	s.etcd.Revoke(t, before)
	s.etcd.Certificate(t, user, certs.Leaf{})
	s.restart()
	// The instance asks etcd with its old certificate, until the file is read again.
	testcluster.Await(t, "etcd answers", func() bool {
		_, err := s.Admin.Ledger.Ping(t.Context())
		return err == nil
	})
	leases("with a renewed certificate")
	stop()
	if err := <-load; err != nil {
		t.Errorf("a call for an ID failed meanwhile: %v", err)
	}

	s.etcd.Revoke(t, s.files(user))
	s.restart()
	testcluster.Await(t, "no lease with a revoked certificate, because of etcd", func() bool {
		refused := lease() // or its time ended first
		return refused != nil && strings.Contains(refused.Error(), "etcd does not answer")
	})
	if _, err := tlsfiles.Open(tlsfiles.Config{Flags: "etcd", CA: s.etcd.CA(), Cert: s.files(user).Cert,
		Key: s.files("member").Key}); err == nil {
		t.Error("a key that does not fit")
	}
	s.etcd.Certificate(t, user, certs.Leaf{})
	leases("with a new certificate")
}

// Etcd refuses a certificate that proves nothing, or proves another user, with the reason.
func TestEtcdBadCertificates(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	write := func(user, ca string) error {
		ctx, cancel := context.WithTimeout(t.Context(), testcluster.Patience)
		defer cancel()
		_, err := s.store(user, ca).Txn(ctx,
			store.Txn{Then: []store.Op{store.OpPut(keys.Mark("b", "order"), []byte("x"))}})
		return err
	}
	other := testcerts.New(t)
	ledgertest.WantKind(t, write("march-default-operator", other.Root), allocator.Unavailable,
		"certificate signed by unknown authority")
	ledgertest.WantKind(t, write("march-default-room-a", s.etcd.CA()), allocator.Denied,
		"user march-default-room-a may not write "+keys.Mark("b", "order"))
	s.etcd.Certificate(t, "stranger", certs.Leaf{})
	ledgertest.WantKind(t, write("stranger", s.etcd.CA()), allocator.Denied, "etcd at "+s.etcd.Endpoint)
	cert, key, err := other.Issue(certs.Leaf{Name: "march-default-operator"})
	if err != nil {
		t.Fatal(err)
	}
	forged := s.files("forged")
	for path, content := range map[string][]byte{forged.Cert: cert, forged.Key: key} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ledgertest.WantKind(t, write("forged", s.etcd.CA()), allocator.Unavailable, "etcd at "+s.etcd.Endpoint)

	// Which right a certificate's user lacks is known before a lease needs it.
	l := s.LedgerOver(s.store("march-default-room-a", s.etcd.CA()), nil)
	role := keys.RoomRole("a", false)
	if _, err := l.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if missing, _, err := l.WrongRights(t.Context(), role); err != nil || len(missing) > 0 {
		t.Errorf("missing %v: %v", missing, err)
	}
	s.etcd.Etcdctl(t, "", "etcdctl role revoke-permission "+role.Name+" "+keys.Beat())
	missing, _, err := l.WrongRights(t.Context(), role)
	if err != nil || len(missing) != 1 || missing[0].String() != "write "+keys.Beat() {
		t.Errorf("missing %v: %v", missing, err)
	}
	plainText := store.EtcdConfig{Endpoints: []string{"http://127.0.0.1:1"}, TLS: (&tlsfiles.Files{}).Client}
	_, err = store.NewEtcd(plainText)
	ledgertest.WantKind(t, err, allocator.Invalid, "is plain text")
}
