// Package certs is a certificate authority. `march dev --tls` and tests make one whose key stays in memory, so it cannot
// be used after the process ended. `march certs` keeps its own in files.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/march-id/march/internal/smallfile"
)

// CA signs certificates.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Leaf says what a certificate is for.
type Leaf struct {
	// Name is the subject's common name. No check rests on it.
	Name string
	// Hosts are DNS names and IP addresses, URIs are SPIFFE IDs.
	Hosts, URIs []string
	// From and Until bound its life. Zero is an hour ago, and the CA's own end.
	From, Until time.Time
}

// New returns a CA that ends after a time.
func New(name string, life time.Duration) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := serial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &CA{cert: cert, key: key}, nil
}

// Open returns the CA of NAME.pem and NAME-key.pem in a folder, and makes both if neither is there.
func Open(dir, name string, life time.Duration) (ca *CA, made bool, err error) {
	p := pairIn(dir, name)
	if _, err := os.Stat(p.Cert); errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(p.Key); err == nil {
			return nil, false, fmt.Errorf("%s is there, and %s is not", p.Key, p.Cert)
		}
		if ca, err = New(name, life); err != nil {
			return nil, false, err
		}
		secret, err := x509.MarshalPKCS8PrivateKey(ca.key)
		if err == nil {
			err = smallfile.Replace(p.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
		}
		if err == nil {
			err = smallfile.Replace(p.Cert, ca.PEM())
		}
		return ca, true, err
	}
	pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, false, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, false, fmt.Errorf("%s is not a CA with an ECDSA key", p.Cert)
	}
	return &CA{cert: pair.Leaf, key: key}, false, nil
}

// Until returns when the CA ends.
func (ca *CA) Until() time.Time { return ca.cert.NotAfter }

// Has returns when the certificate NAME.pem in a folder ends, if it is of this CA, for the same names as a leaf, and
// has its key beside it; otherwise false.
func (ca *CA) Has(dir, name string, l Leaf) (until time.Time, ok bool) {
	p := pairIn(dir, name)
	pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	if err != nil || pair.Leaf.CheckSignatureFrom(ca.cert) != nil {
		return time.Time{}, false
	}
	hosts, uris := pair.Leaf.DNSNames, []string(nil)
	for _, ip := range pair.Leaf.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	for _, u := range pair.Leaf.URIs {
		uris = append(uris, u.String())
	}
	same := func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	return pair.Leaf.NotAfter, pair.Leaf.Subject.CommonName == l.Name && same(hosts, l.Hosts) && same(uris, l.URIs)
}

// PEM returns the CA's certificate.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// Issue returns a certificate, which serves servers and clients, and its key.
func (ca *CA) Issue(l Leaf) (cert, key []byte, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	number, err := serial()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: l.Name}, NotBefore: l.From, NotAfter: l.Until,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if l.From.IsZero() {
		template.NotBefore = ca.cert.NotBefore
	}
	if l.Until.IsZero() {
		template.NotAfter = ca.cert.NotAfter
	}
	for _, host := range l.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	for _, text := range l.URIs {
		u, err := url.Parse(text)
		if err != nil {
			return nil, nil, err
		}
		template.URIs = append(template.URIs, u)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &own.PublicKey, ca.key)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), nil
}

// Revoked returns a list of revoked certificates (DER), given in PEM.
func (ca *CA) Revoked(certs ...[]byte) ([]byte, error) {
	number, err := serial()
	if err != nil {
		return nil, err
	}
	list := &x509.RevocationList{Number: number, ThisUpdate: ca.cert.NotBefore, NextUpdate: ca.cert.NotAfter}
	for _, text := range certs {
		block, _ := pem.Decode(text)
		if block == nil {
			return nil, errors.New("no PEM")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: cert.SerialNumber, RevocationTime: time.Now()})
	}
	return x509.CreateRevocationList(rand.Reader, list, ca.cert, ca.key)
}

// Pair names the files of a certificate and its key.
type Pair struct{ Cert, Key string }

func pairIn(dir, name string) Pair {
	return Pair{Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+"-key.pem")}
}

// Write issues a certificate to NAME.pem and NAME-key.pem in a folder. Each file is replaced
// as a whole, the key first.
func (ca *CA) Write(dir, name string, l Leaf) (Pair, error) {
	cert, key, err := ca.Issue(l)
	if err != nil {
		return Pair{}, err
	}
	p := pairIn(dir, name)
	if err := smallfile.Replace(p.Key, key); err != nil {
		return Pair{}, err
	}
	return p, smallfile.Replace(p.Cert, cert)
}

// WriteCA writes the CA's certificate to NAME.pem in a folder.
func (ca *CA) WriteCA(dir, name string) (path string, err error) {
	path = filepath.Join(dir, name+".pem")
	return path, smallfile.Replace(path, ca.PEM())
}

func serial() (*big.Int, error) { return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) }
