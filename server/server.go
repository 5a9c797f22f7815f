// Package server makes what the settings of rooms and consoles (room.Config, console.Config) take of packages that
// programs of other modules cannot import.
package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/serve"
)

type (
	// Gate checks which caller may make which call.
	Gate = access.Gate
	// GateConfig are the settings of a Gate.
	GateConfig = access.Config
)

// NewGate returns a gate; nil if cfg has no policy, which lets every caller make every call. Its error is Invalid.
func NewGate(cfg GateConfig) (*Gate, error) { return access.New(cfg) }

// Limits bound how much of a server each caller may use.
type Limits = serve.Limits

// Metrics are the metrics of a server.
type Metrics = serve.Metrics

// NewMetrics returns the metrics of a server of a build. Every metric has the labels.
func NewMetrics(build string, labels prometheus.Labels) *Metrics {
	return serve.NewMetrics(build, labels)
}

type (
	// Diagnoser answers operators' questions about a process.
	Diagnoser = problem.Host
	// DiagnoserConfig says what the process is.
	DiagnoserConfig = problem.HostConfig
)

// NewDiagnoser returns a Diagnoser.
func NewDiagnoser(cfg DiagnoserConfig) *Diagnoser { return problem.NewHost(cfg) }
