package client

import (
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/api"
)

// Options say which room a client leases from, and how much. Only Addresses
// must be set; the zero value of every other field is its default.
type Options struct {
	// Addresses are the gRPC addresses, HOST:PORT, of instances of one room: 1 to
	// 16. Which is asked first is chosen at random, so that many clients spread
	// over a room; then the client stays with the one that answers. One address
	// that leads to several instances does as well.
	Addresses []string
	// Fallback are addresses of other rooms, in order of preference, that may be
	// asked while none of Addresses leases anything: 0 to 16. IDs then have
	// another room's residues. Default none: then the client fails rather.
	Fallback []string
	// WarmTags get their first segment before New returns.
	WarmTags []string
	// Reserve is how long the IDs held should last at the recent peak rate: for so
	// long no room is needed. Default 30 s.
	Reserve time.Duration
	// MinStep is the least number of IDs that a lease asks for, and what a tag
	// begins with. Default 1,000.
	MinStep int64
	// MaxStep is the most that a lease asks for, and that a tag aims to hold; at
	// most 1,000,000,000, which is the default: 30 s at 33 million IDs/s.
	MaxStep int64
	// Strict checks at each ID, after it was taken, that its segment may still be
	// used. Without it the end of a segment is kept by a timer, and a process that
	// was stopped (SIGSTOP, a suspended machine) may, for a moment after it goes
	// on, issue IDs past their end: unique ones, whose residues the room may have
	// given up. It costs a reading of the clock for each call. Default false.
	Strict bool
	// OpaqueKeys are the keys of tags whose texts are opaque numbers, by their names. A room
	// writes and reads the texts of a tag whose key is not among them.
	OpaqueKeys []format.Key
	// Timeout is how long one instance may take to answer. Default 2 s.
	Timeout time.Duration
	// Logger; nil logs nothing.
	Logger hclog.Logger
	// Dial are further gRPC options of the connections: credentials, say, or a
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

// Validate checks o; zero values stand for their defaults. Its errors are
// Invalid and name the field, its value and what is allowed.
func (o Options) Validate() error {
	o = o.withDefaults()
	if n := len(o.Addresses); n < 1 || n > maxAddresses {
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
		return allocator.Errorf(allocator.Invalid, "max_step: %d; allowed: min_step (%d) to %d", o.MaxStep, o.MinStep, int64(api.MaxLease))
	case o.Timeout < 0:
		return allocator.Errorf(allocator.Invalid, "timeout: %v; allowed: above 0s, 0s for %v", o.Timeout, DefaultTimeout)
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Reserve == 0 {
		o.Reserve = DefaultReserve
	}
	if o.MinStep == 0 {
		o.MinStep = DefaultMinStep
	}
	if o.MaxStep == 0 {
		o.MaxStep = DefaultMaxStep
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	return o
}

func (o Options) settings() allocator.Settings {
	return allocator.Settings{MinStep: o.MinStep, MaxStep: o.MaxStep, Reserve: o.Reserve}
}
