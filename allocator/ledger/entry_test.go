package ledger_test

import (
	"slices"
	"testing"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Every key that a cluster writes is read, and it is known which of them are kept and which pass.
func TestEntries(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a := c.start("a")
	a.Lease(10)
	c.Move("100 a=50-100 b=0-50")
	a.Lease(10)
	r, err := record.NewKeys("default")
	if err != nil {
		t.Fatal(err)
	}
	all := store.Op{Get: &store.Get{Interval: store.Prefix(string(r))}}
	answer, err := c.Mem.Open().Txn(bg, store.Txn{Then: []store.Op{all}})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []record.Kind
	for _, kv := range answer.Got[0] {
		e, err := r.Entry(kv)
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, e.Kind)
		set := map[record.Kind]bool{
			"epoch": e.Epoch != nil, "layout": e.Layout != nil, "layouts": e.Layout != nil,
			"tags": e.Stored != nil, "marks": e.Mark != nil,
			"rooms": e.Registration != nil, "migrations": e.Migration != nil,
		}
		if has, known := set[e.Kind]; known && !has {
			t.Errorf("%s: nothing was read: %+v", kv.Key, e)
		}
		kept := slices.Contains([]record.Kind{"epoch", "identity", "layout", "marks"}, e.Kind)
		passing := slices.Contains([]record.Kind{"alive", "beat", "migration"}, e.Kind)
		if r.Kept(kv.Key) != kept || r.Lasting(kv.Key) == passing {
			t.Errorf("%s: kept %v, lasting %v", kv.Key, r.Kept(kv.Key), r.Lasting(kv.Key))
		}
		gone, err := r.Entry(store.KV{Key: kv.Key})
		if err != nil || gone.Kind != e.Kind || gone.Room != e.Room || gone.Tag != e.Tag ||
			gone.Mark != nil || gone.Layout != nil {
			t.Errorf("%s deleted: %+v, %v", kv.Key, gone, err)
		}
		kv.Value = append(kv.Value, '}')
		if _, err := r.Entry(kv); err == nil && set[e.Kind] {
			t.Errorf("%s: %s was read", kv.Key, kv.Value)
		}
	}
	for _, kind := range []record.Kind{"epoch", "identity", "layout", "layouts", "marks", "audit", "tags", "rooms"} {
		if !slices.Contains(kinds, kind) {
			t.Errorf("there is no key of kind %s among %v", kind, kinds)
		}
	}
	if _, err := r.Entry(store.KV{Key: "/march/default/surprise", ModRevision: 1}); err == nil {
		t.Error("a key of no kind was read")
	}
}
