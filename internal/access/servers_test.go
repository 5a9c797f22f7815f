package access_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/api"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// gateOf returns a gate of a server over the world's files.
func (w *world) gateOf(in string) *access.Gate {
	w.t.Helper()
	g := must(access.New(access.Config{Policy: w.path("policy.yaml"), Tokens: w.path("tokens"), Room: in}))(w.t)
	return g
}

// A room and a console with a policy: over gRPC, HTTP and the page, with the Go client, and
// from the console to the room. The audit has who did what, and what was refused.
func TestServers(t *testing.T) {
	w := newWorld(t)
	w.write("own.token", w.tokens["viewer"]+"\n")
	w.write("issuer.token", w.tokens["issuer"])
	c := testcluster.New(t)
	c.Init(testcluster.Halves(), "test")
	c.Tag(nil, "test", "order", "other")
	r := c.Launch("a", "one", func(cfg *room.Config) {
		cfg.Access, cfg.HTTP = w.gateOf("a"), testcluster.Listen(t, "")
	})
	s := c.Console(func(cfg *console.Config) {
		cfg.Access, cfg.Credentials.TokenFile = w.gateOf(""), w.path("own.token")
	})
	testcluster.Await(t, "the room is ready", func() bool {
		code, _ := testcluster.Get(r.HTTP, "/readyz")
		return code == http.StatusOK
	})

	// HTTP.
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}, Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(method, address, token string) (int, string) {
		t.Helper()
		request, err := http.NewRequest(method, "http://"+address, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+w.tokens[token])
		}
		answer, err := browser.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		body := must(io.ReadAll(answer.Body))(t)
		return answer.StatusCode, string(body) + answer.Header.Get("Location")
	}
	testcluster.Await(t, "the console's list of tags", func() bool {
		_, body := send("GET", s.HTTP+"/tags", "viewer")
		return strings.Contains(body, "order")
	})
	for _, q := range []struct {
		method, address, token string
		code                   int
		says                   string
	}{
		{"POST", r.HTTP + "/v1/tags/order/next", "issuer", 200, `{"id":"`},
		{"POST", r.HTTP + "/v1/tags/order/next?count=5", "issuer", 200, `{"runs":`},
		{"POST", r.HTTP + "/v1/tags/order/next", "", 401, `"right":"call IDService/Next for tag \"order\" in room a"`},
		{"POST", r.HTTP + "/v1/tags/other/next", "issuer", 403, `"reason":"denied"`},
		{"POST", r.HTTP + "/v1/tags/order/lease", "viewer", 403, `"reason":"denied"`},
		{"POST", r.HTTP + "/v1/tags/order:skip", "issuer", 403, `SkipTag`},
		{"GET", r.HTTP + "/v1/instance", "", 401, `"reason":"unauthenticated"`},
		{"GET", r.HTTP + "/livez", "", 200, "ok"},
		{"GET", r.HTTP + "/metrics", "", 401, "unauthenticated"},
		{"GET", s.HTTP + "/v1/tags", "", 401, "unauthenticated"},
		{"GET", s.HTTP + "/v1/tags", "viewer", 200, `"order"`},
		{"DELETE", s.HTTP + "/v1/tags/order", "operator", 403, "DeleteTag"},
		{"GET", s.HTTP + "/tags", "", 303, "/login?to=%2Ftags"},
		{"GET", s.HTTP + "/tags", "viewer", 200, "order"},
		{"GET", s.HTTP + "/login", "", 200, "Log in"},
		{"GET", s.HTTP + "/live/tags", "", 401, "log in"},
		{"POST", s.HTTP + "/tags/order/skip?to=1000000", "", 401, "log in"},
		{"POST", s.HTTP + "/instances/forget?of=a&name=one", "viewer", 403, "ForgetInstance"},
	} {
		if code, body := send(q.method, q.address, q.token); code != q.code || !strings.Contains(body, q.says) {
			t.Errorf("%s %s by %q: %d %.300s, want %d %s", q.method, q.address, q.token, code, body, q.code, q.says)
		}
	}

	// The Go client, with a token that is replaced under it.
	ids := must(client.New(bg, client.Options{Addresses: []string{r.Address}, TokenFile: w.path("issuer.token")}))(t)
	defer ids.Close()
	if _, err := ids.Next(bg, "order"); err != nil {
		t.Error(err)
	}
	none := must(client.New(bg, client.Options{Addresses: []string{r.Address}}))(t)
	defer none.Close()
	if _, err := none.Next(bg, "order"); status.Code(api.ToStatus(err)) != codes.Unauthenticated {
		t.Errorf("a client without a token: %v", err)
	}

	// The console asks the room with its own token.
	tag, err := s.GetTag(bearer(w.tokens["viewer"]), &marchv1.GetTagRequest{Name: "order"})
	if err != nil || len(tag.GetChains()) != 1 || len(tag.GetSilent()) != 0 {
		t.Errorf("%v, %v", tag, err)
	}

	// The audit.
	said := metadata.AppendToOutgoingContext(bearer(w.tokens["operator"]), api.ActorHeader, "mallory")
	if _, err := s.UpdateTag(said, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order",
		MaxStep: proto.Int64(50_000)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeleteTag(said, &marchv1.DeleteTagRequest{Name: "order"}); status.Code(
		err) != codes.PermissionDenied {
		t.Error(err)
	}
	has := func(action, actor string) bool {
		list := must(s.ListAudit(bearer(w.tokens["root"]), &marchv1.ListAuditRequest{Action: action}))(t)
		return slices.ContainsFunc(list.GetEntries(), func(e *marchv1.AuditEntry) bool { return e.GetActor() == actor })
	}
	if !has("update tag", `token:operator from 127.0.0.1, says "mallory"`) {
		t.Error("the audit does not have the change with its subject")
	}
	testcluster.Await(t, "the refused attempt is in the audit", func() bool {
		return has("refused ConsoleService/DeleteTag (denied, ", "token:operator from 127.0.0.1")
	})
}
