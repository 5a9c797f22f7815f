package serve

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
)

// Limits bound how much of a server callers may use at once. A caller is an IPv4
// address, or a /64 of IPv6, which is one machine's.
type Limits struct {
	// Each connection costs about 30 KiB.
	Connections int `flag:"max-connections" least:"1" most:"10000000" help:"how many connections may be open, gRPC and HTTP together"`

	CallerConnections int `flag:"max-caller-connections" least:"1" most:"10000000" help:"how many connections one caller (an IP address) may have"`
	// Clients learn of it and wait. Each stream costs about 15 KiB.
	ConnectionStreams int `flag:"max-connection-streams" least:"1" most:"10000000" help:"how many calls and streams may be under way on one gRPC connection"`
	// CallerStreams counts over all gRPC connections of a caller, together with its requests over HTTP/2.
	CallerStreams int `flag:"max-caller-streams" least:"1" most:"10000000" help:"how many calls and streams one caller may have under way over gRPC"`
	// An eager stream takes as much of a server as it can get.
	OpenStreams int `flag:"max-caller-open-streams" least:"1" most:"10000000" help:"how many gRPC streams one caller (a subject, or else an IP address) may have open"`
	// The connection of the last one is closed, and for 1 s calls on new connections of the address are refused.
	Resets int `flag:"max-resets" least:"1" most:"10000000" help:"how many calls an address may give up over gRPC before their requests came, besides as many as it asked"`
}

// DefaultLimits returns the defaults.
func DefaultLimits() Limits {
	return Limits{
		Connections: 10_000, CallerConnections: 1_000, ConnectionStreams: 1_000, CallerStreams: 10_000,
		OpenStreams: 32, Resets: 500,
	}
}

// limits are Limits with the metrics of each.
type limits struct {
	connections, callerConnections, connectionStreams, callerStreams, openStreams, resets *Limit
}

func newLimits(of Limits, m *Metrics) limits {
	limit := func(name string, most int) *Limit { return m.Limit(name, int64(most)) }
	return limits{
		limit("connections", of.Connections), limit("caller-connections", of.CallerConnections),
		limit("connection-streams", of.ConnectionStreams), limit("caller-streams", of.CallerStreams),
		limit("caller-open-streams", of.OpenStreams), limit("resets", of.Resets),
	}
}

// soon is when a caller may try again that has too much open: some of it has ended by then.
const soon = time.Second

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

// Refuse counts a refusal and returns the caller's error, which is TooMany and says after how long the caller may try
// again. what names the objects that are too many.
func (l *Limit) Refuse(what string, after time.Duration) error {
	l.Count()
	return &allocator.WaitError{After: after, Err: allocator.OverLimit(what, l.most, l.name)}
}
