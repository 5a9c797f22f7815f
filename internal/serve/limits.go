package serve

import (
	"runtime"

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
	// Resets bounds how many calls and streams a gRPC connection may reset within
	// 10 s, unless the server finished as many. A connection beyond it is closed,
	// and its caller may open no other for 10 s. Default 500.
	Resets int
	// StreamAnswers bounds the answers of one stream that wait to be written, because its
	// client reads them slowly or not at all. A stream beyond it takes no request
	// until half of them are written. Each costs about 240 bytes. Default 50.
	StreamAnswers int
	// BusyStreams bounds the streams that are answered at the same moment while more than 16
	// times as many are busy. The requests of the others wait for their turn. Default half
	// of the processors, at least 1, so that some are left for calls.
	BusyStreams int
}

// DefaultLimits returns the defaults.
func DefaultLimits() Limits {
	return Limits{
		Connections: 10_000, CallerConnections: 1_000, ConnectionStreams: 1_000, CallerStreams: 10_000, Resets: 500,
		StreamAnswers: 50, BusyStreams: max(runtime.GOMAXPROCS(0)/2, 1),
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
		{maxResets, l.Resets},
		{maxStreamAnswers, l.StreamAnswers},
		{maxBusyStreams, l.BusyStreams},
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
	maxResets            = "resets"
	maxStreamAnswers     = "stream-answers"
	maxBusyStreams       = "busy-streams"
)

// limits are Limits with the metrics of each.
type limits struct {
	connections, callerConnections, connectionStreams, callerStreams, resets, streamAnswers, busyStreams *observe.Limit
}

func newLimits(l Limits, m *observe.Metrics) limits {
	return limits{
		connections:       m.Limit(maxConnections, int64(l.Connections)),
		callerConnections: m.Limit(maxCallerConnections, int64(l.CallerConnections)),
		connectionStreams: m.Limit(maxConnectionStreams, int64(l.ConnectionStreams)),
		callerStreams:     m.Limit(maxCallerStreams, int64(l.CallerStreams)),
		resets:            m.Limit(maxResets, int64(l.Resets)),
		streamAnswers:     m.Limit(maxStreamAnswers, int64(l.StreamAnswers)),
		busyStreams:       m.Limit(maxBusyStreams, int64(l.BusyStreams)),
	}
}
