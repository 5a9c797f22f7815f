package ledgertest

// firstIndex is the raft index of a store that was made or restored just now.
const firstIndex = 3

// Restore takes the store back to what it was at a revision, as a restored etcd
// is: its raft log begins anew, and watches break. bump is how far its revision
// is raised on the way (--bump-revision). id is its cluster's ID from then on: a
// restore keeps it where members and token are the same.
func (m *Memory) Restore(revision int64, bump int64, id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.mu.data
	m.mu.data = newMVCC()
	for _, key := range was.keys {
		for _, v := range was.versions[key] {
			if v.rev <= revision {
				m.mu.data.set(key, v)
			}
		}
	}
	m.mu.data.rev, m.mu.data.compacted = revision+bump, was.compacted
	if bump > 0 {
		m.mu.data.compacted = m.mu.data.rev // --mark-compacted, which belongs to it
	}
	m.mu.index, m.mu.id, m.mu.late = firstIndex, id, nil
	m.mu.breaks++
	m.wake()
}
