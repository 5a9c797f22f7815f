package ledger

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
)

// ask asks every instance that it can learn of, from the registrations, from
// journals, and from those that answer.
func (r *recovery) ask(ctx context.Context) ([]Memory, error) {
	if r.cfg.Apply && r.cfg.Wait > 0 {
		r.progress("waiting for instances to register again", 0, 0)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(r.cfg.Wait):
		}
	}
	answer, err := r.gets(ctx, getPrefix(r.l.keys.registrations("")))
	if err != nil {
		return nil, err
	}
	pending, err := r.l.parseRegistrations(answer.Got[0], "")
	if err != nil {
		return nil, err
	}
	var memories []Memory
	had := make(map[string]bool) // incarnations whose memory we have
	known := make(map[string]SeenInstance)
	why := make(map[string]string)
	take := func(m Memory) {
		memories = append(memories, m)
		for _, incarnation := range m.Incarnations {
			had[incarnation] = true
		}
		pending = append(pending, m.Seen...)
	}
	for _, m := range r.cfg.Memories {
		if m.UUID != r.report.UUID {
			return nil, allocator.Errorf(allocator.Invalid, "the journal of %s is of cluster %s; this is cluster %s", m.ID(), m.UUID, r.report.UUID)
		}
		take(m)
	}
	asked := make(map[string]bool) // addresses
	for len(pending) > 0 {
		s := pending[0]
		pending = pending[1:]
		known[s.Incarnation] = s
		// Also who is known by a journal: the process may live, and must be barred.
		if asked[s.Address] || s.Address == "" {
			continue
		}
		asked[s.Address] = true
		r.progress("asking "+string(s.ID())+" at "+s.Address, 0, 0)
		// Who is asked leases nothing in the epoch that it knows: were that the one
		// which another recover began just now, it would for ever.
		if _, err := r.gets(ctx, get(r.l.keys.epoch())); err != nil {
			return nil, err
		}
		m, err := r.cfg.Ask(ctx, s, r.cfg.Apply)
		switch {
		case err != nil:
			why[s.Address] = err.Error()
		case m.UUID != r.report.UUID:
			why[s.Address] = "an instance of another cluster answers there"
		default:
			r.report.Answered = append(r.report.Answered, m.ID())
			take(m)
		}
	}
	ids := make(map[InstanceID]bool)
	for incarnation, s := range known {
		ids[s.ID()] = true
		if had[incarnation] {
			continue
		}
		m := MissingInstance{ID: s.ID(), Incarnation: incarnation, Why: why[s.Address], Left: slices.Contains(r.cfg.Without, s.ID())}
		if m.Why == "" {
			m.Why = "who answers there does not have this process's memory"
		}
		r.report.Missing = append(r.report.Missing, m)
	}
	for _, m := range memories {
		ids[m.ID()] = true
	}
	r.present = max(len(ids), 1)
	slices.SortFunc(r.report.Missing, func(a, b MissingInstance) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	slices.Sort(r.report.Answered)
	r.report.Answered = slices.Compact(r.report.Answered)
	return memories, nil
}
