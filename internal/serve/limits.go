package serve

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
)

// Limits bound how much of a server callers may use at once. A caller is an IPv4
// address, or a /64 of IPv6, which is one machine's.
type Limits struct {
	// Connections bounds the open connections, gRPC and HTTP together. Each costs
	// about 30 KiB. Default 10,000.
	Connections int
	// CallerConnections bounds those of one caller. Default 1,000.
	CallerConnections int
	// ConnectionStreams bounds the calls and streams that are under way on one
	// gRPC connection; clients learn of it and wait. Each stream costs about
	// 15 KiB. Default 1,000.
	ConnectionStreams int
	// CallerStreams bounds those of one caller, over all its gRPC connections, together with its requests over
	// HTTP/2. Default 10,000.
	CallerStreams int
	// OpenStreams bounds the open streams of one caller, which here is a subject where the
	// caller has proven its identity. An eager stream takes as much of a server as it can get. Default 32.
	OpenStreams int
	// Resets bounds how many calls an address may give up over gRPC before the server has their
	// requests, besides as many as it asked. The connection of the last one is closed, and for 1 s
	// calls on new connections of the address are refused. Default 500.
	Resets int
}

// DefaultLimits returns the defaults.
func DefaultLimits() Limits {
	return Limits{
		Connections: 10_000, CallerConnections: 1_000, ConnectionStreams: 1_000, CallerStreams: 10_000,
		OpenStreams: 32, Resets: 500,
	}
}

// maxLimit bounds every limit.
const maxLimit = 10_000_000

// named are the limits with their names, as flags and metrics have them.
func (l Limits) named() []namedLimit {
	return []namedLimit{{"connections", l.Connections}, {"caller-connections", l.CallerConnections},
		{"connection-streams", l.ConnectionStreams}, {"caller-streams", l.CallerStreams},
		{"caller-open-streams", l.OpenStreams}, {"resets", l.Resets}}
}

type namedLimit struct {
	name string
	most int
}

// Validate checks that each limit is from 1 to 10,000,000. Its error is Invalid.
func (l Limits) Validate() (err error) {
	for _, n := range l.named() {
		err = cmp.Or(err, CheckLimit(n.name, n.most))
	}
	return err
}

// CheckLimit checks that the limit of a name is from 1 to 10,000,000. Its error
// is Invalid.
func CheckLimit(name string, value int) error {
	if value < 1 || value > maxLimit {
		return allocator.Errorf(allocator.Invalid, "max-%s: %d; allowed: 1 to %d", name, value, maxLimit)
	}
	return nil
}

// limits are Limits with the metrics of each.
type limits struct {
	connections, callerConnections, connectionStreams, callerStreams, openStreams, resets *Limit
}

func newLimits(of Limits, m *Metrics) (l limits) {
	to := []**Limit{&l.connections, &l.callerConnections, &l.connectionStreams, &l.callerStreams, &l.openStreams,
		&l.resets}
	for i, n := range of.named() {
		*to[i] = m.Limit(n.name, int64(n.most))
	}
	return l
}

// Limit is a limit on how much of a server callers may use. All limits of the
// program use this type, so each has a metric and an error of the same form.
type Limit struct {
	name    string // the flag's name without --max-
	most    int64
	refused prometheus.Counter // nil without metrics
}

// Limit returns a limit, and adds metrics of it and of its refusals. m may be nil.
func (m *Metrics) Limit(name string, most int64) *Limit {
	l := &Limit{name: name, most: most}
	if m != nil {
		m.limits.WithLabelValues(name).Set(float64(most))
		l.refused = m.refused.WithLabelValues(name)
	}
	return l
}

// Most returns the bound.
func (l *Limit) Most() int64 { return l.most }

// Count counts a refusal.
func (l *Limit) Count() {
	if l.refused != nil {
		l.refused.Inc()
	}
}

// Refuse counts a refusal and returns the caller's error, which is TooMany. what
// names the objects that are too many.
func (l *Limit) Refuse(what string) error {
	l.Count()
	return allocator.OverLimit(what, l.most, l.name)
}
