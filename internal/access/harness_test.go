package access_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/testcluster"
)

var bg = context.Background()

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const rules = `grants:
  - {subjects: ["token:issuer", "spiffe://prod/shop", "jwt:alice"], roles: issuer, tags: [order, shop-*]}
  - {subjects: ["token:viewer", "dns:viewer.prod"], roles: viewer}
  - {subjects: "token:operator", roles: operator}
  - {subjects: ["token:root", "group:admins"], roles: admin}
`

// world is a gate with its files, and what proves subjects to it.
type world struct {
	t       *testing.T
	gate    *access.Gate
	dir     string
	tokens  map[string]string // by name
	ca      *authority
	issuer  *issuer
	expired string // a token of root that has expired
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), tokens: make(map[string]string), ca: newAuthority(t), issuer: newIssuer(t)}
	var lines string
	for _, name := range []string{"issuer", "viewer", "operator", "root", "nobody"} {
		token, line, err := access.NewToken(name, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		w.tokens[name] = token
		lines += line + "\n"
	}
	token, line, err := access.NewToken("root", time.Now().Add(-time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	w.expired = token
	w.write("tokens", "# a comment\n\n"+lines+line)
	w.write("policy.yaml", rules)
	w.gate, err = access.New(access.Config{
		Policy: w.path("policy.yaml"), Tokens: w.path("tokens"), Issuer: w.issuer.URL, Audience: "march",
		Transport: w.issuer.Client().Transport,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, content string) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// serve serves all services, of which no method is implemented: a call that a gate lets pass
// is Unimplemented.
func (w *world) serve(register func(grpc.ServiceRegistrar), options ...grpc.ServerOption) (address string) {
	w.t.Helper()
	s := grpc.NewServer(options...)
	register(s)
	return testcluster.Serve(w.t, s)
}

// intercepted are the options of a server whose calls the gate's interceptors check.
func (w *world) intercepted(more ...grpc.ServerOption) []grpc.ServerOption {
	return append(more, grpc.ChainUnaryInterceptor(api.UnaryServerInterceptor, w.gate.Unary),
		grpc.ChainStreamInterceptor(api.StreamServerInterceptor, w.gate.Stream))
}

func plainly(s grpc.ServiceRegistrar) {
	marchv1.RegisterIDServiceServer(s, marchv1.UnimplementedIDServiceServer{})
	marchv1.RegisterRoomServiceServer(s, marchv1.UnimplementedRoomServiceServer{})
	marchv1.RegisterConsoleServiceServer(s, marchv1.UnimplementedConsoleServiceServer{})
	marchv1.RegisterDiagnoseServiceServer(s, marchv1.UnimplementedDiagnoseServiceServer{})
}

// dial returns a connection; a nil config is one without TLS.
func (w *world) dial(address string, with *tls.Config) *grpc.ClientConn {
	w.t.Helper()
	creds := insecure.NewCredentials()
	if with != nil {
		creds = credentials.NewTLS(with)
	}
	conn := must(grpc.NewClient(address, grpc.WithTransportCredentials(creds)))(w.t)
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// bearer returns a context that gives a token.
func bearer(token string) context.Context {
	if token == "" {
		return bg
	}
	return metadata.AppendToOutgoingContext(bg, "authorization", "Bearer "+token)
}

// methods returns all calls of all services, from the descriptors.
func methods() (all []protoreflect.MethodDescriptor) {
	protoregistry.GlobalFiles.RangeFilesByPackage(marchv1.File_march_v1_id_proto.Package(),
		func(file protoreflect.FileDescriptor) bool {
			for i := range file.Services().Len() {
				for k := range file.Services().Get(i).Methods().Len() {
					all = append(all, file.Services().Get(i).Methods().Get(k))
				}
			}
			return true
		})
	return all
}

// authority is a certificate authority.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return key
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	a.cert = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign},
		nil, &a.key.PublicKey)
	return a
}

func (a *authority) sign(c *x509.Certificate, parent *x509.Certificate, public crypto.PublicKey) *x509.Certificate {
	a.t.Helper()
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "test"}
	c.NotBefore = time.Now().Add(-time.Hour)
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	if parent == nil {
		parent = c
	}
	der := must(x509.CreateCertificate(rand.Reader, c, parent, public, a.key))(a.t)
	cert := must(x509.ParseCertificate(der))(a.t)
	return cert
}

// pair returns a certificate of a name, which is a URI or a DNS name.
func (a *authority) pair(name string, until time.Time) tls.Certificate {
	a.t.Helper()
	c := &x509.Certificate{NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth,
		x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	if u, err := url.Parse(name); err == nil && u.Scheme != "" {
		c.URIs = []*url.URL{u}
	} else if name != "" {
		c.DNSNames = []string{name}
	}
	key := newKey(a.t)
	signed := a.sign(c, a.cert, &key.PublicKey)
	return tls.Certificate{Certificate: [][]byte{signed.Raw}, PrivateKey: key, Leaf: signed}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// server returns a server's settings that ask for a client certificate.
func (a *authority) server() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{a.pair("", time.Time{})},
		ClientCAs: a.pool(), ClientAuth: tls.VerifyClientCertIfGiven}
}

// issuer is an OpenID Connect issuer that makes any token.
type issuer struct {
	*httptest.Server
	t    *testing.T
	key  *ecdsa.PrivateKey
	asks atomic.Int64 // for the keys
	// info is what the issuer says of an access token; nil for nothing.
	info func(token string) (status int, claims map[string]any)
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t, key: newKey(t)}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			_, _ = fmt.Fprintf(w,
				`{"issuer":%q,"jwks_uri":%q,"authorization_endpoint":%q,"token_endpoint":%q,"userinfo_endpoint":%q,"id_token_signing_alg_values_supported":["ES256"]}`,
				i.URL, i.URL+"/keys", i.URL+"/auth", i.URL+"/token", i.URL+"/userinfo")
		case "/userinfo":
			if i.info == nil {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			status, claims := i.info(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(claims)
		case "/keys":
			i.asks.Add(1)
			_, _ = w.Write(i.keys())
		}
	}))
	t.Cleanup(i.Close)
	return i
}

// keys returns the issuer's keys as a JWKS file has them.
func (i *issuer) keys() []byte {
	b := must(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &i.key.PublicKey, KeyID: "one",
		Algorithm: "ES256", Use: "sig"}}}))(i.t)
	return b
}

// claims are a good token's of a subject.
func (i *issuer) claims(subject string, groups ...string) map[string]any {
	return map[string]any{"iss": i.URL, "aud": "march", "sub": subject,
		"exp": time.Now().Add(time.Hour).Unix(), "groups": groups}
}

// token signs claims.
func (i *issuer) token(claims map[string]any) string {
	i.t.Helper()
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256,
		Key: jose.JSONWebKey{Key: i.key, KeyID: "one"}}, nil))(i.t)
	token := must(jwt.Signed(signer).Claims(claims).Serialize())(i.t)
	return token
}

// call returns a call of the policy.
func call(name string) *policy.Call { return policy.CallOf("/march.v1." + name) }

// shortLived returns a token of alice with which use succeeded, and a time at which it has expired. Where it
// expired before, as the machine is busy, the next one lives longer.
func (w *world) shortLived(use func(token string) bool) (token string, ends time.Time) {
	w.t.Helper()
	for lives := 3 * time.Second; lives < time.Minute; lives *= 2 {
		claims, until := w.issuer.claims("alice"), time.Now().Add(lives).Unix()
		claims["exp"] = until
		if token = w.issuer.token(claims); use(token) {
			return token, time.Unix(until+1, 0)
		}
	}
	w.t.Fatal("no token of alice is taken")
	return "", ends
}

// reload has the gate read its files again.
func (w *world) reload() { w.gate.Reload(time.Now()) }

// must returns the value of a call that may not fail: must(call())(t).
func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}
