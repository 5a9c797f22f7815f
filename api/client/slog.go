package client

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// slogSink writes what a logger of hclog gets to a logger of slog.
type slogSink struct{ to *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s slogSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	to := map[hclog.Level]slog.Level{hclog.Trace: slog.LevelDebug, hclog.Debug: slog.LevelDebug,
		hclog.Info: slog.LevelInfo, hclog.Warn: slog.LevelWarn, hclog.Error: slog.LevelError}[level]
	s.to.Log(context.Background(), to, msg, args...)
}

// ofSlog returns a logger of hclog that writes to a logger of slog.
func ofSlog(to *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Off, Output: io.Discard})
	l.RegisterSink(slogSink{to})
	return l
}
