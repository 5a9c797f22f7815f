package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/history"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// clusterName is March's name in etcd.
const clusterName = "default"

// silence is how long a watch may receive nothing before it counts as broken.
const silence = 3 * time.Second

// follow begins to record etcd's history.
func (d *driver) follow() {
	d.watching.Go(func() {
		etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: d.Endpoints(), Silence: silence,
			Username: cluster.Root, Password: cluster.Password})
		if err == nil {
			err = history.Follow(d.background, history.Config{Store: etcd, Cluster: clusterName,
				Dir: filepath.Join(d.Dir, runlog.Dir), Logger: d.log.Named("history")})
			err = errors.Join(err, etcd.Close())
		}
		if err != nil {
			d.note(runlog.Event{What: runlog.Process, Target: "history",
				Violation: "etcd's history could not be kept: " + err.Error()})
		}
	})
}

// lookOnce is longer than the pause between two checks of the recorder.
const lookOnce = 3 * time.Second

// ended records the end of etcd's history, when no process writes any longer, and waits until
// the recorder has come up to it.
func (d *driver) ended(ctx context.Context) error {
	for _, m := range d.Members {
		s, err := m.Status(ctx)
		if err != nil {
			continue
		}
		if !store.Sleep(ctx, lookOnce) {
			return ctx.Err()
		}
		d.note(runlog.Event{What: runlog.Ended, Revision: s.Header.GetRevision(),
			ClusterID: fmt.Sprintf("%x", s.Header.GetClusterId())})
		return nil
	}
	return errors.New("no member of etcd answers")
}
