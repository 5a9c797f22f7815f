package record

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Formats is the newest generation of stored formats that this build knows. A generation is
// written only under a layout that has it turned on: `march cluster upgrade` does that, once
// every registered build knows it. Generation 1 is all formats up to the version that first
// registered what it knows.
const Formats = 2

// Layout is the stored value of a layout.
type Layout struct {
	allocator.Layout
	Ever  []allocator.Room `json:"ever"`  // all rooms that ever had a range, sorted; their marks count for floors
	Time  time.Time        `json:"time"`  // by the clock of the process that stored it
	Actor string           `json:"actor"` // the caller that stored it
	Nonce string           `json:"nonce"` // new in each write
	// Formats is the generation of stored formats that is turned on; absent means 1. It never
	// falls. Every lease compares the layout, so all writers of new formats agree on it.
	Formats int `json:"formats,omitempty"`

	// NarrowestRange and LargestBoundary are over all layouts so far, this one
	// included: see Reach.
	NarrowestRange  int64 `json:"narrowest_range,string"`
	LargestBoundary int64 `json:"largest_boundary,string"`

	Revision int64 `json:"-"` // of the key `layout`; 0 in a record from the history
}

// Upgraded reports whether the formats of generation 2 are turned on.
func (r Layout) Upgraded() bool { return r.Formats >= 2 }

// format is raised with each generation, so that a build which does not know the generation
// refuses the layout, and leases nothing under it.
func (r *Layout) format() int { return baseFormat + max(r.Formats, 1) - 1 }

// Encode returns the value under which the layout is stored, with a nonce.
func (r Layout) Encode(nonce string) []byte {
	r.Nonce = nonce
	return Encode(&r)
}

// After returns r with what only grows from layout to layout, given before, which has it of all
// layouts up to then: the extremes and the formats.
func (r Layout) After(before Layout) Layout {
	r.Formats = max(r.Formats, before.Formats)
	r.LargestBoundary = max(r.LargestBoundary, before.LargestBoundary, r.Layout.Boundary)
	narrower := func(width int64) {
		if width > 0 && (r.NarrowestRange == 0 || width < r.NarrowestRange) {
			r.NarrowestRange = width
		}
	}
	narrower(before.NarrowestRange)
	for _, rng := range r.Layout.Ranges {
		narrower(rng.Width())
	}
	return r
}

// Next returns the record of the layout that follows r, without its actor and time.
func (r Layout) Next(to allocator.Layout) Layout {
	to.Version = r.Layout.Version + 1
	return Layout{Layout: to, Ever: Union(r.Ever, to.Rooms())}.After(r)
}

// AtLeast reports whether r's extremes and formats are at least those of itself and of an
// earlier layout.
func (r Layout) AtLeast(before Layout) bool {
	of := r.After(before)
	return r.NarrowestRange > 0 && of.NarrowestRange == r.NarrowestRange && of.LargestBoundary == r.LargestBoundary &&
		of.Formats == r.Formats
}

// DecodeLayout reads a layout. Its error is a KeyError.
func DecodeLayout(kv store.KV) (Layout, error) { return decode[Layout](kv) }

// Validate makes every check that a layout allows by itself. Its errors are Invalid and
// Internal.
func (r *Layout) Validate() error {
	if err := r.Layout.Validate(); err != nil {
		return err
	}
	for i, room := range r.Ever { // rooms become parts of keys
		if _, err := allocator.ParseRoom(string(room)); err != nil || i > 0 && r.Ever[i-1] >= room {
			return allocator.Errorf(allocator.Internal, "rooms that ever were: %q; allowed: names in order", r.Ever)
		}
	}
	if r.Formats < 0 || r.Formats == 1 {
		return allocator.Errorf(allocator.Internal, "formats: %d; allowed: none for 1, or 2 to %d", r.Formats, Formats)
	}
	if r.Formats > Formats {
		return allocator.Errorf(allocator.Internal, "formats %d are turned on, and this program knows those up to %d: "+
			"use the version of the program that wrote it", r.Formats, Formats)
	}
	if !r.AtLeast(*r) {
		return allocator.Errorf(allocator.Internal,
			"narrowest range %d and largest boundary %d do not cover this layout", r.NarrowestRange, r.LargestBoundary)
	}
	if r.Version < 1 || len(r.Ever) > allocator.MaxRooms || !ContainsAll(r.Ever, r.Rooms()) {
		return allocator.Errorf(allocator.Internal, "version %d with rooms %v and rooms that ever were %v",
			r.Version, r.Rooms(), r.Ever)
	}
	return nil
}

// RandomHex returns 128 random bits, for nonces, incarnations and epochs.
func RandomHex() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// Recorded returns a time with the precision of records.
func Recorded(at time.Time) time.Time { return at.UTC().Truncate(time.Millisecond) }

// Union returns the rooms of a and b, sorted.
func Union(a, b []allocator.Room) []allocator.Room {
	if ContainsAll(a, b) {
		return a
	}
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	return slices.Compact(all)
}

// ContainsAll reports whether all, which is sorted, has every room of some.
func ContainsAll(all, some []allocator.Room) bool {
	for _, room := range some {
		if _, ok := slices.BinarySearch(all, room); !ok {
			return false
		}
	}
	return true
}
