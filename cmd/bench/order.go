package main

import (
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/cmd/internal/load"
)

// orderRows compares Next of a tag with a strict order, at its holder and through another instance of the room, with
// that of a tag without.
func orderRows(p *part) {
	const ordered = "ordered"
	c := p.cluster()
	c.Tag(func(s *record.TagSettings) {
		s.StrictOrder, s.TenureHold = record.OrderRoom, record.DefaultTenureHold
	}, "bench", ordered)
	holder := p.conns(p.room(c, "holder", nil, tag, ordered).Address)
	other := p.conns(p.room(c, "other", nil, tag, ordered).Address)
	at := &row{what: "ordered Next at the holder vs one without order", unit: "/s", goal: 0.95}
	through := &row{what: "ordered Next through another instance vs one without order", unit: "/s", goal: 0.4}
	for range max(p.rounds, 5) { // the first difference is small
		with, without := p.sides(load.Unary(holder, ordered), load.Unary(holder, tag))
		at.measured, at.yards = append(at.measured, with.rate()), append(at.yards, without.rate())
		with, without = p.sides(load.Unary(other, ordered), load.Unary(other, tag))
		through.measured, through.yards = append(through.measured, with.rate()), append(through.yards, without.rate())
	}
	p.add(at, through)
}
