package access_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	gateway "github.com/march-id/march/api/gateway"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/serve"
)

// badTokens are tokens that prove nothing, by what is wrong with them.
func (w *world) badTokens() map[string]string {
	other := newIssuer(w.t)
	parts := strings.Split(w.issuer.token(w.issuer.claims("root", "admins")), ".")
	unsigned := func(header string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + parts[1] + "."
	}
	claims := func(change func(map[string]any)) string {
		c := w.issuer.claims("root", "admins")
		change(c)
		return w.issuer.token(c)
	}
	public := must(x509.MarshalPKIXPublicKey(&w.issuer.key.PublicKey))(w.t)
	asSecret := unsigned(`{"alg":"HS256","kid":"one"}`)
	mac := hmac.New(sha256.New, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	_, _ = mac.Write([]byte(strings.TrimSuffix(asSecret, ".")))
	asSecret += base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	forged := other.claims("root", "admins")
	forged["iss"] = w.issuer.URL
	return map[string]string{
		"another issuer":          other.token(other.claims("root", "admins")),
		"another issuer's key":    other.token(forged),
		"alg none":                unsigned(`{"alg":"none"}`),
		"alg nOnE":                unsigned(`{"alg":"nOnE","kid":"one"}`),
		"alg HS256":               unsigned(`{"alg":"HS256","kid":"one"}`) + "AAAA",
		"HS256 by the public key": asSecret,
		"of another kid":          unsigned(`{"alg":"ES256","kid":"two"}`) + parts[2],
		"expired":                 claims(func(c map[string]any) { c["exp"] = time.Now().Add(-time.Minute).Unix() }),
		"another audience":        claims(func(c map[string]any) { c["aud"] = "bank" }),
		"without a subject":       claims(func(c map[string]any) { delete(c, "sub") }),
		"not valid yet":           claims(func(c map[string]any) { c["nbf"] = time.Now().Add(time.Hour).Unix() }),
		"changed":                 parts[0] + "." + parts[1] + "x." + parts[2],
		"expired in the file":     w.expired,
		"unknown":                 "march_abc",
		"a word":                  "root",
	}
}

// Tokens that prove nothing are refused by every call, over gRPC.
func TestBadTokens(t *testing.T) {
	w := newWorld(t)
	plain := w.dial(w.serve(plainly, w.intercepted()...), nil)
	for name, token := range w.badTokens() {
		for _, m := range methods() {
			w.gate.ForgetAttempts() // TestWrongTokens has what happens to many
			err := ask(bearer(token), t, plain, m, "order")
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s, %s: %v", name, m.FullName(), err)
			}
			if strings.Contains(err.Error(), token) && len(token) > 8 {
				t.Errorf("%s: the error has the token: %v", name, err)
			}
		}
	}
	for _, m := range methods() {
		for _, given := range []string{"Basic cm9vdDpyb290", "Bearer", w.tokens["root"],
			"Bearer " + w.tokens["root"] + " more"} {
			w.gate.ForgetAttempts()
			if err := ask(metadata.AppendToOutgoingContext(bg, "authorization", given), t, plain, m,
				"order"); status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s with authorization %.12q: %v", m.FullName(), given, err)
			}
		}
	}
}

// badCertificates are certificates that prove nothing, or no right, by what is wrong with them.
func (w *world) badCertificates() map[string]badCertificate {
	wrong := newAuthority(w.t)
	wrong.cert.RawSubject = w.ca.cert.RawSubject // so that the client sends it
	return map[string]badCertificate{
		"wrong CA":           {wrong.pair("spiffe://prod/shop", time.Time{}), codes.Unavailable, 0},
		"expired":            {w.ca.pair("spiffe://prod/shop", time.Now().Add(-time.Minute)), codes.Unavailable, 0},
		"of no name":         {w.ca.pair("", time.Time{}), codes.Unauthenticated, 401},
		"of another name":    {w.ca.pair("spiffe://prod/shopping", time.Time{}), codes.PermissionDenied, 403},
		"of a longer name":   {w.ca.pair("viewer.prod.evil", time.Time{}), codes.PermissionDenied, 403},
		"of a name as a URI": {w.ca.pair("https://viewer.prod", time.Time{}), codes.Unauthenticated, 401},
	}
}

type badCertificate struct {
	pair   tls.Certificate
	want   codes.Code
	status int // over HTTP; 0 for no handshake
}

// Certificates that prove nothing are refused by every call.
func TestBadCertificates(t *testing.T) {
	w := newWorld(t)
	address := w.serve(plainly, w.intercepted(grpc.Creds(serverTLS(w)))...)
	with := func(pair tls.Certificate) *grpc.ClientConn {
		return w.dial(address, &tls.Config{RootCAs: w.ca.pool(), Certificates: []tls.Certificate{pair}})
	}
	good := with(w.ca.pair("spiffe://prod/shop", time.Time{}))
	for name, c := range w.badCertificates() {
		conn := with(c.pair)
		for _, m := range methods() {
			if err := ask(bg, t, conn, m, "order"); status.Code(err) != c.want {
				t.Errorf("a certificate %s, %s: %v, want %v", name, m.FullName(), err, c.want)
			}
		}
	}
	none := w.dial(address, &tls.Config{RootCAs: w.ca.pool()})
	for _, m := range methods() {
		if err := ask(bg, t, none, m, "order"); status.Code(err) != codes.Unauthenticated {
			t.Errorf("TLS without a certificate, %s: %v", m.FullName(), err)
		}
		// A wrong token is not made good by a certificate.
		w.gate.ForgetAttempts()
		if err := ask(bearer("march_wrong"), t, good, m, "order"); status.Code(err) != codes.Unauthenticated {
			t.Errorf("a wrong token with a good certificate, %s: %v", m.FullName(), err)
		}
	}
	viewer := with(w.ca.pair("viewer.prod", time.Time{}))
	for _, m := range methods() {
		rule := strings.Join(policy.CallOf("/"+string(m.Parent().FullName())+"/"+string(m.Name())).Roles, " ")
		for who, c := range map[string]struct {
			conn *grpc.ClientConn
			may  bool
		}{"issuer": {good, strings.Contains(rule, "issuer")}, "viewer": {viewer, strings.Contains(rule, "viewer")}} {
			want := codes.PermissionDenied
			if c.may {
				want = codes.Unimplemented
			}
			if err := ask(bg, t, c.conn, m, "order"); status.Code(err) != want {
				t.Errorf("a good certificate of an %s, %s: %v, want %v", who, m.FullName(), err, want)
			}
		}
	}
}

// route is a route of HTTP, as the document of a server has it.
type route struct {
	server, method, path, body string
	call                       *policy.Call // that it leads to
}

var parameter = regexp.MustCompile(`{([a-z.]+)}`)

// routes returns all routes of rooms and consoles, for tag order in room eu-1.
func routes(t *testing.T) (all []route) {
	t.Helper()
	for server, document := range map[string][]byte{"room": gateway.RoomDocument, "console": gateway.ConsoleDocument} {
		var doc struct {
			Paths map[string]map[string]struct {
				RequestBody *struct{} `json:"requestBody"`
				OperationID string    `json:"operationId"`
			}
		}
		if err := json.Unmarshal(document, &doc); err != nil {
			t.Fatal(err)
		}
		for path, methods := range doc.Paths {
			for method, operation := range methods {
				name := strings.Replace(strings.TrimRight(operation.OperationID, "0123456789"), "_", "/", 1)
				r := route{server: server, method: strings.ToUpper(method), call: call(name)}
				if r.call == nil {
					t.Fatalf("%s %s leads to %s, which has no rule", method, path, name)
				}
				r.path = parameter.ReplaceAllStringFunc(path, func(name string) string {
					switch strings.Trim(name, "{}") {
					case "tag", "name", "tag.name":
						return "order"
					case "room":
						return "eu-1"
					}
					return "5"
				})
				if operation.RequestBody != nil {
					r.body = "{}"
				}
				if strings.HasSuffix(path, "tags:next") {
					r.body = `{"tags":[{"tag":"order","count":"1"}]}`
				}
				all = append(all, r)
			}
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d routes", len(all))
	}
	return all
}

// deadlines has the deadlines that a connection has.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetReadDeadline(time.Time) error  { return nil }
func (deadlines) SetWriteDeadline(time.Time) error { return nil }

// muxes returns the routes of a room and of a console, of which no call is implemented.
func (w *world) muxes() map[string]*http.ServeMux {
	w.t.Helper()
	muxes := map[string]*http.ServeMux{"room": http.NewServeMux(), "console": http.NewServeMux()}
	conn := w.gate.Conn(plainly)
	room := must(serve.RoomRoutes(marchv1.NewIDServiceClient(conn), w.gate.IDs(marchv1.UnimplementedIDServiceServer{}),
		marchv1.NewRoomServiceClient(conn), 1<<20, hclog.NewNullLogger()))(w.t)
	room(muxes["room"])
	console := must(serve.ConsoleRoutes(conn, 1<<20, hclog.NewNullLogger()))(w.t)
	console(muxes["console"])
	return muxes
}

// Every route of HTTP refuses callers without an identity, with one that proves nothing, and
// without the right or for another tag, and lets an admin pass.
func TestEveryRoute(t *testing.T) {
	w := newWorld(t)
	w.write("policy.yaml",
		"grants: [{subjects: token:root, roles: admin}, {subjects: token:operator, roles: admin, tags: [other]}]")
	w.reload()
	muxes := w.muxes()
	bad := w.badTokens()
	for _, r := range routes(t) {
		// a login to the page counts for no program
		h := w.gate.HTTP(muxes[r.server], func(*http.Request) *access.Session {
			return &access.Session{Names: []string{"token:root"}, Expires: time.Now().Add(time.Hour)}
		}, serve.WriteError)
		send := func(authorization string) (int, string) {
			w.gate.ForgetAttempts()
			request := httptest.NewRequest(r.method, r.path, strings.NewReader(r.body))
			request.Header.Set("Content-Type", "application/json")
			if authorization != "" {
				request.Header.Set("Authorization", authorization)
			}
			answer := httptest.NewRecorder()
			h.ServeHTTP(deadlines{answer}, request)
			body := must(io.ReadAll(answer.Body))(t)
			return answer.Code, string(body)
		}
		want := func(who, authorization string, code int) {
			t.Helper()
			if got, body := send(authorization); got != code {
				t.Errorf("%s %s of a %s with %s: %d %.200s, want %d", r.method, r.path, r.server, who, got, body, code)
			} else if token := strings.TrimPrefix(authorization, "Bearer "); len(token) > 8 &&
				strings.Contains(body, token) {
				t.Errorf("%s %s: the answer has the token: %s", r.method, r.path, body)
			}
		}
		want("no identity", "", http.StatusUnauthorized)
		want("a subject without rights", "Bearer "+w.tokens["nobody"], http.StatusForbidden)
		want("an admin", "Bearer "+w.tokens["root"], http.StatusNotImplemented)
		outside := http.StatusForbidden
		if _, tags, _ := r.call.Needs(); tags == "-" {
			outside = http.StatusNotImplemented
		}
		want("an admin of other tags", "Bearer "+w.tokens["operator"], outside)
		want("another scheme", "Basic cm9vdDpyb290", http.StatusUnauthorized)
		for name, token := range bad {
			want(name, "Bearer "+token, http.StatusUnauthorized)
		}
	}
}

// Every route of HTTP over TLS refuses certificates that prove nothing.
func TestEveryRouteWithBadCertificates(t *testing.T) {
	w := newWorld(t)
	muxes, all := w.muxes(), routes(t)
	for server, mux := range muxes {
		s := httptest.NewUnstartedServer(w.gate.HTTP(mux, nil, serve.WriteError))
		s.TLS, s.Config.ErrorLog = w.ca.server(), log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		for name, c := range w.badCertificates() {
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.ca.pool(),
				Certificates: []tls.Certificate{c.pair}}}
			t.Cleanup(transport.CloseIdleConnections)
			for _, r := range all {
				if r.server != server {
					continue
				}
				request := must(http.NewRequestWithContext(t.Context(), r.method,
					s.URL+r.path, strings.NewReader(r.body)))(t)
				answer, err := transport.RoundTrip(request)
				if err != nil {
					if c.status != 0 {
						t.Errorf("a certificate %s, %s %s: %v", name, r.method, r.path, err)
					}
					continue
				}
				if answer.StatusCode != c.status {
					t.Errorf("a certificate %s, %s %s: %s, want %d", name, r.method, r.path, answer.Status, c.status)
				}
				_ = answer.Body.Close()
			}
		}
	}
}
