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
	"fmt"
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
	IDsPerSecond    int64 `yaml:"ids_per_second"`     // of all tags
	TagIDsPerSecond int64 `yaml:"tag_ids_per_second"` // of each tag
	IDsPerLease     int64 `yaml:"ids_per_lease"`      // of one call
	Tags            int64 `yaml:"tags"`               // that were asked for within an hour
	Streams         int64 `yaml:"streams"`            // open at once
	Workers         int64 `yaml:"workers"`            // held at once, and as many machine IDs
	WorkerShare     int64 `yaml:"worker_share"`       // in percent of what it holds and what is free
}

// file is what a policy's file has.
type file struct {
	Roles  map[string][]string `yaml:"roles" allowed:"a call such as IDService/Next"`
	Grants []fileGrant         `yaml:"grants"`
}

type fileGrant struct {
	Subjects Names    `yaml:"subjects"`
	Rooms    Names    `yaml:"rooms"`
	Tags     Names    `yaml:"tags"`
	Roles    []string `yaml:"roles" allowed:"a role's name"`
	Quotas   Quotas   `yaml:"quotas"`
}

// Parse reads a policy. path is its name in messages. The error is Invalid, and shows each
// mistake with its line and a caret.
func Parse(path string, content []byte) (*Policy, error) {
	if len(content) > MaxFile {
		return nil, allocator.Errorf(allocator.Invalid, "%s: %d bytes; allowed: up to %d", path, len(content), MaxFile)
	}
	var from file
	f := yamlfile.Read(path, content, &from)
	roles := make(map[string][]bool)
	for _, role := range []string{Viewer, Issuer, Operator, Admin} {
		roles[role] = make([]bool, len(table))
		for k := range table {
			roles[role][k] = has(role, &table[k])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(from.Roles)) {
		at := "roles." + yamlfile.Short(name)
		if _, is := roles[name]; is {
			f.Refuse(at, "%s: this role is built in; allowed: another name", at)
			continue
		}
		roles[name] = make([]bool, len(table))
		for i, text := range from.Roles[name] {
			found := callsLike(text)
			if len(found) == 0 {
				f.Refuse(element(at, i), "%s: there is no call %q; allowed: names such as IDService/Next, Next or "+
					"ConsoleService/Get*", at, yamlfile.Short(text))
			}
			for _, c := range found {
				roles[name][c.index] = true
			}
		}
	}
	if n := len(from.Grants); n > maxGrants {
		f.Refuse("grants", "grants: %d; allowed: up to %d", n, maxGrants)
		return nil, f.Err()
	}
	p := &Policy{}
	for i := range from.Grants {
		p.grants = append(p.grants, from.Grants[i].read(f, element("grants", i), roles))
	}
	return p, f.Err()
}

// element is the path of an element of a list.
func element(at string, i int) string { return fmt.Sprintf("%s[%d]", at, i) }

// read checks what the file has of a grant.
func (from *fileGrant) read(f *yamlfile.File, at string, roles map[string][]bool) *grant {
	g := &grant{line: f.Line(at), calls: make([]bool, len(table)), subjects: from.Subjects, rooms: from.Rooms,
		tags: from.Tags, roles: from.Roles, quotas: from.Quotas, bounded: from.Quotas != Quotas{}}
	for _, field := range []string{"subjects", "roles"} {
		if !f.Has(at + "." + field) {
			f.Refuse(at+"."+field, "grants: no %s; a grant names them", field)
		}
	}
	g.subjects.check(f, at+".subjects", "grants.subjects", checkSubject)
	for field, names := range map[string]*Names{"rooms": &g.rooms, "tags": &g.tags} {
		if !f.Has(at + "." + field) {
			names.add("*")
		}
	}
	g.rooms.check(f, at+".rooms", "grants.rooms", func(text string) error {
		return checkStars(text, allocator.ParseRoom)
	})
	g.tags.check(f, at+".tags", "grants.tags", func(text string) error { return checkStars(text, allocator.ParseTag) })
	for i, role := range g.roles {
		calls, known := roles[role]
		if !known {
			f.Refuse(element(at+".roles", i), "grants.roles: there is no role %q; allowed: %s", yamlfile.Short(role),
				strings.Join(slices.Sorted(maps.Keys(roles)), ", "))
		}
		for k, has := range calls {
			g.calls[k] = g.calls[k] || has
		}
	}
	for _, q := range g.quotas.all() {
		if at := at + ".quotas." + q.name; f.Has(at) && (*q.to < 1 || *q.to > q.greatest) {
			f.Refuse(at, "grants.quotas.%s: %d; allowed: 1 to %d", q.name, *q.to, q.greatest)
		}
	}
	return g
}

// ReadYAML implements yamlfile.Value.
func (n *Names) ReadYAML(f *yamlfile.File, at string, node ast.Node) {
	var texts []string
	f.Value(at, node, &texts, "a name, in quotes if it has a colon")
	for _, text := range texts {
		n.add(text)
	}
}

// check refuses names and patterns of a field of a file.
func (n *Names) check(f *yamlfile.File, at, field string, check func(text string) error) {
	if n.None() && f.Has(at) {
		f.Refuse(at, "%s: none; allowed: at least one name", field)
	}
	for i, text := range n.texts {
		if err := check(text); err != nil {
			f.Refuse(element(at, i), "%s: %w", field, err)
		}
	}
	if k := len(n.patterns); k > maxPatterns {
		f.Refuse(at, "%s: %d names with a star; allowed: up to %d", field, k, maxPatterns)
	}
}

// CheckForms refuses subjects' names and patterns that are not of some forms such as JWT.
func (n *Names) CheckForms(f *yamlfile.File, at, field string, forms ...string) {
	n.check(f, at, field, func(text string) error { return checkForm(text, forms) })
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

// pattern is a name in which * stands for any characters, also none.
type pattern struct {
	head string   // before the first star
	rest []string // between the stars, and after the last
}

func compile(text string) pattern {
	parts := strings.Split(text, "*")
	return pattern{parts[0], parts[1:]}
}

// any reports whether the pattern matches every name.
func (p pattern) any() bool {
	for _, part := range p.rest {
		if part != "" {
			return false
		}
	}
	return p.head == "" && len(p.rest) > 0
}

// exact reports whether the pattern is one name.
func (p pattern) exact() bool { return len(p.rest) == 0 }

// match reports whether a name matches. It allocates nothing.
func (p *pattern) match(name string) bool {
	// Most patterns differ in the first byte. That is on the path of every ID.
	if p.head != "" && (name == "" || name[0] != p.head[0]) || !strings.HasPrefix(name, p.head) {
		return false
	}
	last := len(p.rest) - 1
	if last < 0 {
		return name == p.head
	}
	name = name[len(p.head):]
	for _, part := range p.rest[:last] {
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return strings.HasSuffix(name, p.rest[last])
}

// Names is a set of names and patterns.
type Names struct {
	all      bool
	exact    map[string]bool
	patterns []pattern
	texts    []string // as they were written
}

// AnyName are all names.
var AnyName = Names{all: true}

// None reports whether a list has no name.
func (n *Names) None() bool { return len(n.texts) == 0 }

func (n *Names) add(text string) {
	n.texts = append(n.texts, text)
	switch p := compile(text); {
	case p.any():
		n.all = true
	case p.exact():
		if n.exact == nil {
			n.exact = make(map[string]bool)
		}
		n.exact[text] = true
	default:
		n.patterns = append(n.patterns, p)
	}
}

// Match reports whether a name is in the set. It allocates nothing.
func (n *Names) Match(name string) bool {
	if n.all || n.exact != nil && n.exact[name] {
		return true
	}
	for k := range n.patterns {
		if n.patterns[k].match(name) {
			return true
		}
	}
	return false
}
