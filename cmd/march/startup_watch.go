package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/throttle"
)

// watched has a server's metrics and traces; the zero value has none.
type watched struct {
	Metrics *observe.Metrics
	Tracer  trace.TracerProvider
}

type watchFlags struct {
	traces string
	ratio  float64
}

func (f *watchFlags) options() []option {
	return []option{
		{"traces", &f.traces, "where to send traces, as OTLP over gRPC: http://HOST:PORT, or https for TLS; empty " +
			"for none"},
		{"traces-ratio", usually(&f.ratio, 1), "the share of calls to trace, 0 to 1; a caller's own decision to " +
			"trace wins"},
	}
}

// Start returns a server's metrics and traces, and a function that sends the last
// traces.
func (f *watchFlags) Start(ctx context.Context, build, service, instance string, labels prometheus.Labels,
	log hclog.Logger) (w watched, stop func(), err error) {
	stop = func() {}
	if f.traces != "" {
		if err := checkReceiver(f.traces); err != nil {
			return w, stop, err
		}
	}
	if !(f.ratio >= 0 && f.ratio <= 1) { // nor NaN
		return w, stop, allocator.Errorf(allocator.Invalid, "traces-ratio: %v; allowed: 0 to 1", f.ratio)
	}
	w.Metrics = observe.New(build, labels)
	if f.traces == "" {
		return w, stop, nil
	}
	// OpenTelemetry has one global handler for errors in the background.
	var line throttle.Log
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		line.Log(time.Now(), log.Warn, "traces not sent: check --traces and its collector", "error", err)
	}))
	tracer, err := observe.NewTraces(ctx, observe.TracesConfig{URL: f.traces, Ratio: f.ratio, Service: service,
		Instance: instance, Build: build})
	if err != nil {
		return w, stop, fmt.Errorf("traces: %w", err)
	}
	w.Tracer = tracer
	return w, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if err := tracer.Shutdown(last); err != nil {
			log.Warn("the last traces were not sent", "error", err)
		}
	}, nil
}

// checkReceiver checks the URL of an OTLP receiver.
func checkReceiver(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		// err would contain a password
		return allocator.Errorf(allocator.Invalid, "traces: not a URL; allowed: http://HOST:PORT or https://HOST:PORT")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.Port() == "", u.Path != "", u.RawQuery != "",
		u.Fragment != "", u.User != nil:
		return allocator.Errorf(allocator.Invalid,
			"traces: %q; allowed: http://HOST:PORT or https://HOST:PORT", u.Redacted())
	}
	return nil
}
