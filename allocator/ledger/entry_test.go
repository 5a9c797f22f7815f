package ledger_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
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

// The log says what became of each segment before any caller has the segment.
func TestSegmentsAreTold(t *testing.T) {
	m := ledgertest.NewFake(t)
	var log bytes.Buffer
	cfg := ledger.DefaultConfig()
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Debug, JSONFormat: true})
	conn := m.Open()
	l, err := ledger.New(conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manage(l).Init(bg, allocator.Layout{Boundary: 10,
		Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 5}}}, "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := manage(l).CreateTag(bg, "t", record.DefaultTag(), "test"); err != nil {
		t.Fatal(err)
	}
	i, err := l.Join(bg, ledger.Registration{Room: "a", Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	source, _, err := i.Source(bg, "t")
	if err != nil {
		t.Fatal(err)
	}
	told := func(want ...string) {
		t.Helper()
		text := log.String()
		log.Reset()
		for _, w := range append(want, `"room":"a"`, `"instance":"one"`, `"tag":"t"`, `"boundary":10`, `"lower":0`,
			`"upper":5`, `"version":1`) {
			if !strings.Contains(text, w) {
				t.Errorf("the log does not say %s:\n%s", w, text)
			}
		}
	}
	if _, err := source.Lease(bg, 7); err != nil {
		t.Fatal(err)
	}
	told(`"@message":"segment leased"`, `"first":1`, `"count":7`, `"revision":`)
	conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if ledgertest.Writes(txn) {
			return ledgertest.Fate{Name: ledgertest.DoneAnswerLost}
		}
		return ledgertest.Fate{}
	})
	if _, err := source.Lease(bg, 3); err == nil {
		t.Fatal("leased without an answer")
	}
	told(`"@message":"segment lost"`, `"first":13`, `"count":3`, `"error":"memory: request timed out"`)
	once := true
	conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if ledgertest.Writes(txn) && once {
			once = false
			return ledgertest.Fate{Name: ledgertest.Twice}
		}
		return ledgertest.Fate{}
	})
	if _, err := source.Lease(bg, 3); err != nil {
		t.Fatal(err)
	}
	told(`"@message":"lease refused"`, `"@message":"segment leased"`)
}
