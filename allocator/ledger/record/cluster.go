package record

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Cluster reads the keys of a cluster and takes no part in it: it leases nothing, halts
// nothing, and draws no conclusion from what etcd has forgotten. Its methods are for one
// goroutine at a time.
type Cluster struct {
	Store      store.Store
	Keys       Keys
	UUID       string        // the uuid that the cluster must have; empty accepts any
	TryTimeout time.Duration // bounds one try of a read

	Now func() time.Time // the clock for the times in records
	Log hclog.Logger

	identity Identity // zero until it is read
}

// Attach reads the cluster's identity. From then on each answer must come from the etcd
// cluster that the identity names. Its errors are Refused (there is no such cluster), a
// KeyError where the identity cannot be read, and Read's.
func (c *Cluster) Attach(ctx context.Context) error {
	answer, err := c.Gets(ctx, store.OpGet(c.Keys.Identity()), store.OpGet(c.Keys.Epoch()),
		store.OpGet(c.Keys.Layout()))
	if err != nil {
		return err
	}
	kv, ok := answer.One(0)
	if !ok {
		if other := LostIdentity(answer.Got); other != "" {
			return c.Keys.IdentityLost(other)
		}
		return allocator.Errorf(allocator.Refused, NoCluster, c.Keys)
	}
	var id Identity
	if err := Decode(kv, &id); err != nil {
		return err
	}
	if err := id.Check(c.Keys, c.UUID, answer.ClusterID); err != nil {
		return err
	}
	c.identity = id
	return nil
}

// Gets reads keys in one transaction, as Read does.
func (c *Cluster) Gets(ctx context.Context, ops ...store.Op) (store.Answer, error) {
	return c.Read(ctx, store.Txn{Then: ops})
}

// Read sends a transaction that changes nothing until it is answered or ctx ends, for at
// most two tries' time. Its errors are the store's, and WentBack where another etcd
// cluster answers.
func (c *Cluster) Read(ctx context.Context, txn store.Txn) (store.Answer, error) {
	return store.Retry(ctx, c.TryTimeout, func(ctx context.Context) (store.Answer, error) { return c.try(ctx, txn) })
}

func (c *Cluster) try(ctx context.Context, txn store.Txn) (store.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.TryTimeout)
	defer cancel()
	answer, err := c.Store.Txn(ctx, txn)
	if id := c.identity; err == nil && id.ClusterID != 0 && id.ClusterID != answer.ClusterID {
		err = allocator.Errorf(allocator.WentBack, "%w", &OtherClusterError{id.UUID, id.ClusterID, answer.ClusterID})
	}
	return answer, err
}

// Status asks the etcd server that answers about itself, for TryTimeout at most.
func (c *Cluster) Status(ctx context.Context) (store.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, c.TryTimeout)
	defer cancel()
	return c.Store.Status(ctx)
}

// Check returns why a process may not work with the cluster of this identity, or nil. uuid is
// the one that the process is configured for, empty for any, and clusterID is the ID of the
// etcd cluster that answered. The error is Refused.
func (v Identity) Check(k Keys, uuid string, clusterID uint64) error {
	switch {
	case uuid != "" && !strings.EqualFold(uuid, v.UUID):
		return allocator.Errorf(allocator.Refused,
			"%s belongs to cluster %s, but this program is configured for cluster %s: check --cluster, "+
				"--cluster-uuid and the etcd endpoints",
			k, v.UUID, uuid)
	case v.ClusterID != clusterID:
		return allocator.Errorf(allocator.Refused,
			"%s belongs to a cluster in etcd cluster %x, but etcd cluster %x answered: a wrong endpoint, "+
				"or a copy of the data; `march recover` takes over an etcd that was restored into a new cluster",
			k, v.ClusterID, clusterID)
	}
	return nil
}

// NoCluster says that no cluster was made yet. It is a format string for the prefix.
const NoCluster = "there is no cluster under %s yet: make one with `march layout init FILE`"

// LostIdentity returns a key of a cluster that has lost its identity, or an empty text if it
// has not. found are identity, epoch and layout.
func LostIdentity(found [][]store.KV) string {
	if len(found[0]) > 0 {
		return ""
	}
	for _, kvs := range found[1:] {
		if len(kvs) > 0 {
			return kvs[0].Key
		}
	}
	return ""
}

// IdentityLost says that the identity is missing while another key of the cluster exists. No
// command can make it again: only a backup has the uuid and the ID of the etcd cluster.
func (k Keys) IdentityLost(other string) error {
	return allocator.Errorf(allocator.Refused,
		"the key %s is missing, though %s is there: restore etcd from a backup, then run `march recover`; "+
			"if nothing else was deleted, put the key back with etcdctl as a backup has it",
		k.Identity(), other)
}

// OtherClusterError says that the answer came from another etcd cluster than the one in the
// cluster's identity.
type OtherClusterError struct {
	UUID         string
	Pinned, Told uint64 // IDs of etcd clusters: the one in the identity, and the one that answered
}

func (e *OtherClusterError) Error() string {
	return e.Answered() + ": wrong endpoint, or etcd was restored; see `march recover`"
}

// Answered names the etcd cluster that answered, and the one that should have.
func (e *OtherClusterError) Answered() string {
	return fmt.Sprintf("etcd cluster %x answered, but cluster %s lives in etcd cluster %x", e.Told, e.UUID, e.Pinned)
}
