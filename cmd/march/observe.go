package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/march/internal/origin"
	"github.com/march-id/march/internal/diagnose"
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/throttle"
)

// watched has a server's metrics and traces; the zero value has none.
type watched struct {
	metrics *observe.Metrics
	tracer  trace.TracerProvider
}

// watchFlags are the flags of traces.
type watchFlags struct {
	traces string
	ratio  float64
}

func (f *watchFlags) add(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.traces, "traces", "", "where to send traces, as OTLP over gRPC: http://HOST:PORT, or https for TLS; empty for none")
	flags.Float64Var(&f.ratio, "traces-ratio", 1, "the share of calls to trace, 0 to 1; a caller's own decision to trace wins")
}

// start returns a server's metrics and traces, and a function that sends the last
// traces.
func (f *watchFlags) start(ctx context.Context, service, instance string, labels prometheus.Labels, log hclog.Logger) (w watched, stop func(), err error) {
	stop = func() {}
	if f.traces != "" {
		if err := checkReceiver(f.traces); err != nil {
			return w, stop, usageError{err}
		}
	}
	if !(f.ratio >= 0 && f.ratio <= 1) { // nor NaN
		return w, stop, usageError{allocator.Errorf(allocator.Invalid, "traces-ratio: %v; allowed: 0 to 1", f.ratio)}
	}
	w.metrics = observe.New(build(), labels)
	if f.traces == "" {
		return w, stop, nil
	}
	// OpenTelemetry has one global handler for errors in the background.
	var line throttle.Log
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		line.Log(time.Now(), log.Warn, "traces not sent: check --traces and its collector", "error", err)
	}))
	tracer, err := observe.NewTraces(ctx, observe.TracesConfig{URL: f.traces, Ratio: f.ratio, Service: service, Instance: instance, Build: build()})
	if err != nil {
		return w, stop, fmt.Errorf("traces: %w", err)
	}
	w.tracer = tracer
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
		return allocator.Errorf(allocator.Invalid, "traces: not a URL; allowed: http://HOST:PORT or https://HOST:PORT") // err would contain a password
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.Port() == "", u.Path != "", u.RawQuery != "", u.Fragment != "", u.User != nil:
		return allocator.Errorf(allocator.Invalid, "traces: %q; allowed: http://HOST:PORT or https://HOST:PORT", u.Redacted())
	}
	return nil
}

// rereadLevel sets the log's level from the settings file again at each SIGHUP. The
// function that it returns ends that.
func (c *common) rereadLevel(cmd *cobra.Command, log hclog.Logger, usual hclog.Level) (stop func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-hangup:
				if err := c.readLevel(cmd, log, usual); err != nil {
					log.Warn("log level not changed", "error", err)
				}
			}
		}
	})
	return func() {
		signal.Stop(hangup)
		close(done)
		work.Wait()
	}
}

func (c *common) readLevel(cmd *cobra.Command, log hclog.Logger, usual hclog.Level) error {
	switch {
	case c.levelFixed:
		return errors.New("it was set by a flag or in the environment, which win over the settings file")
	case c.config == "":
		return errors.New("there is no settings file to read again (--config)")
	}
	file, err := readSettings(cmd.Root(), c.config)
	if err != nil {
		return err
	}
	level := usual
	if s, ok := file["log-level"]; ok {
		if s.list {
			return allocator.Errorf(allocator.Invalid, "%s:%d: log-level: a list; allowed: one value", c.config, s.line)
		}
		if level, err = parseLevel(s.values[0]); err != nil {
			return fmt.Errorf("%s:%d: %w", c.config, s.line, err)
		}
	}
	was := log.GetLevel()
	if was == level {
		return nil
	}
	if level > was { // log it before the level hides it
		log.Info("log level changed", "from", was.String(), "to", level.String())
		log.SetLevel(level)
		return nil
	}
	log.SetLevel(level)
	log.Info("log level changed", "from", was.String(), "to", level.String())
	return nil
}

// parseLevel returns the log level of a name.
func parseLevel(name string) (hclog.Level, error) {
	level := hclog.LevelFromString(name)
	if level == hclog.NoLevel {
		return level, allocator.Errorf(allocator.Invalid, "log-level: %q; allowed: trace, debug, info, warn, error, off", name)
	}
	return level, nil
}

// diagnosing returns what tells operators of a server's process.
func diagnosing(cmd *cobra.Command, l *ledger.Ledger, journal string, w watched) *diagnose.Server {
	cfg := diagnose.Config{Build: build(), Ledger: l, Journal: journal}
	for _, s := range origin.Of(func(visit func(*pflag.Flag)) { visitSettings(cmd, visit) }) {
		cfg.Settings = append(cfg.Settings, &marchv1.Setting{Name: s.Name, Value: s.Value, Origin: s.Origin})
	}
	if w.metrics != nil {
		cfg.Metrics = w.metrics.Gatherer()
	}
	d := diagnose.New(cfg)
	if w.metrics != nil {
		w.metrics.Register(d)
	}
	return d
}
