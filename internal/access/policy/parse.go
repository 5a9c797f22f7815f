// Package policy decides which subject may make which call, and how much of it.
//
// A policy is one YAML file. Each of its grants gives subjects some roles, in some rooms, for
// some tags, with quotas. A role is a set of calls. A call is allowed if one grant allows all
// of it: the call, each room that it concerns and the tag. Nothing is allowed otherwise, so
// a call that this package does not know is refused.
//
// The package knows names only. Package access checks the proof of a
// name: a certificate or a token.
//
// # Invariants
//
//  1. Every call of every service is in the table of calls. A test compares the table with
//     the descriptors.
//  2. A call that concerns all tags, such as ListTags, needs a grant for all tags; one that
//     concerns all rooms needs a grant for all rooms.
//  3. A Policy does not change once it is made. A subject's rights under it are computed
//     once, so that a check costs no allocation.
//  4. Quotas count in this process only.
package policy

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/yamlfile"
)

// Bounds of a file.
const (
	// MaxFile bounds a policy's file, in bytes.
	MaxFile = 1 << 20
	// maxGrants bounds its grants.
	maxGrants = 1000
	// maxPatterns bounds the names with a star in one list: each costs time at every check.
	maxPatterns = 100
	// maxRate bounds a quota of IDs per second.
	maxRate = 1_000_000_000
)

// Anonymous is the name of a caller without an identity.
const Anonymous = "anonymous"

// The forms of subjects' names.
const (
	SPIFFE = "spiffe://" // a client certificate's URI
	DNS    = "dns:"      // a client certificate's DNS name
	Token  = "token:"    // a token of the file of tokens
	JWT    = "jwt:"      // a token of the issuer, by its subject
	Group  = "group:"    // a token of the issuer, by a group that it names
)

// Policy is a policy that was read.
type Policy struct {
	grants []*grant
}

// grant allows some subjects something.
type grant struct {
	line                  int
	subjects, tags, rooms Names
	roles                 []string
	calls                 []bool // by a call's index
	quotas                Quotas
	bounded               bool // quotas bound anything
}

// Quotas bound what each subject of a grant may use; 0 is no bound.
type Quotas struct {
	IDsPerSecond    int64 // of all tags
	TagIDsPerSecond int64 // of each tag
	IDsPerLease     int64 // of one call
	Tags            int64 // that were asked for within an hour
	Streams         int64 // open at once
	Workers         int64 // held at once, and as many machine IDs
	WorkerShare     int64 // in percent of what it holds and what is free
}

// Parse reads a policy. path is its name in messages. The error is Invalid, and shows each
// mistake with its line and a caret.
func Parse(path string, content []byte) (*Policy, error) {
	r := yamlfile.NewReader(path)
	top := yamlfile.Position{Line: 1, Column: 1}
	if len(content) > MaxFile {
		r.Refuse(top, "%d bytes; allowed: up to %d", len(content), MaxFile)
		return nil, r.Err()
	}
	body := r.Parse(content)
	if body == nil && r.Err() == nil {
		r.Refuse(top, "the file is empty; allowed: grants, roles")
	}
	p := &Policy{}
	roles := make(map[string][]bool)
	for _, role := range []string{Viewer, Issuer, Operator, Admin} {
		roles[role] = make([]bool, len(table))
		for k := range table {
			roles[role][k] = has(role, &table[k])
		}
	}
	var grants ast.Node
	r.Fields("", body, map[string]func(yamlfile.Entry){
		"roles": func(e yamlfile.Entry) {
			for _, role := range r.Entries("roles", e.Value) {
				readRole(r, role, roles)
			}
		},
		"grants": func(e yamlfile.Entry) { grants = e.Value },
	})
	list := r.List("grants", grants)
	if len(list) > maxGrants {
		r.Refuse(yamlfile.Of(grants), "grants: %d; allowed: up to %d", len(list), maxGrants)
		return nil, r.Err()
	}
	for _, node := range list {
		p.grants = append(p.grants, readGrant(r, node, roles))
	}
	return p, r.Err()
}

// readRole reads a role of the file's own.
func readRole(r *yamlfile.Reader, e yamlfile.Entry, roles map[string][]bool) {
	if _, is := roles[e.Name]; is {
		r.Refuse(e.At, "roles.%s: this role is built in; allowed: another name", yamlfile.Short(e.Name))
		return
	}
	calls := make([]bool, len(table))
	for _, node := range r.List("roles."+yamlfile.Short(e.Name), e.Value) {
		text, ok := r.Value("roles", node, "a call such as IDService/Next")
		if !ok {
			continue
		}
		found := callsLike(text)
		if len(found) == 0 {
			r.Refuse(yamlfile.Of(node), "roles.%s: there is no call %q; allowed: names such as IDService/Next, "+
				"Next or ConsoleService/Get*", yamlfile.Short(e.Name), yamlfile.Short(text))
		}
		for _, c := range found {
			calls[c.index] = true
		}
	}
	roles[e.Name] = calls
}

func readGrant(r *yamlfile.Reader, node ast.Node, roles map[string][]bool) *grant {
	at := yamlfile.Of(node)
	g := &grant{line: at.Line, calls: make([]bool, len(table))}
	named := func(field string, to *Names, check func(string) error) func(yamlfile.Entry) {
		return func(e yamlfile.Entry) { readNames(r, "grants."+field, e, to, check) }
	}
	seen := r.Fields("grants", node, map[string]func(yamlfile.Entry){
		"subjects": named("subjects", &g.subjects, checkSubject),
		"rooms":    named("rooms", &g.rooms, func(text string) error { return checkStars(text, allocator.ParseRoom) }),
		"tags":     named("tags", &g.tags, func(text string) error { return checkStars(text, allocator.ParseTag) }),
		"roles":    func(e yamlfile.Entry) { g.readRoles(r, e, roles) },
		"quotas":   func(e yamlfile.Entry) { readQuotas(r, e, &g.quotas) },
	})
	for _, field := range []string{"subjects", "roles"} {
		if !seen[field] {
			r.Refuse(at, "grants: no %s; a grant names them", field)
		}
	}
	if !seen["rooms"] {
		g.rooms.add("*")
	}
	if !seen["tags"] {
		g.tags.add("*")
	}
	g.bounded = g.quotas != Quotas{}
	return g
}

func (g *grant) readRoles(r *yamlfile.Reader, e yamlfile.Entry, roles map[string][]bool) {
	for _, node := range r.List("grants.roles", e.Value) {
		role, ok := r.Value("grants.roles", node, "a role's name")
		if !ok {
			continue
		}
		calls, known := roles[role]
		if !known {
			r.Refuse(yamlfile.Of(node), "grants.roles: there is no role %q; allowed: %s", yamlfile.Short(role),
				strings.Join(slices.Sorted(maps.Keys(roles)), ", "))
		}
		for k, has := range calls {
			g.calls[k] = g.calls[k] || has
		}
		g.roles = append(g.roles, role)
	}
}

// readNames reads a list of names and patterns.
func readNames(r *yamlfile.Reader, field string, e yamlfile.Entry, to *Names, check func(string) error) {
	list := r.List(field, e.Value)
	if len(list) == 0 && e.Value != nil {
		r.Refuse(e.At, "%s: none; allowed: at least one name", field)
	}
	for _, node := range list {
		text, ok := r.Value(field, node, "a name, in quotes if it has a colon")
		if !ok {
			continue
		}
		if err := check(text); err != nil {
			r.Refuse(yamlfile.Of(node), "%s: %w", field, err)
			continue
		}
		to.add(text)
	}
	if n := len(to.patterns); n > maxPatterns {
		r.Refuse(e.At, "%s: %d names with a star; allowed: up to %d", field, n, maxPatterns)
	}
}

// ReadSubjects reads a list of subjects' names and patterns, of some forms such as JWT.
func ReadSubjects(r *yamlfile.Reader, field string, e yamlfile.Entry, forms ...string) (n Names) {
	readNames(r, field, e, &n, func(text string) error { return checkForm(text, forms) })
	return n
}

func checkForm(text string, forms []string) error {
	for _, form := range forms {
		rest, is := strings.CutPrefix(text, form)
		if !is || rest == "" {
			continue
		}
		domain, _, ends := strings.Cut(rest, "/")
		if form == SPIFFE && rest != "*" && (!ends || strings.Contains(domain, "*")) {
			return allocator.Errorf(allocator.Invalid, "%q has no whole trust domain; allowed: spiffe://DOMAIN/PATH, "+
				"in which stars stand in PATH, or spiffe://*", yamlfile.Short(text))
		}
		return nil
	}
	return allocator.Errorf(allocator.Invalid, "%q; allowed: names and patterns that begin with %s",
		yamlfile.Short(text), strings.Join(forms, " or "))
}

func checkSubject(text string) error {
	if text == "*" || text == Anonymous {
		return nil
	}
	for _, form := range []string{SPIFFE, DNS, Token, JWT, Group} {
		if rest, ok := strings.CutPrefix(text, form); ok && rest != "" {
			return nil
		}
	}
	return allocator.Errorf(allocator.Invalid, "%q is no subject; allowed: spiffe://DOMAIN/PATH, dns:NAME, "+
		"token:NAME, jwt:SUBJECT, group:NAME, anonymous, and * for every caller with an identity", yamlfile.Short(text))
}

// checkStars checks a name in which stars stand for characters.
func checkStars[T any](text string, parse func(string) (T, error)) error {
	plain := strings.ReplaceAll(text, "*", "")
	if plain == "" && text != "" {
		return nil
	}
	if plain != text {
		plain = "a" + strings.Trim(plain, "-._/") + "a" // a star may stand for what a name begins and ends with
	}
	_, err := parse(plain)
	return err
}

// quota is a quota of a file.
type quota struct {
	name     string
	to       *int64
	greatest int64
}

// all returns the quotas in the order in which they are shown.
func (q *Quotas) all() []quota {
	return []quota{
		{"ids_per_second", &q.IDsPerSecond, maxRate}, {"tag_ids_per_second", &q.TagIDsPerSecond, maxRate},
		{"ids_per_lease", &q.IDsPerLease, maxRate}, {"tags", &q.Tags, maxTags}, {"streams", &q.Streams, math.MaxInt32},
		{"workers", &q.Workers, math.MaxInt32}, {"worker_share", &q.WorkerShare, 100},
	}
}

func readQuotas(r *yamlfile.Reader, e yamlfile.Entry, quotas *Quotas) {
	fields := make(map[string]func(yamlfile.Entry))
	for _, q := range quotas.all() {
		field := "grants.quotas." + q.name
		fields[q.name] = func(e yamlfile.Entry) {
			r.Number(field, e.Value, func(n int64) {
				if n < 1 || n > q.greatest {
					r.Refuse(yamlfile.Of(e.Value), "%s: %d; allowed: 1 to %d", field, n, q.greatest)
					return
				}
				*q.to = n
			})
		}
	}
	r.Fields("grants.quotas", e.Value, fields)
}
