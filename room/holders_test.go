package room_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// gateOf returns the gate of a room with a policy and lines of tokens.
func gateOf(t *testing.T, m *serve.Metrics, rules, tokens string) *access.Gate {
	t.Helper()
	gate, _ := changing(t, m, rules, tokens)
	return gate
}

// changing is gateOf, and returns what writes another policy, too.
func changing(t *testing.T, m *serve.Metrics, rules, tokens string) (*access.Gate, func(rules string)) {
	t.Helper()
	dir := t.TempDir()
	policy, hashes := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "tokens")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(policy, rules)
	write(hashes, "# tokens\n"+tokens)
	gate, err := access.New(access.Config{Policy: policy, Tokens: hashes, Room: "a", Register: m.Register})
	if err != nil {
		t.Fatal(err)
	}
	return gate, func(rules string) { write(policy, rules) }
}

// tokensOf returns the lines and the tokens of subjects, by name.
func tokensOf(t *testing.T, names ...string) (lines string, tokens map[string]string) {
	t.Helper()
	tokens = make(map[string]string)
	for _, name := range names {
		token, line, err := access.NewToken(name, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		tokens[name], lines = token, lines+line+"\n"
	}
	return lines, tokens
}

// lendAs asks for a window with a token; empty for none.
func (i *instance) lendAs(token, tag, number string, held *marchv1.HeldWorker) (*marchv1.WorkerWindow, error) {
	ctx := bg
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	answer, err := i.Lease(ctx, &marchv1.LeaseRequest{Tag: tag, Count: 1,
		Window: &marchv1.WindowRequest{Nonce: nonce(number), Held: held}})
	return answer.GetTime().GetWindow(), err
}

// request asks over HTTP with a token, empty for none, and returns the status, Retry-After and the body of the answer.
func request(t *testing.T, method, url, token, body string) (status int, after, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(bg, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	got, err := testcluster.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	content, err := io.ReadAll(got.Body)
	if err != nil {
		t.Error(err)
	}
	return got.StatusCode, got.Header.Get("Retry-After"), string(content)
}

// grab asks for windows until n were refused, some at the same time, and returns how many it got, and a refusal.
func (i *instance) grab(token, tag string, n int64) (got int64, refused error) {
	var granted, refusals, numbers atomic.Int64
	var last atomic.Pointer[error]
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for refusals.Load() < n {
				if _, err := i.lendAs(token, tag, fmt.Sprint("grab ", numbers.Add(1)), nil); err != nil {
					refusals.Add(1)
					last.Store(&err)
				} else {
					granted.Add(1)
				}
			}
		})
	}
	asking.Wait()
	return granted.Load(), *last.Load()
}

const holderRules = `grants:
  - {subjects: ["token:greedy", "token:shop"], roles: issuer}
  - {subjects: "token:few", roles: issuer, quotas: {workers: 5}}
  - {subjects: "token:half", roles: issuer, quotas: {worker_share: 50}}
  - {subjects: "token:root", roles: viewer}
`

// A caller that asks for windows as fast as it can gets three quarters of the room's workers for callers, and no
// more: others get theirs, and the refusal says when to come back. What it holds ends with its windows.
func TestOneCallerNeverHoldsAllWorkers(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		narrow := cosid
		narrow.WorkerBits = 8
		c.tag(timed(narrow), "event")
		lines, tokens := tokensOf(t, "greedy", "shop", "few", "half", "root")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Access = gateOf(t, cfg.Metrics, holderRules, lines) })
		got, err := a.grab(tokens["greedy"], "event", 20)
		if got != 48 {
			t.Errorf("one caller got %d of 64 workers", got)
		}
		after := api.RetryAfter(err)
		if err = api.FromStatus(err); allocator.KindOf(err) != allocator.TooMany || !api.NoWindow(err) || after <= 0 ||
			after > time.Minute || !strings.Contains(err.Error(), "subject token:greedy holds 48 workers of 8 bits "+
			"of this instance, and 16 are left; allowed by its quota worker_share: 75% of both together") {
			t.Errorf("after %v: %v", after, err)
		}
		if got, err := a.grab(tokens["few"], "event", 1); got != 5 ||
			!strings.Contains(err.Error(), "subject token:few holds 5 workers") ||
			!strings.Contains(err.Error(), "allowed by its quota workers: 5") {
			t.Errorf("a quota of 5: %d, %v", got, err)
		}
		if got, err := a.grab(tokens["half"], "event", 1); got != 5 { // of 11
			t.Errorf("a share of a half: %d, %v", got, err)
		}
		shop, err := a.lendAs(tokens["shop"], "event", "shop", nil)
		if err != nil {
			t.Error(err)
		}
		// What a caller holds it goes on with, however few are left.
		if w, err := a.lendAs(tokens["shop"], "event", "shop 2", &marchv1.HeldWorker{Worker: shop.GetWorker(),
			Nonce: nonce("shop")}); err != nil || w.GetWorker() != shop.GetWorker() {
			t.Errorf("%v, %v; want %v", w, err, shop)
		}
		status, waits, body := request(t, http.MethodPost, "http://"+a.HTTP+"/v1/tags/event/lease", tokens["greedy"],
			fmt.Sprintf(`{"count":"1","window":{"nonce":%q}}`, nonce("http")))
		if seconds, err := strconv.Atoi(waits); err != nil || status != http.StatusTooManyRequests || seconds < 1 ||
			!strings.Contains(body, "quota worker_share: 75%") {
			t.Errorf("over HTTP: %d, %q, %s, %v", status, waits, body, err)
		}
		_, _, body = request(t, http.MethodGet, "http://"+a.HTTP+"/metrics", tokens["root"], "")
		_, counted, _ := strings.Cut(body, `march_access_refused_total{reason="too_many",room="a"} `)
		counted, _, _ = strings.Cut(counted, "\n")
		if n, err := strconv.Atoi(counted); err != nil || n < 23 {
			t.Errorf("refusals in the metrics: %q, %v", counted, err)
		}
		time.Sleep(after) // by the bubble's clock
		if got, _ := a.grab(tokens["greedy"], "event", 20); got < 37 {
			t.Errorf("%d workers after the windows ended", got)
		}
	})
}

// Without a policy a caller is an address. Asking each instance of the room does not bring all workers either.
func TestOneAddressNeverHoldsAllWorkers(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		narrow := cosid
		narrow.WorkerBits = 7
		c.tag(timed(narrow), "event")
		total := int64(0)
		for k, want := range []int64{24, 6, 1} {
			i := c.start("a", allocator.Instance(fmt.Sprint("a", k)), nil)
			got, err := i.grab("", "event", 10)
			if total += got; got != want || !strings.Contains(err.Error(), "address ") {
				t.Errorf("instance %d: %d, want %d; %v", k, got, want, err)
			}
		}
		if total >= 32 {
			t.Errorf("one address has all %d", total)
		}
	})
}

// A quota that was lowered holds when the windows are to be renewed: they end.
func TestLoweredQuotaOfWorkers(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(timed(cosid), "event")
		lines, tokens := tokensOf(t, "few")
		gate, write := changing(t, nil, holderRules, lines)
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Access = gate })
		first, err := a.lendAs(tokens["few"], "event", "1", nil)
		if err == nil {
			_, err = a.lendAs(tokens["few"], "event", "2", nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		write(strings.Replace(holderRules, "workers: 5", "workers: 1", 1))
		gate.Reload(time.Now())
		time.Sleep(time.Until(time.UnixMilli(first.GetUntilMs()))) // by the bubble's clock
		_, err = a.lendAs(tokens["few"], "event", "3",
			&marchv1.HeldWorker{Worker: first.GetWorker(), Nonce: nonce("1")})
		if allocator.KindOf(api.FromStatus(err)) != allocator.TooMany ||
			!strings.Contains(err.Error(), "holds 1 workers of 10 bits of this instance, 1 with others; "+
				"allowed by its quota workers: 1") {
			t.Errorf("a renewal above the quota: %v", err)
		}
	})
}

// Machine IDs of CosId's clients are shared out as workers are, and count until they are given back.
func TestOneCallerNeverHoldsAllMachineIDs(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, allocator.Layout{
			Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 20}},
			Reserved: map[allocator.Room]allocator.Range{"cosid": {Lower: 20, Upper: 100}},
		})
		lines, tokens := tokensOf(t, "greedy", "shop", "few", "half", "root")
		d := c.machinesUnder(t, "a", "a1", gateOf(t, nil, holderRules, lines))
		ask := func(method, token, client string) (int, string, string) {
			return request(t, method, d.cosid+"/machines/ns?machineBit=6&instanceId="+client+
				"&stable=false&safeGuardDuration=PT2562047788015H12M55.807S", token, "")
		}
		grab := func(token string) (got int) {
			for ; got < 60; got++ {
				if status, after, body := ask("POST", token, fmt.Sprint(token[:12], got)); status != http.StatusOK {
					if status != http.StatusTooManyRequests || after == "" ||
						!strings.Contains(body, "machine IDs of 6 bits") {
						t.Errorf("%d %q %s", status, after, body)
					}
					return got
				}
			}
			return got
		}
		if got := grab(tokens["greedy"]); got != 38 { // of the 51 whose residues the range has
			t.Errorf("one caller got %d machine IDs", got)
		}
		if got := grab(tokens["few"]); got != 5 {
			t.Errorf("a quota of 5: %d", got)
		}
		if status, _, body := ask("POST", tokens["shop"], "s:1"); status != http.StatusOK {
			t.Errorf("another caller: %d %s", status, body)
		}
		first := tokens["greedy"][:12] + "0"
		if status, _, body := ask("POST", tokens["greedy"], first); status != http.StatusOK {
			t.Errorf("its own number again: %d %s", status, body)
		}
		for k := range 10 {
			client := fmt.Sprint(tokens["greedy"][:12], k)
			if status, _, body := ask("DELETE", tokens["greedy"], client); status != http.StatusOK {
				t.Errorf("%d %s", status, body)
			}
		}
		if status, _, body := ask("POST", tokens["greedy"], first); status != http.StatusOK {
			t.Errorf("after it gave some back: %d %s", status, body)
		}
	})
}
