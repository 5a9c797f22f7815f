package room_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// Before, each name of a tag that does not exist cost etcd a read, and 2,000 callers of
// such names raised a good caller's p99 from 5 to 138 ms.
func TestUnknownTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const most = 5
		u := room.NewUnknown(most)
		now := time.Unix(1e9, 0)
		caller := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
		reads, name := 0, 0
		// guess asks for a name that was not asked for before.
		guess := func(who netip.Addr) error {
			name++
			tag := allocator.Tag(fmt.Sprint("t", name))
			late, err := u.Look(who, tag, now)
			if late != (err != nil) {
				t.Fatalf("%v is late: %v", err, late)
			}
			if err == nil {
				reads++
				u.Add(who, tag, now)
			}
			return err
		}
		for i := range most + 3 {
			err := guess(caller(1))
			if refused := i >= most; refused != errors.Is(err, allocator.TooMany) ||
				refused && !strings.Contains(err.Error(), "allowed: 5 (--max-unknown-tags)") {
				t.Errorf("name %d of one caller: %v", i+1, err)
			}
		}
		// Many callers: one read for each caller, and beyond that a common bound.
		const callers = 2000
		for range 20 {
			for i := range callers {
				_ = guess(caller(10 + i))
			}
		}
		if reads < callers || reads > callers+most*10+most {
			t.Errorf("%d callers cost %d reads in a minute", callers, reads)
		}
		if err := guess(caller(9999)); err != nil {
			t.Errorf("a caller that asked for no unknown tag before: %v", err)
		}
		// A tag that is created is read at once, for any caller.
		_, err := u.Look(caller(1), "new", now)
		if !errors.Is(err, allocator.TooMany) {
			t.Errorf("beyond the limit: %v", err)
		}
		u.Changed("new")
		if _, err := u.Look(caller(1), "new", now); err != nil {
			t.Errorf("a tag that was created: %v", err)
		}
		// The answer is remembered for a while, also for callers beyond their limit.
		now = now.Add(time.Minute)
		if err := guess(caller(1)); err != nil {
			t.Errorf("a minute later: %v", err)
		}
		known := allocator.Tag(fmt.Sprint("t", name))
		for i := range 60 {
			late, err := u.Look(caller(2), known, now)
			if !errors.Is(err, allocator.NotFound) || late != (i >= most) {
				t.Fatalf("answer %d of one name: %v, late %v", i+1, err, late)
			}
		}
		now = now.Add(10 * time.Second)
		if _, err := u.Look(caller(3), known, now); err != nil {
			t.Errorf("10 s later it may be read again: %v", err)
		}
		for i := range 50_000 {
			u.Add(caller(i), allocator.Tag(fmt.Sprint("x", i)), now)
		}
		if tags, callers := u.Size(); tags > 10_000 || callers > 10_000 {
			t.Errorf("%d tags and %d callers are remembered", tags, callers)
		}
	})
}

// A caller that asks for too many names of tags that do not exist is refused over gRPC and HTTP,
// and the metric counts it. It still gets IDs of a tag that the room serves.
func TestTooManyUnknownTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.MaxUnknownTags = 3 })
		a.mustNext("order")
		for k := range 3 {
			if _, err := a.next(fmt.Sprint("none", k)); allocator.KindOf(api.FromStatus(err)) != allocator.NotFound {
				t.Fatalf("name %d: %v", k, err)
			}
		}
		if _, err := a.next("none3"); allocator.KindOf(api.FromStatus(err)) != allocator.TooMany ||
			api.RetryAfter(err) < time.Second || !strings.Contains(err.Error(), "allowed: 3 (--max-unknown-tags)") {
			t.Errorf("over gRPC: %v", err)
		}
		answer, err := testcluster.Client().Post("http://"+a.HTTP+"/v1/tags/none4/next", "application/json", nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" ||
			!strings.Contains(string(body), "too_many") {
			t.Errorf("over HTTP: %s %s, %v", answer.Status, body, err)
		}
		if _, metrics := a.get("/metrics"); !contains(metrics,
			`march_limit_refused_total{limit="unknown-tags",room="a"} 2`) {
			t.Errorf("no refusals in\n%s", grep(metrics, "march_limit_refused"))
		}
		a.mustNext("order")
	})
}

// grep returns the lines of a text that have a part.
func grep(text, part string) (found string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			found += line
		}
	}
	return found
}
