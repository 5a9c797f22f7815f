package serve

import (
	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/observe"
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
	// CallerStreams bounds those of one caller, over all its gRPC connections.
	// Default 10,000.
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

// Validate checks that each limit is from 1 to 10,000,000. Its error is Invalid.
func (l Limits) Validate() error {
	for _, field := range []struct {
		name  string
		value int
	}{
		{maxConnections, l.Connections},
		{maxCallerConnections, l.CallerConnections},
		{maxConnectionStreams, l.ConnectionStreams},
		{maxCallerStreams, l.CallerStreams},
		{maxOpenStreams, l.OpenStreams},
		{maxResets, l.Resets},
	} {
		if err := CheckLimit(field.name, field.value); err != nil {
			return err
		}
	}
	return nil
}

// CheckLimit checks that the limit of a name is from 1 to 10,000,000. Its error
// is Invalid.
func CheckLimit(name string, value int) error {
	if value < 1 || value > maxLimit {
		return allocator.Errorf(allocator.Invalid, "max-%s: %d; allowed: 1 to %d", name, value, maxLimit)
	}
	return nil
}

// The names of the limits, as flags and metrics have them.
const (
	maxConnections       = "connections"
	maxCallerConnections = "caller-connections"
	maxConnectionStreams = "connection-streams"
	maxCallerStreams     = "caller-streams"
	maxOpenStreams       = "caller-open-streams"
	maxResets            = "resets"
)

// limits are Limits with the metrics of each.
type limits struct {
	connections, callerConnections, connectionStreams, callerStreams, openStreams, resets *observe.Limit
}

func newLimits(l Limits, m *observe.Metrics) limits {
	return limits{
		connections:       m.Limit(maxConnections, int64(l.Connections)),
		callerConnections: m.Limit(maxCallerConnections, int64(l.CallerConnections)),
		connectionStreams: m.Limit(maxConnectionStreams, int64(l.ConnectionStreams)),
		callerStreams:     m.Limit(maxCallerStreams, int64(l.CallerStreams)),
		openStreams:       m.Limit(maxOpenStreams, int64(l.OpenStreams)),
		resets:            m.Limit(maxResets, int64(l.Resets)),
	}
}
