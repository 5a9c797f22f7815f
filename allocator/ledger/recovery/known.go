package recovery

import (
	"context"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// place returns where s is asked. Without proof of its name an instance is not asked twice at
// one address: whichever process answers there tells its own name.
func (r *processes) place(s record.SeenInstance) string {
	if r.cfg.Named {
		return s.Address + " of " + string(s.ID())
	}
	return s.Address
}

// take adds a memory, except for its marks.
func (r *processes) take(m record.Memory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// This takes the process and the one before it: if the process leased nothing,
	// its whole memory is from that one.
	for _, incarnation := range m.Incarnations {
		r.taken[incarnation] = struct{}{}
	}
	r.rooms = record.Union(record.Union(r.rooms, m.Rooms), []allocator.Room{m.Room})
	if m.Version > r.version {
		r.version, r.latest = m.Version, m.Latest
	}
	r.total = max(r.total, m.MarginTotal)
	r.takeWorkers(m.Workers, m.NotBefore)
	r.extremes = r.extremes.After(record.Layout{Layout: m.Layout, NarrowestRange: m.NarrowestRange,
		LargestBoundary: m.LargestBoundary, Formats: m.Formats})
	if m.Layout.Version > r.newest.Version {
		r.newest = m.Layout
	}
	sameEpoch := m.SeenUnder != "" && m.SeenUnder == r.found.epoch.InForce()
	for _, s := range m.Seen {
		r.know(s, sameEpoch && s.Left != 0 && s.Left <= r.found.beat.Revision)
	}
}

// know notes a process that may have leased. The caller holds mu.
func (r *processes) know(s record.SeenInstance, left bool) {
	leftAt := s.Left
	s.Left = 0
	k, was := r.known[s.Incarnation]
	if !was {
		k = known{SeenInstance: s}
	}
	k.left, k.leftAt = k.left || left, max(k.leftAt, leftAt)
	if s.Address != "" && !slices.Contains(k.addresses, s.Address) {
		k.addresses = append(k.addresses, s.Address)
	}
	r.known[s.Incarnation] = k
}

// readRegistrations notes the processes that are registered. A registration that
// cannot be read is of a process that cannot be asked.
func (r *processes) readRegistrations(ctx context.Context) error {
	reply, err := r.gets(ctx, store.OpGetPrefix(r.keys.All(record.Registrations)))
	if err == nil {
		r.takeRegistrations(reply.Got[0])
	}
	return err
}

func (r *processes) takeRegistrations(found []store.KV) {
	for _, kv := range found {
		// Processes that were lost under an earlier epoch no longer matter.
		seen, err := r.keys.SeenIn(kv, r.found.epoch.InForce())
		if err != nil {
			r.unreadable(kv.Key, err)
			if key, keyErr := r.keys.Parse(kv.Key); keyErr == nil {
				seen = []record.SeenInstance{{Room: key.Room, Name: key.Instance, Incarnation: unreadableID(kv.Key)}}
			}
		}
		r.with(func() {
			for _, s := range seen {
				r.know(s, s.Left != 0) // the store itself has all its leases
			}
		})
	}
}

// unreadableID stands for the incarnation of a registration that cannot be read.
func unreadableID(key string) string { return "unreadable " + key }
