package ledger

import (
	"time"

	"github.com/march-id/march/allocator"
)

// tell logs what became of a segment that was asked for, before anybody has it:
// by these lines one can hold what instances issue against what etcd says was
// leased, and see which transactions failed and had been done all the same.
//
//	segment leased  it is ours; revision is the mark's
//	segment lost    it is not, and the transaction may have been done
//	lease refused   it is not; the transaction was not done, unless it was sent twice
func (s *tagSource) tell(state *state, seg allocator.Segment, took time.Duration, done bool, err error) {
	log := s.instance.ledger.log
	if !log.IsDebug() {
		return
	}
	log = log.With("room", s.instance.room, "instance", s.instance.name, "tag", s.name, "epoch", state.epoch,
		"version", seg.Version, "boundary", seg.Boundary, "lower", seg.Range.Lower, "upper", seg.Range.Upper, "first", seg.First, "count", seg.Count, "took_us", took.Microseconds())
	switch {
	case done:
		log.Debug("segment leased", "revision", s.revision)
	case err != nil:
		log.Debug("segment lost", "error", err)
	default:
		log.Debug("lease refused")
	}
}
