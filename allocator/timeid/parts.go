package timeid

import (
	"cmp"
	"math/bits"

	"github.com/march-id/march/allocator"
)

// Parts are the parts of an ID.
type Parts struct {
	Time     int64 // Unix ms; in a decomposed ID the start of its tick
	Worker   int64 // from 0, below 2^WorkerBits
	Sequence int64 // from 0, below 2^SequenceBits
}

// Check checks that the parts fit the layout. Its error is Invalid and names the
// field: a time before the epoch or after the time bits' end, a worker or a
// sequence out of its width. The layout must be valid.
func (l Layout) Check(p Parts) error {
	switch {
	case p.Time < l.Epoch || p.Time >= l.End():
		return allocator.Errorf(allocator.Invalid,
			"time: %s; allowed: from the epoch %s until the %d time bits are used up, %s",
			date(p.Time), date(l.Epoch), l.TimeBits, date(l.End()))
	case p.Worker < 0 || p.Worker >= l.Workers():
		return allocator.Errorf(allocator.Invalid, "worker: %d; allowed: 0 to %d (%d bits)", p.Worker,
			l.Workers()-1, l.WorkerBits)
	case p.Sequence < 0 || p.Sequence >= l.PerTick():
		return allocator.Errorf(allocator.Invalid, "sequence: %d; allowed: 0 to %d (%d bits)", p.Sequence,
			l.PerTick()-1, l.SequenceBits)
	}
	return nil
}

// Compose returns the ID of parts by the formula at Layout. A time within a tick counts as the
// tick's start. Its errors are those of Check, and Invalid for Wide.
func (l Layout) Compose(p Parts) (int64, error) {
	if err := cmp.Or(l.checkNumber(), l.Check(p)); err != nil {
		return 0, err
	}
	low := p.Worker<<l.SequenceBits | p.Sequence
	if l.Order == WorkerLast {
		low = p.Sequence<<l.WorkerBits | p.Worker
	}
	return (p.Time-l.Epoch)/l.unit()<<(l.WorkerBits+l.SequenceBits) | low, nil
}

// Decompose returns the parts of an ID. It needs no server, so routers can call it for each
// request. Its error is Invalid and names the id if that is negative, or has bits above the
// layout's. Any other number has parts. DecomposeBefore is better at telling whether an ID of
// another system has sensible ones. The layout must be valid.
func (l Layout) Decompose(id int64) (Parts, error) {
	if err := l.checkNumber(); err != nil {
		return Parts{}, err
	}
	if id < 0 {
		return Parts{}, allocator.Errorf(allocator.Invalid, "id: %d is negative; allowed: 0 to %d", id, l.Largest())
	}
	if id > l.Largest() {
		return Parts{}, allocator.Errorf(allocator.Invalid, "id: %d has %d bits; allowed: 0 to %d, %d bits (%s)",
			id, bits.Len64(uint64(id)), l.Largest(), l.bits(), l.BitsString())
	}
	p := Parts{Time: l.Epoch + id>>(l.WorkerBits+l.SequenceBits)*l.unit()}
	if l.Order == WorkerLast {
		p.Worker, p.Sequence = id&(l.Workers()-1), id>>l.WorkerBits&(l.PerTick()-1)
	} else {
		p.Worker, p.Sequence = id>>l.SequenceBits&(l.Workers()-1), id&(l.PerTick()-1)
	}
	return p, nil
}

// DecomposeBefore is Decompose for an ID that exists already. latest is the present, in Unix
// ms, plus the most by which clocks may differ. It also refuses, by name, an epoch or a time
// after latest.
func (l Layout) DecomposeBefore(id, latest int64) (Parts, error) {
	if l.Epoch > latest {
		return Parts{}, allocator.Errorf(allocator.Invalid, "epoch: %s is in the future; allowed: up to %s",
			date(l.Epoch), date(latest))
	}
	p, err := l.Decompose(id)
	if err != nil {
		return Parts{}, err
	}
	return p, p.CheckBefore(latest)
}

// CheckBefore refuses parts with a time after latest, in Unix ms. Its error is Invalid.
func (p Parts) CheckBefore(latest int64) error {
	if p.Time > latest {
		return allocator.Errorf(allocator.Invalid,
			"time: %s of the ID is in the future; allowed: up to %s: the ID has other bits, unit or epoch",
			date(p.Time), date(latest))
	}
	return nil
}
