package policy_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access/policy"
)

// now is the time of all calls.
var now = time.Unix(1_800_000_000, 0)

const example = `roles:
  reader: [ConsoleService/Get*, Decode]
grants:
  - subjects: ["spiffe://prod/shop/*", "token:shop"]
    roles: issuer
    rooms: [eu-1, eu-2]
    tags: [order, shop-*]
  - subjects: [token:ops, group:ops]
    roles: [operator, issuer]
  - subjects: token:root
    roles: admin
  - subjects: token:reader
    roles: reader
    tags: order
  - subjects: "*"
    roles: viewer
    tags: public-*
  - subjects: anonymous
    roles: issuer
    tags: open
`

func parse(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("policy.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func call(t testing.TB, name string) *policy.Call {
	t.Helper()
	c := policy.CallOf("/march.v1." + name)
	if c == nil {
		t.Fatalf("there is no call %s", name)
	}
	return c
}

// Each subject may make the calls that the example grants it, and no other.
func TestCheck(t *testing.T) {
	p := parse(t, example)
	for _, c := range []struct {
		subjects, call, tag, room string
		rooms                     []string
		want                      allocator.Kind // Internal for allowed
	}{
		{"spiffe://prod/shop/cart", "IDService/Next", "order", "eu-1", nil, 0},
		{"spiffe://prod/shop/cart", "IDService/Next", "shop-x", "eu-2", nil, 0},
		{"spiffe://prod/shop/cart", "IDService/Next", "shop", "eu-2", nil, allocator.Denied},
		{"spiffe://prod/shop/cart", "IDService/Next", "order", "us-1", nil, allocator.Denied},
		{"spiffe://prod/shop/cart", "IDService/Next", "orders", "eu-1", nil, allocator.Denied},
		{"spiffe://prod/shop/cart", "RoomService/SkipTag", "order", "eu-1", nil, allocator.Denied},
		{"spiffe://prod/shopping", "IDService/Next", "order", "eu-1", nil, allocator.Denied},
		{"token:shop", "IDService/Lease", "order", "eu-1", nil, 0},
		{"token:ops", "ConsoleService/SkipTag", "order", "", []string{"eu-1"}, 0},
		{"token:ops", "ConsoleService/DeleteTag", "order", "", nil, allocator.Denied},
		{"jwt:alice group:ops", "ConsoleService/ApplyMigration", "", "", nil, 0},
		{"jwt:alice group:dev", "ConsoleService/ApplyMigration", "", "", nil, allocator.Denied},
		{"token:root", "ConsoleService/DeleteTag", "order", "", nil, 0},
		{"token:root", "RoomService/ReportMarks", "", "eu-1", nil, 0},
		{"token:reader", "ConsoleService/GetTag", "order", "", nil, 0},
		{"token:reader", "ConsoleService/GetOverview", "", "", nil, allocator.Denied}, // concerns all tags
		{"token:reader", "IDService/Decode", "order", "eu-1", nil, 0},
		{"token:any", "RoomService/GetChain", "public-1", "eu-1", nil, 0},
		{"token:any", "RoomService/ListChains", "", "eu-1", nil, allocator.Denied},
		{"", "IDService/Next", "open", "eu-1", nil, 0},
		{"", "IDService/Next", "public-1", "eu-1", nil, allocator.Unauthenticated},
		{"", "IDService/Next", "", "eu-1", nil, allocator.Unauthenticated},
	} {
		err := p.Rights(&policy.Usages{}, strings.Fields(c.subjects)...).Check(now, policy.Request{
			Call: call(t, c.call), Tag: c.tag, Room: c.room, Rooms: c.rooms,
		})
		if err == nil && c.want != 0 || err != nil && allocator.KindOf(err) != c.want {
			t.Errorf("%s %s %q in %q: %v, want %v", c.subjects, c.call, c.tag, c.room, err, c.want)
		}
		var right *allocator.RightError
		if err != nil && (!errors.As(err, &right) || !strings.Contains(right.Right, c.call)) {
			t.Errorf("%s %s: %v does not name the right", c.subjects, c.call, err)
		}
	}
}

// A grant for some rooms allows no call that concerns others.
func TestRooms(t *testing.T) {
	c := parse(t, "grants: [{subjects: token:a, roles: admin, rooms: [eu-1]}]").Rights(&policy.Usages{}, "token:a")
	for _, r := range []struct {
		call, room string
		rooms      []string
		allowed    bool
	}{
		{"ConsoleService/SkipTag", "", []string{"eu-1"}, true},
		{"ConsoleService/SkipTag", "", []string{"eu-1", "us-1"}, false},
		{"ConsoleService/SkipTag", "", nil, false}, // all rooms
		{"RoomService/SkipTag", "eu-1", []string{"eu-1"}, true},
		{"RoomService/SkipTag", "us-1", []string{"eu-1"}, false},
		{"RoomService/UpdateTag", "eu-1", nil, false}, // settings are those of all rooms
		{"ConsoleService/ForgetInstance", "", []string{"eu-1"}, true},
		{"ConsoleService/ForgetInstance", "", []string{"us-1"}, false},
		{"ConsoleService/InitLayout", "", nil, false},
		{"ConsoleService/GetLayout", "", nil, true},
	} {
		err := c.Check(now, policy.Request{Call: call(t, r.call), Tag: "order", Room: r.room, Rooms: r.rooms})
		if (err == nil) != r.allowed {
			t.Errorf("%s in %q for %q: %v", r.call, r.room, r.rooms, err)
		}
	}
}

// Mistakes are shown with line and caret, all at once.
func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":          "policy.yaml:1:1: the file is empty; allowed: grants, roles",
		"grant: []": "policy.yaml:1:1: there is no field grant; allowed: grants, roles\n  grant: []\n  ^",
		"grants:\n  - roles: [isuer]\n    " +
			"subjects: bob\n": "policy.yaml:2:13: grants.roles: there is no role \"isuer\"; allowed: admin, issuer, " +
			"operator, viewer\n    - roles: [isuer]\n              ^\n" +
			"policy.yaml:3:15: grants.subjects: \"bob\" is no subject; allowed: spiffe://DOMAIN/PATH, dns:NAME, " +
			"token:NAME, jwt:SUBJECT, group:NAME, anonymous, and * for every caller with an identity\n   " +
			"   subjects: " +
			"bob\n                ^",
		"grants: [{roles: issuer}]": "policy.yaml:1:10: grants: no subjects; " +
			"a grant names them\n  grants: [{roles: issuer}]\n           ^",
		"roles: {viewer: [Next]}": "roles.viewer: this role is built in; allowed: another name",
		"roles: {a: [Nxt]}":       `roles.a: there is no call "Nxt"; allowed: names such as IDService/Next, Next or ConsoleService/Get*`,
		"grants: [{subjects: '*', roles: issuer, tags: 'a b'}]":       "policy.yaml:1:47: grants.tags:",
		"grants: [{subjects: '*', roles: issuer, rooms: []}]":         "grants.rooms: none; allowed: at least one name",
		"grants: [{subjects: '*', roles: issuer, quotas: {tags: 0}}]": "grants.quotas.tags: 0; allowed: 1 to 10000",
		"grants: [{subjects: '*', roles: issuer, " +
			"quotas: {tag: 1}}]": "there is no field grants.quotas.tag; allowed: ids_per_lease,",
		"grants: [{subjects: '*', roles: issuer, tags: {}}]": "grants.tags: a mapping; allowed: a list",
		"grants: [":       "not YAML",
		"grants: {a: 1}":  "grants: a mapping; allowed: a list",
		"a: 1\n---\nb: 2": "a second document; allowed: one",
	} {
		_, err := policy.Parse("policy.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%q:\n%v\nwant\n%s", text, err, want)
		}
	}
}

// A star stands for any characters, and nothing else has a meaning.
func TestStars(t *testing.T) {
	for _, c := range []struct {
		like, name string
		want       bool
	}{
		{"a*", "a", true}, {"a*", "ba", false}, {"*a", "ba", true}, {"*a", "ab", false},
		{"a*b", "ab", true}, {"a*b", "a", false},
		{"a*a", "a", false}, {"a*b*c", "axbxc", true}, {"a*b*c", "acb", false}, {"**", "x", true},
		{"a.b", "axb", false}, {"a*ba*a", "aba", false},
	} {
		p := parse(t, fmt.Sprintf("grants: [{subjects: '*', roles: issuer, tags: %q}]", c.like))
		err := p.Rights(&policy.Usages{}, "token:a").Check(now,
			policy.Request{Call: call(t, "IDService/Next"), Tag: c.name})
		if (err == nil) != c.want {
			t.Errorf("%s and %s: %v", c.like, c.name, err)
		}
	}
}

// Every call of every service has a rule, and every rule a call.
func TestEveryCall(t *testing.T) {
	known := make(map[string]bool)
	protoregistry.GlobalFiles.RangeFilesByPackage(marchv1.File_march_v1_id_proto.Package(),
		func(file protoreflect.FileDescriptor) bool {
			for i := range file.Services().Len() {
				service := file.Services().Get(i)
				for k := range service.Methods().Len() {
					method := service.Methods().Get(k)
					full := fmt.Sprintf("/%s/%s", service.FullName(), method.Name())
					known[full] = true
					if c := policy.CallOf(full); c == nil || c.Open() {
						t.Errorf("%s has no rule: a server with a policy refuses it; "+
							"add it to the table in calls.go", full)
					}
				}
			}
			return true
		})
	for _, c := range policy.Calls() {
		if strings.HasPrefix(c.Method, "/march.v1.") && !known[c.Method] {
			t.Errorf("%s has a rule, and there is no such call", c.Method)
		}
	}
}

// A subject that the policy does not name may do nothing but ask for health.
func TestUnknownSubject(t *testing.T) {
	p := parse(t, "grants: [{subjects: token:a, roles: admin}]")
	for _, subject := range []string{"", "token:b", "token:a2", "dns:a", "jwt:token:a"} {
		c := p.Rights(&policy.Usages{}, strings.Fields(subject)...)
		for _, call := range policy.Calls() {
			if err := c.Check(now, policy.Request{Call: call, Tag: "order"}); (err == nil) != call.Open() {
				t.Errorf("%q, %s: %v", subject, call.Name(), err)
			}
		}
		if err := c.Check(now, policy.Request{}); allocator.KindOf(err) != allocator.Denied {
			t.Errorf("%q, a call without a rule: %v", subject, err)
		}
	}
}

// The explanation names each grant's line, and why it does not help.
func TestExplain(t *testing.T) {
	text, allowed := parse(t, example).Explain(call(t, "IDService/Next"), "orders", "eu-1", "token:shop")
	want := `refused: subject token:shop may not call IDService/Next for tag "orders" in room eu-1; the role issuer, or one of the policy's own, allows it
grant in line 4: is for other tags: order, shop-*
grant in line 8: is for other subjects: token:ops, group:ops
grant in line 10: is for other subjects: token:root
grant in line 12: is for other subjects: token:reader
grant in line 15: has no role with this call: viewer
grant in line 18: is for other subjects: anonymous
`
	if allowed || text != want {
		t.Errorf("%v, %s\nwant\n%s", allowed, text, want)
	}
	if text, allowed = parse(t, example).Explain(call(t, "IDService/Next"), "order", "eu-1", "token:shop"); !allowed ||
		!strings.Contains(text, "grant in line 4: allows it\n") {
		t.Errorf("%v, %s", allowed, text)
	}
}

// worst is a policy of many grants, of which the last one fits.
func worst(t testing.TB) (*policy.Caller, policy.Request) {
	var b strings.Builder
	b.WriteString("grants:\n")
	for k := range 20 {
		fmt.Fprintf(&b, "  - {subjects: '*', roles: issuer, tags: [a-%d-*, b-%d-*]}\n", k, k)
	}
	b.WriteString("  - {subjects: '*', roles: issuer, tags: [order-*], quotas: {ids_per_second: 1000000000, " +
		"tag_ids_per_second: 1000000000, tags: 10, ids_per_lease: 10}}\n")
	c := parse(t, b.String()).Rights(&policy.Usages{}, "token:a")
	return c, policy.Request{Call: call(t, "IDService/Next"), Tag: "order-eu", Room: "eu-1", IDs: 1}
}

// A check that allows a request allocates nothing.
func TestCheckAllocatesNothing(t *testing.T) {
	c, r := worst(t)
	if n := testing.AllocsPerRun(1000, func() {
		if err := c.Check(now, r); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for each check", n)
	}
}

func BenchmarkCheck(b *testing.B) {
	worstCaller, r := worst(b)
	plain := parse(b, example).Rights(&policy.Usages{}, "spiffe://prod/shop/cart")
	for name, c := range map[string]*policy.Caller{"grants=20,quotas=4": worstCaller, "grants=2": plain} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := r
			if c == plain {
				r.Tag = "order"
			}
			for b.Loop() {
				if err := c.Check(now, r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
