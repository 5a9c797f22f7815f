package policy

import (
	"slices"
	"strings"
)

// The roles that every policy has.
const (
	// Viewer reads everything, and changes nothing.
	Viewer = "viewer"
	// Issuer takes IDs.
	Issuer = "issuer"
	// Operator reads everything, and changes what can be put right again.
	Operator = "operator"
	// Admin may make every call.
	Admin = "admin"
)

// scope says what a call concerns, of the tags or of the rooms.
type scope uint8

const (
	none  scope = iota // none of them
	named              // those that the request names; all if it names none
	all                // all of them
)

// Call is a call that a policy may allow.
type Call struct {
	// Method is gRPC's full name, such as /march.v1.IDService/Next.
	Method string
	// Roles are the least built-in roles that have the call. Every role that has the rights
	// of one of them has it, too. Empty for a call that needs no identity.
	Roles []string

	tags, rooms scope
	index       int
}

// Name returns the call's name as a policy has it, such as IDService/Next.
func (c *Call) Name() string {
	return strings.TrimPrefix(strings.TrimPrefix(c.Method, "/"), "march.v1.")
}

// Open reports whether the call needs no identity.
func (c *Call) Open() bool { return len(c.Roles) == 0 }

// Needs describes what a grant must cover, for messages and documents.
func (c *Call) Needs() (roles, tags, rooms string) {
	what := func(s scope, one, of string) string {
		switch s {
		case named:
			return one
		case all:
			return "all " + of
		}
		return "-"
	}
	return strings.Join(c.Roles, " or "), what(c.tags, "the tag", "tags"),
		what(c.rooms, "the rooms that it names", "rooms")
}

// Metrics stands for the HTTP path /metrics, which is no call.
const Metrics = "/http/metrics"

const (
	ids     = "/march.v1.IDService/"
	rooms   = "/march.v1.RoomService/"
	console = "/march.v1.ConsoleService/"
)

func of(prefix string, tags, rooms scope, roles []string, names ...string) []Call {
	calls := make([]Call, len(names))
	for k, name := range names {
		calls[k] = Call{Method: prefix + name, Roles: roles, tags: tags, rooms: rooms}
	}
	return calls
}

var (
	issuer   = []string{Issuer}
	either   = []string{Issuer, Viewer}
	viewer   = []string{Viewer}
	operator = []string{Operator}
	admin    = []string{Admin}
)

// table is the one table of calls and what each needs.
var table = slices.Concat(
	of(ids, named, none, issuer, "Next", "NextBatch", "NextMany", "Stream", "Lease"),
	of(ids, named, none, either, "ParseText", "Decode"),

	of(rooms, none, none, viewer, "GetInstance"),
	of(rooms, named, none, viewer, "GetChain"),
	of(rooms, all, none, viewer, "ListChains", "GetInstanceHistory"),
	of(rooms, named, all, operator, "UpdateTag", "PrescaleTag"),
	of(rooms, named, named, operator, "SkipTag"),
	of(rooms, all, none, admin, "ReportMarks"),

	of(console, all, none, viewer, "GetOverview", "ListTags", "SearchTags", "PlanMigration", "CountPlanCost",
		"ListAudit", "GetRoomUse",
		"GetHistory", "GetCapacity"),
	of(console, none, none, either, "ListInstances"), // clients find their room's instances by it
	of(console, none, none, viewer, "GetLayout", "ListLayouts", "ValidateLayout", "ListRooms", "ListWorkers",
		"GetCluster", "GetMigration", "ListMigrations", "WatchMigration"),
	of(console, named, none, viewer, "GetTag", "Decode"),
	of(console, named, all, operator, "CreateTag", "UpdateTag", "PrescaleTag"),
	of(console, named, named, operator, "SkipTag"),
	of(console, none, named, operator, "ForgetInstance"),
	of(console, none, all, operator, "ApplyMigration", "PauseMigration", "ResumeMigration",
		"AbortMigration", "ContinueMigration"),
	of(console, named, all, admin, "DeleteTag"),
	of(console, none, all, admin, "InitLayout", "UpdateCluster", "UpgradeCluster"),
	of(console, all, none, admin, "ReportMirror"),
	of(console, none, named, admin, "ConfirmInstance"),

	of("/march.v1.DiagnoseService/", none, none, operator, "Diagnose"),

	of("/grpc.health.v1.Health/", none, none, nil, "Check", "List", "Watch"),
	of("/grpc.reflection.v1.ServerReflection/", none, none, viewer, "ServerReflectionInfo"),
	of("/grpc.reflection.v1alpha.ServerReflection/", none, none, viewer, "ServerReflectionInfo"),
	of("/http/", none, none, viewer, "metrics"),
)

// byMethod has the calls of the table by their full names.
var byMethod = func() map[string]*Call {
	m := make(map[string]*Call, len(table))
	for k := range table {
		c := &table[k]
		c.index = k
		m[c.Method] = c
	}
	return m
}()

// Calls returns all calls, in the order of the documentation.
func Calls() []*Call {
	list := make([]*Call, len(table))
	for k := range table {
		list[k] = &table[k]
	}
	return list
}

// CallOf returns the call with a full name; nil if there is none, which no caller may make.
func CallOf(method string) *Call { return byMethod[method] }

// callsLike returns the calls whose names match a pattern. A pattern without a service matches
// the calls of all services.
func callsLike(like string) []*Call {
	p := compile(like)
	var found []*Call
	for _, c := range Calls() {
		name := c.Name()
		_, short, _ := strings.Cut(name, "/")
		if p.match(name) || p.match(short) {
			found = append(found, c)
		}
	}
	return found
}

// has reports whether a built-in role has a call.
func has(role string, c *Call) bool {
	switch {
	case role == Admin, c.Open(), slices.Contains(c.Roles, role):
		return true
	case role == Operator:
		return slices.Contains(c.Roles, Viewer)
	}
	return false
}
