package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// wayBack is a way in which etcd goes back in time: it saves a state, and brings it back.
type wayBack struct {
	name string
	// keep saves etcd's present state, and bring brings it back some time later. All members
	// are down when bring is called, and run when it returns.
	keep  func(ctx context.Context, d *driver, dir string) error
	bring func(ctx context.Context, d *driver, dir string) error
	// moved: etcd then has another cluster ID, and is refused because of that.
	moved bool
	// unseen: a process without a memory cannot see it: a residual risk.
	unseen bool
	// loses: some writes are lost by it.
	loses bool
}

// bump is how far a restore raises the revision, as etcd's manual recommends.
const bump = 1_000_000_000

func waysBack() []wayBack {
	snapshotted := func(bump uint64) func(context.Context, *driver, string) error {
		return func(ctx context.Context, d *driver, dir string) error { return d.restore(ctx, dir, bump) }
	}
	return []wayBack{
		{name: "plain", keep: saveSnapshot, bring: snapshotted(0), loses: true},
		{name: "bumped", keep: saveSnapshot, bring: snapshotted(bump), loses: true},
		{name: "new token", keep: saveSnapshot, bring: func(ctx context.Context, d *driver, dir string) error {
			d.token = fmt.Sprintf("%s-%d", cluster.Token, time.Now().UnixNano())
			return d.restore(ctx, dir, 0)
		}, moved: true, loses: true},
		{name: runlog.OneCopiedBack, keep: copyMembers(1), bring: bringOne},
		{name: runlog.TwoCopiedBack, keep: copyMembers(2), bring: bringTwo, unseen: true, loses: true},
		{name: runlog.ForceNewCluster, keep: holdBack, bring: forceNew, unseen: true, loses: true},
	}
}

// saveSnapshot saves a backup as `etcdctl snapshot save` does.
func saveSnapshot(ctx context.Context, d *driver, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, err := snapshot.NewV3(zap.NewNop()).Save(ctx, clientv3.Config{Endpoints: []string{d.Members[0].Client},
		Username: cluster.Root, Password: cluster.Password, Logger: zap.NewNop()}, filepath.Join(dir, "snapshot"))
	return err
}

// restore restores it as `etcdutl snapshot restore` does, for each member.
func (d *driver) restore(ctx context.Context, dir string, bump uint64) error {
	for _, m := range d.Members {
		if err := m.Wipe(); err != nil {
			return err
		}
		err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: filepath.Join(dir, "snapshot"), Name: m.Name, OutputDataDir: m.Dir,
			PeerURLs:       []string{m.PeerURL()},
			InitialCluster: initial(d.Members), InitialClusterToken: d.token,
			RevisionBump: bump, MarkCompacted: bump > 0,
		})
		if err != nil {
			return fmt.Errorf("restore %s: %w", m.Name, err)
		}
		m.Begin(initial(d.Members), "new", d.token)
	}
	return d.up(ctx, d.Members...)
}

// up starts members and waits for them.
func (d *driver) up(ctx context.Context, members ...*cluster.Member) error {
	for _, m := range members {
		m.Keep(true)
	}
	for _, m := range members {
		if err := m.Await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// down kills members and keeps them away.
func down(members ...*cluster.Member) error {
	for _, m := range members {
		if err := m.Down(); err != nil {
			return err
		}
	}
	return nil
}

// initial is the list of members for a member's command line.
func initial(members []*cluster.Member) string {
	var list []string
	for _, m := range members {
		list = append(list, m.Name+"="+m.PeerURL())
	}
	return strings.Join(list, ",")
}

// copyMembers stops the first n members and copies their data.
func copyMembers(n int) func(context.Context, *driver, string) error {
	return func(ctx context.Context, d *driver, dir string) error {
		of := d.Members[:n]
		if err := down(of...); err != nil {
			return err
		}
		for _, m := range of {
			if err := os.CopyFS(filepath.Join(dir, m.Name), os.DirFS(m.Dir)); err != nil {
				return err
			}
		}
		return d.up(ctx, of...)
	}
}

// putBack replaces a member's data by its copy.
func putBack(m *cluster.Member, dir string) error {
	if err := m.Wipe(); err != nil {
		return err
	}
	return os.CopyFS(m.Dir, os.DirFS(filepath.Join(dir, m.Name)))
}

// bringOne makes one of three members forget: nothing is lost by it.
func bringOne(ctx context.Context, d *driver, dir string) error {
	if err := putBack(d.Members[0], dir); err != nil {
		return err
	}
	// The members that remember start first: the one that does not may have confirmed writes
	// that only one of them has.
	for _, m := range d.Members[1:] {
		m.Keep(true)
	}
	if err := d.up(ctx, d.Members[1:]...); err != nil {
		return err
	}
	return d.up(ctx, d.Members[0])
}

// bringTwo makes two of three members forget. They are the majority, and the third is made
// anew, as it does not fit any longer.
func bringTwo(ctx context.Context, d *driver, dir string) error {
	two, third := d.Members[:2], d.Members[2]
	for _, m := range two {
		if err := putBack(m, dir); err != nil {
			return err
		}
	}
	if err := d.up(ctx, two...); err != nil {
		return err
	}
	return d.anew(ctx, two, third)
}

// anew removes a member that is down and adds it again without its data; others are the members
// besides it.
func (d *driver) anew(ctx context.Context, others []*cluster.Member, m *cluster.Member) error {
	client, err := others[0].Etcd()
	if err != nil {
		return err
	}
	if err := m.Wipe(); err != nil {
		return err
	}
	var last error
	err = cluster.Poll(ctx, m.Name+" to be removed and added", func() bool {
		changing, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		last = replace(changing, client, m)
		return last == nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	m.Begin(initial(append(slices.Clone(others), m)), "existing", d.token)
	return d.up(ctx, m)
}

// replace removes the member, if it is one, and adds it.
func replace(ctx context.Context, client *clientv3.Client, m *cluster.Member) error {
	list, err := client.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, member := range list.Members {
		for _, url := range member.PeerURLs {
			if url != m.PeerURL() {
				continue
			}
			if member.Name == "" { // added by a try that seemed to fail, never started
				return nil
			}
			if _, err := client.MemberRemove(ctx, member.ID); err != nil {
				return err
			}
		}
	}
	_, err = client.MemberAdd(ctx, []string{m.PeerURL()})
	return err
}

// holdBack stops a member, so that it lags behind.
func holdBack(_ context.Context, d *driver, _ string) error { return down(d.Members[0]) }

// forceNew makes a cluster of the lagging member alone, and adds the others to it without their
// data.
func forceNew(ctx context.Context, d *driver, _ string) error {
	first := d.Members[0]
	first.Begin(initial(d.Members), "existing", d.token, "--force-new-cluster")
	if err := d.up(ctx, first); err != nil {
		return err
	}
	first.Begin(initial(d.Members), "existing", d.token)
	if err := down(first); err != nil {
		return err
	}
	if err := d.up(ctx, first); err != nil {
		return err
	}
	for i, m := range d.Members[1:] {
		if err := d.anew(ctx, d.Members[:i+1], m); err != nil {
			return err
		}
	}
	return nil
}
