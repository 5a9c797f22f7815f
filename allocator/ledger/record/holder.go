package record

import (
	"cmp"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// StrictOrder says over what the calls for IDs of a tag are ordered: a call that begins after another one was
// answered gets a larger ID. Empty is no order.
type StrictOrder string

// The orders: over the calls of each room, and over those of all rooms.
const (
	OrderRoom    StrictOrder = "room"
	OrderCluster StrictOrder = "cluster"
)

// DefaultTenureHold is the tenure_hold of an ordered tag for which none was chosen.
const DefaultTenureHold Duration = "3s"

// Holder is the stored value of the key of an ordered tag, in a room or for all rooms: the tenure that has the tag, or
// had it last. The key is never deleted, not with its tag. See section 3.6 of the design.
type Holder struct {
	Room        allocator.Room     `json:"room,omitempty"` // of the instance, where the key is that of all rooms
	Instance    allocator.Instance `json:"instance"`
	Incarnation string             `json:"incarnation"`
	Address     string             `json:"address"` // where the instance serves gRPC
	Epoch       string             `json:"epoch"`   // in which it was taken
	Nonce       string             `json:"nonce"`   // with the epoch, the name of the tenure
	Taken       time.Time          `json:"taken"`   // by the holder's clock; no promise rests on it
	Hold        Duration           `json:"hold"`    // the tag's tenure_hold, as the holder knows it
	// Before is the tenure_hold of an earlier life of the name, if that is longer, and a tenure of it may issue while
	// this one waits.
	Before    Duration `json:"before,omitempty"`
	TookYoung bool     `json:"took_young,omitempty"` // it was taken from a young tenure of another process
	Released  bool     `json:"released,omitempty"`
	// Rest, in a released key, is the stretch of IDs that the tenure leased last and did not issue, up to the mark's
	// next; nil for none.
	Rest *Era `json:"rest,omitempty"`

	KV store.KV `json:"-"`
}

// Validate checks the names. Its error is Internal.
func (h *Holder) Validate() error {
	if _, err := allocator.ParseInstance(string(h.Instance)); err != nil {
		return err
	}
	if h.Incarnation == "" || h.Epoch == "" || h.Nonce == "" || h.Rest != nil && !h.Released {
		return allocator.Errorf(allocator.Internal, "incarnation %q, epoch %q, nonce %q, released %v, a rest: %v",
			h.Incarnation, h.Epoch, h.Nonce, h.Released, h.Rest != nil)
	}
	for _, d := range []Duration{h.Hold, cmp.Or(h.Before, h.Hold)} {
		if hold := d.Duration(); d.validate() != nil || hold < leastTenureHold || hold > longestTenureHold {
			return allocator.Errorf(allocator.Internal, "hold %q", d)
		}
	}
	return nil
}

// HeldIn reports whether the tenure may issue in an epoch: it was not released.
func (h *Holder) HeldIn(epoch string) bool { return h.Nonce != "" && !h.Released && h.Epoch == epoch }

// ReleasedIn reports whether the last tenure was released in an epoch: it issues nothing any more.
func (h *Holder) ReleasedIn(epoch string) bool {
	return h.Released && h.Epoch == epoch
}
