package client

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/tlsfiles"
)

// Options are the settings of a client. Only Addresses or Discover must be set; the zero
// value of every other field is its default.
type Options struct {
	// Addresses are the gRPC addresses, HOST:PORT, of instances of one room: 1 to
	// 16. The client chooses the first at random, so that many clients spread over
	//     a room, and stays with the instance that answers. One address may also
	//     lead to several instances.
	Addresses []string
	// Fallback are addresses of other rooms, in order of preference, 0 to 16. The
	// client asks them if none of Addresses leases any IDs. IDs then have another
	// room's residues. Default none: the client then returns an error.
	Fallback []string
	// Discover finds the room's instances through a console, and follows changes. Addresses
	// may then be empty; they and Options.Fallback are asked until a console has answered.
	// Default nil: only Addresses are asked.
	Discover *Discover
	// WarmTags get their first segment before New returns.
	WarmTags []string
	// Reserve is how long the IDs held should last at the recent peak rate. The
	// client needs no room for that time. Default 30 s.
	Reserve time.Duration
	// MinStep is the least number of IDs that a lease asks for, and the number of a
	// tag's first lease. Default 1,000.
	MinStep int64
	// MaxStep is the most that a lease asks for, and that a tag aims to hold; at
	// most 1,000,000,000, which is the default: 30 s at 33 million IDs/s.
	MaxStep int64
	// Strict checks at each ID, after it was taken, that its segment may still be
	// used. Without Strict a timer drops a segment at its end. A process that was
	// stopped (SIGSTOP, a suspended machine) may then issue IDs past their end for
	// a moment: they are unique, but the room may have given up their residues.
	// Strict costs a reading of the clock for each call. Default false.
	Strict bool
	// OpaqueKeys are the keys of tags whose texts are opaque numbers, by their names. A room
	// writes and reads the texts of a tag whose key is not among them.
	OpaqueKeys []format.Key
	// Timeout is how long one instance may take to answer. Default 2 s.
	Timeout time.Duration
	// Logger gets what the client logs. Default nil: Slog gets it.
	Logger hclog.Logger
	// Slog gets what the client logs, if Logger is nil. Default nil: the client logs nothing.
	Slog *slog.Logger
	// TLS has the CAs of servers and the own certificate, from files that are followed while the
	// client runs (tlsfiles.Open). A server's certificate must name the host that the client
	// calls. Default nil: connections have no TLS.
	TLS *tlsfiles.Files
	// TokenFile is a file with the token that the client gives with each call, over TLS or to
	// this machine. The client reads it again when it changes. Default none.
	TokenFile string
	// Dial are further gRPC options of the connections, such as credentials or a
	// user agent.
	Dial []grpc.DialOption

	clock func() int64 // of time-ordered IDs, in Unix ms; nil is the computer's
}

// Defaults of Options.
const (
	DefaultReserve = 30 * time.Second
	DefaultMinStep = 1000
	DefaultMaxStep = api.MaxLease
	DefaultTimeout = 2 * time.Second
)

// maxAddresses is how many addresses a list may have.
const maxAddresses = 16

// Validate checks o; zero values stand for their defaults. Its errors are Invalid
// and name the field, its value and the allowed values.
func (o Options) Validate() error {
	o = o.withDefaults()
	if o.Discover != nil {
		if err := o.Discover.validate(); err != nil {
			return allocator.Errorf(allocator.Invalid, "discover: %w", err)
		}
	}
	if n := len(o.Addresses); n < 1 && o.Discover == nil || n > maxAddresses {
		return allocator.Errorf(allocator.Invalid, "addresses: %d; allowed: 1 to %d", n, maxAddresses)
	}
	if n := len(o.Fallback); n > maxAddresses {
		return allocator.Errorf(allocator.Invalid, "fallback: %d addresses; allowed: 0 to %d", n, maxAddresses)
	}
	seen := make(map[string]bool)
	for field, addresses := range map[string][]string{"addresses": o.Addresses, "fallback": o.Fallback} {
		for _, address := range addresses {
			if err := api.CheckAddress(field, address); err != nil {
				return err
			}
			if seen[address] {
				return allocator.Errorf(allocator.Invalid, "%s: %q is named twice", field, address)
			}
			seen[address] = true
		}
	}
	for _, tag := range o.WarmTags {
		if _, err := allocator.ParseTag(tag); err != nil {
			return allocator.Errorf(allocator.Invalid, "warm tags: %w", err)
		}
	}
	switch err := o.settings().Validate(); {
	case err != nil:
		return err
	case o.MaxStep > api.MaxLease:
		return allocator.Errorf(allocator.Invalid, "max_step: %d; allowed: min_step (%d) to %d", o.MaxStep,
			o.MinStep, int64(api.MaxLease))
	case o.Timeout < 0:
		return allocator.Errorf(allocator.Invalid,
			"timeout: %v; allowed: above 0s, 0s for %v", o.Timeout, DefaultTimeout)
	}
	return nil
}

func (o Options) withDefaults() Options {
	o.Reserve, o.Timeout = cmp.Or(o.Reserve, DefaultReserve), cmp.Or(o.Timeout, DefaultTimeout)
	o.MinStep, o.MaxStep = cmp.Or(o.MinStep, DefaultMinStep), cmp.Or(o.MaxStep, DefaultMaxStep)
	switch {
	case o.Logger == nil && o.Slog != nil:
		o.Logger = ofSlog(o.Slog)
	case o.Logger == nil:
		o.Logger = hclog.NewNullLogger()
	}
	return o
}

// dialOptions are Dial, after TLS and the token.
func (o Options) dialOptions() []grpc.DialOption {
	return append(api.Credentials{TLS: o.TLS, TokenFile: o.TokenFile}.Options(), o.Dial...)
}

func (o Options) settings() allocator.Settings {
	return allocator.Settings{MinStep: o.MinStep, MaxStep: o.MaxStep, Reserve: o.Reserve}
}

// slogSink writes what a logger of hclog gets to a logger of slog.
type slogSink struct{ to *slog.Logger }

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
