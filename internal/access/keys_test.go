package access_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
)

// moody is an issuer as its callers find it: it answers, or does what mood says.
type moody struct {
	issuer *issuer
	mood   func(r *http.Request) (*http.Response, error) // nil: it answers
}

func (m *moody) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.mood != nil {
		return m.mood(r)
	}
	w := httptest.NewRecorder()
	m.issuer.Config.Handler.ServeHTTP(w, r)
	return w.Result(), nil
}

func away(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }

func hangs(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func lies(*http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	_, _ = w.WriteString(`{"keys":[]}`)
	return w.Result(), nil
}

func html(*http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	_, _ = w.WriteString("<!doctype html><title>Log in</title>")
	return w.Result(), nil
}

func redirects(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	http.Redirect(w, r, r.URL.String(), http.StatusFound)
	return w.Result(), nil
}

// asking runs a test in a bubble, with a gate that asks a moody issuer.
func asking(t *testing.T, test func(t *testing.T, w *world, m *moody)) {
	t.Helper()
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		m := &moody{issuer: w.issuer}
		var err error
		if w.gate, err = access.New(access.Config{Policy: w.path("policy.yaml"), Tokens: w.path("tokens"),
			Issuer: w.issuer.URL, Audience: "march", Transport: m}); err != nil {
			t.Fatal(err)
		}
		test(t, w, m)
	})
}

// lasting returns a token that outlives the test.
func (i *issuer) lasting(subject string) string {
	claims := i.claims(subject)
	claims["exp"] = time.Now().Add(1000 * time.Hour).Unix()
	return i.token(claims)
}

func (w *world) kind(token string) allocator.Kind {
	return allocator.KindOf(w.may(token, "IDService/Next", "order"))
}

// A key that the issuer took out counts for some minutes at most, for remembered tokens, too; a new one at once.
func TestKeysRotate(t *testing.T) {
	asking(t, func(t *testing.T, w *world, _ *moody) {
		old := w.issuer.lasting("alice")
		if err := w.may(old, "IDService/Next", "order"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.issuer.key = newKey(t)
		if err := w.may(w.issuer.lasting("alice"), "IDService/Next", "order"); err != nil {
			t.Errorf("a token of the new key: %v", err)
		}
		time.Sleep(6 * time.Minute)
		if kind := w.kind(old); kind != allocator.Unauthenticated {
			t.Errorf("a token of a key that was taken out: %v", kind)
		}
	})
}

// An issuer that is away, hangs or lies: tokens of known keys count for an hour, then callers are told to come back; a
// token that may be of a new key is never called wrong. When it answers again, all is as before.
func TestIssuerOfManyMoods(t *testing.T) {
	for name, mood := range map[string]func(*http.Request) (*http.Response, error){
		"away": away, "hangs": hangs, "lies": lies, "answers in HTML": html, "redirects without end": redirects,
	} {
		t.Run(name, func(t *testing.T) {
			asking(t, func(t *testing.T, w *world, m *moody) {
				m.mood = mood
				token := w.issuer.lasting("alice")
				if kind := w.kind(token); kind != allocator.Unavailable {
					t.Errorf("before it ever answered: %v", kind)
				}
				time.Sleep(time.Minute)
				m.mood = nil
				if err := w.may(token, "IDService/Next", "order"); err != nil {
					t.Errorf("once it answers: %v", err)
				}
				m.mood = mood
				for range 58 {
					time.Sleep(time.Minute)
					began := time.Now()
					if err := w.may(token, "IDService/Next", "order"); err != nil || time.Since(began) > 0 {
						t.Fatalf("within an hour, after %v: %v", time.Since(began), err)
					}
				}
				known := w.issuer.key
				w.issuer.key = newKey(t)
				if kind := w.kind(w.issuer.lasting("alice")); kind != allocator.Unavailable {
					t.Errorf("a token of a key that is not known: %v", kind)
				}
				w.issuer.key = known
				time.Sleep(10 * time.Minute)
				if kind := w.kind(token); kind != allocator.Unavailable {
					t.Errorf("after an hour: %v", kind)
				}
				if err := w.may(w.tokens["issuer"], "IDService/Next", "order"); err != nil {
					t.Errorf("a token of the file: %v", err)
				}
				m.mood = nil
				time.Sleep(time.Minute)
				if err := w.may(token, "IDService/Next", "order"); err != nil {
					t.Errorf("once it answers again: %v", err)
				}
			})
		})
	}
}

// An issuer that gives very many keys is not believed: each would be tried for each token that names the issuer.
func TestManyKeysOfTheIssuer(t *testing.T) {
	asking(t, func(t *testing.T, w *world, m *moody) {
		_, key, _ := strings.Cut(string(w.issuer.keys()), "[")
		key = strings.TrimSuffix(key, "]}")
		m.mood = func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != "/keys" {
				return (&moody{issuer: w.issuer}).RoundTrip(r)
			}
			answer := httptest.NewRecorder()
			_, _ = answer.WriteString(`{"keys":[` + strings.Repeat(key+",", 3000) + key + "]}")
			return answer.Result(), nil
		}
		if kind := w.kind(w.issuer.lasting("alice")); kind != allocator.Unavailable {
			t.Error(kind)
		}
	})
}

// Of an issuer with TLS nothing is asked without it, whatever it names, or redirects to: neither its keys, which others
// could give then, nor about a login, as others could read its token.
func TestIssuerNamesPlainAddresses(t *testing.T) {
	const at = "https://login.example"
	w := newWorld(t)
	w.issuer.info = func(string) (int, map[string]any) { return http.StatusOK, map[string]any{"sub": "alice"} }
	for name, test := range map[string]struct {
		keys, info string
		redirects  bool
		want       allocator.Kind
		asks       bool // about a login
	}{
		"all with TLS":     {at, at, false, 0, true},
		"keys":             {"http://login.example", at, false, allocator.Unavailable, true},
		"keys here":        {"http://127.0.0.1:80", at, false, allocator.Unavailable, true},
		"keys by redirect": {at, at, true, allocator.Unavailable, true},
		"UserInfo":         {at, "http://login.example", false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &moody{issuer: w.issuer}
				m.mood = func(r *http.Request) (*http.Response, error) {
					answer := httptest.NewRecorder()
					switch {
					case r.URL.Scheme != "https":
						t.Errorf("%s was asked", r.URL)
					case strings.HasPrefix(r.URL.Path, "/.well-known/"):
						_, _ = fmt.Fprintf(answer, `{"issuer":%q,"jwks_uri":%q,"userinfo_endpoint":%q}`, at,
							test.keys+"/keys", test.info+"/userinfo")
						return answer.Result(), nil
					case r.URL.Path == "/keys" && test.redirects:
						http.Redirect(answer, r, "http://login.example/keys", http.StatusFound)
						return answer.Result(), nil
					}
					return (&moody{issuer: w.issuer}).RoundTrip(r)
				}
				var err error
				if w.gate, err = access.New(access.Config{Policy: w.path("policy.yaml"), Issuer: at, Audience: "march",
					Transport: m}); err != nil {
					t.Fatal(err)
				}
				claims := w.issuer.claims("alice")
				claims["iss"] = at
				if kind := w.kind(w.issuer.token(claims)); kind != test.want {
					t.Errorf("a token: %v, want %v", kind, test.want)
				}
				s := w.gate.NewLogin(bg, access.Identity{Names: []string{"jwt:alice"}}, "secret")
				if asks := s.Access != ""; asks != test.asks {
					t.Errorf("a login is asked about: %v", asks)
				}
			})
		})
	}
}

// An issuer whose answer is very long fills no memory.
func TestLongAnswerOfTheIssuer(t *testing.T) {
	asking(t, func(t *testing.T, w *world, m *moody) {
		long := strings.NewReader(strings.Repeat(" ", 16<<20))
		m.mood = func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(long)}, nil
		}
		if kind := w.kind(w.issuer.lasting("alice")); kind != allocator.Unavailable || long.Len() < 14<<20 {
			t.Errorf("%v, and %d bytes were read", kind, long.Size()-int64(long.Len()))
		}
	})
}

// While the issuer hangs, a good token is refused as something that is over soon, over gRPC and over HTTP, and is not
// counted as a wrong one: however often it was given, it is good at once when the issuer answers. Before, callers got
// 401, and after twenty of those 429.
func TestGoodTokenWhileTheIssuerHangs(t *testing.T) {
	asking(t, func(t *testing.T, w *world, m *moody) {
		m.mood = hangs
		token := w.issuer.lasting("alice")
		h := w.gate.HTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
		}), nil, serve.WriteError)
		overHTTP := func() *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "/v1/tags/order/next", http.NoBody)
			r.Header.Set("Authorization", "Bearer "+token)
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, r)
			return answer
		}
		overGRPC := func() error {
			ctx := metadata.NewIncomingContext(peer.NewContext(bg, &peer.Peer{Addr: &net.TCPAddr{
				IP: net.IPv4(192, 0, 2, 1)}}), metadata.Pairs("authorization", "Bearer "+token))
			_, err := api.UnaryServerInterceptor(ctx, nil, &grpc.UnaryServerInfo{
				FullMethod: marchv1.IDService_Next_FullMethodName}, func(ctx context.Context, q any) (any, error) {
				return w.gate.Unary(ctx, &marchv1.NextRequest{Tag: "order"}, &grpc.UnaryServerInfo{
					FullMethod: marchv1.IDService_Next_FullMethodName},
					func(context.Context, any) (any, error) { return &marchv1.NextResponse{}, nil })
			})
			return err
		}
		for range 50 {
			if answer := overHTTP(); answer.Code != http.StatusServiceUnavailable ||
				answer.Header().Get("Retry-After") == "" || strings.Contains(answer.Body.String(), w.issuer.URL) {
				t.Fatalf("over HTTP: %d %v %s", answer.Code, answer.Header(), answer.Body)
			}
			if err := overGRPC(); status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), w.issuer.URL) {
				t.Fatalf("over gRPC: %v", err)
			}
		}
		m.mood = nil
		time.Sleep(time.Minute)
		if answer := overHTTP(); answer.Code != http.StatusOK {
			t.Errorf("over HTTP, once it answers: %d %s", answer.Code, answer.Body)
		}
		if err := overGRPC(); err != nil {
			t.Errorf("over gRPC, once it answers: %v", err)
		}
		for range 20 {
			if kind := w.kind("march_wrong"); kind != allocator.Unauthenticated {
				t.Fatalf("a wrong token: %v", kind)
			}
		}
	})
}

// A certificate that names two SPIFFE IDs names no subject.
func TestTwoSPIFFEIDs(t *testing.T) {
	w := newWorld(t)
	at := func(path string) *url.URL { return &url.URL{Scheme: "spiffe", Host: "prod", Path: path} }
	for _, test := range []struct {
		uris []*url.URL
		kind allocator.Kind
	}{{[]*url.URL{at("/shop")}, 0}, {[]*url.URL{at("/shop"), at("/admin")}, allocator.Unauthenticated}} {
		_, err := w.gate.Authenticate(bg, access.Credentials{Certificate: &x509.Certificate{URIs: test.uris,
			NotAfter: time.Now().Add(time.Hour)}})
		if test.kind == 0 && err != nil || test.kind != 0 && allocator.KindOf(err) != test.kind {
			t.Errorf("%d SPIFFE IDs: %v", len(test.uris), err)
		}
	}
}
