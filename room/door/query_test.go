package door_test

import (
	"net/url"
	"testing"

	"github.com/march-id/march/room/door"
)

// FuzzQuery compares Query with url.ParseQuery.
func FuzzQuery(f *testing.F) {
	for _, query := range []string{"", "a=1", "a=1&b=2&a=3", "b&a", "a=%31", "%61=1", "a=%zz&a=2", "a;b=1&a=2", "a=1+2",
		"&&=&a==", "x=%", "aa=1&a=2", "a%=1", "&"} {
		f.Add(query, "a")
		f.Add(query, "") // a parameter without a name is one, an empty pair is none
	}
	f.Fuzz(func(t *testing.T, query, name string) {
		all, failed := url.ParseQuery(query)
		value, ok := door.Query(query).Get(name)
		if ok != all.Has(name) || value != all.Get(name) {
			t.Errorf("%q of %q: %q, %t; want %q, %t", name, query, value, ok, all.Get(name), all.Has(name))
		}
		if err := door.Query(query).Check(); (err == nil) != (failed == nil) {
			t.Errorf("check %q: %v; want %v", query, err, failed)
		}
	})
}

func TestQueryAllocatesNothing(t *testing.T) {
	q := door.Query("token=bench&bizType=order&batchSize=1")
	if n := testing.AllocsPerRun(100, func() {
		if value, ok := q.Get("bizType"); !ok || value != "order" || q.Check() != nil {
			t.Fatalf("%q, %t", value, ok)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
