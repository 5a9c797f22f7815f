package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
)

const certsFile = `domain: example.com
etcd: {etcd-1: [10.0.0.1], etcd-2: [10.0.0.2]}
rooms:
  eu-1: {eu-1-0: [10.0.0.1, ids.example.com]}
  us-1: {us-1-0: [10.0.0.2]}
consoles: {console-1: [10.0.0.3]}
operators: [ann]
services: [shop]
`

// what tells what certify did, by the files.
func what(done []made) map[string]string {
	all := make(map[string]string)
	for _, m := range done {
		all[m.File] += m.Done
	}
	return all
}

// TestCerts makes the certificates of a cluster, and holds each one against the CA that its readers trust, and against
// those that they must not trust. A second run keeps them; later ones renew what ends, what the file changed, and what
// is broken.
func TestCerts(t *testing.T) { t.Parallel(); synctest.Test(t, testCerts) }

func testCerts(t *testing.T) {
	const day = 24 * time.Hour
	dir, now := filepath.Join(t.TempDir(), "certs"), time.Now()
	run := func(text string, now time.Time) map[string]string {
		t.Helper()
		all, err := readCertified("certs.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		done, err := certFlags{dir, 90 * day, 30 * day, 3650 * day}.certify(all, now)
		if err != nil {
			t.Fatal(err)
		}
		return what(done)
	}
	first := run(certsFile, now)
	if len(first) != 3+4+5+2+1+1+1 {
		t.Errorf("made: %v", first)
	}
	roots := make(map[string]*x509.CertPool)
	for _, ca := range []string{marchCA, etcdCA, peersCA} {
		roots[ca] = x509.NewCertPool()
		text, err := os.ReadFile(filepath.Join(dir, ca+".pem"))
		if err != nil || !roots[ca].AppendCertsFromPEM(text) {
			t.Fatal(ca, err)
		}
	}
	const id, instance = "spiffe://example.com/", "march/room/eu-1/instance/eu-1-0"
	for file, of := range map[string]struct{ ca, host, name, uri string }{
		"etcd/etcd-1.pem":                        {etcdCA, "10.0.0.1", "", ""},
		"etcd-peers/etcd-2.pem":                  {peersCA, "10.0.0.2", "etcd-2", ""},
		"etcd-users/root.pem":                    {etcdCA, "", "root", ""},
		"etcd-users/march-default-room-us-1.pem": {etcdCA, "", "march-default-room-us-1", ""},
		"etcd-users/march-default-console.pem":   {etcdCA, "", "march-default-console", ""},
		"rooms/eu-1/eu-1-0.pem":                  {marchCA, "ids.example.com", "eu-1-0", id + instance},
		"consoles/console-1.pem":                 {marchCA, "10.0.0.3", "console-1", id + "march/console/console-1"},
		"operators/ann.pem":                      {marchCA, "", "ann", id + "operator/ann"},
		"services/shop.pem":                      {marchCA, "", "shop", id + "service/shop"},
	} {
		path := filepath.Join(dir, file)
		pair, err := tls.LoadX509KeyPair(path, strings.TrimSuffix(path, ".pem")+"-key.pem")
		if err != nil {
			t.Error(err)
			continue
		}
		for ca, pool := range roots {
			_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: of.host,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
			if (err == nil) != (ca == of.ca) {
				t.Errorf("%s by %s: %v", file, ca, err)
			}
		}
		uri := ""
		for _, u := range pair.Leaf.URIs {
			uri += u.String()
		}
		if pair.Leaf.Subject.CommonName != of.name || uri != of.uri {
			t.Errorf("%s is of %s, %s", file, pair.Leaf.Subject, uri)
		}
	}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		info, err2 := d.Info()
		want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[d.IsDir()]
		if err2 == nil && info.Mode().Perm() != want {
			t.Errorf("%s has the mode %04o", path, info.Mode().Perm())
		}
		return errors.Join(err, err2)
	}); err != nil {
		t.Fatal(err)
	}

	// Later runs.
	if err := os.Remove(filepath.Join(dir, "operators", "ann-key.pem")); err != nil {
		t.Fatal(err)
	}
	second := run(strings.Replace(certsFile, "10.0.0.3", "10.0.0.4", 1)+"cluster: default\n", now.Add(59*day))
	for file, got := range second {
		want := map[string]string{"operators/ann.pem": "renewed", "consoles/console-1.pem": "renewed"}[file]
		if want == "" {
			want = "kept"
		}
		if got != want {
			t.Errorf("after 59 days: %s was %s, not %s", file, got, want)
		}
	}
	for file, got := range run(certsFile, now.Add(61*day)) {
		want := "renewed"
		if strings.HasSuffix(file, "ca.pem") || file == "operators/ann.pem" {
			want = "kept"
		}
		if got != want {
			t.Errorf("after 61 days: %s was %s, not %s", file, got, want)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "services", "shop.pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if cert, err := x509.ParseCertificate(block.Bytes); err != nil || cert.NotAfter.Before(now.Add(150*day)) {
		t.Errorf("the renewed certificate ends at %v: %v", cert.NotAfter, err)
	}
}

// TestCertsRefused: mistakes are named, with the field and what is allowed, and nothing is written.
func TestCertsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                    "certs.yaml:1:1: the file is empty; allowed: cluster, ",
		"cluster: x\n":                        `domain: ""; allowed: a name such as example.com`,
		"domain: a b\n":                       `domain: "a b"`,
		"domain: x\nroom: {}\n":               "certs.yaml:2:1: there is no field room; allowed: cluster, ",
		"domain: x\nrooms: {EU: {a: [b]}}\n":  `room: "EU"`,
		"domain: x\nrooms: {eu: {a: []}}\n":   "rooms.eu.a: no host",
		"domain: x\nconsoles: {../x: [b]}\n":  `consoles: "../x"; allowed`,
		"domain: x\netcd: {a: ['b:2379']}\n":  `etcd.a: "b:2379"; allowed: host names and IP addresses, without a port`,
		"domain: x\nservices: [shop, shop]\n": "services/shop.pem: given twice",
		"domain: x\ncluster: a/b\n":           `cluster: "a/b"`,
		"domain: [\n":                         "certs.yaml:1:9: not YAML: ",
	} {
		all, err := readCertified("certs.yaml", []byte(text))
		if allocator.KindOf(err) != allocator.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", text, all, err, want)
		}
	}
}
