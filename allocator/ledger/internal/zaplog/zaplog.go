// Package zaplog sends etcd's zap log to hclog. It is the only place where another
// library's logger becomes ours.
package zaplog

import (
	"slices"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// New returns a zap logger that writes to log what is at least at level, and at no higher level than
// most. A fatal entry is logged as an error and panics in its goroutine instead of
// ending the process unseen.
func New(log hclog.Logger, level, most hclog.Level) *zap.Logger {
	return zap.New(&core{log: log, level: level, most: most}, zap.WithFatalHook(zapcore.WriteThenPanic))
}

// core is a zapcore.Core that writes to log what is at least at level, at most's level at the highest.
type core struct {
	log         hclog.Logger
	level, most hclog.Level
	fields      []zapcore.Field
}

var levels = map[zapcore.Level]hclog.Level{
	zapcore.DebugLevel: hclog.Debug, zapcore.InfoLevel: hclog.Info, zapcore.WarnLevel: hclog.Warn,
}

func hclogLevel(l zapcore.Level) hclog.Level {
	if level, ok := levels[l]; ok {
		return level
	}
	return hclog.Error
}

// Enabled implements zapcore.LevelEnabler.
func (c *core) Enabled(l zapcore.Level) bool { return hclogLevel(l) >= c.level }

// With implements zapcore.Core.
func (c *core) With(fields []zapcore.Field) zapcore.Core {
	with := *c
	with.fields = slices.Concat(c.fields, fields)
	return &with
}

// Check implements zapcore.Core.
func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	args := make([]any, 0, 2*(len(c.fields)+len(fields)))
	for _, list := range [][]zapcore.Field{c.fields, fields} {
		for _, f := range list {
			f.AddTo(enc)
			args = append(args, f.Key, enc.Fields[f.Key])
		}
	}
	c.log.Log(min(hclogLevel(e.Level), c.most), e.Message, args...)
	return nil
}

// Sync implements zapcore.Core.
func (c *core) Sync() error { return nil }
