package ledger_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
)

// BenchmarkVerify verifies 100,000 tags with marks in three rooms, on a real
// etcd.
func BenchmarkVerify(b *testing.B) {
	const tags = 100_000
	rooms := []allocator.Room{"a", "b", "c"}
	etcd := ledgertest.StartEtcd(b).Store(b)
	l, err := ledger.New(etcd, ledger.DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	layout, err := allocator.EqualLayout(300, rooms)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := manage(l).Init(b.Context(), layout, "test"); err != nil {
		b.Fatal(err)
	}
	for i := 0; i < tags; {
		var txn store.Txn
		put := func(key, value string) {
			txn.Then = append(txn.Then, store.Op{Put: &store.Put{Key: verifyPrefix + key, Value: []byte(value)}})
		}
		for range 32 {
			put(fmt.Sprintf("tags/tag-%07d", i), fmt.Sprintf(tagSettings, int64(allocator.MaxID)))
			for j, room := range rooms {
				first := int64(100 * j)
				put(fmt.Sprintf("marks/%s/tag-%07d", room, i), mark(first+30_100, 2, era(1, first, first+30_100)))
			}
			i++
		}
		if _, err := etcd.Txn(b.Context(), txn); err != nil {
			b.Fatal(err)
		}
	}
	var most uint64
	for b.Loop() {
		report, err := verify.Run(b.Context(), l.Cluster(), verify.Options{Progress: func(verify.Progress) {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapInuse)
		}})
		if err != nil || len(report.Problems) > 0 || report.Marks != 3*tags {
			b.Fatalf("%v %+v", err, report)
		}
	}
	b.ReportMetric(float64(most>>20), "heap-MB(etcd's-too)")
}
