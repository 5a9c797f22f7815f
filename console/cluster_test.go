package console_test

import (
	"testing"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestCluster shows and changes the settings of the cluster, over each interface of a
// console. An instance that lacks a required journal is named, and then confirmed.
func TestCluster(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "order"})
		must(c.room("a", "a1").Next(bg, &marchv1.NextRequest{Tag: "order"}))(t)
		c.wants("GET /v1/cluster", 200, `"cluster":{"journal":"JOURNAL_MODE_OPTIONAL"},"uuid":"`)
		c.wants(`PATCH /v1/cluster {"journal":"perhaps"}`, 400, `enum field journal: \"perhaps\"`)
		c.wants(`PATCH /v1/cluster {"journal":7}`, 400,
			"journal: 7; allowed: JOURNAL_MODE_OPTIONAL, JOURNAL_MODE_REQUIRED")
		c.wants(`PATCH /v1/cluster {}`, 200, `"cluster":{"journal":"JOURNAL_MODE_OPTIONAL"}`)
		c.wants(`PATCH /v1/cluster {"journal":"JOURNAL_MODE_REQUIRED"}`, 200,
			`"cluster":{"journal":"JOURNAL_MODE_REQUIRED"}`)
		c.wants("GET /v1/cluster", 200, `"cluster":{"journal":"JOURNAL_MODE_REQUIRED"}`)
		o, err := c.GetOverview(bg, &marchv1.GetOverviewRequest{})
		if err != nil || o.GetSettings().GetJournal() != marchv1.JournalMode_JOURNAL_MODE_REQUIRED {
			t.Errorf("overview: %+v, %v", o.GetSettings(), err)
		}

		unconfirmed := func() (names []string) {
			r := must(c.ListInstances(bg, &marchv1.ListInstancesRequest{}))(t)
			for _, i := range r.GetInstances() {
				if i.GetUnconfirmed() {
					names = append(names, i.GetRoom()+"/"+i.GetName())
				}
			}
			return names
		}
		l := c.Ledger()
		// the address is never called
		i := must(l.Join(bg, ledger.Registration{Room: "b", Name: "b1", Address: "127.0.0.1:1"}))(t)
		testcluster.Run(c, i.Run)
		if names := unconfirmed(); len(names) != 1 || names[0] != "b/b1" {
			t.Errorf("unconfirmed: %v", names)
		}
		if l.Leasable() == nil {
			t.Error("an unconfirmed instance may lease")
		}
		c.wants("POST /v1/rooms/b/instances/b2:confirm", 404, "march instance list")
		c.wants("POST /v1/rooms/B/instances/b1:confirm", 400, "room")
		c.wants("POST /v1/rooms/b/instances/b1:confirm", 200, "{}")
		put := func(value string) { c.Corrupt(store.OpPut("/march/default/settings", []byte(value))) }
		put("{}")
		c.wants("GET /v1/overview", 200, "settings in etcd cannot be used")
		put(`{"format":2,"journal":"required","nonce":"n"}`)
		if names := unconfirmed(); len(names) != 0 {
			t.Errorf("unconfirmed: %v", names)
		}
		testcluster.Await(t, "it may lease", func() bool { return l.Leasable() == nil })
	})
}
