package room_test

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/testcerts"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// At Redis' door a client certificate proves the subject, unless AUTH gives a token.
func TestRedisClientCertificates(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order", "secret")
	ca := testcerts.New(t)
	open := func(name string, leaf certs.Leaf, from *testcerts.CA) *tlsfiles.Files {
		pair := from.Write(name, leaf)
		return testcerts.Open(t, tlsfiles.Config{Flags: "tls", CA: ca.Root, ClientCA: ca.Root,
			Cert: pair.Cert, Key: pair.Key})
	}
	lines, tokens := tokensOf(t, "root")
	const rules = "grants:\n  - {subjects: \"spiffe://prod/shop\", roles: issuer, tags: order}\n  - {subjects: " +
		"\"token:root\", roles: admin}\n"
	gate, write := changing(t, nil, rules, lines)
	doors := room.Doors{Redis: testcluster.Listen(c, "")}
	a := c.launch("a", "a1", func(cfg *room.Config) {
		cfg.Doors, cfg.Access = doors, gate
		cfg.TLS = open("server", certs.Leaf{Hosts: []string{"127.0.0.1"}}, ca)
	})
	client := func(cfg *tls.Config, token string) *redisClient {
		return newRedisClient(t, doors.Redis.Addr(), redis.DialUseTLS(true), redis.DialTLSConfig(cfg),
			redis.DialPassword(token))
	}
	shop := open("shop", certs.Leaf{URIs: []string{"spiffe://prod/shop"}}, ca).Client("127.0.0.1")
	other := open("other", certs.Leaf{URIs: []string{"spiffe://prod/other"}}, ca).Client("127.0.0.1")
	bare := shop.Clone()
	bare.Certificates, bare.GetClientCertificate = nil, nil

	a.await("the door answers", func() bool { return client(shop, "").err("PING") == nil })

	own := client(shop, "")
	for want := int64(1); want < 3; want++ {
		if id, err := own.id("INCR", "order"); err != nil || id != want {
			t.Errorf("shop: %d, %v; want %d", id, err, want)
		}
	}
	if _, err := client(shop, tokens["root"]).id("INCR", "secret"); err != nil {
		t.Errorf("a token counts before the certificate: %v", err)
	}
	for what, want := range map[string]struct {
		err  error
		says string
	}{
		"a tag without a right": {own.err("INCR", "secret"), "NOPERM march: subject spiffe://prod/shop may not"},
		"an empty token":        {own.err("AUTH", ""), "WRONGPASS "},
		"another subject": {client(other, "").err("INCR", "order"),
			"NOPERM march: subject spiffe://prod/other may not"},
		"no certificate to ping":  {client(bare, "").err("PING"), "NOAUTH "},
		"no certificate":          {client(bare, "").err("INCR", "order"), "NOAUTH "},
		"a certificate and wrong": {client(shop, "wrong").err("INCR", "order"), "WRONGPASS "},
	} {
		if want.err == nil || !strings.HasPrefix(want.err.Error(), want.says) {
			t.Errorf("%s: %v; want %s", what, want.err, want.says)
		}
	}
	forged := open("forged", certs.Leaf{URIs: []string{"spiffe://prod/shop"}}, testcerts.New(t)).Client("127.0.0.1")
	if id, err := client(forged, "").id("INCR", "order"); err == nil {
		t.Errorf("a certificate of another CA got the ID %d", id)
	}
	// A client that never shakes hands keeps no one else waiting.
	silent, err := net.Dial("tcp", doors.Redis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	if _, err := own.id("INCR", "order"); err != nil {
		t.Error(err)
	}
	// The connection's right ends with the policy's.
	write(strings.ReplaceAll(rules, "tags: order", "tags: cart"))
	gate.Reload(time.Now())
	if err := own.err("INCR", "order"); err == nil || !strings.HasPrefix(err.Error(), "NOPERM ") {
		t.Errorf("after the policy changed: %v", err)
	}
}
