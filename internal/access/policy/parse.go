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
	subjects, tags, rooms names
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
	for _, e := range r.Entries("", body) {
		switch e.Name {
		case "roles":
			for _, role := range r.Entries("roles", e.Value) {
				readRole(r, role, roles)
			}
		case "grants":
			grants = e.Value
		default:
			r.Unknown("", e, "grants", "roles")
		}
	}
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
	seen := make(map[string]bool)
	for _, e := range r.Entries("grants", node) {
		seen[e.Name] = true
		field := "grants." + e.Name
		switch e.Name {
		case "subjects":
			readNames(r, field, e, &g.subjects, checkSubject)
		case "rooms":
			readNames(r, field, e, &g.rooms, checkRoom)
		case "tags":
			readNames(r, field, e, &g.tags, checkTag)
		case "roles":
			for _, node := range r.List(field, e.Value) {
				role, ok := r.Value(field, node, "a role's name")
				if !ok {
					continue
				}
				calls, known := roles[role]
				if !known {
					r.Refuse(yamlfile.Of(node), "%s: there is no role %q; allowed: %s", field, yamlfile.Short(role),
						strings.Join(slices.Sorted(maps.Keys(roles)), ", "))
				}
				for k, has := range calls {
					g.calls[k] = g.calls[k] || has
				}
				g.roles = append(g.roles, role)
			}
		case "quotas":
			readQuotas(r, e, &g.quotas)
		default:
			r.Unknown("grants", e, "quotas", "roles", "rooms", "subjects", "tags")
		}
	}
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

// readNames reads a list of names and patterns.
func readNames(r *yamlfile.Reader, field string, e yamlfile.Entry, to *names, check func(string) error) {
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
	readNames(r, field, e, &n.of, func(text string) error { return checkForm(text, forms) })
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

func checkRoom(text string) error { return checkStars(text, allocator.ParseRoom) }

func checkTag(text string) error { return checkStars(text, allocator.ParseTag) }

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

func readQuotas(r *yamlfile.Reader, e yamlfile.Entry, q *Quotas) {
	for _, e := range r.Entries("grants.quotas", e.Value) {
		var to *int64
		most := int64(math.MaxInt32)
		switch e.Name {
		case "ids_per_second":
			to, most = &q.IDsPerSecond, maxRate
		case "tag_ids_per_second":
			to, most = &q.TagIDsPerSecond, maxRate
		case "ids_per_lease":
			to, most = &q.IDsPerLease, maxRate
		case "tags":
			to, most = &q.Tags, maxTags
		case "streams":
			to = &q.Streams
		case "workers":
			to = &q.Workers
		case "worker_share":
			to, most = &q.WorkerShare, 100
		default:
			r.Unknown("grants.quotas", e, "ids_per_lease", "ids_per_second", "streams", "tag_ids_per_second", "tags",
				"worker_share", "workers")
			continue
		}
		r.Number("grants.quotas."+e.Name, e.Value, func(n int64) {
			if n < 1 || n > most {
				r.Refuse(yamlfile.Of(e.Value), "grants.quotas.%s: %d; allowed: 1 to %d", e.Name, n, most)
				return
			}
			*to = n
		})
	}
}
