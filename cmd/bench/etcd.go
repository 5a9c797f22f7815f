package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator/ledger/embedded"
)

// etcdReady is how long etcd may take to start: it reads all keys.
const etcdReady = 5 * time.Minute

// startEtcd starts etcd in a process of its own. Its data is in dir, from before or from a
// backup. With sync it syncs its log, as in production; a measurement that only fills etcd does
// not need that. env is added to this program's environment.
func (p *part) startEtcd(dir, backup string, sync bool, env ...string) *process {
	return p.start(env, "child-etcd", dir, backup, fmt.Sprint(sync))
}

// childEtcd serves etcd.
func childEtcd(args []string) (address string, answer func(string) reply, end func() error, err error) {
	dir, backup := args[0], args[1]
	cfg := embedded.Config{
		Dir:    filepath.Join(dir, "data"),
		Client: "unix://" + filepath.Join(dir, "c"), Peer: "unix://" + filepath.Join(dir, "p"),
		NoSync: args[2] != "true", Quota: 8 << 30,
	}
	if backup != "" {
		if err := restoreBackup(backup, cfg); err != nil {
			return "", nil, nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), etcdReady)
	defer cancel()
	server, err := embedded.Start(ctx, cfg)
	if err != nil {
		return "", nil, nil, err
	}
	return cfg.Client, func(string) reply { return reply{Error: "no commands"} }, func() error {
		server.Close()
		return nil
	}, nil
}

// addKeys writes keys into the database of an etcd that does not run, each with a revision of its own after the last
// one. Four million of them would take minutes through etcd.
func addKeys(dir string, last int64, n int, at func(int) (key string, value []byte)) error {
	const atOnce = 100_000
	db, err := bbolt.Open(filepath.Join(dir, "data", "member", "snap", "db"), 0o600,
		&bbolt.Options{NoSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for from := 0; from < n; from += atOnce {
		if err := db.Update(func(tx *bbolt.Tx) error {
			keys := tx.Bucket([]byte("key"))
			keys.FillPercent = 1 // revisions only grow
			for i := from; i < min(from+atOnce, n); i++ {
				key, value := at(i)
				rev := last + 1 + int64(i)
				kv, err := proto.Marshal(&mvccpb.KeyValue{Key: []byte(key), Value: value, CreateRevision: rev,
					ModRevision: rev, Version: 1})
				if err != nil {
					return err
				}
				if err := keys.Put(mvcc.RevToBytes(mvcc.Revision{Main: rev}, mvcc.NewRevBytes()), kv); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// saveBackup saves a backup as `etcdctl snapshot save` does.
func saveBackup(ctx context.Context, endpoint, path string) error {
	cfg := clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()}
	_, err := snapshot.NewV3(zap.NewNop()).Save(ctx, cfg, path)
	return err
}

// restoreBackup restores a backup as `etcdutl snapshot restore` does.
func restoreBackup(path string, cfg embedded.Config) error {
	if err := os.RemoveAll(cfg.Dir); err != nil {
		return err
	}
	return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: path, Name: "dev", OutputDataDir: cfg.Dir, PeerURLs: []string{cfg.Peer},
		InitialCluster: "dev=" + cfg.Peer, InitialClusterToken: "etcd-cluster",
	})
}
