package rules

import (
	"math/big"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// worker checks a window. Only the owner lowers its end: a window of another process, or
// one that begins elsewhere, begins at the latest end of all rooms' keys of the number, or later.
// While leasing is halted only a recover writes windows: it raises them, and frees numbers.
func (t *transaction) worker(w Write) {
	now, own, was, last := *w.Entry.Lease, record.Lease{}, record.Lease{}, record.Lease{}
	say := func(rule, format string, args ...any) {
		t.breaks(rule, "worker %v room %s: "+format, append([]any{now.WorkerID, now.Room}, args...)...)
	}
	keys := []string{w.Key}
	if w.Kind == record.Windows {
		keys = append(ofNumber(t, w), strings.Replace(w.Key, "/windows/"+string(w.Room)+"/", "/workers/", 1))
	}
	for k, key := range keys {
		kv, there := t.Get(key)
		if !there {
			continue
		}
		e, err := t.keys.Entry(kv)
		if err != nil {
			say("window", "it is written over what is no worker: %v", err)
			continue
		}
		// The key of before may have the window that goes on, under a layout that turned the formats on.
		same := e.Lease.Incarnation == now.Incarnation && e.Lease.From == now.From
		if k == 0 {
			own = *e.Lease
		}
		if k == 0 || same && was.Until == 0 {
			was = *e.Lease
		} else if !same && e.Lease.Until > last.Until {
			last = *e.Lease
		}
	}
	epoch, in := t.Epoch(), t.Layout()
	if epoch.Halted != nil {
		freed := own
		freed.FreeOf = now.FreeOf
		if now != freed && now.Until <= own.Until {
			say("window while halted", "up to %d, and it was up to %d: it is not raised", now.Until, own.Until)
		}
		return
	}
	if in.Upgraded() != (w.Kind == record.Windows) {
		say("window key", "%s is written under formats %d", w.Kind, in.Formats)
	}
	goesOn := now.Incarnation == was.Incarnation && now.From == was.From
	lower, upper := slice(in.Layout, now.Room, now.Bits)
	switch {
	case goesOn && now.Until < was.Until && now.Stamp == was.Stamp:
		// The window is given back. The room's slice may not have the worker any longer.
	case now.Stamp.Epoch != epoch.Epoch || now.Stamp.Revision != in.Revision:
		say("window stamp", "epoch %s and layout revision %d, but %s and %d are in force",
			now.Stamp.Epoch, now.Stamp.Revision, epoch.Epoch, in.Revision)
	case !goesOn && now.From < was.Until:
		say("window overlap", "it begins at %d, where the window before ends at %d", now.From, was.Until)
	case now.From < last.Until && was.Stamp != now.Stamp:
		say("window overlap", "it begins at %d, where room %s's window ends at %d", now.From, last.Room, last.Until)
	case !goesOn && now.From < epoch.NotBefore && !was.Free(epoch.Epoch, epoch.NotBefore):
		say("window not before", "it begins at %d, and windows of the epoch begin at %d", now.From, epoch.NotBefore)
	case now.Number < lower || now.Number >= upper:
		say("window slice", "the room has [%d, %d)", lower, upper)
	case now.FreeOf != 0 && now.FreeOf != epoch.NotBefore:
		say("window free", "of %d, and the epoch's windows begin at %d", now.FreeOf, epoch.NotBefore)
	case now.Until < now.From:
		say("window", "it begins at %d and ends at %d", now.From, now.Until)
	}
	if !t.Registered(now.Room) {
		say("registration", "no instance of the room is registered")
	}
}

// slice returns the workers of a width that a room has: from lower, below upper. It uses
// numbers of any size, and not the code of package timeid.
func slice(layout allocator.Layout, room allocator.Room, bits int) (lower, upper int64) {
	image := func(residue int64) int64 {
		n := new(big.Int).Lsh(big.NewInt(residue), uint(bits))
		n.Add(n, big.NewInt(layout.Boundary-1))
		return n.Div(n, big.NewInt(max(layout.Boundary, 1))).Int64()
	}
	r := layout.Ranges[room]
	return image(r.Lower), image(r.Upper)
}
