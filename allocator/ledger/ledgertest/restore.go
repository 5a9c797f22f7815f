package ledgertest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// firstIndex is the raft index of a store that was made or restored just now.
const firstIndex = 3

// Restore takes the store back to what it was at a revision, as a restored etcd
// is: its raft log begins anew, and watches break. bump is how far its revision
// is raised on the way (--bump-revision). id is its cluster's ID from then on: a
// restore keeps it where members and token are the same.
func (m *Fake) Restore(revision int64, bump int64, id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.goBack(revision)
	if bump > 0 {
		m.mu.data.rev += bump
		m.mu.data.compacted = m.mu.data.rev // --mark-compacted, which belongs to it
	}
	m.mu.index, m.mu.id = firstIndex, id
}

// RollBack takes the store back to what it was at a revision, as the data
// directories of most members do that are copied back: its ID and its raft log are
// what they were, and say nothing of it. more is how many revisions were written
// since, to keys of others.
func (m *Fake) RollBack(revision, more int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.goBack(revision)
	m.mu.data.rev += more
}

// Empty takes all data away, as a data volume that is not mounted does: from now on a
// cluster with the given ID answers, in which nothing was ever written. It returns a
// function that puts all data back.
func (m *Fake) Empty(id uint64) (putBack func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, index, was := m.mu.data, m.mu.index, m.mu.id
	m.exchange(newMVCC(), firstIndex, id)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.exchange(data, index, was)
	}
}

// exchange puts other data in the place of the store's. The caller holds mu.
func (m *Fake) exchange(data mvcc, index, id uint64) {
	m.mu.data, m.mu.index, m.mu.id, m.mu.late = data, index, id, nil
	m.mu.over.end()
	m.mu.breaks++
	m.wake()
}

// goBack is what Restore and RollBack share. The caller holds mu.
func (m *Fake) goBack(revision int64) {
	was := m.mu.data
	m.mu.data = was.until(revision)
	// what was compacted later is there again
	m.mu.data.rev, m.mu.data.compacted = revision, min(was.compacted, revision)
	m.mu.late = nil
	m.mu.over.end()
	m.mu.breaks++
	m.wake()
}

// Copy returns another etcd cluster with what the store holds now: a backup that
// was restored elsewhere, for a rehearsal say. id is that cluster's, and index
// how far its raft log has grown.
func (m *Fake) Copy(id, index uint64) *Fake {
	m.mu.Lock()
	defer m.mu.Unlock()
	other := NewFake(m.tb)
	other.mu.data = m.mu.data.until(m.mu.data.rev)
	other.mu.data.rev, other.mu.data.compacted = m.mu.data.rev, m.mu.data.compacted
	other.mu.id, other.mu.index = id, max(index, firstIndex)
	return other
}

// Backup saves a snapshot of the member, as `etcdctl snapshot save` does, and
// returns its path.
func (e *Etcd) Backup(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(e.dir, "backup")
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := snapshot.NewV3(zap.NewNop()).Save(ctx, clientv3.Config{Endpoints: []string{e.Endpoint},
		Username: e.root, Password: e.root}, path); err != nil {
		tb.Fatal(err)
	}
	return path
}

// Restore stops the member, restores a backup, as `etcdutl snapshot restore`
// does, and starts it. bump is --bump-revision, which --mark-compacted goes with;
// a token other than "" makes an etcd cluster with another ID.
func (e *Etcd) Restore(tb testing.TB, backup string, bump uint64, token string) {
	tb.Helper()
	e.Stop()
	if err := os.RemoveAll(e.config.Dir); err != nil {
		tb.Fatal(err)
	}
	if token == "" {
		token = "etcd-cluster" // etcd's default, which the member was made with
	}
	if err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: backup, Name: "dev", OutputDataDir: e.config.Dir, PeerURLs: []string{e.config.Peer},
		InitialCluster: "dev=" + e.config.Peer, InitialClusterToken: token, RevisionBump: bump, MarkCompacted: bump > 0,
	}); err != nil {
		tb.Fatal(err)
	}
	e.Start(tb)
}

// CopyData copies the member's data directory and returns the copy's path. The
// member is stopped meanwhile.
func (e *Etcd) CopyData(tb testing.TB) string {
	tb.Helper()
	e.Stop()
	path := filepath.Join(e.dir, "copy")
	if err := os.CopyFS(path, os.DirFS(e.config.Dir)); err != nil {
		tb.Fatal(err)
	}
	e.Start(tb)
	return path
}

// PutBack stops the member, puts a copied data directory in the place of its
// own, and starts it: with force, by --force-new-cluster. Cluster ID and raft
// log are what they were.
func (e *Etcd) PutBack(tb testing.TB, data string, force bool) {
	tb.Helper()
	e.Stop()
	if err := os.RemoveAll(e.config.Dir); err != nil {
		tb.Fatal(err)
	}
	if err := os.CopyFS(e.config.Dir, os.DirFS(data)); err != nil {
		tb.Fatal(err)
	}
	e.config.ForceNewCluster = force
	e.Start(tb)
	e.config.ForceNewCluster = false
}
