package policy_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
)

// Quotas refuse what is above them, and say when to come back.
func TestQuotas(t *testing.T) {
	p := parse(t, `grants:
  - subjects: ["*"]
    roles: [issuer]
    quotas: {ids_per_second: 100, tag_ids_per_second: 60, ids_per_lease: 1000, tags: 2, streams: 1}
`)
	var usages policy.Usages
	now := time.Unix(1_700_000_000, 0)
	next := func(c *policy.Caller, tag string, n int64) error {
		return c.Check(now, policy.Request{Call: call(t, "IDService/Next"), Tag: tag, IDs: n})
	}
	taken := func(c *policy.Caller, tag string) (n int) {
		for next(c, tag, 1) == nil {
			n++
		}
		return n
	}
	a, b := p.Rights(&usages, "token:a"), p.Rights(&usages, "token:b")
	if n := taken(a, "one"); n != 60 {
		t.Errorf("%d IDs of a tag in no time, want 60", n)
	}
	if n := taken(a, "two"); n != 40 {
		t.Errorf("%d IDs of another tag, want 40", n)
	}
	if n := taken(b, "one"); n != 60 {
		t.Errorf("%d IDs of another subject, want 60", n)
	}
	err := next(a, "one", 1)
	var wait *allocator.WaitError
	if !errors.As(err, &wait) || allocator.KindOf(err) != allocator.TooMany || wait.After <= 0 ||
		wait.After > time.Second {
		t.Fatalf("%v", err)
	}
	now = now.Add(wait.After)
	if err := next(a, "one", 1); err != nil {
		t.Errorf("after the wait: %v", err)
	}
	if err := next(a, "three", 1); allocator.KindOf(err) != allocator.TooMany ||
		!strings.Contains(err.Error(), "quota tags: 2") {
		t.Errorf("a third tag: %v", err)
	}
	if err := next(a, "one", 1001); allocator.KindOf(err) != allocator.Denied ||
		!strings.Contains(err.Error(), "ids_per_lease") {
		t.Errorf("a large lease: %v", err)
	}
	// A lease goes ahead of the rate, and is paid for afterwards.
	now = now.Add(time.Hour)
	if err := next(a, "three", 1000); err != nil {
		t.Errorf("another tag after an hour: %v", err)
	}
	if err := next(a, "three", 1); !errors.As(err, &wait) || wait.After < 8*time.Second {
		t.Errorf("after a lease of 10 s: %v", err)
	}
	// A reload of the same policy gives no fresh quota.
	if err := next(parse(t, "grants: [{subjects: '*', roles: issuer, quotas: {ids_per_second: 100, "+
		"tag_ids_per_second: 60, ids_per_lease: 1000, tags: 2, streams: 1}}]").
		Rights(&usages, "token:a"), "three", 1); allocator.KindOf(err) != allocator.TooMany {
		t.Errorf("after a reload: %v", err)
	}

	r := policy.Request{Call: call(t, "IDService/Stream"), Tag: "one"}
	end, err := a.Stream(r)
	if err != nil {
		t.Fatal(err)
	}
	var later *allocator.WaitError
	if _, err := a.Stream(r); allocator.KindOf(err) != allocator.TooMany ||
		!errors.As(err, &later) || later.After <= 0 {
		t.Errorf("a second stream: %v", err)
	}
	end()
	if end, err = a.Stream(r); err != nil {
		t.Errorf("a stream after the first: %v", err)
	}
	end()
}

// What a caller may hold is by the grant that allows its call.
func TestQuotasOfWorkers(t *testing.T) {
	p := parse(t, `grants:
  - {subjects: "token:a", roles: issuer, tags: event, quotas: {workers: 3, worker_share: 20}}
  - {subjects: ["token:a", anonymous], roles: issuer}
`)
	r := policy.Request{Call: call(t, "IDService/Lease"), Tag: "event"}
	if got, want := p.Rights(&policy.Usages{}, "token:a").Holder(r),
		(allocator.Holder{Name: "subject token:a", Most: 3, Share: 20}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if r.Tag = "other"; p.Rights(&policy.Usages{}, "token:a").Holder(r) !=
		(allocator.Holder{Name: "subject token:a", Share: allocator.DefaultShare}) {
		t.Error("another tag has the quotas of the first grant")
	}
	for _, bad := range []string{"workers: 0", "worker_share: 101", "worker_share: 0"} {
		name, _, _ := strings.Cut(bad, ":")
		_, err := policy.Parse("p", []byte("grants: [{subjects: '*', roles: issuer, quotas: {"+bad+"}}]"))
		if err == nil || !strings.Contains(err.Error(), "grants.quotas."+name) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// A call for several tags is counted as a whole: by the quotas of each tag's own grant, or
// not at all. The IDs that it takes of one tag do not keep it from the next tag.
func TestQuotasOfSeveralTags(t *testing.T) {
	p := parse(t, `grants:
  - {subjects: ["*"], roles: issuer, tags: [order, item], quotas: {ids_per_second: 10, ids_per_lease: 100}}
  - {subjects: ["*"], roles: issuer, tags: [log, slow], quotas: {tag_ids_per_second: 5, tags: 1}}
  - {subjects: ["*"], roles: issuer, tags: [free]}
`)
	c := p.Rights(&policy.Usages{}, "token:a")
	now := time.Unix(1_700_000_000, 0)
	r := policy.Request{Call: call(t, "IDService/NextMany")}
	check := func(tags ...policy.TagIDs) (int, error) { return c.CheckMany(now, r, tags) }
	if at, err := check(policy.TagIDs{Tag: "order", IDs: 1}, policy.TagIDs{Tag: "bank", IDs: 1}); at != 1 ||
		allocator.KindOf(err) != allocator.Denied {
		t.Errorf("a tag without a right: %d, %v", at, err)
	}
	if at, err := check(policy.TagIDs{Tag: "order", IDs: 60}, policy.TagIDs{Tag: "free", IDs: 500},
		policy.TagIDs{Tag: "item", IDs: 41}); at != 2 || allocator.KindOf(err) != allocator.Denied ||
		!strings.Contains(err.Error(), "101 IDs in one call") {
		t.Errorf("more than one call may take: %d, %v", at, err)
	}
	if at, err := check(policy.TagIDs{Tag: "order", IDs: 1}, policy.TagIDs{Tag: "log", IDs: 1},
		policy.TagIDs{Tag: "slow", IDs: 1}); at != 2 || !strings.Contains(err.Error(), "quota tags: 1") {
		t.Errorf("more tags than the quota: %d, %v", at, err)
	}
	if _, err := check(policy.TagIDs{Tag: "order", IDs: 60}, policy.TagIDs{Tag: "item", IDs: 40},
		policy.TagIDs{Tag: "log", IDs: 10}); err != nil {
		t.Errorf("none of the refused calls counts: %v", err)
	}
	var wait *allocator.WaitError
	if at, err := check(policy.TagIDs{Tag: "free", IDs: 1}, policy.TagIDs{Tag: "log", IDs: 1}); at != 1 ||
		!errors.As(err, &wait) || wait.After < 900*time.Millisecond || wait.After > 1100*time.Millisecond {
		t.Errorf("10 IDs of log cost 2 s, of which 1 s is free: %d, %v, %v", at, err, wait)
	}
	if at, err := check(policy.TagIDs{Tag: "item", IDs: 1}); at != 0 || !errors.As(err, &wait) ||
		wait.After < 8900*time.Millisecond || wait.After > 9100*time.Millisecond {
		t.Errorf("100 IDs cost 10 s, of which 1 s is free: %d, %v, %v", at, err, wait)
	}
	now = now.Add(wait.After)
	if _, err := check(policy.TagIDs{Tag: "item", IDs: 1}, policy.TagIDs{Tag: "order", IDs: 1}); err != nil {
		t.Errorf("after the wait: %v", err)
	}
}
