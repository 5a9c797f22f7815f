package console_test

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/testcerts"
	"github.com/march-id/march/internal/testcluster"
)

// TestConsoleBelievesInstances: with TLS, a console takes an answer only from the instance that
// it asks. Each impostor at the address of a/one has a certificate of the same CA.
func TestConsoleBelievesInstances(t *testing.T) {
	for name, test := range map[string]struct {
		leaf     certs.Leaf
		believed bool
	}{
		"itself": {certs.Leaf{Hosts: []string{"127.0.0.1"},
			URIs: []string{"spiffe://example/march/room/a/instance/one"}}, true},
		"itself, by a DNS name": {certs.Leaf{Hosts: []string{"127.0.0.1", "one.a.march"}}, true},
		"another instance": {certs.Leaf{Hosts: []string{"127.0.0.1"},
			URIs: []string{"spiffe://example/march/room/a/instance/two"}}, false},
		"one of its name elsewhere": {certs.Leaf{Hosts: []string{"127.0.0.1"},
			URIs: []string{"spiffe://example/march/room/b/instance/one"}}, false},
		"only the address": {certs.Leaf{Hosts: []string{"127.0.0.1"}}, false},
		"a longer name":    {certs.Leaf{Hosts: []string{"127.0.0.1", "one.a.march.example"}}, false},
	} {
		inBubble(t, name, func(t *testing.T) {
			ca := testcerts.New(t)
			calls := testcerts.Open(t, tlsfiles.Config{Flags: "tls", CA: ca.Root})
			test.leaf.Name = "impostor"
			cert := ca.Write(name, test.leaf)
			served := testcerts.Open(t, tlsfiles.Config{Flags: "tls", Cert: cert.Cert, Key: cert.Key}).Server("h2")
			cluster := testcluster.New(t)
			cluster.Init(testcluster.Halves(), "test")
			c := &consoleOf{cluster, cluster.Console(func(cfg *console.Config) {
				cfg.Credentials = api.Credentials{TLS: calls}
			})}
			c.create(&marchv1.Tag{Name: "order"})
			server := grpc.NewServer(grpc.Creds(credentials.NewTLS(served)),
				grpc.UnaryInterceptor(api.UnaryServerInterceptor))
			marchv1.RegisterRoomServiceServer(server, chainOf{})
			c.register("a", "one", testcluster.Serve(t, server), true)
			testcluster.Await(t, "the console asked it", func() bool {
				tag, err := c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"})
				if err != nil || len(tag.GetChains())+len(tag.GetSilent()) == 0 { // a busy etcd may answer late
					return false
				}
				if believed := len(tag.GetChains()) == 1; believed != test.believed {
					t.Fatalf("chains %v, silent %v", tag.GetChains(), tag.GetSilent())
				}
				return true
			})
		})
	}
}
