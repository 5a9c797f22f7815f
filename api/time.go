package api

import (
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// OrderPrefix is the prefix that an order's word has in commands but not in the messages'
// enum.
const OrderPrefix = "worker-"

// TimeTagToProto returns the settings of a tag of time-ordered IDs as a message, with
// defaults spelled out. The worker and the window are not settings.
func TimeTagToProto(c timeid.Config) *marchv1.TimeTag {
	sequence, l := c.Sequence, c.Layout
	c = c.WithDefaults()
	p := &marchv1.TimeTag{
		TimeBits: int32(l.TimeBits), WorkerBits: int32(l.WorkerBits), SequenceBits: int32(l.SequenceBits),
		Unit: durationpb.New(l.Unit), EpochMs: &l.Epoch,
		Order:    FromWord[marchv1.WorkerOrder](strings.TrimPrefix(l.Order.String(), OrderPrefix)),
		Sequence: FromWord[marchv1.SequencePolicy](sequence.String()),
		Rollback: FromWord[marchv1.RollbackPolicy](c.Rollback.String()),
		MaxWait:  durationpb.New(c.MaxWait),
	}
	switch sequence {
	case timeid.Carry:
		p.CarryTo = c.CarryTo
	case timeid.Random:
		p.RandomBelow = c.RandomBelow
	}
	return p
}

// TimeTagFromProto returns the configuration of a generator of a tag's IDs, without a
// worker and a window. p has every setting, as a server writes it. The error is Invalid.
func TimeTagFromProto(p *marchv1.TimeTag) (c timeid.Config, err error) {
	if err := p.GetUnit().CheckValid(); err != nil {
		return c, allocator.Errorf(allocator.Invalid, "unit: %w", err)
	}
	c.Layout = timeid.Layout{
		TimeBits: int(p.GetTimeBits()), WorkerBits: int(p.GetWorkerBits()), SequenceBits: int(p.GetSequenceBits()),
		Unit: p.GetUnit().AsDuration(), Epoch: p.GetEpochMs(),
	}
	if c.Layout.Order, err = timeid.ParseOrder(OrderPrefix + Word(p.GetOrder())); err != nil {
		return c, NotAllowed("order", p.GetOrder())
	}
	if c.Sequence, err = timeid.ParseSequence(Word(p.GetSequence())); err != nil {
		return c, NotAllowed("sequence", p.GetSequence())
	}
	if c.Rollback, err = timeid.ParseRollback(Word(p.GetRollback())); err != nil {
		return c, NotAllowed("rollback", p.GetRollback())
	}
	c.CarryTo, c.RandomBelow, c.MaxWait = p.GetCarryTo(), p.GetRandomBelow(), p.GetMaxWait().AsDuration()
	return c, c.Layout.Validate()
}

// MaxNonce and MinNonce bound the length of a WindowRequest's nonce.
const (
	MinNonce = 16
	MaxNonce = 64
)
